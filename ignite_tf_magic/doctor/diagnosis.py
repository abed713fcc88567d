"""Turns facts about hosts and clusters into checks with fixes. Pure functions."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from ignite_tf_magic.errors import (
    HostError,
    HostKeyRejected,
    HostRefused,
    IgniteTfError,
    NoInterpreter,
    SshAuthFailed,
)
from ignite_tf_magic.launch.jobs import DeviceFacts, HostFacts, ProbeFacts

# Modules that workers need. TensorFlow counts under any of its package names.
MODULES = ("tensorflow", "numpy", "fsspec")
_MIN_DISK_BYTES = 1 << 30
_MAX_SKEW_S = 2.0
_OLDEST_PYTHON = (3, 10)


class Health(Enum):
    """The result of a check."""

    GOOD = "ok"
    DOUBTFUL = "warning"
    BAD = "failed"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that the doctor examined.

    Attributes:
        host: The host's name; empty for a check of all hosts.
        found: What the doctor found.
        fix: How to repair a fault; empty if nothing is wrong.
    """

    host: str
    what: str
    health: Health
    found: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All checks, those of the whole cluster before those of each host, and how long they took."""

    checks: tuple[Check, ...]
    seconds: float

    @property
    def is_healthy(self) -> bool:
        """Whether no check failed; warnings do not count."""
        return all(check.health is not Health.BAD for check in self.checks)


def good(host: str, what: str, found: str) -> Check:
    """Return a check that found nothing wrong."""
    return Check(host, what, Health.GOOD, found)


def doubtful(host: str, what: str, found: str, fix: str) -> Check:
    """Return a check that found a possible fault."""
    return Check(host, what, Health.DOUBTFUL, found, fix)


def bad(host: str, what: str, found: str, fix: str) -> Check:
    """Return a check that found a fault."""
    return Check(host, what, Health.BAD, found, fix)


def judge_failure(host: str, error: IgniteTfError, way: str) -> list[Check]:
    """Judge a host that cannot be used. The texts of SSH errors contain the fix after a semicolon."""
    reason = error.reason if isinstance(error, HostError) else str(error)
    found, fix = _split(reason)
    fix = fix or f"try it by hand: {way}"
    if isinstance(error, HostKeyRejected):
        return [bad(host, "host key", found, fix)]
    if isinstance(error, SshAuthFailed):
        return [good(host, "host key", "known"), bad(host, "ssh", found, fix)]
    if isinstance(error, NoInterpreter):
        return [good(host, "ssh", way), bad(host, "agent", found, fix)]
    return [bad(host, "ssh", found, fix)]


def _split(reason: str) -> tuple[str, str]:
    """Split the text of an error into the finding and the fix."""
    for mark in (". Log in once", ". Ask its administrator", "; "):
        found, separator, fix = reason.partition(mark)
        if separator:
            return found, separator.lstrip(".; ") + fix
    return reason, ""


def judge_arrival(
    host: str, way: str, facts: HostFacts, skew_s: float, *, has_ssh: bool = True
) -> list[Check]:
    """Judge a host that answers, and its clock; `has_ssh` is whether `ssh` is installed on this machine."""
    checks = [good(host, "ssh", f"{way} as {facts.user}: {facts.platform}, {facts.cpus} CPUs")]
    if way.startswith("ssh "):
        checks.append(good(host, "host key", "known"))
        if not has_ssh:
            found = "OpenSSH's client is not on this machine, so asyncssh reads the ssh configuration"
            fix = "install it: some keywords, such as Match final, have no effect without it"
            checks.append(doubtful(host, "ssh", found, fix))
    if abs(skew_s) <= _MAX_SKEW_S:
        return [*checks, good(host, "clock", f"{abs(skew_s) * 1000:.0f} ms from this machine's")]
    fix = (
        "runs do not depend on it, but times mislead: start a time service there (chrony, systemd-timesyncd)"
    )
    return [*checks, doubtful(host, "clock", f"{skew_s:+.1f} s from this machine's", fix)]


def judge_probe(host: str, python: str, facts: HostFacts, probe: ProbeFacts | IgniteTfError) -> list[Check]:
    """Judge the workers' interpreter, the disk and the GPUs of a host."""
    setting = f'[hosts."{host}"] python = "PATH" in ignite-tf.toml, or --python PATH'
    if isinstance(probe, HostRefused):
        said = str(probe.reason).partition("): ")[2] or probe.reason
        return [bad(host, "python", said, f"name an interpreter that has TensorFlow: {setting}")]
    if isinstance(probe, IgniteTfError):
        return [bad(host, "python", str(probe), "try again: ignite-tf doctor")]
    return [
        *_judge_python(host, python, setting, probe),
        _judge_disk(host, facts, probe),
        _judge_gpus(host, probe),
    ]


