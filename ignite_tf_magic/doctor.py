"""Looks at everything a run needs before one fails for want of it; says what to do about each fault.

All hosts are asked at once, and nothing is started on them but an agent's relay.
"""

from __future__ import annotations

import shlex
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum

from ignite_tf_magic.client.client import Client
from ignite_tf_magic.cluster.foreman import address_of
from ignite_tf_magic.cluster.reach import Reach
from ignite_tf_magic.cluster.record import HostRecord
from ignite_tf_magic.config import Config, ConnectOptions
from ignite_tf_magic.errors import IgniteTfError
from ignite_tf_magic.launch.hosts import Host
from ignite_tf_magic.launch.jobs import HostFacts, ProbeFacts
from ignite_tf_magic.run_plans import Naming

_MODULES = ("tensorflow", "tensorflow-cpu", "keras", "numpy", "fsspec")
_MIN_DISK_BYTES = 1 << 30
_MAX_SKEW_S = 2.0
_CONNECT_S = 1.0
_OLDEST_PYTHON = (3, 10)


class Health(Enum):
    """What a check came to."""

    GOOD = "ok"
    DOUBTFUL = "warning"
    BAD = "failed"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at.

    Attributes:
        host: Empty for what concerns all of them.
        found: What came back.
        fix: What to do about it; empty where nothing is wrong.
    """

    host: str
    what: str
    health: Health
    found: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All checks, host by host, and how long they took."""

    checks: tuple[Check, ...]
    seconds: float

    @property
    def is_healthy(self) -> bool:
        """Whether a run can be expected to start."""
        return all(check.health is not Health.BAD for check in self.checks)


def examine(
    client: Client,
    options: ConnectOptions,
    config: Config,
    reach: Reach,
    cache: str | None,
    python: str | None = None,
) -> Diagnosis:
    """Look at the hosts of a cluster, at what a cache has on each, and whether they reach each other.

    Args:
        client: Connected to the cluster.
        options: How it was connected to.
        config: What is known of hosts.
        reach: How hosts are reached.
        cache: Whose partitions to look for; None looks at no data.
        python: Interpreter of the workers; None is each host's configured one.

    Raises:
        CacheNotFound: There is no such cache.
        ConfigError: A node's host cannot be told.
    """
    began = time.monotonic()
    nodes = client.nodes()
    data = _partitions_by_node(client, cache)
    named = Naming(config, options)(nodes)
    hosts = {host.name: host for host in named.values()}
    partitions = dict.fromkeys(hosts, 0)
    for node, num_partitions in data.items():
        if node in named:
            partitions[named[node].name] += num_partitions
    with ExitStack() as opened:
        opened_hosts = {name: opened.enter_context(reach.open(host)) for name, host in hosts.items()}
        with ThreadPoolExecutor(max(len(hosts), 1), "doctor") as pool:
            visits = dict(
                zip(
                    hosts,
                    pool.map(lambda name: _visit(opened_hosts[name], hosts[name], python, config), hosts),
                    strict=True,
                )
            )
            reached = {name: visit for name, visit in visits.items() if visit.facts}
            pairs = _pairs(pool, {name: opened_hosts[name] for name in reached}, hosts)
    checks = [check for name in sorted(visits) for check in visits[name].checks]
    checks += [_node_check(name, partitions[name], cache) for name in sorted(hosts)]
    checks += [*_same_version(visits), *pairs]
    order = {name: place for place, name in enumerate(sorted(hosts))}
    checks.sort(key=lambda check: order.get(check.host, len(order)))
    return Diagnosis(tuple(checks), time.monotonic() - began)


def _partitions_by_node(client: Client, cache: str | None) -> dict[uuid.UUID, int]:
    if cache is None:
        return {}
    found = client.cache(cache).partition_map()
    return {node: len(owned) for node, owned in found.owners.items()}


@dataclass(frozen=True, slots=True)
class _Visit:
    checks: tuple[Check, ...]
    facts: HostFacts | None = None
    probe: ProbeFacts | None = None


def _visit(host: Host, record: HostRecord, python: str | None, config: Config) -> _Visit:
    way = "this machine" if record.ssh is None else f"ssh {record.ssh}"
    try:
        sent_at = time.time()
        facts = host.hello()
        skew_s = facts.time - (sent_at + time.time()) / 2
    except IgniteTfError as error:
        kind, _, fix = str(error).partition("; ")
        return _Visit((Check(host.name, "reach", Health.BAD, kind, fix or f"try: {way}"),))
    checks = [
        Check(host.name, "reach", Health.GOOD, f"{way} as {facts.user}, {facts.platform}, {facts.cpus} CPUs"),
        _clock(host.name, skew_s),
    ]
    interpreter = python or record.python
    try:
        probe = host.probe(interpreter, _MODULES)
        checks += _interpreter(host.name, interpreter, probe)
        checks.append(_disk(host.name, facts, probe))
        checks.append(
            Check(host.name, "gpus", Health.GOOD, ", ".join(gpu.name for gpu in probe.gpus) or "none")
        )
        checks.append(_ports(host, config))
    except IgniteTfError as error:
        checks.append(
            Check(host.name, "python", Health.BAD, str(error), f"look at {interpreter} there: {way}")
        )
        return _Visit(tuple(checks), facts)
    return _Visit(tuple(checks), facts, probe)


