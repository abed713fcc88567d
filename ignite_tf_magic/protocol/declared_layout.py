"""The layout of a cache without rows: what its SQL table declares, and what the cluster knows of its values' type."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from ignite_tf_magic.protocol.layout import VARIABLE, Leaf, Node, ObjectNode, RowLayout
from ignite_tf_magic.protocol.layout_finder import Nulls, fill_bytes, text_leaf, with_nullness
from ignite_tf_magic.protocol.messages import QueryEntity, QueryField
from ignite_tf_magic.protocol.objects import ARRAYS, BinaryType, FindType, binary_type_of, name_id
from ignite_tf_magic.protocol.ops import JAVA_TYPES, TypeCode

CODE_OF_JAVA_TYPE = {name: code for code, name in JAVA_TYPES.items()}
_TELLING_CODES = frozenset({*JAVA_TYPES, TypeCode.ENUM})


def declared_layout(
    entity: QueryEntity, find_type: FindType, nulls: Nulls = None, as_text: Collection[str] = ()
) -> RowLayout | None:
    """Return the layout of a cache without rows, by its SQL table; None when that does not tell.

    Values have the table's columns, and those fields beside that the cluster knows of their type: Java's classes name
    some for SQL, and are stored whole. Arrays have no declared length and are taken as varying. `nulls` and
    `as_text` are those of `LayoutFinder`.
    """
    keys = [column for column in entity.fields if column.is_key]
    # A key of one column is that column itself, and CREATE TABLE marks it by its name only.
    values = [column for column in entity.fields if not column.is_key and column.name != entity.key_field]
    if entity.key_type in CODE_OF_JAVA_TYPE:
        key: Node | None = _leaf(("key",), CODE_OF_JAVA_TYPE[entity.key_type], as_text)
    else:
        key = _object(("key",), entity.key_type, keys, None, nulls, as_text)
    known = find_type(name_id(entity.value_type))
    value = _object(("val",), entity.value_type, values, known, nulls, as_text)
    return RowLayout(key, value) if key and value else None


def _object(
    path: tuple[str, ...],
    type_name: str,
    columns: Sequence[QueryField],
    known: BinaryType | None,
    nulls: Nulls,
    as_text: Collection[str],
) -> ObjectNode | None:
    if not columns or any(column.java_type not in CODE_OF_JAVA_TYPE for column in columns):
        return None
    codes = {column.name: int(CODE_OF_JAVA_TYPE[column.java_type]) for column in columns}
    if known:
        codes |= {
            name: code
            for name, (code, _) in known.fields.items()
            if name not in codes and code in _TELLING_CODES
        }
    declared = binary_type_of(type_name, codes)
    ids = {
        name: field_id for each in (declared, known) if each for name, (_, field_id) in each.fields.items()
    }
    nodes = [
        (ids[name], node)
        for name, code in codes.items()
        for node in with_nullness(_leaf((*path, name), code, as_text), (*path, name), nulls, has_null=False)
    ]
    return ObjectNode(path, (known or declared,), tuple(nodes))


def _leaf(path: tuple[str, ...], code: int, as_text: Collection[str]) -> Leaf:
    leaf = Leaf(path, code, VARIABLE if code in ARRAYS else 1)
    if {".".join(path), ".".join(path[1:])} & set(as_text):
        leaf = text_leaf(leaf)
    return replace(leaf, fill=fill_bytes(leaf, {}))
