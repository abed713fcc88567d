"""Converts row layouts to JSON and back, for other processes and for packed rows."""

from __future__ import annotations

import base64
from typing import Any

from ignite_tf_magic.protocol.layout import Leaf, LeafRole, Node, ObjectNode, RowLayout
from ignite_tf_magic.protocol.objects import BinaryType


def layout_to_json(layout: RowLayout) -> Any:
    """Return a layout as JSON values. Equal layouts give equal values."""
    return {"key": _node_to_json(layout.key), "val": _node_to_json(layout.value)}


def layout_from_json(content: Any) -> RowLayout:
    """Return the layout that `layout_to_json` converted.

    Raises:
        ValueError, KeyError, TypeError, IndexError: The content is damaged.
    """
    return RowLayout(_node(content["key"], ("key",)), _node(content["val"], ("val",)))


def _node_to_json(node: Node) -> Any:
    if isinstance(node, Leaf):
        fill = None if node.fill is None else base64.b64encode(node.fill).decode()
        item = _node_to_json(node.item) if node.item else None
        members = [list(node.member), [_type_to_json(each) for each in node.types]]
        as_text = [True] if node.as_text else []  # absent in packed rows of older versions
        return [node.code, node.length, fill, node.role, item, node.may_hold_null, *members, *as_text]
    return {
        "types": [_type_to_json(each) for each in node.types],
        "kept": [[field_id, child.path[-1], _node_to_json(child)] for field_id, child in node.fields],
    }


def _node(content: Any, path: tuple[str, ...]) -> Node:
    if isinstance(content, list):
        return _leaf(content, path)
    kept = tuple((field_id, _node(child, (*path, name))) for field_id, name, child in content["kept"])
    return ObjectNode(path, tuple(map(_type, content["types"])), kept)


def _leaf(content: Any, path: tuple[str, ...]) -> Leaf:
    code, length, fill, role, item, may_hold_null, member, types, *as_text = content
    decoded = None if fill is None else base64.b64decode(fill)
    found = None if item is None else _leaf(item, path)
    read = tuple(map(_type, types))
    return Leaf(
        path,
        int(code),
        int(length),
        decoded,
        LeafRole(role),
        found,
        bool(may_hold_null),
        tuple(member),
        read,
        bool(as_text),
    )


def _type_to_json(binary_type: BinaryType) -> Any:
    found: dict[str, Any] = {
        "id": binary_type.type_id,
        "name": binary_type.name,
        "fields": [[name, code, field_id] for name, (code, field_id) in binary_type.fields.items()],
        "schemas": [[schema, list(field_ids)] for schema, field_ids in binary_type.schemas.items()],
    }
    if binary_type.enum_names:
        found["enum_names"] = [[number, name] for number, name in binary_type.enum_names.items()]
    return found


def _type(content: Any) -> BinaryType:
    fields = {name: (code, field_id) for name, code, field_id in content["fields"]}
    schemas = {schema: tuple(field_ids) for schema, field_ids in content["schemas"]}
    enum_names = dict(content.get("enum_names", ()))
    return BinaryType(content["id"], content["name"], fields, schemas, enum_names=enum_names)
