"""The layout of a cache's rows: a tree of fields.

The decoders and the element specs of datasets are based on a `RowLayout`. `layout_finder` finds it once; later rows
that do not fit it raise an error that names the field.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from ignite_tf_magic.protocol.lazy_numpy import np
from ignite_tf_magic.protocol.objects import ARRAYS, SCALARS, BinaryType, dtype_of
from ignite_tf_magic.protocol.ops import TypeCode

VARIABLE = -1

_INT64_CODES = frozenset({TypeCode.DATE, TypeCode.TIMESTAMP, TypeCode.TIME, TypeCode.OPTIMIZED})
_TEXT_CODES = frozenset({TypeCode.STRING, TypeCode.UUID})
_ENUM_CODES = frozenset({TypeCode.ENUM, TypeCode.BINARY_ENUM})


class LeafRole(IntEnum):
    """What a column holds of its field: the value, a part of it, or where it is null."""

    VALUE = 0
    IS_NULL = 1
    MAP_KEYS = 2
    MAP_VALUES = 3
    NULL_ITEMS = 4
    NULL_KEYS = 5
    NULL_VALUES = 6

    @property
    def suffix(self) -> str:
        """The suffix that the column's name adds to the name of the field."""
        return ("", "_is_null", "_keys", "_values", "_null_items", "_null_keys", "_null_values")[self]

    @property
    def of_nulls(self) -> LeafRole:
        """The role of the column that marks which items of this one are null."""
        return {
            LeafRole.VALUE: LeafRole.NULL_ITEMS,
            LeafRole.MAP_KEYS: LeafRole.NULL_KEYS,
            LeafRole.MAP_VALUES: LeafRole.NULL_VALUES,
        }[self]


