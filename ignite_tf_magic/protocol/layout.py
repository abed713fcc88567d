"""The layout of a cache's rows: a tree of fields, found by looking at some rows.

A `RowLayout` is what the decoders work from and what an element spec is made of. It is found once,
from sampled rows and the cluster's own metadata of binary types; rows that do not fit it later are an
error that names the field, never a guess.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ignite_tf_magic.errors import RemoteProtocolError, SchemaError
from ignite_tf_magic.protocol.buffer import Reader
from ignite_tf_magic.protocol.lazy_numpy import np
from ignite_tf_magic.protocol.messages import QueryEntity, QueryField
from ignite_tf_magic.protocol.objects import (
    ARRAYS,
    SCALARS,
    BinaryType,
    FindType,
    binary_type_of,
    dtype_of,
    name_id,
    read_header,
    skip_value,
)
from ignite_tf_magic.protocol.ops import JAVA_TYPES, TypeCode
from ignite_tf_magic.protocol.times import SQL_DATE_HEAD

VARIABLE = -1
NULLNESS_SUFFIX = "_is_null"

Nulls = str | frozenset[str] | None

_CODE_OF_JAVA_TYPE = {name: code for code, name in JAVA_TYPES.items()}

_SERIALISED = -TypeCode.OPTIMIZED  # by Java, and no java.sql.Date

_INT64_CODES = frozenset({TypeCode.DATE, TypeCode.TIMESTAMP, TypeCode.TIME, TypeCode.OPTIMIZED})
_TEXT_CODES = frozenset({TypeCode.STRING, TypeCode.UUID})
_ENUM_CODES = frozenset({TypeCode.ENUM, TypeCode.BINARY_ENUM})


@dataclass(frozen=True, slots=True)
class Leaf:
    """One primitive field: what becomes one column.

    Attributes:
        path: ("key",), ("val", "pixels"), ("val", "owner", "name"), ...
        code: Type code on the wire.
        length: Items of an array when all rows have the same, VARIABLE when they differ; 1 for scalars.
        fill: What a null becomes, as the column's item bytes; None makes a null an error.
        is_nullness: Whether it is no field, but tells of the one before it whether that is null.
    """

    path: tuple[str, ...]
    code: int
    length: int = 1
    fill: bytes | None = None
    is_nullness: bool = False

    @property
    def name(self) -> str:
        """Dotted path, for messages and options."""
        return ".".join(self.path)

    @property
    def is_array(self) -> bool:
        """Whether the field is an array of primitives."""
        return self.code in ARRAYS

    @property
    def is_text(self) -> bool:
        """Whether the column holds byte strings: text, UUIDs, and byte[] of varying length."""
        return self.code in _TEXT_CODES or (self.code == TypeCode.BYTE_ARRAY and self.length == VARIABLE)

    @property
    def is_ragged(self) -> bool:
        """Whether the column holds number arrays of varying length."""
        return self.is_array and self.length == VARIABLE and self.code != TypeCode.BYTE_ARRAY

    @property
    def is_fixed(self) -> bool:
        """Whether each row has the same number of bytes in the column."""
        return not (self.is_text or self.is_ragged or self.code == TypeCode.DECIMAL)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Item type of the column; object for byte strings."""
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
        """Shape of one row of the column: () or (length,)."""
        return (self.length,) if self.is_array and self.length != VARIABLE else ()


@dataclass(frozen=True, slots=True)
class ObjectNode:
    """A binary object: its type and its fields in the type's order."""

    path: tuple[str, ...]
    binary_type: BinaryType
    fields: tuple[tuple[int, Leaf | ObjectNode], ...]


Node = Leaf | ObjectNode


@dataclass(frozen=True, slots=True)
class RowLayout:
    """Key and value of every row of a cache."""

    key: Node
    value: Node

    def leaves(self) -> tuple[Leaf, ...]:
        """All columns, keys first, in the order of the decoders."""
        return (*_leaves(self.key), *_leaves(self.value))

    def arranged(self, items: Iterable[Any]) -> dict[str, Any]:
        """Arrange one item per leaf as {"key": ..., "val": ...}, objects as dicts of their fields."""
        supply = iter(items)
        return {"key": _arrange(self.key, supply), "val": _arrange(self.value, supply)}


