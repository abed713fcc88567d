"""Decides on which host each worker runs and which partitions it reads. Pure: values in, values out.

Every partition is read by exactly one worker. Workers are balanced by rows. Within that limit, a worker gets
partitions of its own nodes first, then of its host, then of any host. Partitions on hosts that may not run workers
are read over the network.
"""

from __future__ import annotations

import difflib
import uuid
from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from ignite_tf_magic.errors import PlacementError, format_ranges

# A worker may have this multiple of an even share if that keeps its reads on its own host.
SLACK = 1.05
# Stands for all hosts that may not run workers when task slots are divided by rows.
_ELSEWHERE = ""
_Place = TypeVar("_Place", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Assignment:
    """The partitions of one worker.

    Attributes:
        worker: Index of the worker.
        host: Where the worker runs.
        node: The node to connect to first: the node of its own host, if there is one, from which it reads most.
        partitions: Partition numbers, ascending.
        rows: Number of rows in these partitions.
        local_rows: Number of these rows that are on a node of its own host.
    """

    worker: int
    host: str
    node: uuid.UUID
    partitions: tuple[int, ...]
    rows: int
    local_rows: int


@dataclass(frozen=True, slots=True)
class PlacementRow:
    """A description of one assignment for users.

    Attributes:
        partitions: As ranges, "0-127,200".
        rows_share: Fraction of the rows of all workers, from 0 to 1.
        num_bytes: Estimated size: number of rows times the size of the largest row that was read.
        local_bytes_share: Fraction of `num_bytes` on nodes of the worker's own host, from 0 to 1; 1 without rows.
    """

    worker: int
    host: str
    node: uuid.UUID
    num_partitions: int
    partitions: str
    rows: int
    rows_share: float
    num_bytes: int
    local_bytes_share: float


def place(
    owners: Mapping[uuid.UUID, Sequence[int]],
    rows: Mapping[int, int],
    hosts: Mapping[uuid.UUID, str],
    num_workers: int,
    *,
    usable_hosts: Collection[str] | None = None,
    max_workers_by_host: Mapping[str, int] | None = None,
    slack: float = SLACK,
) -> tuple[Assignment, ...]:
    """Assign partitions to workers, and workers to hosts.

    No worker gets more than `slack` times its even share plus the largest partition, and each worker gets rows. The
    number of workers on a host depends on its rows; workers for the rows of hosts without workers are spread evenly.

    Args:
        owners: The primary partitions of each node.
        rows: Rows of each partition; partitions that are not listed have none.
        hosts: The host of each node that owns partitions, and of others that may run workers.
        num_workers: Number of assignments; they are returned in the order of their index.
        usable_hosts: Hosts that may run workers; by default, all hosts that hold partitions.
        max_workers_by_host: Limit of the number of workers on a host (GPUs); hosts that are not listed have no limit.
        slack: The multiple of its even share that a worker may have in order to read all of a node.

    Raises:
        PlacementError: There are fewer partitions with rows than workers (a single worker needs none), the usable
            hosts have no room for the workers or do not exist, or a partition has two owners.
    """
    cluster = _Cluster(owners, rows, hosts, usable_hosts)
    _check(cluster, num_workers)
    workers = _staff(cluster, num_workers, max_workers_by_host or {})
    _deal(workers, cluster, slack * cluster.total / num_workers)
    _fill_empty(workers, cluster)
    return tuple(worker.assignment(index, cluster) for index, worker in enumerate(workers))


def explain(assignments: Sequence[Assignment], row_bytes: int) -> tuple[PlacementRow, ...]:
    """Return a row of a table for each assignment: what it reads, and how much of that over the network."""
    total = sum(each.rows for each in assignments)
    return tuple(
        PlacementRow(
            worker=each.worker,
            host=each.host,
            node=each.node,
            num_partitions=len(each.partitions),
            partitions=format_ranges(each.partitions),
            rows=each.rows,
            rows_share=each.rows / total if total else 1 / len(assignments),
            num_bytes=each.rows * row_bytes,
            local_bytes_share=each.local_rows / each.rows if each.rows else 1.0,
        )
        for each in assignments
    )


class _Cluster:
    def __init__(
        self,
        owners: Mapping[uuid.UUID, Sequence[int]],
        rows: Mapping[int, int],
        hosts: Mapping[uuid.UUID, str],
        usable_hosts: Collection[str] | None,
    ) -> None:
        self._rows = rows
        self.hosts = hosts
        self.owner = {partition: node for node, partitions in owners.items() for partition in partitions}
        self.has_double_owner = len(self.owner) != sum(len(set(partitions)) for partitions in owners.values())
        self.total = sum(self.rows(partition) for partition in self.owner)
        self.rows_of_node = {node: sum(map(self.rows, partitions)) for node, partitions in owners.items()}
        holders = {hosts[node] for node in owners}
        self.usable = sorted(holders if usable_hosts is None else set(usable_hosts))

    def rows(self, partition: int) -> int:
        return self._rows.get(partition, 0)

    def host_of(self, partition: int) -> str:
        return self.hosts[self.owner[partition]]

    def filled(self) -> list[int]:
        return [partition for partition in self.owner if self.rows(partition)]

    def nodes_of(self, host: str) -> list[uuid.UUID]:
        return sorted((node for node, its_host in self.hosts.items() if its_host == host), key=str)


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
        own = dict.fromkeys(sorted(self.nodes, key=str) or cluster.nodes_of(self.host), 0)
        candidates = local or own or by_node
        node = max(candidates, key=lambda candidate: (candidates[candidate], str(candidate)))
        ordered = tuple(sorted(self.partitions))
        return Assignment(index, self.host, node, ordered, self.rows, sum(local.values()))


def _check(cluster: _Cluster, num_workers: int) -> None:
    if num_workers < 1:
        raise PlacementError(f"{num_workers} workers requested; a run needs at least one")
    if not cluster.owner:
        raise PlacementError("no node owns a partition of the cache; wait until the cluster has settled")
    if cluster.has_double_owner:
        raise PlacementError("a partition has two primary owners; the topology is changing, ask again")
    _check_hosts(cluster)
    filled = len(cluster.filled())
    if num_workers > max(filled, 1):
        raise PlacementError(
            f"{num_workers} workers requested, but only {filled} partitions of the cache hold rows, and a "
            f"partition is read by one worker: request at most {max(filled, 1)}"
        )


def _check_hosts(cluster: _Cluster) -> None:
    known = sorted(set(cluster.hosts.values()))
    if not cluster.usable:
        raise PlacementError(f"none of the cluster's hosts ({', '.join(known)}) can run workers")
    for host in cluster.usable:
        if host not in known:
            near = difflib.get_close_matches(host, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"its hosts are {', '.join(known)}"
            raise PlacementError(f"no node of the cluster runs on a host {host!r}; {hint}")


def _staff(cluster: _Cluster, num_workers: int, limits: Mapping[str, int]) -> list[_Worker]:
    """Decide how many workers each host gets, and which of the host's nodes belong to each worker."""
    seats = _seats_of_hosts(cluster, num_workers, {host: max(0, limit) for host, limit in limits.items()})
    return [worker for host in sorted(seats) for worker in _staff_host(host, cluster, seats[host])]


def _seats_of_hosts(cluster: _Cluster, num_workers: int, limits: Mapping[str, int]) -> Counter[str]:
    room = {host: limits.get(host, num_workers) for host in cluster.usable}
    if sum(room.values()) < num_workers:
        counts = ", ".join(f"{host} for {room[host]}" for host in cluster.usable)
        raise PlacementError(
            f"{num_workers} workers requested, but the hosts have room for {sum(room.values())} "
            f"({counts}): request fewer, let more hosts run workers, or wait until other runs have ended"
        )
    rows = dict.fromkeys((*cluster.usable, _ELSEWHERE), 0)
    filled = Counter({_ELSEWHERE: num_workers})
    for partition in cluster.filled():
        host = cluster.host_of(partition)
        rows[host if host in room else _ELSEWHERE] += cluster.rows(partition)
        filled[host] += 1
    local = {host: min(filled[host], room.get(host, num_workers)) for host in rows}
    seats = _apportion(rows, local, num_workers)
    for _ in range(seats.pop(_ELSEWHERE, 0)):
        open_hosts = [host for host in cluster.usable if seats[host] < room[host]]
        seats[min(open_hosts, key=lambda host: (seats[host], -rows[host], host))] += 1
    return seats


def _staff_host(host: str, cluster: _Cluster, num_workers: int) -> list[_Worker]:
    workers = [_Worker(host) for _ in range(num_workers)]
    rows_of_node = {node: cluster.rows_of_node.get(node, 0) for node in cluster.nodes_of(host)}
    if num_workers >= len(rows_of_node):
        filled = Counter(cluster.owner[partition] for partition in cluster.filled())
        seats = _apportion(rows_of_node, filled, num_workers)
        for worker, node in zip(workers, seats.elements(), strict=False):
            worker.nodes.add(node)
        return workers
    for node in sorted(rows_of_node, key=lambda node: -rows_of_node[node]):
        least = min(workers, key=lambda worker: sum(rows_of_node[own] for own in worker.nodes))
        least.nodes.add(node)
    return workers


def _apportion(rows: Mapping[_Place, int], limits: Mapping[_Place, int], num_seats: int) -> Counter[_Place]:
    """Give task slots to places one at a time, each to the place with the most rows per slot after getting it.

    No place gets more slots than its limit; slots beyond all limits are not given.
    """
    seats: Counter[_Place] = Counter()
    for _ in range(num_seats):
        open_places = [place for place in rows if seats[place] < limits.get(place, 0)]
        if not open_places:
            break
        seats[max(open_places, key=lambda place: (rows[place] / (seats[place] + 1), str(place)))] += 1
    return seats


def _deal(workers: list[_Worker], cluster: _Cluster, share: float) -> None:
    """Give each partition to a worker on its node or host whose share is not full, and the rest to any worker."""
    rest = []
    for partition in sorted(cluster.owner, key=lambda p: (-cluster.rows(p), p)):
        worker = _at_home(workers, cluster, partition, share)
        if worker is None:
            rest.append(partition)
        else:
            worker.add(partition, cluster.rows(partition))
    for partition in rest:
        host = cluster.host_of(partition)
        least = min(workers, key=lambda worker: (worker.rows, worker.host != host, worker.load))
        least.add(partition, cluster.rows(partition))


def _at_home(workers: list[_Worker], cluster: _Cluster, partition: int, share: float) -> _Worker | None:
    node, host, rows = cluster.owner[partition], cluster.host_of(partition), cluster.rows(partition)
    for group in (
        [worker for worker in workers if node in worker.nodes],
        [worker for worker in workers if worker.host == host],
    ):
        least = min(group, key=lambda worker: worker.load, default=None)
        if least is not None and (least.rows + rows <= share or not least.rows):
            return least
    return None


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
