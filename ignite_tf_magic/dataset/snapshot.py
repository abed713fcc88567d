"""Knowledge of a dataset's cache, as text that travels from its maker to the processes that read it.

A reader that worked from its own look at the rows could find another layout than the one that the graph was
built for, and would not know which nodes have left since the dataset was made.
"""

from __future__ import annotations

import base64
import binascii
import json
import uuid
import zlib
from dataclasses import dataclass
from typing import Any

from ignite_tf_magic.client.cache_scan import Baseline
from ignite_tf_magic.errors import ConfigError
from ignite_tf_magic.protocol.layout import Leaf, LeafRole, Node, ObjectNode, RowLayout
from ignite_tf_magic.protocol.objects import BinaryType

_VERSION = 4
_MOST_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A cache as its dataset's maker found it.

    Attributes:
        layout: What its rows look like.
        baseline: Who owned them.
        row_bytes: Their mean size as they are stored.
    """

    layout: RowLayout
    baseline: Baseline
    row_bytes: int

    def to_text(self) -> str:
        """Return it as letters, digits, "-" and "_"; the same text for the same cache."""
        content = {
            "version": _VERSION,
            "key": _node_to_json(self.layout.key),
            "val": _node_to_json(self.layout.value),
            "baseline": _baseline_to_json(self.baseline),
            "row_bytes": self.row_bytes,
        }
        packed = zlib.compress(json.dumps(content, sort_keys=True, separators=(",", ":")).encode(), 9)
        return base64.urlsafe_b64encode(packed).decode().rstrip("=")

    @classmethod
    def from_text(cls, text: str) -> Snapshot:
        """Read what `to_text` gave.

        Raises:
            ConfigError: It is damaged, or another version of this package wrote it.
        """
        try:
            packed = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
            content = json.loads(zlib.decompressobj().decompress(packed, _MOST_BYTES))
            if content["version"] != _VERSION:
                raise ValueError(f"version {content['version']} where {_VERSION} was expected")
            layout = RowLayout(_node(content["key"], ("key",)), _node(content["val"], ("val",)))
            return cls(layout, _baseline(content["baseline"]), int(content["row_bytes"]))
        except (ValueError, KeyError, TypeError, IndexError, zlib.error, binascii.Error) as error:
            raise ConfigError(
                f"the dataset's description in a file name cannot be read ({error}); use the same version of "
                "ignite_tf_magic in all processes"
            ) from error


def _node_to_json(node: Node) -> Any:
    if isinstance(node, Leaf):
        fill = None if node.fill is None else base64.b64encode(node.fill).decode()
        item = _node_to_json(node.item) if node.item else None
        return [node.code, node.length, fill, node.role, item, node.may_hold_null]
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
    code, length, fill, role, item, may_hold_null = content
    decoded = None if fill is None else base64.b64decode(fill)
    found = None if item is None else _leaf(item, path)
    return Leaf(path, int(code), int(length), decoded, LeafRole(role), found, bool(may_hold_null))


def _type_to_json(binary_type: BinaryType) -> Any:
    return {
        "id": binary_type.type_id,
        "name": binary_type.name,
        "fields": [[name, code, field_id] for name, (code, field_id) in binary_type.fields.items()],
        "schemas": [[schema, list(field_ids)] for schema, field_ids in binary_type.schemas.items()],
    }


def _type(content: Any) -> BinaryType:
    fields = {name: (code, field_id) for name, code, field_id in content["fields"]}
    schemas = {schema: tuple(field_ids) for schema, field_ids in content["schemas"]}
    return BinaryType(content["id"], content["name"], fields, schemas)


def _baseline_to_json(baseline: Baseline) -> Any:
    """Write owners as numbers of nodes; partitions only where they are not 0, 1, 2, ..."""
    partitions = sorted(baseline.owners)
    nodes = sorted(baseline.nodes | set(baseline.owners.values()))
    return {
        "cache": baseline.cache,
        "partitions": None if partitions == list(range(len(partitions))) else partitions,
        "owners": [nodes.index(baseline.owners[partition]) for partition in partitions],
        "nodes": [node.hex for node in nodes],
        "alive": [nodes.index(node) for node in sorted(baseline.nodes)],
        "backups": baseline.backups,
        "size": baseline.size,
    }


def _baseline(content: Any) -> Baseline:
    nodes = [uuid.UUID(hex=text) for text in content["nodes"]]
    partitions = content["partitions"] or range(len(content["owners"]))
    return Baseline(
        content["cache"],
        {int(p): nodes[owner] for p, owner in zip(partitions, content["owners"], strict=True)},
        frozenset(nodes[number] for number in content["alive"]),
        int(content["backups"]),
        int(content["size"]),
    )
