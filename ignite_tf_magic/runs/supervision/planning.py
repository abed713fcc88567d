"""Decides where the workers of a generation run and what each of them reads. Pure: values in, values out."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ignite_tf_magic.client.packed_entries import PackedCount
from ignite_tf_magic.errors import NoRoom, PlacementError
from ignite_tf_magic.runs.hosts.capacity import insufficient_capacity, limits, needs_capacity
from ignite_tf_magic.runs.hosts.counting import CountedCache
from ignite_tf_magic.runs.hosts.placement import SLACK, Assignment, PlacementRow, explain, place
from ignite_tf_magic.runs.orders import Capacity, TaskSlot
from ignite_tf_magic.runs.record import HostRecord, RunSpec

CHIEF_HERE, CHIEF_RANDOM = "here", "random"
_UNEVEN = 0.2  # as a fraction of an even share
# If parts of a node's rows can only be counted by reading them, it is better for a worker to take all of the node.
_SLACK_FOR_WHOLE_NODES = 1.25
_NOBODYS_NODE = uuid.UUID(int=0)  # placeholder for the node of a host that has none


@dataclass(frozen=True, slots=True)
class LaunchFacts:
    """The known facts when the workers of a generation are placed.

    Attributes:
        cache: The cache that they read, with its row counts.
        by_node: The host on which each node runs.
        unusable: Why hosts cannot be used now, by host name; checked for all hosts that `candidates` returns.
        capacities: Free resources of the hosts that `usable` returns; only asked for runs that need resources.
        fallback: Where all workers run if no host with a node can be used.
        here: This machine, on which the chief may be requested.
        draw: A number from 0 to 1 for a random choice.
    """

    cache: CountedCache
    by_node: Mapping[uuid.UUID, HostRecord]
    unusable: Mapping[str, str] = field(default_factory=dict)
    capacities: Mapping[str, Capacity] = field(default_factory=dict)
    fallback: HostRecord | None = None
    here: HostRecord | None = None
    draw: float = 0.0

    def candidates(self, spec: RunSpec) -> list[HostRecord]:
        """Return the hosts that a run asks for; by default, all hosts with a node.

        Raises:
            PlacementError: One of them has no node.
        """
        named = {host.name: host for host in self.by_node.values()}
        if missing := [name for name in spec.hosts if name not in named]:
            raise PlacementError(
                f"no Ignite node runs on {', '.join(missing)}; the hosts with nodes are {', '.join(sorted(named))}"
            )
        return [named[name] for name in (spec.hosts or sorted(named))]

    def refused(self, spec: RunSpec) -> dict[str, str]:
        """Return why the run cannot use some of its candidate hosts, by host name."""
        reasons: dict[str, str] = {}
        for host in self.candidates(spec):
            if spec.requirements and not host.environment:
                reasons[host.name] = (
                    f"the environment of {spec.requirements} does not exist yet: it is built when a run "
                    "starts"
                )
            elif host.name in self.unusable:
                reasons[host.name] = self.unusable[host.name]
        return reasons

    def usable(self, spec: RunSpec) -> list[HostRecord]:
        """Return the hosts on which a run's workers may run.

        Raises:
            PlacementError: There is none.
        """
        refused = self.refused(spec)
        if found := [host for host in self.candidates(spec) if host.name not in refused]:
            return found
        if self.fallback is not None and not spec.hosts:
            return [self.fallback]
        reasons = "; ".join(f"{name}: {reason}" for name, reason in refused.items())
        raise PlacementError(f"no host can be used. {reasons}")


@dataclass(frozen=True, slots=True)
class Plan:
    """The placement of a generation's workers, and what a user may want to know about it.

    Attributes:
        seats: Task slots, one for each task.
        hosts: All hosts that the run knows from now on.
        owners: Fingerprint of the primary owners on which the plan is based; None if they are not watched.
        topology: A "host:port" that identifies each node; includes nodes that are missing now.
        insufficient_capacity: Why the workers do not fit now but may fit later. The plan then has no task slots.
        rows: What each worker reads; empty for a cache that is read whole.
        unusable: Why hosts that hold partitions get no worker, by host name.
        is_far: Whether all workers run on this machine because no host with a node can be used.
        warnings: Missing parts of the cluster or the cache that do not prevent the run.
    """

    seats: tuple[TaskSlot, ...]
    hosts: tuple[HostRecord, ...]
    owners: str | None = None
    topology: tuple[str, ...] = ()
    insufficient_capacity: str | None = None
    rows: tuple[PlacementRow, ...] = ()
    unusable: Mapping[str, str] = field(default_factory=dict)
    is_far: bool = False
    warnings: tuple[str, ...] = ()

    def with_seats(self) -> Plan:
        """Return this plan.

        Raises:
            NoRoom: Its workers do not fit now.
        """
        if self.insufficient_capacity is not None:
            raise NoRoom(self.insufficient_capacity)
        return self


def plan_launch(spec: RunSpec, facts: LaunchFacts) -> Plan:
    """Place a run's workers.

    Raises:
        PlacementError: They could not be placed even if no other run held any resources.
    """
    cache, usable = facts.cache, facts.usable(spec)
    is_far = usable[0] not in facts.by_node.values()
    by_node = {**facts.by_node, **({_NOBODYS_NODE: usable[0]} if is_far else {})}
    limit_of, reason = _limits(spec, usable, facts.capacities)
    plan = Plan(
        (),
        tuple({host.name: host for host in by_node.values()}.values()),
        topology=cache.topology,
        insufficient_capacity=reason,
        unusable=facts.refused(spec),
        warnings=cache.warnings,
    )
    seats, rows = _seats(spec, cache, by_node, usable, {} if reason else limit_of)
    chief = _chief_host(spec, facts, usable, seats[0].host)
    if reason is not None:  # the placement is possible, once there is room
        return plan
    known = {host.name: host for host in (*plan.hosts, chief)}
    return replace(
        plan,
        seats=(*seats, *_seats_without_share(spec, seats, usable, chief.name)),
        hosts=tuple(known.values()),
        rows=rows,
        owners=cache.owners,
        is_far=is_far,
    )


def with_counts(plan: Plan, facts: LaunchFacts, shares: Sequence[Mapping[uuid.UUID, int]]) -> Plan | None:
    """Return the plan with the workers' estimated row counts replaced by counted ones.

    Args:
        plan: A plan made with the nodes' own row counts.
        facts: The facts that the plan was made from.
        shares: Counted rows of each worker's partitions, by the node that has them.

    Returns:
        None if a count is so far from its estimate that the other workers would have to wait for that worker.
    """
    hosts = {node: host.name for node, host in facts.by_node.items()}
    total = sum(sum(share.values()) for share in shares)
    seats, rows = list(plan.seats), list(plan.rows)
    for number, share in enumerate(shares):
        seat, counted = seats[number], sum(share.values())
        if abs(counted - seat.rows) > _UNEVEN * total / len(shares):
            return None
        local = sum(own for node, own in share.items() if hosts.get(node) == seat.host)
        seats[number] = replace(seat, rows=counted, local_rows=local)
        rows[number] = replace(
            rows[number],
            rows=counted,
            rows_share=counted / total if total else 1 / len(shares),
            num_bytes=counted * facts.cache.row_bytes,
            local_bytes_share=local / counted if counted else 1.0,
        )
    return replace(plan, seats=tuple(seats), rows=tuple(rows))


def left_to_workers(plan: Plan, cache: CountedCache) -> Plan:
    """Return the plan with the row counts left to the workers, because only they can count rows next to the data."""
    warning = (
        f"nodes cannot count parts of cache {cache.name!r} by SQL: the rows of workers are estimates, and "
        "workers that need exact numbers count first. One worker for each node, or a SQL table, avoids that"
    )
    seats = tuple(replace(seat, is_counted=not seat.partitions) for seat in plan.seats)
    return replace(plan, seats=seats, warnings=(*plan.warnings, warning))


def with_packed_rows(plan: Plan, packed: PackedCount, num_workers: int) -> Plan:
    """Return the plan with entry counts converted to row counts, for a cache whose entries hold several rows each."""
    seats, rows = list(plan.seats), list(plan.rows)
    for number, seat in enumerate(seats[:num_workers]):
        counted = packed.rows(seat.rows, seat.partitions)
        local = counted * seat.local_rows // seat.rows if seat.rows else 0
        seats[number] = replace(seat, rows=counted, local_rows=local)
        if rows:
            rows[number] = replace(rows[number], rows=counted)
    return replace(plan, seats=tuple(seats), rows=tuple(rows))


def _chief_host(spec: RunSpec, facts: LaunchFacts, usable: Sequence[HostRecord], first: str) -> HostRecord:
    """Return the host of the chief and of an evaluator.

    Raises:
        PlacementError: The run may not use the host that it names.
    """
    by_name = {host.name: host for host in usable}
    if spec.chief == CHIEF_HERE and facts.here is not None:
        return facts.here
    if spec.chief == CHIEF_RANDOM:
        return usable[min(int(facts.draw * len(usable)), len(usable) - 1)]
    if (name := spec.chief or first) in by_name:
        return by_name[name]
    reason = facts.refused(spec).get(name)
    why = f"cannot be used: {reason}" if reason else f"is not one of the run's hosts: {', '.join(by_name)}"
    raise PlacementError(f"--chief {name}: it {why}. Pass one of them, here or random")


def _seats_without_share(
    spec: RunSpec, seats: Sequence[TaskSlot], usable: Sequence[HostRecord], chief: str
) -> Iterator[TaskSlot]:
    """Yield task slots for the tasks that read no rows; parameter servers go to the hosts with the fewest tasks."""
    num_tasks = {host.name: sum(seat.host == host.name for seat in seats) for host in usable}
    nodes = {seat.host: seat.node for seat in reversed(seats)}
    for number, role in enumerate(spec.roles[len(seats) :], start=len(seats)):
        host = min(num_tasks, key=num_tasks.__getitem__) if role.job == "ps" else chief
        num_tasks[host] = num_tasks.get(host, 0) + 1
        yield TaskSlot(number, host, nodes.get(host, seats[0].node), ())


def _limits(
    spec: RunSpec, hosts: Sequence[HostRecord], capacities: Mapping[str, Capacity]
) -> tuple[Mapping[str, int], str | None]:
    """Return how many workers have room on each host, and why that is not enough, or None."""
    if not needs_capacity(spec):
        return {}, None
    names = [host.name for host in hosts]
    return limits(spec, names, capacities), insufficient_capacity(spec, names, capacities)


def _seats(
    spec: RunSpec,
    cache: CountedCache,
    by_node: Mapping[uuid.UUID, HostRecord],
    usable: Iterable[HostRecord],
    limit_of: Mapping[str, int],
) -> tuple[tuple[TaskSlot, ...], tuple[PlacementRow, ...]]:
    if not cache.partition_map.partitioned:
        chosen = max((host.name for host in usable), key=lambda name: limit_of.get(name, 1))
        return (_whole_seat(spec, cache, by_node, chosen),), ()
    owners = cache.partition_map.owners
    names = {node: host.name for node, host in by_node.items()}
    places = [host.name for host in usable]
    placed = place(
        owners,
        cache.rows,
        names,
        spec.num_workers,
        usable_hosts=places,
        max_workers_by_host=limit_of,
        slack=SLACK if cache.has_table else _SLACK_FOR_WHOLE_NODES,
    )
    assignments = [_with_node(each, owners) for each in placed]
    return tuple(_seat(each, cache) for each in assignments), explain(assignments, cache.row_bytes)


def _with_node(assignment: Assignment, owners: Mapping[uuid.UUID, Collection[int]]) -> Assignment:
    """Let a worker on a host without a node connect to the node that holds most of its partitions."""
    if assignment.node != _NOBODYS_NODE:
        return assignment
    mine = set(assignment.partitions)
    return replace(assignment, node=max(owners, key=lambda node: len(mine.intersection(owners[node]))))


def _seat(assignment: Assignment, cache: CountedCache) -> TaskSlot:
    return TaskSlot(
        assignment.worker,
        assignment.host,
        str(cache.nodes[assignment.node].endpoints[0]),
        assignment.partitions,
        assignment.rows,
        assignment.local_rows,
    )


def _whole_seat(
    spec: RunSpec, cache: CountedCache, by_node: Mapping[uuid.UUID, HostRecord], host: str
) -> TaskSlot:
    if spec.num_workers != 1:
        raise PlacementError(
            f"cache {cache.name!r} is replicated: every node holds all of it and it cannot be read by partition. "
            "Use one worker, or load the data into a partitioned cache"
        )
    nodes = cache.nodes
    node = next((node for node in nodes if by_node[node].name == host), next(iter(nodes)))
    return TaskSlot(0, host, str(nodes[node].endpoints[0]), None, sum(cache.rows.values()))
