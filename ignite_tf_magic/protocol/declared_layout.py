"""The layout that a SQL table declares, for a cache without rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ignite_tf_magic.protocol.layout import VARIABLE, Leaf, Node, ObjectNode, RowLayout
from ignite_tf_magic.protocol.layout_finder import Nulls, fill_bytes, with_nullness
from ignite_tf_magic.protocol.messages import QueryEntity, QueryField
from ignite_tf_magic.protocol.objects import ARRAYS, binary_type_of, name_id
from ignite_tf_magic.protocol.ops import JAVA_TYPES

CODE_OF_JAVA_TYPE = {name: code for code, name in JAVA_TYPES.items()}


def declared_layout(entity: QueryEntity, nulls: Nulls = None) -> RowLayout | None:
    """Return the layout a SQL table declares, for a cache without rows; None when it does not tell.

    Arrays have no declared length and are taken as varying. `nulls` is that of `LayoutFinder`.
    """
    keys = [column for column in entity.fields if column.is_key]
    # A key of one column is that column itself, and CREATE TABLE marks it by its name only.
    values = [column for column in entity.fields if not column.is_key and column.name != entity.key_field]
    if entity.key_type in CODE_OF_JAVA_TYPE:
        key: Node | None = _declared_leaf(("key",), entity.key_type)
    else:
        key = _declared_object(("key",), entity.key_type, keys, nulls)
    value = _declared_object(("val",), entity.value_type, values, nulls)
    return RowLayout(key, value) if key and value else None


def _declared_object(
    path: tuple[str, ...], type_name: str, columns: Sequence[QueryField], nulls: Nulls
) -> ObjectNode | None:
    if not columns or any(column.java_type not in CODE_OF_JAVA_TYPE for column in columns):
        return None
    codes = {column.name: int(CODE_OF_JAVA_TYPE[column.java_type]) for column in columns}
    leaves = [
        (name_id(column.name), node)
        for column in columns
        for node in _declared_column((*path, column.name), column.java_type, nulls)
    ]
    return ObjectNode(path, (binary_type_of(type_name, codes),), tuple(leaves))


def _declared_column(path: tuple[str, ...], java_type: str, nulls: Nulls) -> tuple[Node, ...]:
    return with_nullness(_declared_leaf(path, java_type), path, nulls, has_null=False)


def _declared_leaf(path: tuple[str, ...], java_type: str) -> Leaf:
    code = CODE_OF_JAVA_TYPE[java_type]
    leaf = Leaf(path, code, VARIABLE if code in ARRAYS else 1)
    return replace(leaf, fill=fill_bytes(leaf, {}))
