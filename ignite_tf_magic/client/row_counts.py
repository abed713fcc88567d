"""Stores the last row count of each cache and detects lost rows by comparing with it.

Ignite keeps no trace of a partition whose only copy was lost with a node. Under Ignite's default policy the partition
exists again, empty, on another node or on the same node after a restart. So this module stores each count in the facts
of the cache, under the key "counted":

    {"rows": ..., "time": ..., "by": ..., "nodes": [...], "endpoints": [...], "filled": "...", "lost_from": ...}

Fewer rows can also mean that somebody removed rows. A loss differs in two ways: more nodes are gone than there are
backups, and whole partitions are empty. If no count is stored, a loss shows in another way: a node holds no row of the
cache, while many partitions of other nodes have rows.
"""

from __future__ import annotations

import math
import os
import socket
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ignite_tf_magic.client.cache_facts import Facts, read_facts, update_facts
from ignite_tf_magic.client.cache_scan import WHOLE_CACHE, Baseline
from ignite_tf_magic.client.client import Cache, Client
from ignite_tf_magic.client.router import wait_for
from ignite_tf_magic.errors import RowsLost, format_ranges
from ignite_tf_magic.protocol import messages

_KEY = "counted"
# For half a second after a node was killed, the other nodes may count only their own rows.
_RECOUNT_S = 2.0
# A node without rows counts as suspicious if chance would leave it empty in at most this share of caches.
_CHANCE = 1e-6
# With this many rows per partition, hardly any partition is empty, unless a few affinity keys gather the rows.
_DENSE_ROWS, _SPARSE_SHARE = 8.0, 0.05
_SHOWN = 10


@dataclass(frozen=True, slots=True)
class RowCount:
    """A row count of a cache.

    Attributes:
        counted_at: Seconds since 1970.
        by: What counted the rows: the activity, host and process.
        nodes: Ids of the server nodes at that time.
        endpoints: The distinguishing endpoint of each of these nodes, as "host:port"; empty if they were not asked for.
        filled: The partitions that had rows; None if partitions were not examined.
        lost_from: Number of rows before a loss that --allow-partial accepted; 0 for none.
    """

    rows: int
    nodes: frozenset[uuid.UUID]
    by: str = ""
    counted_at: float = 0.0
    endpoints: tuple[str, ...] = ()
    filled: frozenset[int] | None = None
    lost_from: int = 0

    @property
    def when(self) -> str:
        """The time of the count and who made it, as text."""
        return f"{time.strftime('%Y-%m-%d %H:%M:%S UTC', time.gmtime(self.counted_at))} ({self.by})"


def counted_now(
    what: str,
    rows: int,
    nodes: Iterable[uuid.UUID],
    endpoints: Iterable[str],
    filled: Iterable[int] | None,
    lost_from: int = 0,
) -> RowCount:
    """Return a count that this process made at this moment."""
    by = f"{what} on {socket.gethostname()}, process {os.getpid()}"
    seen = None if filled is None else frozenset(filled)
    return RowCount(rows, frozenset(nodes), by, time.time(), tuple(endpoints), seen, lost_from)


def last_count(facts: Facts) -> RowCount | None:
    """Return the last count from a cache's facts; None if there is none, or if a later version wrote it."""
    text = facts.get(_KEY)
    try:
        return _from_json(text) if isinstance(text, dict) else None
    except (KeyError, TypeError, ValueError):
        return None


def note_count(client: Client, cache: str, count: RowCount) -> None:
    """Store a count in the facts of its cache, unless the same count is stored already.

    Raises:
        DeadlineExceeded: The count could not be written for 20 s.
        ServerError: This user may not write it.
    """
    known = last_count(read_facts(client, cache))
    if known is None or replace(count, by=known.by, counted_at=known.counted_at) != known:
        update_facts(client, cache, lambda facts: {**facts, _KEY: _to_json(count)})