def _arrange(node: Node, supply: Iterator[Any]) -> Any:
    # Not a closure: one that refers to itself keeps the arrays alive until the garbage collector runs.
    if isinstance(node, Leaf):
        return next(supply)
    return {child.path[len(node.path)]: _arrange(child, supply) for _, child in node.fields}


def _leaves(node: Node) -> Iterator[Leaf]:
    if isinstance(node, Leaf):
        yield node
        return
    for _, child in node.fields:
        yield from _leaves(child)


@dataclass(slots=True)
class _SeenField:
    """What was seen of one field: type codes, array lengths, nulls, and its own fields if an object."""

    has_null: bool = False

    codes: set[int] = field(default_factory=set)
    lengths: set[int] = field(default_factory=set)
    types: dict[int, BinaryType] = field(default_factory=dict)
    fields: dict[int, _SeenField] = field(default_factory=dict)


class LayoutFinder:
    """Collects what sampled rows look like, then gives their common layout.

    Args:
        find_type: Gives the cluster's metadata of a binary type.
        fields: Dotted paths below the value to keep ("pixels", "owner.name"); None keeps all. A field
            with a type that has no tensor form is no obstacle when it is not kept.
        fill: Dotted path -> what a null becomes, for fields where a null is otherwise an error.
        variable: Dotted paths of arrays whose length varies, where the sampled rows may not show it.
        nulls: Which fields have a boolean beside them, NAME_is_null, that tells where they are null: "mask" means all
            whose own type has no null and that have no `fill`; names mean those; None means those of "mask" of which a
            null was seen; "error" means none.
    """

    def __init__(
        self,
        find_type: FindType,
        fields: Iterable[str] | None = None,
        fill: Mapping[str, Any] | None = None,
        variable: Iterable[str] = (),
        nulls: str | Iterable[str] | None = None,
    ) -> None:
        self._find_type = find_type
        self._wanted = None if fields is None else frozenset(fields)
        self._fill = dict(fill or {})
        self._variable = frozenset(variable)
        self._nulls: Nulls = nulls if nulls is None or isinstance(nulls, str) else frozenset(nulls)
        self._key, self._value = _SeenField(), _SeenField()
        self.num_rows = 0

    def add(self, rows: memoryview, num_rows: int) -> None:
        """Look at the rows of one page.

        Raises:
            RemoteProtocolError: The page is truncated or corrupted.
        """
        reader = Reader(rows)
        for _ in range(num_rows):
            self._look(reader, self._key)
            self._look(reader, self._value)
        self.num_rows += num_rows

    def _look(self, reader: Reader, seen: _SeenField) -> None:
        start = reader.position
        skip_value(reader)
        self._note(reader.view, start, seen)

    def _note(self, view: memoryview, start: int, seen: _SeenField) -> None:
        code = view[start]
        if code == TypeCode.WRAPPED_OBJECT:
            reader = Reader(view, start + 1)
            data = reader.take(reader.count())
            self._note(data, reader.int32(), seen)
            return
        if code == TypeCode.NULL:
            seen.has_null = True
            return
        seen.codes.add(_SERIALISED if code == TypeCode.OPTIMIZED and not _is_sql_date(view, start) else code)
        if code in ARRAYS:
            seen.lengths.add(Reader(view, start + 1).int32())
        if code == TypeCode.BINARY_OBJECT:
            self._note_object(view, start, seen)

    def _note_object(self, view: memoryview, start: int, seen: _SeenField) -> None:
        header = read_header(Reader(view), start)
        binary_type = self._find_type(header.type_id)
        if binary_type is None:
            raise RemoteProtocolError(
                f"the cluster does not know binary type {header.type_id & 0xFFFFFFFF:#010x}"
            )
        seen.types[header.type_id] = binary_type
        body = view[start : start + header.length]
        there = header.field_offsets(body, binary_type)
        for field_id, offset in there:
            self._note(body, offset, seen.fields.setdefault(field_id, _SeenField()))
        for field_id in {field_id for _, field_id in binary_type.fields.values()} - {
            each for each, _ in there
        }:
            seen.fields.setdefault(field_id, _SeenField()).has_null = True

    def layout(self) -> RowLayout:
        """Return the common layout of all rows added.

        Raises:
            SchemaError: Rows differ in type, or a kept field has a type without a tensor form. The
                message names the field and the way out.
        """
        self._check_names()
        found = RowLayout(self._node(("key",), self._key, None), self._node(("val",), self._value, None))
        if not found.leaves():
            raise SchemaError("there is no column to read: neither the keys nor the values have a field")
        return found

    def _check_names(self) -> None:
        """Refuse options for fields that no row has: misspelt ones would do nothing."""
        known = {name for name, _ in self._names((), self._value)}
        unknown = sorted((self._wanted or frozenset()) - known)
        if unknown:
            raise SchemaError(f"no field {unknown[0]!r} in the values; there are: {', '.join(sorted(known))}")
        fields = {*self._primitives("val", self._value), *self._primitives("key", self._key)}
        short = {name.partition(".")[2] for name in fields} - {""}
        masked = self._nulls if isinstance(self._nulls, frozenset) else ()
        for option, names in (("fill", self._fill), ("variable", self._variable), ("nulls", masked)):
            if unknown := sorted(set(names) - fields - short):
                listed = ", ".join(sorted(name.removeprefix("val.") for name in fields))
                raise SchemaError(
                    f"{option} names the field {unknown[0]!r}, and there is none; there are: {listed}"
                )

    def _primitives(self, root: str, seen: _SeenField) -> Iterator[str]:
        """Name the fields that are no objects, by their whole paths."""
        if not seen.types:
            yield root
        yield from (f"{root}.{name}" for name, child in self._names((), seen) if not child.types)

    def _names(self, path: tuple[str, ...], seen: _SeenField) -> Iterator[tuple[str, _SeenField]]:
        for binary_type in seen.types.values():
            for name, (_, field_id) in binary_type.fields.items():
                child = seen.fields.get(field_id, _SeenField())
                yield ".".join((*path, name)), child
                yield from self._names((*path, name), child)

    def _node(self, path: tuple[str, ...], seen: _SeenField, declared: int | None) -> Node:
        codes = seen.codes or ({declared} if declared is not None else set())
        if len(codes) > 1 or len(seen.types) > 1:
            found = (
                [t.name for t in seen.types.values()] if len(seen.types) > 1 else [_name(c) for c in codes]
            )
            raise SchemaError(
                f"rows differ in {'.'.join(path)}: {' and '.join(sorted(found))} were found; "
                "a dataset needs one type per field"
            )
        if seen.types:
            return self._object(path, seen, next(iter(seen.types.values())))
        code = next(iter(codes), TypeCode.NULL)
        varies = bool({".".join(path), ".".join(path[1:])} & self._variable)
        leaf = Leaf(path, code, _common_length(code, set() if varies else seen.lengths))
        if not seen.codes and not _has_tensor_form(code):
            raise SchemaError(
                f"field {leaf.name} is null in all rows sampled, so its type is not known; "
                "leave it out by naming the fields to read: fields=[...]"
            )
        if not _has_tensor_form(code):
            raise SchemaError(
                f"field {leaf.name} is of type {_name(code)}, which has no tensor form; "
                "leave it out by naming the fields to read: fields=[...]"
            )
        return replace(leaf, fill=_fill_bytes(leaf, self._fill))

    def _object(self, path: tuple[str, ...], seen: _SeenField, binary_type: BinaryType) -> ObjectNode:
        children: list[tuple[int, Node]] = []
        for name, (declared, field_id) in binary_type.fields.items():
            child_path = (*path, name)
            if self._keeps(child_path):
                found = seen.fields.get(field_id, _SeenField())
                found.has_null |= seen.has_null
                child = self._node(child_path, found, declared)
                nodes = _with_nullness(child, self._nulls, has_null=found.has_null)
                children += [(field_id, each) for each in nodes]
        _check_apart(path, binary_type, children)
        return ObjectNode(path, binary_type, tuple(children))

    def _keeps(self, path: tuple[str, ...]) -> bool:
        if self._wanted is None or path[0] == "key":
            return True
        name = ".".join(path[1:])
        return any(w == name or w.startswith(name + ".") or name.startswith(w + ".") for w in self._wanted)


