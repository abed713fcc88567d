"""Counts the rows of a cache when workers are placed.

Nodes report their row counts, which takes the same time for any number of rows. Partitions are read only if they are
small, if rows may be missing, or if nodes do not report counts.
"""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ignite_tf_magic.client.cache_facts import Facts, read_facts
from ignite_tf_magic.client.cache_scan import WHOLE_CACHE
from ignite_tf_magic.client.client import Cache, Client
from ignite_tf_magic.client.local_rows import rows_by_node, table_of
from ignite_tf_magic.client.packed_entries import PackedCount, holds_packed_rows, packed_count
from ignite_tf_magic.client.router import Node
from ignite_tf_magic.client.row_counts import RowCount, are_in_doubt, last_count
from ignite_tf_magic.errors import PlacementError, ServerError
from ignite_tf_magic.protocol import messages
from ignite_tf_magic.protocol.affinity import PartitionMap
from ignite_tf_magic.runs.hosts.topology import fingerprint
from ignite_tf_magic.runs.hosts.wholeness import check_whole, find_cache
from ignite_tf_magic.settings.options import ConnectOptions

_SETTLED_S, _MIN_COUNTS, _LOOK_S = 30.0, 4, 0.2
_TOLD_S = 5.0
_SAMPLED_PARTITIONS, _SAMPLED_BYTES = 32, 256 * 1024
_LITTLE_BYTES = 256 * 1024
# If rows are spread over partitions by hash, no partition is empty with this many rows per partition.
_DENSE_ROWS = 8
_MANY = 0.95


@dataclass(frozen=True, slots=True)
class CountedCache:
    """A cache with its row counts at the time when a run's workers are placed.

    Attributes:
        partition_map: The owners of the partitions.
        rows: Row count of each partition; an even part of its node's count if the partition was not read.
        row_bytes: Size of the largest row that was read; 0 if none was.
        nodes: Nodes of the cluster, by id.
        rows_by_node: Number of rows of which each node has the primary copy; None if partitions were read instead.
        has_table: Whether nodes can count some of their partitions by SQL, so that nothing has to be read.
        topology: A "host:port" that identifies each node; includes nodes that are missing now.
        warnings: Missing rows or nodes that do not prevent the run.
        packed: Converts entries to rows if the cache's entries hold several rows each; all other counts here are then
            counts of entries. Else None.
    """

    name: str
    partition_map: PartitionMap
    rows: Mapping[int, int]
    row_bytes: int
    nodes: Mapping[uuid.UUID, Node]
    rows_by_node: Mapping[uuid.UUID, int] | None = None
    has_table: bool = True
    topology: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    packed: PackedCount | None = None

    @property
    def owners(self) -> str:
        """Fingerprint of the primary owners."""
        return fingerprint(self.partition_map)


def count_cache(
    client: Client, name: str, options: ConnectOptions | None = None, *, allow_partial: bool = False
) -> CountedCache:
    """Count a cache's rows as far as needed for placing workers, and store the count for the next time.

    Args:
        client: A client connected to the cluster.
        name: Name of the cache.
        options: Connection options with the configured endpoints; None does not look for missing nodes.
        allow_partial: Only warn if rows or nodes are missing.

    Raises:
        CacheNotFound: The cache does not exist.
        LoadIncomplete, RowsLost, NodesMissing: Some of its rows are missing.
        PlacementError: Its owners keep changing.
        SchemaError: Its rows are packed, and their number is unknown.
    """
    cache = find_cache(client, name, options)
    facts = read_facts(client, name)
    counted = _told_by_nodes(client, cache, facts) or _read(client, cache)
    is_read = counted.rows_by_node is None
    whole = check_whole(
        cache,
        counted.partition_map,
        counted.rows,
        counted.nodes.values(),
        options,
        facts,
        filled=[p for p, rows in counted.rows.items() if rows and p != WHOLE_CACHE] if is_read else None,
        allow_partial=allow_partial,
    )
    num_entries = sum(counted.rows.values())
    is_packed = num_entries and holds_packed_rows(cache.config())
    packed = packed_count(cache, num_entries) if is_packed else None
    return replace(counted, topology=whole.topology, warnings=whole.warnings, packed=packed)


def read_partitions(client: Client, counted: CountedCache) -> CountedCache:
    """Count the rows of each partition by reading, for a cache that was counted by its nodes.

    Raises:
        PlacementError: Its owners keep changing.
    """
    read = _read(client, client.cache(counted.name))
    return replace(read, topology=counted.topology, warnings=counted.warnings, packed=counted.packed)


