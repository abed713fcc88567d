"""Finds the common layout of sampled rows, from their contents and the cluster's metadata of binary types."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ignite_tf_magic.errors import SchemaError
from ignite_tf_magic.protocol.field_names import FieldNames, FieldOptions, Nulls, full_name, sql_columns
from ignite_tf_magic.protocol.layout import (
    VARIABLE,
    Leaf,
    LeafRole,
    Node,
    ObjectNode,
    RowLayout,
    has_tensor_form,
    leaves_of,
)
from ignite_tf_magic.protocol.lazy_numpy import np
from ignite_tf_magic.protocol.messages import QueryEntity
from ignite_tf_magic.protocol.objects import ARRAYS, BinaryType, FindType
from ignite_tf_magic.protocol.ops import TypeCode
from ignite_tf_magic.protocol.row_fields import Path
from ignite_tf_magic.protocol.seen_rows import ITEMS_OF_LISTS, SERIALISED, SeenField, SeenRows, with_declared
from ignite_tf_magic.protocol.value_texts import has_text


class LayoutFinder:
    """Examines sampled rows, then finds their common layout.

    Attributes:
        num_rows: Number of rows examined.
        left_out: Name -> reason, for the fields that `layout` left out because they have no tensor form.

    Args:
        find_type: Returns the cluster's metadata of a binary type.
        fields: Names of the value's fields to keep ("pixels", "owner.name"), as `FieldNames` finds them; None keeps all
            that have a tensor form.
        fill: Name -> replacement for nulls, for fields where a null is otherwise an error.
        variable: Names of arrays whose length varies, in case the sampled rows do not show it.
        nulls: Which fields get an additional boolean column, NAME_is_null, that marks their nulls. "mask": all fields
            whose own type has no null and that have no `fill`. Names: these fields. None: the fields of "mask" in which
            a null was seen. "error": no field.
        as_text: Names of numbers, booleans, decimals, enums and times whose columns hold text instead.
        cells: For rows with a sequence of cells instead of a value after the key: a type whose fields are the cells.
        table: The cache's SQL table. A column that no row has set is null in all rows. Names of fields may be names of
            its columns.
    """

    def __init__(
        self,
        find_type: FindType,
        fields: Iterable[str] | None = None,
        fill: Mapping[str, Any] | None = None,
        variable: Iterable[str] = (),
        nulls: str | Iterable[str] | None = None,
        cells: BinaryType | None = None,
        as_text: Iterable[str] = (),
        table: QueryEntity | None = None,
    ) -> None:
        self._options = FieldOptions(
            None if fields is None else frozenset(fields),
            dict(fill or {}),
            frozenset(variable),
            nulls if nulls is None or isinstance(nulls, str) else frozenset(nulls),
            frozenset(as_text),
        )
        self._table = table
        self._sql_columns = sql_columns(table)
        self._find_type = find_type = with_declared(find_type, table)
        self._seen, self._has_cells = SeenRows(find_type, cells), cells is not None
        self.left_out: dict[str, SchemaError] = {}

    @property
    def num_rows(self) -> int:
        """The number of rows examined."""
        return self._seen.num_rows

    def add(self, rows: memoryview, num_rows: int) -> None:
        """Examine the rows of one page.

        Raises:
            RemoteProtocolError: The page is truncated or corrupted.
        """
        self._seen.add(rows, num_rows)

    def declared_layout(self) -> RowLayout | None:
        """Return the layout of a cache without rows from its SQL table, or None if the table does not define it.

        Values have the table's columns and the fields that the cluster knows of their type. Arrays have variable
        length.

        Raises:
            SchemaError: As for `layout`.
        """
        return self.layout() if self._table and self._seen.declare(self._table) else None

    def layout(self) -> RowLayout:
        """Return the common layout of all rows added.

        Raises:
            SchemaError: The keys or the values have several types, or a type without a tensor form. Or this applies to
                a requested field, or to all fields. The message names the field and a remedy.
        """
        self._resolve_names()
        self.left_out.clear()
        found = RowLayout(
            self._node(("key",), self._seen.key, None), self._node(("val",), self._seen.value, None)
        )
        if not list(leaves_of(found.value)) and (self.left_out or not found.leaves()):
            why = (
                "; ".join(map(str, self.left_out.values())) or "neither the keys nor the values have a field"
            )
            raise SchemaError(f"there is no column to read: {why}")
        if self._has_cells and isinstance(found.value, ObjectNode):
            return replace(found, value=replace(found.value, types=()))
        return found

    def _resolve_names(self) -> None:
        keys, values = list(_paths(("key",), self._seen.key)), list(_paths(("val",), self._seen.value))
        leaves = [path for path, seen in (*keys, *values) if not seen.types]
        below_value = FieldNames((path for path, _ in values if len(path) > 1), self._sql_columns)
        self._given = self._options.resolved(below_value, FieldNames(leaves, self._sql_columns))

    def _node(self, path: tuple[str, ...], seen: SeenField, declared: int | None) -> Node:
        codes = seen.codes or ({declared} if declared is not None else set())
        if not self._has_cells:  # in cells, DATE is a SQL DATE
            codes = set(map(_instant_as_timestamp, codes))
        if len(codes) > 1:
            raise SchemaError(
                f"rows differ in {'.'.join(path)}: {' and '.join(sorted(map(_name, codes)))} were found; "
                "a dataset needs one type per field"
            )
        if seen.types or seen.unregistered:
            return self._object(path, seen)
        code = next(iter(codes), TypeCode.NULL)
        if code == TypeCode.MAP:
            return _together(path, [(leaf.role.suffix[1:], leaf) for leaf in self._lists(path, seen)])
        if code in ITEMS_OF_LISTS and seen.items_of(0).types:
            start = len(path[-1]) + 1
            return _together(path, [(leaf.path[-1][start:], leaf) for leaf in self._lists(path, seen)])
        if code in ITEMS_OF_LISTS:
            items, *of_nulls = self._lists(path, seen)
            named = [(leaf.role.suffix[1:], leaf) for leaf in of_nulls]
            return _together(path, [("items", items), *named]) if of_nulls else items
        leaf = Leaf(path, code, _common_length(code, set() if self._varies(path) else seen.lengths))
        if not seen.codes and not has_tensor_form(code):
            raise SchemaError(f"field {leaf.name} is null in all rows sampled, so its type is not known")
        if not has_tensor_form(code):
            raise SchemaError(f"field {leaf.name} is of type {_name(code)}, which has no tensor form")
        if is_named(path, self._given.as_text):
            leaf = text_leaf(leaf, seen.enums, self._find_type)
        return replace(leaf, fill=fill_bytes(leaf, self._given.fill))

    def _object(self, path: tuple[str, ...], seen: SeenField) -> ObjectNode:
        if seen.unregistered:
            return self._unregistered(path, seen)
        children: list[tuple[int, Node]] = []
        types = tuple(sorted(seen.types.values(), key=lambda each: each.name))
        for name, (declared, field_id) in _fields_of(types).items():
            child_path = (*path, name)
            if self._given.fields is None or is_kept(self._given.fields, child_path):
                found = seen.fields.get(field_id, SeenField())
                found.has_null |= seen.has_null or not all(name in each.fields for each in types)
                nodes = self._kept(child_path, found, declared)
                children += [(field_id, each) for each in nodes]
        _check_apart(path, children)
        return ObjectNode(path, types, tuple(children))

    def _unregistered(self, path: Path, seen: SeenField) -> ObjectNode:
        """Leave out objects of types that the cluster does not know. Raise SchemaError if it knows some of them."""
        error = SchemaError(f"{full_name(path)} has objects of {_nobody_knows(seen.unregistered)}")
        if seen.types:
            raise error
        self.left_out[full_name(path)] = error
        types = tuple(BinaryType(each, "", {}, {}) for each in sorted(seen.unregistered))
        return ObjectNode(path, types, ())

    def _kept(self, path: tuple[str, ...], seen: SeenField, declared: int | None) -> tuple[Node, ...]:
        """Return the columns of a field; none if it has no tensor form and was not requested."""
        try:
            first, *others = self._columns(path, seen, declared)
        except SchemaError as error:
            is_asked_for = self._given.fields is not None and path[0] == "val"
            if is_asked_for or isinstance(error, _OptionRefused) or is_named(path, self._given.as_text):
                raise
            self.left_out[".".join(path)] = error
            return ()
        return *with_nullness(first, path, self._given.nulls, has_null=seen.has_null), *others

    def _columns(self, path: tuple[str, ...], seen: SeenField, declared: int | None) -> tuple[Node, ...]:
        (code,) = seen.codes if len(seen.codes) == 1 else (0,)
        if code in ITEMS_OF_LISTS and is_named(path, self._given.as_text):
            raise _OptionRefused(f"as_text names the field {'.'.join(path)}, a list, which has no text")
        if code in ITEMS_OF_LISTS and (unregistered := _unregistered_in(seen.items)):
            raise SchemaError(
                f"field {full_name(path)} is a list with objects of {_nobody_knows(unregistered)}"
            )
        if code == TypeCode.MAP:
            keys = self._list(path, code, LeafRole.MAP_KEYS, seen)
            return keys + self._list(path, code, LeafRole.MAP_VALUES, seen)
        if code in ITEMS_OF_LISTS and seen.items_of(0).types:
            return self._objects(path, code, seen)
        if code in ITEMS_OF_LISTS:
            return self._list(path, code, LeafRole.VALUE, seen)
        return (self._node(path, seen, declared),)

    def _objects(self, path: tuple[str, ...], code: int, seen: SeenField) -> tuple[Leaf, ...]:
        """Return a column NAME_FIELD for each field of the objects in a list, and of objects nested in these."""
        items = seen.items_of(0)
        self._refuse_fill(path)
        if items.codes != {TypeCode.BINARY_OBJECT}:
            which = " and ".join(sorted(map(_name, items.codes)))
            raise SchemaError(f"field {'.'.join(path)} is a list of {which}, which has no tensor form")
        columns: list[Leaf] = []
        refused: dict[str, SchemaError] = {}
        for member, field_seen in _members(items):
            own = (*path[:-1], "_".join((path[-1], *member)))
            of_list = SeenField(codes={code}, lengths=seen.lengths, items=[field_seen])
            try:
                found = self._list(own, code, LeafRole.VALUE, of_list)
            except SchemaError as error:
                refused[".".join(own)] = error
                continue
            types = tuple(sorted({each.type_id: each for each in _types_in(items)}.values(), key=_type_name))
            columns += [replace(leaf, member=member, types=types) for leaf in found]
        if not columns:
            name = ".".join(path)
            without = SchemaError(
                f"field {name} is a list of objects without fields, which has no tensor form"
            )
            raise next(iter(refused.values()), without)
        self.left_out |= refused
        return tuple(columns)

    def _lists(self, path: tuple[str, ...], seen: SeenField) -> list[Leaf]:
        return [each for each in self._columns(path, seen, None) if isinstance(each, Leaf)]

    def _list(self, path: tuple[str, ...], code: int, role: LeafRole, seen: SeenField) -> tuple[Leaf, ...]:
        """Return the column of a list's items and, if `nulls` asks for it, the column that marks null items."""
        items = seen.items_of(int(role is LeafRole.MAP_VALUES))
        item = self._item(path, code, items)
        own = (*path[:-1], path[-1] + role.suffix)
        if role is LeafRole.VALUE and code == TypeCode.OBJECT_ARRAY and item.row_shape:
            length = _common(set() if self._varies(path) else seen.lengths)
            leaf = Leaf(own, code, length, item=item)
            if not leaf.is_ragged:
                return (replace(leaf, fill=fill_bytes(leaf, self._given.fill)),)
        self._refuse_fill(path)
        leaf = Leaf(own, code, VARIABLE, b"", role, item)
        has_null = _innermost(items).has_null
        if leaf.dtype.kind in "fO" or not _is_wanted(path, self._given.nulls, has_null=has_null):
            return (leaf,)
        of_nulls = (*path[:-1], path[-1] + role.of_nulls.suffix)
        return replace(leaf, may_hold_null=True), Leaf(
            of_nulls, code, VARIABLE, b"", role.of_nulls, _with_innermost(item, TypeCode.BOOL)
        )

    def _item(self, path: tuple[str, ...], code: int, items: SeenField) -> Leaf:
        """Return the layout of the items of a list."""
        known = ITEMS_OF_LISTS[TypeCode(code)]
        found = set(map(_instant_as_timestamp, items.codes if known is None else {int(known)}))
        name = ".".join(path)
        if not found:
            raise SchemaError(
                f"field {name} is an empty {_name(code)} in all rows sampled, so its type is not known"
            )
        (item,) = found if len(found) == 1 else (0,)
        if item in ITEMS_OF_LISTS and item != TypeCode.MAP:
            return Leaf(path, item, VARIABLE, item=self._item(path, item, items.items_of(0)))
        if not has_tensor_form(item):
            which = " and ".join(sorted(map(_name, found)))
            raise SchemaError(f"field {name} is a list of {which}, which has no tensor form")
        has_length = not (self._varies(path) or items.has_null)
        return Leaf(path, item, _common_length(item, items.lengths if has_length else set()))

    def _refuse_fill(self, path: tuple[str, ...]) -> None:
        if is_named(path, self._given.fill.keys()):
            raise _OptionRefused(
                f"fill names the field {'.'.join(path)}, a list; where it is null the list is empty"
            )

    def _varies(self, path: tuple[str, ...]) -> bool:
        return is_named(path, self._given.variable)