def _judge_python(host: str, python: str, setting: str, probe: ProbeFacts) -> list[Check]:
    if probe.interpreter is None or probe.version is None:
        return [bad(host, "python", f"{python} does not run there", f"choose another one: {setting}")]
    if _numbers(probe.version)[:2] < _OLDEST_PYTHON:
        found = f"{probe.interpreter} is Python {probe.version}"
        return [bad(host, "python", found, f"workers need 3.10 or later; {setting}")]
    checks = [good(host, "python", f"{probe.version}, {probe.interpreter}")]
    for module in MODULES:
        if version := probe.modules.get(module):
            checks.append(good(host, module, version))
        else:
            install = f"there: {shlex.quote(probe.interpreter)} -m pip install {module}"
            fix = f"{install}; or start with --requirements FILE; or choose another one: {setting}"
            checks.append(bad(host, module, f"missing in {probe.interpreter}", fix))
    return checks


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdigit() else 0 for part in version.split("."))


def _judge_disk(host: str, facts: HostFacts, probe: ProbeFacts) -> Check:
    free = f"{probe.disk_free_bytes / 2**30:.1f} GiB free below {facts.root}"
    if probe.disk_fault is not None:
        fix = f'make it writable and usable for {facts.user}, or set [hosts."{host}"] root = "PATH" to another place'
        return bad(host, "disk", f"workers cannot use {facts.root}: {probe.disk_fault}; {free}", fix)
    if probe.disk_free_bytes >= _MIN_DISK_BYTES:
        return good(host, "disk", free)
    fix = f'output and job directories go there: make room, or set [hosts."{host}"] root = "PATH"'
    health = Health.DOUBTFUL if probe.disk_free_bytes >= _MIN_DISK_BYTES >> 6 else Health.BAD
    return Check(host, "disk", health, free, fix)


def _judge_gpus(host: str, probe: ProbeFacts) -> Check:
    return good(host, "gpus", ", ".join(gpu.name for gpu in probe.gpus) or "none")


def judge_logout(host: str, probe: ProbeFacts) -> list[Check]:
    """Return a failed check if the host kills a user's processes at logout."""
    if not probe.ends_at_logout:
        return []
    fix = "there, as root: set KillUserProcesses=no in /etc/systemd/logind.conf, systemctl restart systemd-logind"
    found = "systemd ends all processes of a user who logs out, so runs end with the connection"
    return [bad(host, "logout", found, fix)]


def judge_ports(host: str, wanted: tuple[int, int] | None, devices: DeviceFacts | IgniteTfError) -> Check:
    """Judge whether a host has free ports for TensorFlow's servers."""
    setting = "extend the range [launch] ports in ignite-tf.toml"
    if isinstance(devices, IgniteTfError):
        return bad(host, "ports", str(devices), "try again: ignite-tf doctor")
    if wanted is None:
        return good(host, "ports", "any free one")
    first, last = wanted
    free, size = devices.free_ports or 0, last - first + 1
    found = f"{free:,} of {size:,} free from {first} to {last}"
    if free:
        return good(host, "ports", found)
    holders = sorted({lease.run for lease in devices.leases if any(first <= p <= last for p in lease.ports)})
    stop = (
        f", or stop a run that holds some: ignite-tf stop {holders[0]}"
        if holders
        else ", or end the programs that listen there"
    )
    return bad(host, "ports", found, setting + stop)


def judge_same_version(probes: Mapping[str, ProbeFacts | IgniteTfError]) -> list[Check]:
    """Return a failed check if TensorFlow versions differ, because such servers do not work together."""
    versions = {
        name: version
        for name, probe in probes.items()
        if isinstance(probe, ProbeFacts) and (version := probe.modules.get("tensorflow"))
    }
    if len(set(versions.values())) < 2:
        return []
    found = ", ".join(f"{name}: {version}" for name, version in sorted(versions.items()))
    newest = max(versions.values(), key=_numbers)
    fix = f"install the same version on all hosts: python -m pip install tensorflow=={newest}"
    return [bad("", "tensorflow", f"versions differ ({found})", fix)]


def judge_ways(host: str, reasons: Mapping[str, str | None] | IgniteTfError) -> Check:
    """Judge whether a host reaches the other hosts.

    `reasons` maps "NAME at ADDRESS" to why that host is unreachable, or to None if it is reachable.
    """
    if isinstance(reasons, IgniteTfError):
        return bad(host, "network", str(reasons), "try again: ignite-tf doctor")
    failed = [f"{target} ({reason})" for target, reason in reasons.items() if reason]
    if failed:
        fix = (
            "open the ports that workers listen at between the hosts ([launch] ports), or set "
            "[hosts.NAME] tf_address to an address by which the others reach it"
        )
        return bad(host, "network", f"does not reach {', '.join(failed)}", fix)
    return good(host, "network", f"reaches {', '.join(reasons)}")


