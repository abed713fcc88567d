"""The layout of a cache's rows: a tree of fields.

A `RowLayout` is what the decoders work from and what an element spec is made of. It is found once (`layout_finder`);
rows that do not fit it later are an error that names the field, never a guess.
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
    """What a column has of its field."""

    VALUE = 0
    IS_NULL = 1
    MAP_KEYS = 2
    MAP_VALUES = 3
    NULL_ITEMS = 4
    NULL_KEYS = 5
    NULL_VALUES = 6

    @property
    def suffix(self) -> str:
        """What the column's name ends with, behind that of the field."""
        return ("", "_is_null", "_keys", "_values", "_null_items", "_null_keys", "_null_values")[self]

    @property
    def of_nulls(self) -> LeafRole:
        """The column that tells of the items of this one whether they are null."""
        return {
            LeafRole.VALUE: LeafRole.NULL_ITEMS,
            LeafRole.MAP_KEYS: LeafRole.NULL_KEYS,
            LeafRole.MAP_VALUES: LeafRole.NULL_VALUES,
        }[self]


@dataclass(frozen=True, slots=True)
class Leaf:
    """One primitive field: what becomes one column.

    Attributes:
        path: ("key",), ("val", "pixels"), ("val", "owner", "name"), ...
        code: Type code on the wire.
        length: Items of an array when all rows have the same, VARIABLE when they differ; 1 for scalars. A list that
            has a length is an array of arrays that have one.
        fill: What a null becomes, as the column's item bytes; None makes a null an error.
        role: IS_NULL tells of the field before it whether that is null, the other NULL_ ones of each of its items.
        item: What each item of a list is; None where it is none.
        may_hold_null: Whether an item that is null is 0 where its type has no null, as another column tells of it.
        member: Of a list of objects, which of their fields the column has, by names that lead to it, and
        types: those of the objects; of an enum that is text, its own.
        as_text: Whether the column has each value as text, as `value_texts.text_of` gives it.
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
        """Whether it tells of the field before it whether that is null."""
        return self.role is LeafRole.IS_NULL

    @property
    def is_list(self) -> bool:
        """Whether the field is a list of values that each have their own type in front."""
        return self.item is not None

    @property
    def innermost(self) -> Leaf:
        """What the lists in it hold in the end."""
        return self.item.innermost if self.item else self

    @property
    def is_text(self) -> bool:
        """Whether the column holds byte strings: text, UUIDs, byte[] of varying length, and what is text by request."""
        is_bytes = self.code == TypeCode.BYTE_ARRAY and self.length == VARIABLE
        return self.as_text or self.code in _TEXT_CODES or is_bytes

    @property
    def ragged_levels(self) -> int:
        """How many dimensions of a row are as long as it likes, from the first on: of arrays of numbers, and lists."""
        if self.item:
            return 1 + self.item.ragged_levels if self.length == VARIABLE else 0
        return int(self.is_array and self.length == VARIABLE and self.code != TypeCode.BYTE_ARRAY)

    @property
    def is_ragged(self) -> bool:
        """Whether each row has as many items in the column as it likes."""
        return self.ragged_levels > 0

    @property
    def is_fixed(self) -> bool:
        """Whether each row has the same number of bytes in the column."""
        return not (self.is_text or self.is_ragged or self.is_list or self.is_decimal)

    @property
    def is_decimal(self) -> bool:
        """Whether the column has decimals as reals."""
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
        """Shape of one row of the column, behind the dimensions that are as long as the row likes."""
        own = (self.length,) if (self.is_array or self.item) and self.length != VARIABLE else ()
        return own + self.item.row_shape if self.item else own


@dataclass(frozen=True, slots=True)
class ObjectNode:
    """A binary object of one type, or of one of several: a field that its own lacks is null.

    Without types it is none: its fields, which are no objects, are values that stand one behind the other, as the cells
    in the answer to a SQL statement. Those that follow one another with one id are columns of one value.

    Attributes:
        types: Which those are, by their names.
        fields: Those of all types, in the types' order.
    """

    path: tuple[str, ...]
    types: tuple[BinaryType, ...]
    fields: tuple[tuple[int, Leaf | ObjectNode], ...]

    def type_of(self, type_id: int) -> BinaryType | None:
        """Find a type by its id."""
        return next((each for each in self.types if each.type_id == type_id), None)


Node = Leaf | ObjectNode


@dataclass(frozen=True, slots=True)
class RowLayout:
    """Key and value of every row of a cache."""

    key: Node
    value: Node

    def leaves(self) -> tuple[Leaf, ...]:
        """All columns, keys first, in the order of the decoders."""
        return (*leaves_of(self.key), *leaves_of(self.value))

    @property
    def num_values(self) -> int:
        """How many values stand behind each key."""
        if isinstance(self.value, Leaf) or self.value.types:
            return 1
        return len(list(itertools.groupby(field_id for field_id, _ in self.value.fields)))

    def arranged(self, items: Iterable[Any]) -> dict[str, Any]:
        """Arrange one item per leaf as {"key": ..., "val": ...}, objects as dicts of their fields."""
        supply = iter(items)
        return {"key": _arrange(self.key, supply), "val": _arrange(self.value, supply)}


def _arrange(node: Node, supply: Iterator[Any]) -> Any:
    # Not a closure: one that refers to itself keeps the arrays alive until the garbage collector runs.
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
    """Whether values of a type have a column by themselves."""
    return (
        code in SCALARS
        or code in ARRAYS
        or code in _TEXT_CODES
        or code in _INT64_CODES
        or code in _ENUM_CODES
        or code == TypeCode.DECIMAL
    )
