"""Checks whether hosts have room for a run: GPUs, ports and memory that no other run holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ignite_tf_magic.client.client import Client
from ignite_tf_magic.errors import HostError, NoRoom, PlacementError
from ignite_tf_magic.launch.hosts import Host
from ignite_tf_magic.launch.jobs import DeviceFacts, HeldDevices
from ignite_tf_magic.runs.orders import Capacity, HostReport
from ignite_tf_magic.runs.record import RunRecord, RunSpec

_UNKNOWN = Capacity(error="it has not reported its free resources yet")


def needs_capacity(spec: RunSpec) -> bool:
    """Return whether a run needs resources that hosts may lack."""
    return spec.num_gpus > 0 or spec.memory_bytes > 0 or spec.port_range is not None


def look(host: Host, spec: RunSpec) -> Capacity:
    """Ask a host for its resources for the workers of a run. Takes up to some seconds if it has GPUs."""
    num_ports = len(spec.roles)
    try:
        facts = host.devices(with_gpus=spec.num_gpus > 0, port_range=spec.port_range, num_ports=num_ports)
    except HostError as error:
        return Capacity(error=error.reason)
    held = {gpu for lease in facts.leases for gpu in lease.gpus}
    free = [gpu for gpu in facts.gpus if gpu.index not in held]
    return Capacity(
        num_gpus=len(facts.gpus),
        free_gpus=len(free),
        free_ports=facts.free_ports,
        memory_bytes=facts.memory_bytes,
        free_memory_bytes=max(facts.memory_bytes - sum(lease.memory_bytes for lease in facts.leases), 0),
        holders=_holders(facts, spec),
    )


def told_capacities(reports: Mapping[str, HostReport]) -> dict[str, Capacity]:
    """Return the recently reported resources of hosts; hosts without a recent report are missing."""
    return {name: report.room for name, report in reports.items() if report.reachable and report.room}


def limits(spec: RunSpec, hosts: Sequence[str], rooms: Mapping[str, Capacity]) -> dict[str, int]:
    """Return the number of workers that fit on each host now.

    Raises:
        PlacementError: The workers would not fit even if no other run held any resources.
    """
    known = {host: rooms.get(host, _UNKNOWN) for host in hosts}
    largest = {host: spec.num_workers if room.error else _largest(spec, room) for host, room in known.items()}
    if sum(largest.values()) < spec.num_workers:
        raise PlacementError(f"{_wanted(spec)} never fit: {_describe(spec, known)}. Request fewer")
    return {host: 0 if room.error else _free(spec, room) for host, room in known.items()}


def insufficient_capacity(spec: RunSpec, hosts: Sequence[str], rooms: Mapping[str, Capacity]) -> str | None:
    """Return why the workers do not fit on these hosts now, or None if they do."""
    if sum(limits(spec, hosts, rooms).values()) >= spec.num_workers:
        return None
    known = {host: rooms.get(host, _UNKNOWN) for host in hosts}
    return f"{_wanted(spec)} do not fit now: {_describe(spec, known)}"


def check_capacity(client: Client, record: RunRecord, rooms: Mapping[str, Capacity]) -> None:
    """Check whether a run has room now. Does not read its cache, so it may be called often.

    Raises:
        NoRoom: The run has no room on its known hosts, and no node has joined on another host.
        PlacementError: The run will never have room on its known hosts.
    """
    known = set(record.topology)
    if not needs_capacity(record.spec) or any(
        known.isdisjoint(map(str, node.listed)) for node in client.nodes()
    ):
        return
    hosts = record.spec.hosts or tuple(host.name for host in record.hosts)
    if (reason := insufficient_capacity(record.spec, hosts, rooms)) is not None:
        raise NoRoom(reason)


def _free(spec: RunSpec, room: Capacity) -> int:
    by_ports = spec.num_workers if room.free_ports is None else room.free_ports
    return min(_fitting(spec, room.free_gpus, room.free_memory_bytes), by_ports)


def _largest(spec: RunSpec, room: Capacity) -> int:
    first, last = spec.port_range or (0, 0)
    by_ports = last - first + 1 if spec.port_range else spec.num_workers
    return min(_fitting(spec, room.num_gpus, room.memory_bytes), by_ports)


def _fitting(spec: RunSpec, num_gpus: int, memory_bytes: int) -> int:
    """Return the number of workers for which these GPUs and this memory suffice."""
    by_gpus = num_gpus // spec.num_gpus if spec.num_gpus else spec.num_workers
    by_memory = memory_bytes // spec.memory_bytes if spec.memory_bytes else spec.num_workers
    return min(by_gpus, by_memory)


def _wanted(spec: RunSpec) -> str:
    each = [f"{spec.num_gpus} GPU{'s' * (spec.num_gpus > 1)}"] if spec.num_gpus else []
    each += [f"{_gib(spec.memory_bytes)} of memory"] if spec.memory_bytes else []
    has = f" with {' and '.join(each)} each" if each else ""
    return f"{spec.num_workers} worker{'s' * (spec.num_workers > 1)}{has}"


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.3g} GiB"


def _describe(spec: RunSpec, rooms: Mapping[str, Capacity]) -> str:
    return "; ".join(f"{host}: {_describe_host(spec, room)}" for host, room in rooms.items())


def _describe_host(spec: RunSpec, room: Capacity) -> str:
    if room.error:
        return room.error
    words = []
    if spec.num_gpus:
        words.append(
            f"{room.free_gpus} of {room.num_gpus} GPUs free" if room.num_gpus else "no GPUs (nvidia-smi)"
        )
    if spec.port_range and room.free_ports is not None and room.free_ports < spec.num_workers:
        first, last = spec.port_range
        words.append(f"{room.free_ports} of the ports {first}-{last} ([launch] ports) free")
    if spec.memory_bytes:
        words.append(f"{_gib(room.free_memory_bytes)} of {_gib(room.memory_bytes)} of memory free")
    held = f" (held by {', '.join(room.holders)})" if room.holders else ""
    return f"{', '.join(words) or 'enough'}{held}"


def _holders(facts: DeviceFacts, spec: RunSpec) -> tuple[str, ...]:
    found: dict[str, list[str]] = {}
    for lease in facts.leases:
        if what := _held(lease, spec):
            found.setdefault(lease.run, []).append(what)
    return tuple(f"run {run}: {', '.join(what)}" for run, what in found.items())


def _held(lease: HeldDevices, spec: RunSpec) -> str:
    first, last = spec.port_range or (0, -1)
    gpus = [f"GPU {gpu}" for gpu in lease.gpus if spec.num_gpus]
    gpus += [f"{_gib(lease.memory_bytes)} of memory"] if spec.memory_bytes and lease.memory_bytes else []
    return ", ".join([*gpus, *(f"port {port}" for port in lease.ports if first <= port <= last)])