_OPEN_SERVERS = (
    "servers of TensorFlow, JAX and PyTorch listen on all interfaces, and those of TensorFlow run the code of "
    "any client"
)
_SHUT = "set [launch] ports and let a firewall open them between the hosts only; see docs/security.md"

_TUNNELLED = "runs go through SSH ([launch] tunnel), and workers listen at 127.0.0.1 alone"
_PRIVATE = "workers there listen at 127.0.0.1 alone, as all tasks of a run are on this one host"


def judge_tunnel(host: str, *, keeps_ports: bool) -> Check:
    """Judge whether a host supports the configured tunneled runs, whose ports other hosts cannot reach."""
    if keeps_ports:
        return good(host, "exposure", _TUNNELLED)
    found = "the library that hides worker ports from other hosts cannot be loaded there: [launch] tunnel needs it"
    return bad(
        host,
        "exposure",
        found,
        "use hosts with Linux and the processor of this machine, install this package with a C compiler, or leave the "
        "host out: --hosts",
    )


def judge_private(host: str, *, is_here: bool) -> Check:
    """Return a check for the only host of all runs, whose workers can listen on 127.0.0.1 alone."""
    return good(host, "exposure", _PRIVATE if is_here else f"{_PRIVATE}, except for runs with --chief here")


def judge_outside(host: str, *, is_reached: bool) -> Check:
    """Judge whether this machine, which runs no worker, can reach the ports of a host's workers."""
    if not is_reached:
        return good(
            host, "exposure", "this machine, which runs no worker, does not reach the ports of workers there"
        )
    found = f"this machine, which runs no worker, reaches the ports of workers there: {_OPEN_SERVERS}"
    return doubtful(host, "exposure", found, _SHUT)


def judge_here(host: str, addresses: Sequence[str]) -> Check:
    """Judge whether others can reach workers on this machine, which cannot detect a firewall in front of it."""
    if not addresses:
        return good(
            host, "exposure", "this machine has no address by which others could reach the ports of workers"
        )
    found = (
        f"other machines reach this one at {', '.join(addresses)}. Without a firewall, they reach the ports of its "
        "workers if a run has tasks on several hosts, or if the library that hides these ports is missing: "
        f"{_OPEN_SERVERS}"
    )
    return doubtful(host, "exposure", found, _SHUT)


def judge_data(host: str, cache: str | None, num_partitions: int, rows: str) -> Check:
    """Judge the share of a cache on a host with a node."""
    if cache is None:
        return good(host, "ignite", "a node runs there")
    if num_partitions:
        return good(host, "ignite", f"{num_partitions} primary partitions of {cache}, {rows} rows")
    fix = "it gets no worker; partitions may still be moving, or the cache's node filter leaves it out"
    return doubtful(host, "ignite", f"no primary partition of {cache}", fix)


def judge_cluster(whole: Check, num_present: int, missing: Sequence[str]) -> Check:
    """Judge whether nodes are missing; `missing` has a sentence for each expected node outside the cluster."""
    if not missing:
        return whole
    total = num_present + len(missing)
    found = (
        f"{num_present} of {total} nodes are in one cluster; {'; '.join(missing)}. In this one: {whole.found}"
    )
    if 2 * num_present > total:
        return doubtful(
            "", whole.what, found, "see the checks of these nodes; runs use the other nodes meanwhile"
        )
    fix = "runs are refused: start these nodes, restart those that lost the others, or train on a part: --allow-partial"
    return bad("", whole.what, found, fix)


def judge_missing_node(
    host: str, endpoint: str, reason: str, alone: int | None, listens: Sequence[str] | None
) -> Check:
    """Judge a host whose node is not in the cluster.

    Args:
        host: The host's name.
        endpoint: The expected endpoint of the node.
        reason: Why the node did not answer.
        alone: The number of nodes in the node's own, separate cluster; None if the node did not answer.
        listens: Addresses on the host where something listens at the node's port; None if the host cannot be asked.
    """
    if alone is not None:
        nodes = "alone" if alone == 1 else f"with {alone - 1} other{'s' * (alone != 2)}"
        found = f"its node is a cluster of its own ({nodes}): it was cut off and has only a part of the rows"
        return bad(host, "ignite", found, "restart the Ignite node there: it does not rejoin by itself")
    if listens:
        found = f"something listens at {', '.join(listens)} there, and does not answer from here: {reason}"
        return bad(
            host, "ignite", found, f"open {endpoint} for this machine, or go through SSH: --via {host}"
        )
    return bad(
        host, "ignite", f"no Ignite node at {endpoint}: {reason}", "start the Ignite node there, see its log"
    )
