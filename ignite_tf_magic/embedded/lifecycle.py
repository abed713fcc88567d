"""Starts, inspects and stops an embedded cluster. There is one cluster per home."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from ignite_tf_magic.embedded.data import data_directory, delete_kept_data
from ignite_tf_magic.embedded.lock import locked
from ignite_tf_magic.embedded.options import EmbeddedOptions, Lifetime, count_nodes
from ignite_tf_magic.embedded.readiness import await_agreement
from ignite_tf_magic.embedded.record import (
    EmbeddedCluster,
    read_cluster,
    remove_cluster,
    take_end,
    touch_used,
    write_cluster,
)
from ignite_tf_magic.embedded.starting import end_processes, restart_nodes, settings_of, start_cluster
from ignite_tf_magic.errors import EmbeddedError
from ignite_tf_magic.settings.options import state_dir

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ClusterStarted:
    """Result: nodes were started, and the cluster is ready.

    Attributes:
        seconds: Duration of the start, including downloads.
    """

    cluster: EmbeddedCluster
    seconds: float


@dataclass(frozen=True, slots=True)
class ClusterReused:
    """Result: a cluster was already running, and is ready.

    Attributes:
        ignored: Descriptions of requested options that the running cluster does not have.
        restarted: Indexes of nodes that had died and were started again.
        promoted: Whether its lifetime changed from `UNTIL_IDLE` to `UNTIL_DOWN`.
    """

    cluster: EmbeddedCluster
    ignored: tuple[str, ...] = ()
    restarted: tuple[int, ...] = ()
    promoted: bool = False


@dataclass(frozen=True, slots=True)
class ClusterStopped:
    """Result: nodes were ended and their directories removed.

    Attributes:
        num_nodes: Number of nodes that were running.
        killed: Process IDs of nodes that ignored SIGTERM.
        data: Directory with the data that was kept, if the cluster persisted.
    """

    num_nodes: int
    killed: tuple[int, ...]
    data: Path | None


@dataclass(frozen=True, slots=True)
class NothingRunning:
    """Result: there was no embedded cluster."""

    home: Path


def default_home() -> Path:
    """Return the home of the default cluster."""
    return state_dir() / "embedded"


def status(home: Path | None = None) -> EmbeddedCluster | None:
    """Return the state of the cluster of a home; None if there is none. Never blocks."""
    return read_cluster(home or default_home())


def ensure_up(
    options: EmbeddedOptions | None = None,
    lifetime: Lifetime = Lifetime.UNTIL_DOWN,
    report: Report = lambda _: None,
    home: Path | None = None,
) -> ClusterStarted | ClusterReused:
    """Make sure that a cluster runs and is ready: reuse it, repair it, or start it. Blocks.

    The nodes outlive this process; `lifetime` decides when they end. If this call is interrupted or fails, it ends
    what it started.

    Args:
        options: Options of a new cluster. A running cluster keeps its own options, and differences are reported. None
            accepts any running cluster.
        lifetime: `UNTIL_DOWN` also applies to a running cluster that would end when idle.
        report: Called with one line at a time about the progress.
        home: Directory of the cluster's record; clusters of different homes are independent.

    Raises:
        EmbeddedError: Java or the jars are missing, or something else prevents the start.
        NodeDied: A node ended while starting.
        DeadlineExceeded: The nodes did not become ready in time.
    """
    home = _private_home(home or default_home())
    with _changing(home, report):
        cluster = _usable(home, report)
        if cluster is not None:
            return _reuse(cluster, options, lifetime, report)
        began = time.monotonic()
        cluster = start_cluster(home, options or EmbeddedOptions(), lifetime, report)
        seconds = time.monotonic() - began
        report(f"{count_nodes(len(cluster.nodes))} ready after {seconds:.1f} s; {_how_it_ends(cluster)}")
        return ClusterStarted(cluster, seconds)


def down(
    home: Path | None = None, *, delete_data: bool = False, report: Report = lambda _: None
) -> ClusterStopped | NothingRunning:
    """End the cluster of a home and remove its files. Blocks until the nodes have ended.

    Args:
        home: Directory of the cluster's record.
        delete_data: Also remove the data that a cluster with `persist` kept.
        report: Called with one line at a time about the progress.
    """
    home = home or default_home()
    if not home.exists():
        return NothingRunning(home)
    with _changing(home, report):
        cluster = read_cluster(home)
        if cluster is not None:
            report(f"stopping {count_nodes(len(cluster.nodes))}")
        killed = end_processes(cluster) if cluster else ()
        remove_cluster(home)
        if delete_data:
            delete_kept_data(home)
        data = data_directory(home)
        if cluster is None:
            return NothingRunning(home)
    running = sum(node.alive for node in cluster.nodes)
    return ClusterStopped(running, killed, data if data.exists() else None)


def _changing(home: Path, report: Report) -> AbstractContextManager[None]:
    return locked(home / "lock", lambda: report("waiting: another process is changing the embedded cluster"))


def _private_home(home: Path) -> Path:
    if sys.platform == "win32":
        raise EmbeddedError(
            "embedded Ignite nodes run on Linux and macOS; on Windows name a running cluster in "
            "IGNITE_TF_CLUSTER=HOST:PORT, or use the Windows Subsystem for Linux"
        )
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    home.chmod(0o700)
    return home.resolve()


def _usable(home: Path, report: Report) -> EmbeddedCluster | None:
    """Return the running cluster of a home if it is ready and has a live node; else remove its remains."""
    told = take_end(home)
    if told:
        report(told)
    cluster = read_cluster(home)
    if cluster is None:
        return None
    if cluster.ready and any(node.alive for node in cluster.nodes):
        return cluster
    if cluster.ready:
        report(f"all nodes of the previous embedded cluster have ended. {cluster.deaths()[0]}")
    else:
        report("ending what an interrupted start left behind")
    end_processes(cluster)
    remove_cluster(home)
    return None


def _reuse(
    cluster: EmbeddedCluster, options: EmbeddedOptions | None, lifetime: Lifetime, report: Report
) -> ClusterReused:
    touch_used(cluster.home)
    timeout_s = (options or EmbeddedOptions()).start_timeout_s
    cluster = await_agreement(cluster, timeout_s)
    restarted = tuple(node.index for node in cluster.nodes if not node.alive)
    if restarted:
        cluster = restart_nodes(cluster, restarted, timeout_s, report)
    promoted = lifetime is Lifetime.UNTIL_DOWN and cluster.lifetime is Lifetime.UNTIL_IDLE
    if promoted:
        cluster = replace(cluster, lifetime=lifetime)
        write_cluster(cluster)
    report(f"using {count_nodes(len(cluster.nodes))} already started; {_how_it_ends(cluster)}")
    ignored = _differences(cluster, options) if options else ()
    if ignored:
        report(
            f"the running nodes have other options: {'; '.join(ignored)}. To start anew: ignite-tf local down"
        )
    return ClusterReused(cluster, ignored, restarted, promoted)


def _differences(cluster: EmbeddedCluster, options: EmbeddedOptions) -> tuple[str, ...]:
    has, wanted = cluster.settings, settings_of(options)
    return tuple(f"{name} is {has[name]}, not {wanted[name]}" for name in wanted if has[name] != wanted[name])


def _how_it_ends(cluster: EmbeddedCluster) -> str:
    if cluster.lifetime is Lifetime.UNTIL_DOWN:
        return "they stay until: ignite-tf local down"
    minutes = cluster.idle_timeout_s / 60
    return f"they end after {minutes:g} minutes without a client (to keep them: ignite-tf local up)"