class _OptionRefused(SchemaError):
    """An option does not suit its field. This raises instead of leaving the field out."""


def _paths(path: Path, seen: SeenField) -> Iterator[tuple[Path, SeenField]]:
    """Yield the path of a field and of each field in it, with what was seen of it."""
    yield path, seen
    for binary_type in seen.types.values():
        for name, (_, field_id) in binary_type.fields.items():
            yield from _paths((*path, name), seen.fields.get(field_id, SeenField()))


def is_named(path: Path, names: Collection[str]) -> bool:
    """Return whether the full name of a field is one of these names."""
    return full_name(path) in names


def text_leaf(leaf: Leaf, enums: Iterable[int] = (), find_type: FindType | None = None) -> Leaf:
    """Return a column that holds the values of a field as text.

    Args:
        leaf: The column without `as_text`.
        enums: Ids of the enum types seen in the field. Types that occur later are looked up then.
        find_type: Returns the cluster's metadata of an enum type.

    Raises:
        SchemaError: The values have no text.
    """
    if not has_text(leaf.code):
        raise _OptionRefused(
            f"as_text names the field {leaf.name}, of type {_name(leaf.code)}, which has no text"
        )
    if leaf.is_text:
        return leaf
    known = {number: find_type(number) for number in sorted(enums)} if find_type else {}
    if not all(each and each.enum_names for each in known.values()):
        raise _OptionRefused(
            f"as_text names the field {leaf.name}, an enum whose names the cluster does not know"
        )
    return replace(leaf, as_text=True, types=tuple(filter(None, known.values())))


