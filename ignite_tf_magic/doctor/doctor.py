"""Checks everything that a run needs before one fails, and suggests a fix for each fault.

The doctor asks all hosts at once, and starts nothing on them but an agent's relay. If no Ignite node answers, it checks
the configured hosts.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TypeVar

from ignite_tf_magic.doctor.cluster_checks import ClusterSight, look_at_cluster
from ignite_tf_magic.doctor.diagnosis import (
    MODULES,
    Check,
    Diagnosis,
    judge_arrival,
    judge_failure,
    judge_here,
    judge_logout,
    judge_missing_node,
    judge_outside,
    judge_ports,
    judge_private,
    judge_probe,
    judge_same_version,
    judge_tunnel,
    judge_ways,
)
from ignite_tf_magic.errors import IgniteTfError
from ignite_tf_magic.launch.hosts import Host, call_all
from ignite_tf_magic.launch.jobs import HostFacts, ProbeFacts
from ignite_tf_magic.launch.ssh_settings import find_ssh
from ignite_tf_magic.runs import loopback
from ignite_tf_magic.runs.hosts.topology import Answer
from ignite_tf_magic.runs.reach import Reach
from ignite_tf_magic.runs.record import HostRecord
from ignite_tf_magic.runs.supervision.host_controller import address_of
from ignite_tf_magic.settings.options import Config, ConnectOptions

T = TypeVar("T")

_WAY_S = 1.0
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class _Visit:
    checks: tuple[Check, ...]
    facts: HostFacts | None = None
    probe: ProbeFacts | IgniteTfError | None = None


def examine(
    options: ConnectOptions | None,
    config: Config,
    reach: Reach,
    cache: str | None = None,
    python: str | None = None,
) -> Diagnosis:
    """Check the hosts of a cluster, their share of a cache, and the network between them.

    Args:
        options: How to connect to the cluster; None checks only the configured hosts.
        config: The configuration, which describes the hosts.
        reach: Opens the hosts.
        cache: The cache whose partitions to look for; None checks no data.
        python: The workers' interpreter; None uses the configured one of each host.

    Raises:
        CacheNotFound: The cluster has no such cache.
    """
    began = time.monotonic()
    cluster = look_at_cluster(options, config, cache)
    with ExitStack() as opened:
        hosts = {name: opened.enter_context(reach.open(each)) for name, each in cluster.hosts.items()}

        def visit(host: Host) -> _Visit:
            return _visit(host, cluster.hosts[host.name], cluster, python, config)

        visits = {
            name: each for name, each in call_all(hosts.values(), visit).items() if isinstance(each, _Visit)
        }
        reached = {name: hosts[name] for name, each in visits.items() if each.facts is not None}
        is_alone = len(cluster.hosts) == 1 and cluster.data.keys() == cluster.hosts.keys()
        is_private = is_alone and all(map(_keeps_ports, reached.values()))
        if config.launch.tunnel:  # no host needs to reach another
            ways = [judge_tunnel(name, keeps_ports=_keeps_ports(each)) for name, each in reached.items()]
        elif is_private:
            ways = [judge_private(name, is_here=cluster.hosts[name].ssh is None) for name in reached]
        else:
            ways = _look_at_ways(reached, cluster.hosts)
    probes = {name: each.probe for name, each in visits.items() if each.probe is not None}
    checks = [*cluster.checks, *judge_same_version(probes)]
    for name in sorted(visits):
        checks += [*visits[name].checks, *(each for each in ways if each.host == name)]
    return Diagnosis(tuple(checks), time.monotonic() - began)


# Hosts


def _visit(
    host: Host, record: HostRecord, cluster: ClusterSight, python: str | None, config: Config
) -> _Visit:
    way = "this machine" if record.ssh is None else f"ssh {record.ssh}"
    try:
        host.hello()  # opens the link first, so that opening it does not distort the clock comparison
        sent_at = time.time()
        facts = host.hello()
        skew_s = facts.time - (sent_at + time.time()) / 2
    except IgniteTfError as error:
        return _Visit((*judge_failure(host.name, error, way), *_look_at_node(None, record, cluster)))
    interpreter = python or record.python
    probe = _attempt(lambda: host.probe(interpreter, MODULES))
    wanted = config.launch.ports
    size = wanted[1] - wanted[0] + 1 if wanted else 0
    devices = _attempt(lambda: host.devices(with_gpus=False, port_range=wanted, num_ports=size))
    checks = [
        *judge_arrival(host.name, way, facts, skew_s, has_ssh=find_ssh() is not None),
        *judge_probe(host.name, interpreter, facts, probe),
        *([] if isinstance(probe, IgniteTfError) or record.ssh is None else judge_logout(host.name, probe)),
        judge_ports(host.name, wanted, devices),
        *_look_at_node(host, record, cluster),
    ]
    return _Visit(tuple(checks), facts, probe)


def _attempt(function: Callable[[], T]) -> T | IgniteTfError:
    try:
        return function()
    except IgniteTfError as error:
        return error


def _look_at_node(host: Host | None, record: HostRecord, cluster: ClusterSight) -> list[Check]:
    """Judge the Ignite node of a host, or why it is missing; `host` is None if the host cannot be asked."""
    if record.name in cluster.data:
        return [cluster.data[record.name]]
    answer = cluster.missing.get(record.name)
    if answer is None:
        return []
    if answer.nodes:
        return [judge_missing_node(record.name, str(answer.endpoint), "", len(answer.nodes), None)]
    reason = answer.error.removeprefix(f"{answer.endpoint}: ")
    return [
        judge_missing_node(record.name, str(answer.endpoint), reason, None, _listening(host, record, answer))
    ]


def _listening(host: Host | None, record: HostRecord, answer: Answer) -> list[str] | None:
    if host is None:
        return None
    port = answer.endpoint.port
    targets = [(address, port) for address in dict.fromkeys((*record.addresses, _LOOPBACK))]
    reasons = _attempt(lambda: host.connect_to(targets, _WAY_S))
    if isinstance(reasons, IgniteTfError):
        return None
    return [
        f"{address}:{port}"
        for (address, port), reason in zip(targets, reasons, strict=True)
        if reason is None
    ]


# Network between hosts


def _look_at_ways(hosts: Mapping[str, Host], records: Mapping[str, HostRecord]) -> list[Check]:
    """Connect from every host to every other one, and from this machine to all ports that should be closed to it."""
    if not hosts:
        return []
    ports = call_all(hosts.values(), Host.listen)
    targets = {
        f"{name} at {address}": (name, address, port)
        for name, port in sorted(ports.items())
        if isinstance(port, int) and (address := _address(hosts[name], records[name]))
    }

    def try_all(host: Host) -> dict[str, str | None]:
        others = {title: target for title, target in targets.items() if target[0] != host.name}
        reasons = host.connect_to([(address, port) for _, address, port in others.values()], _WAY_S)
        return dict(zip(others, reasons, strict=True))

    try:
        tried = call_all(hosts.values(), try_all) if len(hosts) > 1 else {}
        found = [judge_ways(name, reasons) for name, reasons in tried.items()]
        here = [judge_here(name, _outward_addresses()) for name in hosts if records[name].ssh is None]
        return [*found, *_look_from_outside(targets.values(), records), *here]
    finally:
        call_all(hosts.values(), lambda host: _unlisten(host, ports[host.name]))


def _keeps_ports(host: Host) -> bool:
    """Return whether the host can load the library that binds workers' ports to 127.0.0.1."""
    facts = host.facts
    path = facts and loopback.path_in(facts.root)
    return bool(path and facts and loopback.may_be_loaded(path, facts.platform, facts.machine))


