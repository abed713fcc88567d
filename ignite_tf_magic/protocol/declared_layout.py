"""The layout of a cache without rows: what its SQL table declares, and what the cluster knows of its values' type."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ignite_tf_magic.protocol.layout import VARIABLE, Leaf, Node, ObjectNode, RowLayout
from ignite_tf_magic.protocol.layout_finder import (
    Nulls,
    fill_bytes,
    is_kept,
    is_named,
    refuse_unknown,
    text_leaf,
    with_nullness,
)
from ignite_tf_magic.protocol.messages import QueryEntity, QueryField
from ignite_tf_magic.protocol.objects import ARRAYS, BinaryType, FindType, binary_type_of, name_id
from ignite_tf_magic.protocol.ops import JAVA_TYPES, TypeCode

CODE_OF_JAVA_TYPE = {name: code for code, name in JAVA_TYPES.items()}
_TELLING_CODES = frozenset({*JAVA_TYPES, TypeCode.ENUM})


def declared_layout(
    entity: QueryEntity,
    find_type: FindType,
    *,
    fields: Iterable[str] | None = None,
    fill: Mapping[str, Any] | None = None,
    variable: Iterable[str] = (),
    nulls: Nulls = None,
    as_text: Iterable[str] = (),
) -> RowLayout | None:
    """Return the layout of a cache without rows, by its SQL table; None when that does not tell.

    Values have the table's columns, and those fields beside that the cluster knows of their type: Java's classes name
    some for SQL, and are stored whole. Arrays have no declared length and are taken as varying. Options are those of
    `LayoutFinder`.

    Raises:
        SchemaError: An option names a field that there is not, or cannot be had of it.
    """
    keys = [column for column in entity.fields if column.is_key]
    # A key of one column is that column itself, and CREATE TABLE marks it by its name only.
    values = [column for column in entity.fields if not column.is_key and column.name != entity.key_field]
    known = find_type(name_id(entity.value_type))
    made = _Declared(
        None if fields is None else frozenset(fields), dict(fill or {}), nulls, frozenset(as_text)
    )
    if entity.key_type in CODE_OF_JAVA_TYPE:
        key: Node | None = made.leaf(("key",), CODE_OF_JAVA_TYPE[entity.key_type])
    else:
        key = made.object(("key",), entity.key_type, keys, None)
    value = made.object(("val",), entity.value_type, values, known)
    if not (key and value):
        return None
    masked = nulls if isinstance(nulls, frozenset) else ()
    named = {"fields": made.wanted or (), "fill": made.fill, "nulls": masked, "as_text": made.as_text}
    refuse_unknown(named, made.names)
    refuse_unknown({"variable": variable}, made.names | made.others)
    return RowLayout(key, value)


@dataclass(frozen=True, slots=True)
class _Declared:
    """Makes parts of a layout by options, and notes the names of fields: those in it, and others of the values."""

    wanted: frozenset[str] | None
    fill: Mapping[str, Any]
    nulls: Nulls
    as_text: frozenset[str]
    names: set[str] = field(default_factory=set)
    others: set[str] = field(default_factory=set)

    def object(
        self, path: tuple[str, ...], type_name: str, columns: Sequence[QueryField], known: BinaryType | None
    ) -> ObjectNode | None:
        if not columns or any(column.java_type not in CODE_OF_JAVA_TYPE for column in columns):
            return None
        codes = {column.name: int(CODE_OF_JAVA_TYPE[column.java_type]) for column in columns}
        declared = binary_type_of(type_name, codes)
        fields = {field_id: (name, code) for name, (code, field_id) in declared.fields.items()}
        for name, (code, field_id) in known.fields.items() if known else ():
            self.others.add(".".join((*path, name)))
            if field_id in fields:  # as rows call it: SQL may write it in capitals
                fields[field_id] = name, fields[field_id][1]
            elif code in _TELLING_CODES:
                fields[field_id] = name, code
        nodes = [
            (field_id, node)
            for field_id, (name, code) in fields.items()
            for node in self._field((*path, name), code)
        ]
        return ObjectNode(path, (known or declared,), tuple(nodes))

    def _field(self, path: tuple[str, ...], code: int) -> tuple[Node, ...]:
        self.names.add(".".join(path))
        if self.wanted is not None and not is_kept(self.wanted, path):
            return ()
        return with_nullness(self.leaf(path, code), path, self.nulls, has_null=False)

    def leaf(self, path: tuple[str, ...], code: int) -> Leaf:
        self.names.add(".".join(path))
        leaf = Leaf(path, code, VARIABLE if code in ARRAYS else 1)
        if is_named(path, self.as_text):
            leaf = text_leaf(leaf)
        return replace(leaf, fill=fill_bytes(leaf, self.fill))