def _together(path: tuple[str, ...], leaves: Iterable[tuple[str, Leaf]]) -> ObjectNode:
    """Return a node of the columns of one value that is not a field, under these names."""
    named = [(0, replace(leaf, path=(*path, name))) for name, leaf in leaves]
    _check_apart(path, named)
    return ObjectNode(path, (), tuple(named))


def _type_name(binary_type: BinaryType) -> str:
    return binary_type.name


def _members(seen: SeenField) -> Iterator[tuple[tuple[str, ...], SeenField]]:
    """Yield (names that lead to the field, what was seen of it) for the fields of a list's objects, also nested."""
    types = tuple(sorted(seen.types.values(), key=lambda each: each.name))
    for name, (_, field_id) in _fields_of(types).items():
        found = seen.fields.get(field_id, SeenField())
        found.has_null |= seen.has_null or not all(name in each.fields for each in types)
        if found.codes == {TypeCode.BINARY_OBJECT} and found.types:
            yield from (((name, *member), each) for member, each in _members(found))
        else:
            yield (name,), found


def _types_in(seen: SeenField) -> Iterator[BinaryType]:
    yield from seen.types.values()
    for field in (*seen.fields.values(), *seen.items):
        yield from _types_in(field)


def _unregistered_in(seen: Iterable[SeenField]) -> set[int]:
    return {
        each
        for field in seen
        for each in (*field.unregistered, *_unregistered_in((*field.fields.values(), *field.items)))
    }