def _clock(host: str, skew_s: float) -> Check:
    if abs(skew_s) <= _MAX_SKEW_S:
        return Check(host, "clock", Health.GOOD, f"{abs(skew_s) * 1000:.0f} ms from this machine's")
    fix = "runs do not depend on it, but times in logs mislead; start a time service there (chrony)"
    return Check(host, "clock", Health.DOUBTFUL, f"{skew_s:+.1f} s from this machine's", fix)


def _interpreter(host: str, python: str, probe: ProbeFacts) -> list[Check]:
    setting = f"[hosts.{host}] python = PATH in ignite-tf.toml, or --python PATH"
    if probe.interpreter is None or probe.version is None:
        return [Check(host, "python", Health.BAD, f"{python} does not run there", f"name another: {setting}")]
    version = tuple(int(part) for part in probe.version.split(".")[:2])
    if version < _OLDEST_PYTHON:
        found = f"{probe.interpreter} is Python {probe.version}"
        return [Check(host, "python", Health.BAD, found, f"workers need 3.10 or later; {setting}")]
    checks = [Check(host, "python", Health.GOOD, f"{probe.interpreter}, {probe.version}")]
    needed = {
        "tensorflow": _tensorflow(probe),
        "numpy": probe.modules.get("numpy"),
        "fsspec": probe.modules.get("fsspec"),
    }
    for module, found_version in needed.items():
        if found_version:
            checks.append(Check(host, module, Health.GOOD, found_version))
        else:
            install = f"{shlex.quote(probe.interpreter)} -m pip install {module}"
            checks.append(
                Check(host, module, Health.BAD, f"missing in {probe.interpreter}", f"there: {install}")
            )
    return checks


def _tensorflow(probe: ProbeFacts) -> str | None:
    return probe.modules.get("tensorflow") or probe.modules.get("tensorflow-cpu")


def _disk(host: str, facts: HostFacts, probe: ProbeFacts) -> Check:
    free = f"{probe.disk_free_bytes / 2**30:.1f} GiB free below {facts.root}"
    if probe.disk_free_bytes >= _MIN_DISK_BYTES:
        return Check(host, "disk", Health.GOOD, free)
    fix = f"output and job directories go there; make room, or set [hosts.{host}] root = PATH"
    return Check(host, "disk", Health.DOUBTFUL, free, fix)


def _ports(host: Host, config: Config) -> Check:
    chosen = config.launch.ports
    text = "any free port" if chosen is None else f"ports {chosen[0]}-{chosen[1]}"
    try:
        ports = host.reserve_ports(1, chosen)
        host.unreserve_ports(ports)
    except IgniteTfError as error:
        return Check(
            host.name, "ports", Health.BAD, str(error), "widen [launch] ports in ignite-tf.toml, or stop runs"
        )
    return Check(host.name, "ports", Health.GOOD, f"{text}, such as {ports[0]}")


def _node_check(host: str, num_partitions: int, cache: str | None) -> Check:
    if cache is None:
        return Check(host, "ignite", Health.GOOD, "a node runs there")
    if num_partitions:
        return Check(host, "ignite", Health.GOOD, f"{num_partitions} primary partitions of {cache}")
    return Check(
        host, "ignite", Health.DOUBTFUL, f"no primary partition of {cache}", "it gets no worker by default"
    )


def _same_version(visits: Mapping[str, _Visit]) -> list[Check]:
    versions = {name: _tensorflow(visit.probe) for name, visit in visits.items() if visit.probe}
    known = {version for version in versions.values() if version}
    if len(known) < 2:
        return []
    found = ", ".join(f"{name}: {version}" for name, version in sorted(versions.items()) if version)
    newest = max(known, key=lambda text: [int(part) if part.isdigit() else 0 for part in text.split(".")])
    return [
        Check(
            "",
            "tensorflow",
            Health.BAD,
            f"versions differ ({found})",
            f"install {newest} on all: pip install tensorflow=={newest}",
        )
    ]


def _pairs(
    pool: ThreadPoolExecutor, hosts: Mapping[str, Host], records: Mapping[str, HostRecord]
) -> list[Check]:
    """Try every way from host to host."""
    if len(hosts) < 2:
        return []
    ports = dict(zip(hosts, pool.map(_listen, hosts.values()), strict=True))
    targets = {
        name: (address, port)
        for name, port in ports.items()
        if port is not None and (address := records[name].tf_address or address_of(records[name]))
    }

    def try_all(source: str) -> list[Check]:
        others = {name: target for name, target in targets.items() if name != source}
        try:
            answers = hosts[source].connect_to(list(others.values()), _CONNECT_S)
        except IgniteTfError as error:
            return [Check(source, "network", Health.BAD, str(error), "try again: ignite-tf doctor")]
        bad = [
            f"{name} at {others[name][0]}: {why}" for name, why in zip(others, answers, strict=True) if why
        ]
        if not bad:
            return [Check(source, "network", Health.GOOD, f"reaches {', '.join(others)}")]
        fix = "open [launch] ports between the hosts, or set [hosts.NAME] tf_address to an address they share"
        return [Check(source, "network", Health.BAD, f"does not reach {'; '.join(bad)}", fix)]

    try:
        return [check for found in pool.map(try_all, hosts) for check in found]
    finally:
        list(pool.map(lambda name: _unlisten(hosts[name], ports[name]), hosts))


def _listen(host: Host) -> int | None:
    try:
        return host.listen()
    except IgniteTfError:
        return None


def _unlisten(host: Host, port: int | None) -> None:
    if port is not None:
        _quietly(lambda: host.unlisten(port))


def _quietly(action: Callable[[], None]) -> None:
    try:
        action()
    except IgniteTfError:
        return