def _told_by_nodes(client: Client, cache: Cache, facts: Facts) -> CountedCache | None:
    """Return the nodes' own row counts; None if nodes do not report them, or if partitions must be read."""
    baseline, known = cache.baseline(), last_count(facts)
    if WHOLE_CACHE in baseline.owners or are_in_doubt(cache, baseline, known):
        return None
    told = _settled_rows(client, cache)
    if told is None:
        return None
    num_rows = sum(told.rows_by_node.values()) if told.rows_by_node else 0
    row_bytes, has_empty = _sampled(client, cache, told.partition_map)
    is_dense = num_rows >= _DENSE_ROWS * told.partition_map.num_partitions
    num_partitions = told.partition_map.num_partitions
    is_gathered = has_empty if known is None else _lacks_many(known, num_partitions)
    if num_rows * row_bytes <= _LITTLE_BYTES or (is_dense and is_gathered):
        return None
    return replace(told, row_bytes=row_bytes, has_table=table_of(cache) is not None)


def _lacks_many(known: RowCount, num_partitions: int) -> bool:
    """Return whether the last count found many rows, but in some of the partitions only."""
    was_dense = known.rows >= _DENSE_ROWS * num_partitions
    return was_dense and known.filled is not None and len(known.filled) < _MANY * num_partitions


def _settled_rows(client: Client, cache: Cache) -> CountedCache | None:
    """Ask nodes for their row counts until these sum up to the cluster's size and the owners are stable."""
    deadline = time.monotonic() + _TOLD_S
    while True:
        partition_map = cache.partition_map()
        try:
            rows = rows_by_node(client, cache.name)
        except ServerError:
            return None
        nodes = {node.node_id: node for node in client.nodes()}
        owners = partition_map.owners
        is_told = owners.keys() <= rows.keys() & nodes.keys() and sum(rows.values()) == cache.size()
        if is_told and fingerprint(partition_map) == fingerprint(cache.partition_map()):
            told = {node: rows[node] for node in owners}
            return CountedCache(cache.name, partition_map, _spread(partition_map, told), 0, nodes, told)
        if not rows or time.monotonic() > deadline:
            return None
        time.sleep(_LOOK_S)


def _spread(partition_map: PartitionMap, rows_of: Mapping[uuid.UUID, int]) -> dict[int, int]:
    """Divide each node's rows evenly among its partitions."""
    rows: dict[int, int] = {}
    for node, partitions in partition_map.owners.items():
        each, more = divmod(rows_of[node], max(len(partitions), 1))
        rows |= {partition: each + (number < more) for number, partition in enumerate(sorted(partitions))}
    return rows


def _sampled(client: Client, cache: Cache, partition_map: PartitionMap) -> tuple[int, bool]:
    """Read the first row of some partitions; return the largest row's size and whether a partition is empty."""
    primary_of = partition_map.primary_of()
    chosen = sorted(primary_of)[:: max(1, len(primary_of) // _SAMPLED_PARTITIONS)]
    sizes: list[int] = []
    for node in client.nodes():
        mine = [partition for partition in chosen if primary_of[partition] == node.node_id]
        if not mine:
            continue
        with client.router.borrowed(node) as channel:
            for partition in mine:
                page = channel.call(messages.scan(cache.cache_id, partition, 1), messages.parse_first_page)
                if page.has_more and page.cursor is not None:
                    channel.call(messages.close_cursor(page.cursor), messages.parse_nothing)
                sizes.append(len(page.rows))
                if sum(sizes) > _SAMPLED_BYTES:
                    return max(sizes), False
    return max(sizes, default=0), not all(sizes)


def _read(client: Client, cache: Cache) -> CountedCache:
    """Count the rows of each partition by reading, until the owners are the same before and after.

    Raises:
        PlacementError: The owners keep changing, or one of them accepts no clients.
    """
    deadline = time.monotonic() + _SETTLED_S
    partition_map = cache.partition_map()
    # A single count may take longer than the deadline if a node has just failed.
    for num_counts in itertools.count(1):
        stats = cache.partition_stats()
        # Asked after the count, which has found out which of each node's addresses works from here.
        nodes = {node.node_id: node for node in client.nodes()}
        before, partition_map = partition_map, cache.partition_map()
        unknown = [str(node) for node in partition_map.owners if node not in nodes]
        if not unknown and fingerprint(before) == fingerprint(partition_map):
            break
        if time.monotonic() > deadline and num_counts >= _MIN_COUNTS:
            reason = f"{', '.join(unknown)} accept no clients" if unknown else "they change all the time"
            raise PlacementError(
                f"the owners of the partitions of cache {cache.name!r} are still unknown after "
                f"{_SETTLED_S:g} s: {reason}; look at the nodes' logs"
            )
        time.sleep(_LOOK_S)
    rows = {partition: each.rows for partition, each in stats.items()}
    row_bytes = max((each.max_row_bytes for each in stats.values()), default=0)
    return CountedCache(cache.name, partition_map, rows, row_bytes, nodes)