def _nobody_knows(type_ids: Iterable[int]) -> str:
    numbers = ", ".join(f"{each & 0xFFFFFFFF:#010x}" for each in sorted(type_ids))
    return f"binary type {numbers}, which is not registered in the cluster, so its fields have no names"


def is_kept(wanted: frozenset[str], path: tuple[str, ...]) -> bool:
    """Return whether a field is wanted, is part of a wanted field, or contains one. Key fields always are wanted."""
    name = full_name(path)
    return path[0] == "key" or any(
        each == name or each.startswith(name + ".") or name.startswith(each + ".") for each in wanted
    )


def with_nullness(node: Node, path: tuple[str, ...], nulls: Nulls, *, has_null: bool) -> tuple[Node, ...]:
    """Return the column of a field and, if `nulls` asks for it, the column that marks nulls; see `LayoutFinder`."""
    if not isinstance(node, Leaf):
        return (node,)
    is_possible = node.fill is None or isinstance(nulls, frozenset)
    if not (is_possible and _is_wanted(path, nulls, has_null=has_null)):
        return (node,)
    fill = bytes(node.dtype.itemsize * math.prod(node.row_shape)) if node.fill is None else node.fill
    of_nulls = (*path[:-1], path[-1] + LeafRole.IS_NULL.suffix)
    return replace(node, fill=fill), Leaf(of_nulls, TypeCode.BOOL, fill=b"\1", role=LeafRole.IS_NULL)


