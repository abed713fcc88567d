"""What is known of a dataset's cache, as text that its maker passes to the processes that read it.

A reader that sampled the rows itself could find another layout than the one the graph was built for. It also would not
know which nodes have left since the dataset was made.
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
from ignite_tf_magic.protocol.layout import RowLayout
from ignite_tf_magic.protocol.layout_json import layout_from_json, layout_to_json

_VERSION = 6
_MOST_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A cache in the state in which its dataset was made.

    Attributes:
        layout: The layout of its rows.
        baseline: The owners of its partitions.
        row_bytes: Mean stored size of its rows.
        entries: The layout of the cache's entries, if its rows are packed into entries.
    """

    layout: RowLayout
    baseline: Baseline
    row_bytes: int
    entries: RowLayout | None = None

    def to_text(self) -> str:
        """Return the snapshot as letters, digits, "-" and "_"; the same text for the same cache."""
        content = {
            "version": _VERSION,
            "rows": layout_to_json(self.layout),
            "entries": layout_to_json(self.entries) if self.entries else None,
            "baseline": _baseline_to_json(self.baseline),
            "row_bytes": self.row_bytes,
        }
        packed = zlib.compress(json.dumps(content, sort_keys=True, separators=(",", ":")).encode(), 9)
        return base64.urlsafe_b64encode(packed).decode().rstrip("=")

    @classmethod
    def from_text(cls, text: str) -> Snapshot:
        """Parse the text of `to_text`.

        Raises:
            ConfigError: The text is damaged, or another version of this package wrote it.
        """
        try:
            packed = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
            content = json.loads(zlib.decompressobj().decompress(packed, _MOST_BYTES))
            if content["version"] != _VERSION:
                raise ValueError(f"version {content['version']} where {_VERSION} was expected")
            entries = layout_from_json(content["entries"]) if content["entries"] else None
            layout, baseline = layout_from_json(content["rows"]), _baseline(content["baseline"])
            return cls(layout, baseline, int(content["row_bytes"]), entries)
        except (ValueError, KeyError, TypeError, IndexError, zlib.error, binascii.Error) as error:
            raise ConfigError(
                f"the dataset's description in a file name cannot be read ({error}); use the same version of "
                "ignite_tf_magic in all processes"
            ) from error


def _baseline_to_json(baseline: Baseline) -> Any:
    """Write owners as node numbers, and partitions only if they are not 0, 1, 2, ..."""
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