def _look_from_outside(
    targets: Iterable[tuple[str, str, int]], records: Mapping[str, HostRecord]
) -> list[Check]:
    """Connect from this machine to the ports on other hosts; ports that it reaches are open to others, too."""
    outside = [each for each in targets if records[each[0]].ssh is not None]
    with ThreadPoolExecutor(max(len(outside), 1), "outside") as pool:
        reached = list(pool.map(lambda each: _accepts(*each[1:]), outside))
    return [judge_outside(name, is_reached=ok) for (name, _, _), ok in zip(outside, reached, strict=True)]


def _accepts(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), _WAY_S).close()
    except OSError:
        return False
    return True


def _outward_addresses() -> list[str]:
    """List the addresses by which others may reach this machine: the source addresses of its outgoing traffic."""
    found = []
    for family, somewhere in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as asking:
            asking.connect((somewhere, 9))  # sends nothing: UDP
            found.append(str(asking.getsockname()[0]))
    return [each for each in found if not ip_address(each.partition("%")[0]).is_loopback]


def _address(host: Host, record: HostRecord) -> str | None:
    """Return the address by which other hosts reach a host's workers, or None."""
    facts = host.facts
    return address_of(record) or (facts.ssh_address if facts else None)


def _unlisten(host: Host, port: int | IgniteTfError) -> None:
    if isinstance(port, int):
        host.unlisten(port)
