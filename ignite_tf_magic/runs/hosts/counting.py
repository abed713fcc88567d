"""The rows of a cache, partition by partition, counted while the cluster stands still."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from ignite_tf_magic.client.client import Cache, Client
from ignite_tf_magic.client.page_sizes import PartitionStats
from ignite_tf_magic.client.router import Node
from ignite_tf_magic.config.options import ConnectOptions
from ignite_tf_magic.errors import PlacementError
from ignite_tf_magic.protocol.affinity import PartitionMap
from ignite_tf_magic.runs.hosts.topology import fingerprint
from ignite_tf_magic.runs.hosts.wholeness import check_whole, find_cache

_SETTLED_S, _MIN_COUNTS, _LOOK_S = 30.0, 4, 0.2


@dataclass(frozen=True, slots=True)
class CountedCache:
    """A cache as it is when a run's workers are placed.

    Attributes:
        partition_map: Who owns which partition.
        stats: Of each partition, by its number.
        nodes: Of the cluster, by their ids.
        topology: What tells each node from the others, as "host:port"; also those that are missing now.
        warnings: What is missing, and is no reason to refuse.
    """

    name: str
    partition_map: PartitionMap
    stats: Mapping[int, PartitionStats]
    nodes: Mapping[uuid.UUID, Node]
    topology: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def owners(self) -> str:
        """Fingerprint of the primary owners."""
        return fingerprint(self.partition_map)

    @property
    def rows(self) -> dict[int, int]:
        """Rows of each partition."""
        return {partition: each.rows for partition, each in self.stats.items()}

    @property
    def max_row_bytes(self) -> dict[int, int]:
        """The largest row of each partition, in bytes."""
        return {partition: each.max_row_bytes for partition, each in self.stats.items()}


def count_cache(
    client: Client, name: str, options: ConnectOptions | None = None, *, allow_partial: bool = False
) -> CountedCache:
    """Read a cache once, to count its rows, and note the count for the next time.

    Args:
        client: Connected to the cluster.
        name: Of the cache.
        options: How the cluster is reached, with the endpoints that are configured; None looks for no missing nodes.
        allow_partial: Only warn where rows or nodes are missing.

    Raises:
        CacheNotFound: There is no such cache.
        LoadIncomplete, RowsLost, NodesMissing: Only a part of its rows is there.
        PlacementError: Who owns them changes all the time.
    """
    cache = find_cache(client, name, options)
    partition_map, stats, nodes = _count(client, cache)
    whole = check_whole(cache, partition_map, stats, nodes.values(), options, allow_partial=allow_partial)
    return CountedCache(name, partition_map, stats, nodes, whole.topology, whole.warnings)


def _count(
    client: Client, cache: Cache
) -> tuple[PartitionMap, Mapping[int, PartitionStats], Mapping[uuid.UUID, Node]]:
    """Count the rows of each partition, while the owners stay the same.

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
    return partition_map, stats, nodes
