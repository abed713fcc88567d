"""From what the cluster says now to where the workers of a generation run, and what each of them reads."""

from __future__ import annotations

import itertools
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ignite_tf_magic.client.client import Cache, Client
from ignite_tf_magic.client.page_sizes import PartitionStats
from ignite_tf_magic.client.router import Node
from ignite_tf_magic.config.options import ConnectOptions
from ignite_tf_magic.errors import NoRoom, PlacementError
from ignite_tf_magic.protocol.affinity import PartitionMap
from ignite_tf_magic.runs.hosts.capacity import limits, needs_room, shortage
from ignite_tf_magic.runs.hosts.host_names import is_non_identifying, plain_address, rank
from ignite_tf_magic.runs.hosts.placement import Assignment, PlacementRow, explain, place
from ignite_tf_magic.runs.hosts.topology import fingerprint
from ignite_tf_magic.runs.hosts.wholeness import check_whole, find_cache
from ignite_tf_magic.runs.orders import Capacity, TaskSlot
from ignite_tf_magic.runs.record import HostRecord, RunRecord, RunSpec
from ignite_tf_magic.runs.supervision.supervisor import Plan

Naming = Callable[[Collection[Node]], Mapping[uuid.UUID, HostRecord]]
_NOBODYS_NODE = uuid.UUID(int=0)  # stands for the node that a host without one does not have
_SETTLED_S, _MIN_COUNTS, _LOOK_S = 30.0, 4, 0.2
# Says of hosts which cannot be used now, and why.
Inspect = Callable[[Iterable[HostRecord]], Mapping[str, str]]
# Says what hosts have for the workers of a run; only asked for runs that need room.
AskRoom = Callable[[Iterable[HostRecord], RunSpec], Mapping[str, Capacity]]


@dataclass(frozen=True, slots=True)
class PlacedWorkers:
    """A plan, and what a person may want to know of it.

    Attributes:
        rows: One for each worker; empty for a cache that is read whole.
        unusable: Why hosts that hold partitions get no worker, by host.
        topology: What tells each node from the others, as "host:port"; also those that are missing now.
        shortage: Why the workers do not fit now, though they may later; the plan then has hosts and no seats.
        warnings: What is missing, and is no reason to refuse.
    """

    plan: Plan
    rows: tuple[PlacementRow, ...]
    unusable: Mapping[str, str]
    topology: tuple[str, ...]
    shortage: str | None = None
    warnings: tuple[str, ...] = ()

    def placed(self) -> Plan:
        """Give the plan.

        Raises:
            NoRoom: There is none now.
        """
        if self.shortage is not None:
            raise NoRoom(self.shortage)
        return self.plan


def check_room(client: Client, record: RunRecord, rooms: Mapping[str, Capacity]) -> None:
    """Find out whether a run has no room now. Does not read its cache, so that it may be asked often.

    Raises:
        NoRoom: It has none, on the hosts that it knows, and no node is on another one.
        PlacementError: It will never have any there.
    """
    known = set(record.topology)
    if not needs_room(record.spec) or any(known.isdisjoint(map(str, node.listed)) for node in client.nodes()):
        return
    hosts = record.spec.hosts or tuple(host.name for host in record.hosts)
    if (reason := shortage(record.spec, hosts, rooms)) is not None:
        raise NoRoom(reason)


def find_plan(
    client: Client,
    spec: RunSpec,
    naming: Naming,
    inspect: Inspect,
    ask_room: AskRoom,
    fallback: HostRecord | None = None,
    options: ConnectOptions | None = None,
) -> PlacedWorkers:
    """Decide where workers run. Reads the cache once, to count its rows, and notes the count for the next time.

    Args:
        client: Connected to the cluster.
        spec: What was asked for.
        naming: Says on which host each node runs.
        inspect: Says which of these hosts cannot be used now.
        ask_room: Says what these hosts have for workers.
        fallback: Where all workers run when no host with a node can be used.
        options: How the cluster is reached, with the endpoints that are configured; None looks for no missing nodes.

    Raises:
        CacheNotFound: There is no such cache.
        LoadIncomplete, RowsLost, NodesMissing: Only a part of its rows is there.
        PlacementError: The workers cannot be spread so.
        ConfigError: A node's host cannot be told.
    """
    cache = find_cache(client, spec.cache, options)
    partition_map, stats, nodes = _count(client, cache)
    whole = check_whole(
        cache, partition_map, stats, nodes.values(), options, allow_partial=spec.allow_partial
    )
    found = partial(PlacedWorkers, topology=whole.topology, warnings=whole.warnings)
    hosts = naming(nodes.values())
    owners = partition_map.owners
    named = {host.name: host for host in hosts.values()}
    wanted = _wanted(spec, named)
    unusable = {**inspect(wanted), **_without_environment(spec, wanted)}
    usable = [host.name for host in wanted if host.name not in unusable]
    if not usable and fallback is not None and not spec.hosts:
        usable, named[fallback.name] = [fallback.name], fallback
        hosts = {**hosts, _NOBODYS_NODE: fallback}
    if not usable:
        raise PlacementError(_none_usable(unusable))
    room, reason = _room(spec, [named[name] for name in usable], ask_room)
    if not partition_map.partitioned:
        chosen = max(usable, key=lambda name: room.get(name, 1))
        seat = _whole_seat(cache, spec, stats, nodes, hosts, chosen)
        plan = Plan((seat,) if reason is None else (), tuple(named.values()), fingerprint(partition_map))
        return found(plan, (), unusable, shortage=reason)
    rows = {partition: stats[partition].rows for partition in stats}
    names = {node: host.name for node, host in hosts.items()}
    if reason is not None:
        place(owners, rows, names, spec.num_workers, usable_hosts=usable)  # refuses what no room will help
        return found(Plan((), tuple(named.values())), (), unusable, shortage=reason)
    assignments = [
        _with_node(each, owners)
        for each in place(
            owners, rows, names, spec.num_workers, usable_hosts=usable, max_workers_by_host=room
        )
    ]
    seats = tuple(
        TaskSlot(
            each.worker,
            each.host,
            str(nodes[each.node].endpoints[0]),
            each.partitions,
            _sizes(stats, each.partitions),
            each.local_rows,
        )
        for each in assignments
    )
    largest = {partition: stats[partition].max_row_bytes for partition in stats}
    table = explain(assignments, owners, rows, largest, names)
    return found(Plan(seats, tuple(named.values()), fingerprint(partition_map)), table, unusable)