def _with_nullness(node: Node, nulls: Nulls, *, has_null: bool) -> tuple[Node, ...]:
    """Return a field, and what tells where it is null, where that is wanted (`LayoutFinder`)."""
    if not isinstance(node, Leaf) or nulls == "error":
        return (node,)
    if isinstance(nulls, frozenset):
        is_wanted = bool(nulls & {node.name, ".".join(node.path[1:])})
    else:
        is_wanted = node.fill is None and (has_null or nulls == "mask")
    if not is_wanted:
        return (node,)
    fill = bytes(node.dtype.itemsize * (node.row_shape or (1,))[0]) if node.fill is None else node.fill
    path = (*node.path[:-1], f"{node.path[-1]}{NULLNESS_SUFFIX}")
    return replace(node, fill=fill), Leaf(path, TypeCode.BOOL, fill=b"\1", is_nullness=True)


def _check_apart(
    path: tuple[str, ...], binary_type: BinaryType, children: Iterable[tuple[int, Node]]
) -> None:
    for _, child in children:
        if isinstance(child, Leaf) and child.is_nullness and child.path[-1] in binary_type.fields:
            taken = ".".join((*path[1:], child.path[-1]))
            raise SchemaError(
                f"there is a field {taken!r}, and what tells where {taken.removesuffix(NULLNESS_SUFFIX)!r} is null "
                "would have its name; say what a null becomes, fill={...}, and nulls='error'"
            )


