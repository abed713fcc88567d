"""Which worker reads which partitions. Pure: values in, values out.

Every partition is read by exactly one worker. Workers are balanced by rows; within that, a worker is
given partitions of its own nodes first, then of its host, then of any.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from ignite_tf_magic.errors import PlacementError

# A worker may have this much more than its even share if that keeps its reads on its own host.
_SLACK = 1.05
_Place = TypeVar("_Place", uuid.UUID, str)


@dataclass(frozen=True, slots=True)
class Assignment:
    """The partitions of one worker.

    Attributes:
        worker: Index of the worker.
        host: Where the worker runs.
        node: The node of that host from which the worker reads most.
        partitions: Ascending.
        rows: Rows in all its partitions.
        local_rows: Of these, the rows that a node of its own host holds.
    """

    worker: int
    host: str
    node: uuid.UUID
    partitions: tuple[int, ...]
    rows: int
    local_rows: int


def place(
    owners: Mapping[uuid.UUID, Sequence[int]],
    rows: Mapping[int, int],
    hosts: Mapping[uuid.UUID, str],
    num_workers: int,
) -> tuple[Assignment, ...]:
    """Spread partitions over workers, and workers over hosts.

    No worker gets more than 1.05 times its even share plus the largest partition; each gets rows.

    Args:
        owners: The primary partitions of each node.
        rows: Rows of each partition; partitions that are not named have none.
        hosts: The host of each node that owns partitions.
        num_workers: How many assignments to make; they come in the order of their index.

    Raises:
        PlacementError: There are fewer partitions with rows than workers (a single worker needs none), or
            a partition has two owners.
    """
    cluster = _Cluster(owners, rows, hosts)
    _check(cluster, num_workers)
    workers = _staff(cluster, num_workers)
    share = _SLACK * cluster.total / num_workers
    for partition in sorted(cluster.owner, key=lambda p: (-cluster.rows(p), p)):
        _choose(workers, cluster, partition, share).add(partition, cluster.rows(partition))
    _fill_empty(workers, cluster)
    return tuple(worker.assignment(index, cluster) for index, worker in enumerate(workers))


class _Cluster:
    def __init__(
        self,
        owners: Mapping[uuid.UUID, Sequence[int]],
        rows: Mapping[int, int],
        hosts: Mapping[uuid.UUID, str],
    ) -> None:
        self._rows = rows
        self.hosts = hosts
        self.owner = {partition: node for node, partitions in owners.items() for partition in partitions}
        self.has_double_owner = len(self.owner) != sum(len(set(partitions)) for partitions in owners.values())
        self.total = sum(self.rows(partition) for partition in self.owner)
        self.rows_of_node = {node: sum(map(self.rows, partitions)) for node, partitions in owners.items()}

    def rows(self, partition: int) -> int:
        return self._rows.get(partition, 0)

    def host_of(self, partition: int) -> str:
        return self.hosts[self.owner[partition]]

    def filled(self) -> list[int]:
        return [partition for partition in self.owner if self.rows(partition)]


@dataclass(slots=True)
class _Worker:
    host: str
    nodes: set[uuid.UUID] = field(default_factory=set)
    partitions: list[int] = field(default_factory=list)
    rows: int = 0

    @property
    def load(self) -> tuple[int, int]:
        return self.rows, len(self.partitions)

    def add(self, partition: int, rows: int) -> None:
        self.partitions.append(partition)
        self.rows += rows

    def assignment(self, index: int, cluster: _Cluster) -> Assignment:
        by_node: Counter[uuid.UUID] = Counter()
        for partition in self.partitions:
            by_node[cluster.owner[partition]] += cluster.rows(partition)
        local = {node: rows for node, rows in by_node.items() if cluster.hosts[node] == self.host}
        candidates = local or dict.fromkeys(sorted(self.nodes, key=str), 0) or by_node
        node = max(candidates, key=lambda candidate: (candidates[candidate], str(candidate)))
        ordered = tuple(sorted(self.partitions))
        return Assignment(index, self.host, node, ordered, self.rows, sum(local.values()))


def _check(cluster: _Cluster, num_workers: int) -> None:
    if num_workers < 1:
        raise PlacementError(f"{num_workers} workers were asked for; a run needs at least one")
    if not cluster.owner:
        raise PlacementError("no node owns a partition of the cache; wait until the cluster has settled")
    if cluster.has_double_owner:
        raise PlacementError("a partition has two primary owners; the topology is changing, ask again")
    filled = len(cluster.filled())
    if num_workers > max(filled, 1):
        raise PlacementError(
            f"{num_workers} workers were asked for, but only {filled} partitions of the cache hold rows, and a "
            f"partition is read by one worker: ask for at most {max(filled, 1)}"
        )


def _staff(cluster: _Cluster, num_workers: int) -> list[_Worker]:
    """Decide how many workers each host gets, and which of its nodes each of them calls its own."""
    rows_of_host: Counter[str] = Counter()
    for node, rows in cluster.rows_of_node.items():
        rows_of_host[cluster.hosts[node]] += rows
    filled = Counter(map(cluster.host_of, cluster.filled()))
    seats = _apportion(rows_of_host, filled, num_workers)
    workers = []
    for host in sorted(seats):
        nodes = [node for node in sorted(cluster.rows_of_node, key=str) if cluster.hosts[node] == host]
        workers += _staff_host(host, nodes, cluster, seats[host])
    return workers


def _staff_host(host: str, nodes: list[uuid.UUID], cluster: _Cluster, num_workers: int) -> list[_Worker]:
    workers = [_Worker(host) for _ in range(num_workers)]
    rows_of_node = cluster.rows_of_node
    if num_workers >= len(nodes):
        filled = Counter(cluster.owner[partition] for partition in cluster.filled())
        seats = _apportion({node: rows_of_node[node] for node in nodes}, filled, num_workers)
        for worker, node in zip(workers, Counter(seats).elements(), strict=True):
            worker.nodes.add(node)
        return workers
    for node in sorted(nodes, key=lambda node: -rows_of_node[node]):
        least = min(workers, key=lambda worker: sum(rows_of_node[own] for own in worker.nodes))
        least.nodes.add(node)
    return workers


def _apportion(rows: Mapping[_Place, int], limits: Mapping[_Place, int], num_seats: int) -> dict[_Place, int]:
    """Give seats to places, one at a time, to the place with the most rows per seat it would have.

    No place gets more seats than it has partitions with rows, unless all are full.
    """
    seats: dict[_Place, int] = {}
    for _ in range(num_seats):
        open_places = [place for place in rows if seats.get(place, 0) < limits.get(place, 0)] or list(rows)
        best = max(open_places, key=lambda place: (rows[place] / (seats.get(place, 0) + 1), str(place)))
        seats[best] = seats.get(best, 0) + 1
    return seats


def _choose(workers: list[_Worker], cluster: _Cluster, partition: int, share: float) -> _Worker:
    node, host, rows = cluster.owner[partition], cluster.host_of(partition), cluster.rows(partition)
    preferred: Iterable[list[_Worker]] = (
        [worker for worker in workers if node in worker.nodes],
        [worker for worker in workers if worker.host == host],
    )
    for group in preferred:
        least = min(group, key=lambda worker: worker.load, default=None)
        if least is not None and least.rows + rows <= share:
            return least
    return min(
        workers, key=lambda worker: (worker.rows, worker.host != host, node not in worker.nodes, worker.load)
    )


def _fill_empty(workers: list[_Worker], cluster: _Cluster) -> None:
    for empty in [worker for worker in workers if not worker.rows]:
        donors = [worker for worker in workers if sum(map(bool, map(cluster.rows, worker.partitions))) > 1]
        if not donors:
            return
        donor = max(donors, key=lambda worker: (worker.host == empty.host, worker.rows))
        smallest = min(filter(cluster.rows, donor.partitions), key=cluster.rows)
        donor.partitions.remove(smallest)
        donor.rows -= cluster.rows(smallest)
        empty.add(smallest, cluster.rows(smallest))