def _with_node(assignment: Assignment, owners: Mapping[uuid.UUID, Collection[int]]) -> Assignment:
    """Have a worker on a host without a node ask the one that holds most of its partitions."""
    if assignment.node != _NOBODYS_NODE:
        return assignment
    mine = set(assignment.partitions)
    return replace(assignment, node=max(owners, key=lambda node: len(mine.intersection(owners[node]))))


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


def _wanted(spec: RunSpec, named: Mapping[str, HostRecord]) -> list[HostRecord]:
    missing = [name for name in spec.hosts if name not in named]
    if missing:
        raise PlacementError(
            f"no Ignite node runs on {', '.join(missing)}; the hosts with nodes are {', '.join(sorted(named))}"
        )
    return [named[name] for name in (spec.hosts or sorted(named))]


def _without_environment(spec: RunSpec, wanted: Iterable[HostRecord]) -> dict[str, str]:
    reason = f"the environment of {spec.requirements} is not there: it is built when a run starts"
    return {host.name: reason for host in wanted if spec.requirements and not host.environment}


def _room(
    spec: RunSpec, hosts: Sequence[HostRecord], ask_room: AskRoom
) -> tuple[Mapping[str, int], str | None]:
    """Give how many workers have room on each host, and why that is too little."""
    if not needs_room(spec):
        return {}, None
    rooms, names = ask_room(hosts, spec), [host.name for host in hosts]
    return limits(spec, names, rooms), shortage(spec, names, rooms)


def _none_usable(unusable: Mapping[str, str]) -> str:
    reasons = "; ".join(f"{name}: {reason}" for name, reason in unusable.items())
    return f"no host can be used. {reasons}"


def _whole_seat(
    cache: Cache,
    spec: RunSpec,
    stats: Mapping[int, PartitionStats],
    nodes: Mapping[uuid.UUID, Node],
    hosts: Mapping[uuid.UUID, HostRecord],
    host: str,
) -> TaskSlot:
    if spec.num_workers != 1:
        raise PlacementError(
            f"cache {cache.name!r} is replicated: every node holds all of it and it cannot be read by partition. "
            "Use one worker, or load the data into a partitioned cache"
        )
    node = next((node for node in nodes if hosts[node].name == host), next(iter(nodes)))
    return TaskSlot(0, host, str(nodes[node].endpoints[0]), None, _sizes(stats, stats))


def _sizes(stats: Mapping[int, PartitionStats], partitions: Iterable[int]) -> dict[str, tuple[int, int]]:
    return {str(p): (stats[p].rows, stats[p].max_row_bytes) for p in partitions}


def name_by_record(hosts: Collection[HostRecord], nodes: Collection[Node]) -> dict[uuid.UUID, HostRecord]:
    """Find nodes on hosts that a record names; a node of an unknown host is a host of its own, without SSH."""
    by_id = {node: host for host in hosts for node in host.nodes}
    hosts_with = Counter(address for host in hosts for address in host.addresses)
    by_address = {
        plain_address(address): host
        for host in hosts
        for address in host.addresses
        if hosts_with[address] == 1
    }
    untold = [host for host in hosts if not host.addresses]
    told = {node.node_id: _telling(node) for node in nodes}
    listers = Counter(itertools.chain.from_iterable(told.values()))
    found = {}
    for node in nodes:
        # What one node alone lists comes first: others may have come to list the rest since the run started.
        telling = sorted(told[node.node_id], key=lambda each: (listers[each], *rank(each)))
        host = by_id.get(str(node.node_id)) or next((by_address[a] for a in telling if a in by_address), None)
        if host is None and len(untold) == 1 and _is_on_loopback(node):
            host = untold[0]  # nodes that list nothing else are all on one machine
        found[node.node_id] = host or HostRecord(telling[0], ssh=telling[0])
    return found


def _telling(node: Node) -> list[str]:
    """Give a node's addresses; those of loopback only if it lists nothing else."""
    addresses = list(dict.fromkeys(plain_address(each.host) for each in node.endpoints))
    return (
        addresses if _is_on_loopback(node) else [each for each in addresses if not is_non_identifying(each)]
    )


def _is_on_loopback(node: Node) -> bool:
    return all(is_non_identifying(plain_address(each.host)) for each in node.listed)
