"""The rows of a cache when workers are placed.

Nodes tell how many rows they have, whatever their number. Partitions are read to their ends only where that is little,
where rows may be missing, or where nodes do not tell.
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
# Where hashes spread rows over partitions, none is empty with so many for each.
_DENSE_ROWS = 8
_MANY = 0.95


@dataclass(frozen=True, slots=True)
class CountedCache:
    """A cache as it is when a run's workers are placed.

    Attributes:
        partition_map: Who owns which partition.
        rows: Of each partition; where nobody has looked into it, its part of what its node has.
        row_bytes: Of the largest row that was looked at; 0 without one.
        nodes: Of the cluster, by their ids.
        rows_by_node: Rows of which a node has the primary copies; None where `rows` were counted themselves.
        has_table: Whether nodes can count pieces of what they have, so that nothing is read for it.
        topology: What tells each node from the others, as "host:port"; also those that are missing now.
        warnings: What is missing, and is no reason to refuse.
        packed: What tells how many rows there are where all numbers of rows here are of entries that hold many each.
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
    """Count a cache's rows, as far as it takes to place workers, and note their number for the next time.

    Args:
        client: Connected to the cluster.
        name: Of the cache.
        options: How the cluster is reached, with the endpoints that are configured; None looks for no missing nodes.
        allow_partial: Only warn where rows or nodes are missing.

    Raises:
        CacheNotFound: There is no such cache.
        LoadIncomplete, RowsLost, NodesMissing: Only a part of its rows is there.
        PlacementError: Who owns them changes all the time.
        SchemaError: Its rows are packed, and nobody knows how many they are.
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
    """Count the rows of each partition of a cache of which nodes have told, by reading them.

    Raises:
        PlacementError: Who owns them changes all the time.
    """
    read = _read(client, client.cache(counted.name))
    return replace(read, topology=counted.topology, warnings=counted.warnings, packed=counted.packed)


def _told_by_nodes(client: Client, cache: Cache, facts: Facts) -> CountedCache | None:
    """Have the nodes tell; None where they do not, and where partitions have to be looked into."""
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
    """Whether the last count has found many rows, and these in some of the partitions only."""
    was_dense = known.rows >= _DENSE_ROWS * num_partitions
    return was_dense and known.filled is not None and len(known.filled) < _MANY * num_partitions


def _settled_rows(client: Client, cache: Cache) -> CountedCache | None:
    """Ask nodes until what they have comes to what the cluster says, and its owners stay the same."""
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
    """Give each partition its part of the rows of its node."""
    rows: dict[int, int] = {}
    for node, partitions in partition_map.owners.items():
        each, more = divmod(rows_of[node], max(len(partitions), 1))
        rows |= {partition: each + (number < more) for number, partition in enumerate(sorted(partitions))}
    return rows


def _sampled(client: Client, cache: Cache, partition_map: PartitionMap) -> tuple[int, bool]:
    """Look at the first row of some partitions; gives the bytes of the largest, and whether a partition has none."""
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
    """Count the rows of each partition by reading it, while the owners stay the same.

    Raises:
        PlacementError: They change all the time, or one of them cannot be reached by anybody.
    """
    deadline = time.monotonic() + _SETTLED_S
    partition_map = cache.partition_map()
    # One count may take longer than the deadline, while a node is being given up.
    for num_counts in itertools.count(1):
        stats = cache.partition_stats()
        # Asked for after the count, which has found out which of a node's addresses lead to it from here.
        nodes = {node.node_id: node for node in client.nodes()}
        before, partition_map = partition_map, cache.partition_map()
        unknown = [str(node) for node in partition_map.owners if node not in nodes]
        if not unknown and fingerprint(before) == fingerprint(partition_map):
            break
        if time.monotonic() > deadline and num_counts >= _MIN_COUNTS:
            reason = f"{', '.join(unknown)} accept no clients" if unknown else "they change all the time"
            raise PlacementError(
                f"the owners of the partitions of cache {cache.name!r} cannot be told after {_SETTLED_S:g} s: "
                f"{reason}; look at the nodes' logs"
            )
        time.sleep(_LOOK_S)
    rows = {partition: each.rows for partition, each in stats.items()}
    row_bytes = max((each.max_row_bytes for each in stats.values()), default=0)
    return CountedCache(cache.name, partition_map, rows, row_bytes, nodes)
