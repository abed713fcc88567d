"""Counts the rows that each worker reads, on the nodes that hold them.

If a worker reads all rows of a node, the node's own row count is used. If several workers divide a node's rows, the
rows are counted by SQL, if there is a table. Else they are read, or, if they are many, left to the workers.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import Enum

from ignite_tf_magic.client.client import Cache, Client
from ignite_tf_magic.client.local_rows import rows_of_partitions, table_of
from ignite_tf_magic.errors import ConnectionFailed, ConnectionLost, ServerError
from ignite_tf_magic.runs.hosts.counting import CountedCache

# Limit of the data to be read for counting rows that nodes cannot count.
_MOST_READ_BYTES = 512 * 1024


class NotCounted(Enum):
    """Why the rows of shards could not be counted."""

    CHANGED = "the counts do not come to what the nodes have told"
    MUCH = "nodes cannot count pieces of what they have by SQL, and to read them takes too much"


Piece = tuple[uuid.UUID, int]  # the part of a shard that is on one node: node id and number of the shard


def count_shares(
    client: Client, cache: CountedCache, shares: Sequence[Collection[int]]
) -> list[dict[uuid.UUID, int]] | NotCounted:
    """Count the rows of each shard of a cache, by the nodes that have them.

    Args:
        client: A client connected to the cluster.
        cache: The cache, with its nodes' row counts.
        shares: Partitions of each shard; each partition is in one shard.
    """
    told = cache.rows_by_node or {}
    pieces = dict(_pieces(cache, shares))
    divided = {
        piece: partitions
        for piece, partitions in pieces.items()
        if len(partitions) < len(cache.partition_map.owners[piece[0]])
    }
    counts = {(node, number): told[node] for node, number in pieces.keys() - divided.keys()}
    if divided:
        found = client.cache(cache.name)
        counted = _counted_by_sql(found, cache, divided)
        if counted is None:
            rows = sum(cache.rows[partition] for partitions in divided.values() for partition in partitions)
            if rows * cache.row_bytes > _MOST_READ_BYTES and cache.packed is None:
                return NotCounted.MUCH
            counted = _read(found, told, divided)
        counts |= counted
    for node, rows in told.items():
        mine = [count for (owner, _), count in counts.items() if owner == node]
        if sum(mine) != rows or min(mine, default=0) < 0:
            return NotCounted.CHANGED
    by_share: list[dict[uuid.UUID, int]] = [{} for _ in shares]
    for (node, number), count in counts.items():
        by_share[number][node] = count
    return by_share


def _pieces(cache: CountedCache, shares: Sequence[Collection[int]]) -> Iterator[tuple[Piece, list[int]]]:
    for number, share in enumerate(shares):
        mine = set(share)
        for node, partitions in cache.partition_map.owners.items():
            if piece := sorted(mine.intersection(partitions)):
                yield (node, number), piece


def _counted_by_sql(
    found: Cache, cache: CountedCache, divided: dict[Piece, list[int]]
) -> dict[Piece, int] | None:
    """Let the nodes count the rows of pieces; return None if they cannot. Retries once after a lost connection."""
    for _ in range(2):
        try:
            return _asked(found, cache, divided)
        except (ConnectionFailed, ConnectionLost):
            continue
        except ServerError:
            break
    return None


def _asked(found: Cache, cache: CountedCache, divided: dict[Piece, list[int]]) -> dict[Piece, int] | None:
    table = table_of(found)
    if table is None:
        return None

    def count(piece: Piece, table: str = table) -> int | None:
        return rows_of_partitions(found.client, cache.nodes[piece[0]], table, divided[piece])

    with ThreadPoolExecutor(min(len(divided), 16), "count-rows") as pool:
        counted = dict(zip(divided, pool.map(count, divided), strict=True))
    counts = {piece: rows for piece, rows in counted.items() if rows is not None}
    return counts if len(counts) == len(divided) else None


def _read(found: Cache, told: Mapping[uuid.UUID, int], divided: dict[Piece, list[int]]) -> dict[Piece, int]:
    """Count each node's pieces by reading all but the largest, which gets the rest of the node's row count."""
    largest = {
        node: max((piece for piece in divided if piece[0] == node), key=lambda piece: len(divided[piece]))
        for node, _ in divided
    }
    smaller = {piece: divided[piece] for piece in divided if piece not in largest.values()}
    stats = found.partition_stats(partition for partitions in smaller.values() for partition in partitions)
    counts = {piece: sum(stats[p].rows for p in partitions) for piece, partitions in smaller.items()}
    left = {
        piece: told[node] - sum(rows for (owner, _), rows in counts.items() if owner == node)
        for node, piece in largest.items()
    }
    return {**counts, **left}