def _is_wanted(path: tuple[str, ...], nulls: Nulls, *, has_null: bool) -> bool:
    if isinstance(nulls, frozenset):
        return is_named(path, nulls)
    return nulls == "mask" or (nulls is None and has_null)


def _fields_of(types: Iterable[BinaryType]) -> dict[str, tuple[int, int]]:
    """Return the type code and id of the fields of several types, by name.

    Raises:
        SchemaError: Fields of one name have different ids, which custom id mappers can cause.
    """
    fields: dict[str, tuple[int, int]] = {}
    for binary_type in types:
        for name, found in binary_type.fields.items():
            if fields.setdefault(name, found)[1] != found[1]:
                raise SchemaError(
                    f"field {name!r} has another id in {binary_type.name} than in the other types"
                )
    return fields


def _check_apart(path: tuple[str, ...], children: Sequence[tuple[int, Node]]) -> None:
    made = [child for _, child in children if isinstance(child, Leaf) and (child.role or child.member)]
    paths = [child.path for _, child in children]
    for child in made:
        if paths.count(child.path) > 1:
            taken = ".".join((*path[1:], child.path[-1]))
            whose = repr(taken.removesuffix(child.role.suffix)) if child.role else "objects in a list"
            what = _WHAT_HAS.get(child.role, f"the field {'.'.join(child.member)!r}")
            raise SchemaError(
                f"there is a field {taken!r}, and {what} of {whose} would have its name; leave one of them out by "
                "naming the fields to read, fields=[...], or have no null flags: fill={...}, nulls='error'"
            )


_WHAT_HAS = {
    LeafRole.IS_NULL: "the null flags",
    LeafRole.MAP_KEYS: "the keys",
    LeafRole.MAP_VALUES: "the values",
    LeafRole.NULL_ITEMS: "the flags of null items",
    LeafRole.NULL_KEYS: "the flags of null keys",
    LeafRole.NULL_VALUES: "the flags of null values",
}


def _instant_as_timestamp(code: int) -> int:
    """Return the type code of a column. A java.util.Date counts as a timestamp: both are instants in nanoseconds."""
    return int(TypeCode.TIMESTAMP) if code == TypeCode.DATE else code


def _common_length(code: int, lengths: set[int]) -> int:
    return _common(lengths) if code in ARRAYS else 1


def _common(lengths: set[int]) -> int:
    """Return the length that all arrays have, else VARIABLE. Length 0 is VARIABLE, too: TensorFlow crashes on it."""
    return next(iter(lengths)) if len(lengths) == 1 and lengths != {0} else VARIABLE


def _innermost(items: SeenField) -> SeenField:
    return _innermost(items.items[0]) if items.items else items


def _with_innermost(leaf: Leaf, code: int) -> Leaf:
    """Return a list column like this one, but with innermost items of another type."""
    return replace(leaf, item=_with_innermost(leaf.item, code)) if leaf.item else Leaf(leaf.path, code)


def _name(code: int) -> str:
    if code == SERIALISED:
        return "a class that Java serialises in its own way"
    try:
        return TypeCode(code).name.lower().replace("_", " ")
    except ValueError:
        return f"type code {code}"


def fill_bytes(leaf: Leaf, fill: Mapping[str, Any]) -> bytes | None:
    """Return the bytes that replace a null, or None if nothing does.

    Without a `fill` from the user, floats become NaN, and texts and ragged rows become empty.
    """
    given = fill.get(full_name(leaf.path))
    if leaf.is_text:
        if not isinstance(given, str | bytes | None):
            raise _OptionRefused(
                f"fill names the field {leaf.name}, whose nulls become text: {given!r} is not text"
            )
        return given.encode() if isinstance(given, str) else given or b""
    if leaf.is_ragged:
        return b"" if given is None else np.asarray(given, leaf.dtype).tobytes()
    if given is not None:
        return np.broadcast_to(np.asarray(given, leaf.dtype), leaf.row_shape or (1,)).tobytes()
    if leaf.dtype.kind == "f":
        return np.full(leaf.row_shape or (1,), np.nan, leaf.dtype).tobytes()
    return None