def _to_json(count: RowCount) -> dict[str, Any]:
    return {
        "rows": count.rows,
        "time": count.counted_at,
        "by": count.by,
        "nodes": sorted(node.hex for node in count.nodes),
        "endpoints": list(count.endpoints),
        "filled": None if count.filled is None else f"{sum(1 << p for p in count.filled):x}",
        "lost_from": count.lost_from,
    }


def _from_json(content: Mapping[str, Any]) -> RowCount:
    bits = None if content["filled"] is None else int(content["filled"], 16)
    return RowCount(
        int(content["rows"]),
        frozenset(uuid.UUID(hex=text) for text in content["nodes"]),
        str(content["by"]),
        float(content["time"]),
        tuple(map(str, content["endpoints"])),
        None if bits is None else frozenset(p for p in range(bits.bit_length()) if bits >> p & 1),
        int(content.get("lost_from", 0)),
    )


# What a lower row count means


def evidence_of_loss(known: RowCount | None, baseline: Baseline, rows_of: Mapping[int, int]) -> str:
    """Describe the evidence that rows were lost with their nodes; return an empty text if there is none.

    Args:
        known: The last count.
        baseline: The current owners and nodes.
        rows_of: The number of rows of each partition.
    """
    if known is None:
        return _bare_node(baseline, rows_of)
    gone = known.nodes - baseline.nodes
    if sum(rows_of.values()) >= known.rows or len(gone) <= _spare_copies(known, baseline):
        return ""
    is_dense = known.rows >= _DENSE_ROWS * len(rows_of)
    filled = frozenset(rows_of) if known.filled is None and is_dense else known.filled
    emptied = sorted(p for p in filled or () if not rows_of.get(p))
    if filled is not None and not emptied:
        return ""  # a loss takes whole partitions
    copies = f"{baseline.backups or 'no'} backup{'s' * (baseline.backups != 1)}"
    where = f": {len(emptied)} partitions have no rows any more ({_some(emptied)})" if emptied else ""
    return (
        f"and had {known.rows:,} at {known.when}. Since then {len(gone)} of {len(known.nodes)} nodes left or "
        f"restarted, and it keeps {copies}{where}"
    )


def _some(partitions: Sequence[int]) -> str:
    shown = format_ranges(partitions[:_SHOWN])
    return f"{shown}, ..." if len(partitions) > _SHOWN else shown


def _spare_copies(known: RowCount, baseline: Baseline) -> int:
    """Return how many nodes may go without a loss: for a replicated cache, all but one of those that held it."""
    is_everywhere = WHOLE_CACHE in baseline.owners and baseline.backups == len(baseline.nodes) - 1
    return len(known.nodes) - 1 if is_everywhere else baseline.backups


def doubts(known: RowCount | None, cache: str, rows_of: Mapping[int, int]) -> list[str]:
    """Return warnings about a cache that shows no loss."""
    return _sparse(cache, rows_of) if known is None else _fewer(known, cache, sum(rows_of.values()))


def _fewer(known: RowCount, cache: str, rows: int) -> list[str]:
    if rows < known.rows:
        return [
            f"cache {cache!r} has {rows:,} rows and had {known.rows:,} at {known.when}. Nothing shows that "
            "they were lost with a node: somebody has removed them"
        ]
    if rows < known.lost_from:
        return [
            f"cache {cache!r} has {rows:,} of the {known.lost_from:,} rows that it had before nodes were lost; this "
            f"was accepted with --allow-partial at {known.when}"
        ]
    return []


def _bare_node(baseline: Baseline, rows_of: Mapping[int, int]) -> str:
    """Describe a node without rows, if chance cannot explain that it has none; else return an empty text."""
    num_filled = sum(map(bool, rows_of.values()))
    for node, partitions in sorted(_partitions_of(baseline).items()):
        share = len(partitions) / len(baseline.owners)
        if any(rows_of.get(p) for p in partitions) or share in (0.0, 1.0):
            continue
        if num_filled * math.log1p(-share) < math.log(_CHANCE):
            return (
                f"and node {node} has no row in any of its {len(partitions)} partitions, while {num_filled} partitions "
                "of other nodes have rows: it restarted and is empty"
            )
    return ""