def _common_length(code: int, lengths: set[int]) -> int:
    if code not in ARRAYS:
        return 1
    return next(iter(lengths)) if len(lengths) == 1 else VARIABLE


def _has_tensor_form(code: int) -> bool:
    return (
        code in SCALARS
        or code in ARRAYS
        or code in _TEXT_CODES
        or code in _INT64_CODES
        or code in _ENUM_CODES
        or code == TypeCode.DECIMAL
    )


def _is_sql_date(view: memoryview, start: int) -> bool:
    reader = Reader(view, start + 1)
    return bytes(reader.take(reader.count())[: len(SQL_DATE_HEAD)]) == SQL_DATE_HEAD


def _name(code: int) -> str:
    if code == _SERIALISED:
        return "a class that Java serialises in its own way"
    try:
        return TypeCode(code).name.lower().replace("_", " ")
    except ValueError:
        return f"type code {code}"


def _fill_bytes(leaf: Leaf, fill: Mapping[str, Any]) -> bytes | None:
    """Return the bytes a null becomes: the user's, else NaN for reals and nothing for strings."""
    short = ".".join(leaf.path[1:])
    given = fill.get(leaf.name, fill.get(short))
    if leaf.is_text or leaf.is_ragged:
        return given.encode() if isinstance(given, str) else bytes(given or b"")
    if given is not None:
        return np.broadcast_to(np.asarray(given, leaf.dtype), leaf.row_shape or (1,)).tobytes()
    if leaf.dtype.kind == "f":
        return np.full(leaf.row_shape or (1,), np.nan, leaf.dtype).tobytes()
    return None


def declared_layout(entity: QueryEntity, nulls: Nulls = None) -> RowLayout | None:
    """Return the layout a SQL table declares, for a cache without rows; None when it does not tell.

    Arrays have no declared length and are taken as varying. `nulls` is that of `LayoutFinder`.
    """
    keys = [column for column in entity.fields if column.is_key]
    # A key of one column is that column itself, and CREATE TABLE marks it by its name only.
    values = [column for column in entity.fields if not column.is_key and column.name != entity.key_field]
    if entity.key_type in _CODE_OF_JAVA_TYPE:
        key: Node | None = _declared_leaf(("key",), entity.key_type)
    else:
        key = _declared_object(("key",), entity.key_type, keys, nulls)
    value = _declared_object(("val",), entity.value_type, values, nulls)
    return RowLayout(key, value) if key and value else None


def _declared_object(
    path: tuple[str, ...], type_name: str, columns: Sequence[QueryField], nulls: Nulls
) -> ObjectNode | None:
    if not columns or any(column.java_type not in _CODE_OF_JAVA_TYPE for column in columns):
        return None
    codes = {column.name: int(_CODE_OF_JAVA_TYPE[column.java_type]) for column in columns}
    leaves = [
        (name_id(column.name), node)
        for column in columns
        for node in _with_nullness(
            _declared_leaf((*path, column.name), column.java_type), nulls, has_null=False
        )
    ]
    return ObjectNode(path, binary_type_of(type_name, codes), tuple(leaves))


def _declared_leaf(path: tuple[str, ...], java_type: str) -> Leaf:
    code = _CODE_OF_JAVA_TYPE[java_type]
    leaf = Leaf(path, code, VARIABLE if code in ARRAYS else 1)
    return replace(leaf, fill=_fill_bytes(leaf, {}))