@dataclass(frozen=True, slots=True)
class Leaf:
    """A primitive field or a list, which becomes one column.

    Attributes:
        path: ("key",), ("val", "pixels"), ("val", "owner", "name"), ...
        code: Type code on the wire.
        length: Number of items of an array: the same for all rows, or VARIABLE; 1 for scalars. A list with a fixed
            length is an array of arrays of fixed length.
        fill: Replacement for a null, as the bytes of the column's items; None makes a null an error.
        role: What the column holds of its field. IS_NULL marks where the field of the column before it is null. The
            NULL_ roles mark which items of that field are null.
        item: Layout of a list's items; None if the field is not a list.
        may_hold_null: Whether a null item becomes 0 if its type has no null, because another column marks it.
        member: For a list of objects, the names that lead to the field of the objects that the column holds.
        types: For a list of objects, the types of the objects; for an enum as text, the types of the enum.
        as_text: Whether the column holds values as text, as `value_texts.text_of` returns them.
    """

    path: tuple[str, ...]
    code: int
    length: int = 1
    fill: bytes | None = None
    role: LeafRole = LeafRole.VALUE
    item: Leaf | None = None
    may_hold_null: bool = False
    member: tuple[str, ...] = ()
    types: tuple[BinaryType, ...] = ()
    as_text: bool = False

    @property
    def name(self) -> str:
        """Dotted path, for messages and options."""
        return ".".join(self.path)

    @property
    def is_array(self) -> bool:
        """Whether the field is an array of primitives."""
        return self.code in ARRAYS

    @property
    def is_nullness(self) -> bool:
        """Whether the column marks where the field of the column before it is null."""
        return self.role is LeafRole.IS_NULL

    @property
    def is_list(self) -> bool:
        """Whether the field is a list in which each value has its own type code."""
        return self.item is not None

    @property
    def innermost(self) -> Leaf:
        """The layout of the innermost items of nested lists; the leaf itself if it is not a list."""
        return self.item.innermost if self.item else self

    @property
    def is_text(self) -> bool:
        """Whether the column holds byte strings: text, UUIDs, byte[] of varying length, values with `as_text`."""
        is_bytes = self.code == TypeCode.BYTE_ARRAY and self.length == VARIABLE
        return self.as_text or self.code in _TEXT_CODES or is_bytes

    @property
    def ragged_levels(self) -> int:
        """The number of leading dimensions of a row whose length varies, for number arrays and lists."""
        if self.item:
            return 1 + self.item.ragged_levels if self.length == VARIABLE else 0
        return int(self.is_array and self.length == VARIABLE and self.code != TypeCode.BYTE_ARRAY)

    @property
    def is_ragged(self) -> bool:
        """Whether the number of items per row varies."""
        return self.ragged_levels > 0

    @property
    def is_fixed(self) -> bool:
        """Whether each row has the same number of bytes in the column."""
        return not (self.is_text or self.is_ragged or self.is_list or self.is_decimal)

    @property
    def is_decimal(self) -> bool:
        """Whether the column holds decimals as float64."""
        return self.code == TypeCode.DECIMAL and not self.as_text

    @property
    def dtype(self) -> np.dtype[Any]:
        """Item type of the column; object for byte strings."""
        if self.item:
            return self.item.dtype
        if self.is_text:
            return np.dtype(object)
        if self.code in SCALARS or self.code in ARRAYS:
            return dtype_of(self.code)
        if self.code in _INT64_CODES:
            return np.dtype("<i8")
        if self.code in _ENUM_CODES:
            return np.dtype("<i4")
        return np.dtype("<f8")

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one row of the column, without the leading dimensions of varying length."""
        own = (self.length,) if (self.is_array or self.item) and self.length != VARIABLE else ()
        return own + self.item.row_shape if self.item else own


@dataclass(frozen=True, slots=True)
class ObjectNode:
    """A binary object of one or several types. A field that an object's own type lacks is null.

    A node without types is not an object but a sequence of values, such as the cells of a row in a SQL answer. Its
    fields are not objects. Consecutive fields with the same id are columns of one value.

    Attributes:
        types: The possible types, ordered by name.
        fields: (field id, layout) of the fields of all types, in the order of the types.
    """

    path: tuple[str, ...]
    types: tuple[BinaryType, ...]
    fields: tuple[tuple[int, Leaf | ObjectNode], ...]

    def type_of(self, type_id: int) -> BinaryType | None:
        """Return the type with this id, or None."""
        return next((each for each in self.types if each.type_id == type_id), None)


Node = Leaf | ObjectNode


@dataclass(frozen=True, slots=True)
class RowLayout:
    """The layout of the key and the value of a cache's rows."""

    key: Node
    value: Node

    def leaves(self) -> tuple[Leaf, ...]:
        """Return all columns, keys first, in the order that decoders use."""
        return (*leaves_of(self.key), *leaves_of(self.value))

    @property
    def num_values(self) -> int:
        """The number of values after each key."""
        if isinstance(self.value, Leaf) or self.value.types:
            return 1
        return len(list(itertools.groupby(field_id for field_id, _ in self.value.fields)))

    def arranged(self, items: Iterable[Any]) -> dict[str, Any]:
        """Arrange one item per leaf as {"key": ..., "val": ...}, objects as dicts of their fields."""
        supply = iter(items)
        return {"key": _arrange(self.key, supply), "val": _arrange(self.value, supply)}


def _arrange(node: Node, supply: Iterator[Any]) -> Any:
    # Not a closure: a recursive one would keep the arrays alive until the garbage collector runs.
    if isinstance(node, Leaf):
        return next(supply)
    return {child.path[len(node.path)]: _arrange(child, supply) for _, child in node.fields}


def leaves_of(node: Node) -> Iterator[Leaf]:
    """Yield the columns of a part of the tree."""
    if isinstance(node, Leaf):
        yield node
        return
    for _, child in node.fields:
        yield from leaves_of(child)


def has_tensor_form(code: int) -> bool:
    """Return whether values of this type can be a column on their own."""
    return (
        code in SCALARS
        or code in ARRAYS
        or code in _TEXT_CODES
        or code in _INT64_CODES
        or code in _ENUM_CODES
        or code == TypeCode.DECIMAL
    )