def _partitions_of(baseline: Baseline) -> dict[uuid.UUID, list[int]]:
    partitions: dict[uuid.UUID, list[int]] = {}
    for partition, node in baseline.owners.items():
        partitions.setdefault(node, []).append(partition)
    return partitions


def _sparse(cache: str, rows_of: Mapping[int, int]) -> list[str]:
    rows, num_empty = sum(rows_of.values()), sum(not count for count in rows_of.values())
    if rows < _DENSE_ROWS * len(rows_of) or num_empty < _SPARSE_SHARE * len(rows_of):
        return []
    return [
        f"cache {cache!r} has {rows:,} rows, and {num_empty:,} of its {len(rows_of):,} partitions have none. That is "
        "normal if the rows have few affinity keys; otherwise rows were lost with a node. This cache was not counted "
        "before, so the cause is unknown"
    ]


# Checks by a reader before its first row


def check_rows(cache: Cache, baseline: Baseline, facts: Facts) -> list[str]:
    """Check with a few small requests whether rows are missing. Count the cache only if that is in doubt.

    Args:
        cache: The cache.
        baseline: The current baseline.
        facts: The stored facts of the cache.

    Returns:
        Warnings.

    Raises:
        RowsLost: Rows were lost with the nodes that held them.
    """
    known = last_count(facts)
    rows = _settled_size(cache, baseline, known)
    if _are_in_doubt(cache, baseline, known, rows):
        rows_of = {partition: each.rows for partition, each in cache.partition_stats().items()}
        rows = sum(rows_of.values())
        if evidence := evidence_of_loss(known, baseline, rows_of):
            raise RowsLost(cache.name, rows, evidence)
    return _fewer(known, cache.name, rows) if known is not None else []


def are_in_doubt(cache: Cache, baseline: Baseline, known: RowCount | None) -> bool:
    """Check with a few small requests whether rows may be lost, so that each partition must be examined."""
    return _are_in_doubt(cache, baseline, known, _settled_size(cache, baseline, known))


def _are_in_doubt(cache: Cache, baseline: Baseline, known: RowCount | None, rows: int) -> bool:
    if known is None:
        return _may_hold_a_bare_node(cache, baseline)
    return rows < known.rows and len(known.nodes - baseline.nodes) > _spare_copies(known, baseline)


def _settled_size(cache: Cache, baseline: Baseline, known: RowCount | None) -> int:
    """Count again, for up to 2 s, until there are as many rows as last time. Return the last count."""
    sizes = [baseline.size]
    wanted = known.rows if known else 0

    def is_whole() -> bool | None:
        sizes.append(cache.size())
        return sizes[-1] >= wanted or None

    if baseline.size < wanted:
        wait_for(is_whole, _RECOUNT_S)
    return sizes[-1]


def _may_hold_a_bare_node(cache: Cache, baseline: Baseline) -> bool:
    """Ask each owner for one of its own rows. Return whether an owner unexpectedly has none."""
    owners = _partitions_of(baseline)
    for node in cache.client.nodes():
        share = len(owners.get(node.node_id, ())) / len(baseline.owners)
        if not 0 < share < 1 or baseline.size * math.log1p(-share) >= math.log(_CHANCE):
            continue  # so few rows may well leave this node empty
        with cache.client.router.borrowed(node) as channel:
            page = channel.call(
                messages.scan(cache.cache_id, WHOLE_CACHE, 1, local=True), messages.parse_first_page
            )
            if page.has_more and page.cursor is not None:
                channel.call(messages.close_cursor(page.cursor), messages.parse_nothing)
        if not page.num_rows:
            return True
    return False
