"""Starts the nodes of a cluster and its guardian, and ends them. The caller holds the lock of the home."""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ignite_tf_magic.embedded.archive import Archive, archive_for
from ignite_tf_magic.embedded.config_xml import LOOPBACK, NodePorts
from ignite_tf_magic.embedded.data import check_data, note_data
from ignite_tf_magic.embedded.jars import resolve_jars
from ignite_tf_magic.embedded.java import find_java
from ignite_tf_magic.embedded.lock import locked
from ignite_tf_magic.embedded.nodes import (
    Installation,
    PortTaken,
    await_ready,
    choose_ports,
    configure_node,
    move_nodes,
    plain_environment,
    spawn_nodes,
    write_ports,
)
from ignite_tf_magic.embedded.options import EmbeddedOptions, Lifetime, count_nodes
from ignite_tf_magic.embedded.processes import Spawn, end, read_process, spawn_detached
from ignite_tf_magic.embedded.readiness import await_balanced
from ignite_tf_magic.embedded.record import (
    EmbeddedCluster,
    EmbeddedNode,
    guardian_file,
    node_directory,
    node_processes,
    process_file,
    remove_cluster,
    touch_used,
    write_cluster,
)
from ignite_tf_magic.errors import DeadlineExceeded, EmbeddedError

Report = Callable[[str], None]

_START_ATTEMPTS = 3
_GRACE_S = 15.0
_ARCHIVE_GRACE_S = 90.0  # a node writes the archive before it ends


def start_cluster(
    home: Path, options: EmbeddedOptions, lifetime: Lifetime, report: Report
) -> EmbeddedCluster:
    """Start a cluster in a home that has none, and block until it is ready.

    If this raises, everything that it started has ended; the logs of the nodes stay.
    """
    check_data(home, options)
    version = options.resolved_version()
    bare = Installation(find_java(version), resolve_jars(version, report))
    installation = quickened(bare, home, report)
    report(f"starting {count_nodes(options.num_nodes)}, version {version}, on {installation.java}")
    attempt = 1
    while True:
        try:
            ports = choose_ports(options.num_nodes, is_contended=attempt > 1)
            cluster = replace(_start_once(home, options, lifetime, installation, ports, report), ready=True)
            break
        except PortTaken:
            if attempt == _START_ATTEMPTS:
                raise
            attempt += 1
            report("a port was taken by another program meanwhile; choosing others")
    if options.persist:
        note_data(home, options)
    touch_used(home)
    write_cluster(cluster)
    return cluster


def quickened(bare: Installation, home: Path, report: Report) -> Installation:
    """Return the installation with Java's class archive; create the archive if possible."""
    archive = archive_for(bare.java, bare.jars)
    if archive is None:
        return bare
    if archive.is_wanted():
        with locked(archive.lock, lambda: report("waiting for another process that prepares Java")):
            if archive.is_wanted():
                _make_archive(archive, bare, home, report)
    return replace(bare, java_options=archive.read_options())


def _make_archive(archive: Archive, bare: Installation, home: Path, report: Report) -> None:
    """Start and end one node, so that Java writes the archive. A failure only costs speed."""
    report(f"preparing {bare.java} for quick starts of Ignite (once, about 10 s)")
    writing = replace(bare, java_options=archive.write_options())
    try:
        ports = choose_ports(1, is_contended=True)  # random ports: a user's cluster gets the first free ones
        small = EmbeddedOptions(num_nodes=1, heap="256m")
        cluster = _start_once(home, small, Lifetime.UNTIL_IDLE, writing, ports, lambda _: None)
    except (EmbeddedError, DeadlineExceeded):
        return  # the real start fails in the same way and reports it
    end_processes(cluster, _ARCHIVE_GRACE_S)
    remove_cluster(home)
    if not archive.install():
        report(f"{bare.java} wrote no archive; nodes start without it, in twice the time")


def _start_once(
    home: Path,
    options: EmbeddedOptions,
    lifetime: Lifetime,
    installation: Installation,
    ports: tuple[NodePorts, ...],
    report: Report,
) -> EmbeddedCluster:
    """Start the nodes and wait until they are ready; the cluster is not yet recorded as ready."""
    cluster = _planned(home, options, lifetime, installation, ports)
    try:
        remove_cluster(home)
        for node in cluster.nodes:
            configure_node(home, options, node.index, ports)
        write_cluster(cluster)
        touch_used(home)
        if lifetime is Lifetime.UNTIL_IDLE:
            _spawn_guardian(cluster)
        spawn_nodes(home, installation, options.heap, range(options.num_nodes))
        return await_ready(cluster, range(options.num_nodes), options.start_timeout_s, report)
    except BaseException:
        end_processes(cluster)
        remove_cluster(home, keep_logs=True)
        raise


def _planned(
    home: Path,
    options: EmbeddedOptions,
    lifetime: Lifetime,
    installation: Installation,
    ports: tuple[NodePorts, ...],
) -> EmbeddedCluster:
    nodes = tuple(
        EmbeddedNode(index, LOOPBACK, each.client, None, node_directory(home, index) / "node.log", False)
        for index, each in enumerate(ports)
    )
    return EmbeddedCluster(
        home=home,
        cluster_id=uuid.uuid4().hex,
        nodes=nodes,
        lifetime=lifetime,
        idle_timeout_s=options.idle_timeout_s,
        ready=False,
        settings=settings_of(options),
        java=str(installation.java),
        started_at=time.time(),
        peer_ports=tuple((each.discovery, each.communication) for each in ports),
        tls=options.tls.client if options.tls else None,
    )


def settings_of(options: EmbeddedOptions) -> dict[str, Any]:
    """Return the options that a running cluster keeps, to compare them with those of a later start."""
    return {
        "num_nodes": options.num_nodes,
        "heap": options.heap,
        "region": options.region,
        "persist": options.persist,
        "ignite_version": options.resolved_version(),
        "authentication": options.authentication,
    }


def restart_nodes(
    cluster: EmbeddedCluster, indexes: tuple[int, ...], timeout_s: float, report: Report
) -> EmbeddedCluster:
    """Restart dead nodes with their previous configuration. Live nodes copy the rows to them."""
    for death in cluster.deaths():
        report(f"{death}\nstarting it again")
    if not cluster.settings["persist"]:
        report("rows with a copy on a living node are kept; rows of caches without backups were lost with it")
    version = cluster.settings["ignite_version"]
    bare = Installation(find_java(version), resolve_jars(version, report))
    archive = archive_for(bare.java, bare.jars)
    installation = replace(bare, java_options=archive.read_options() if archive else ())
    attempt = 1
    while True:
        try:
            cluster = _restart_once(cluster, indexes, installation, timeout_s, report)
            break
        except PortTaken:
            if attempt == _START_ATTEMPTS:
                raise
            attempt += 1
            report("a port was taken by another program meanwhile; choosing others")
            cluster = move_nodes(cluster, indexes)
            write_cluster(cluster)
    if not await_balanced(cluster, timeout_s):
        report(f"copying rows to the nodes that came back takes longer than {timeout_s:g} s; it goes on")
    return cluster


def _restart_once(
    cluster: EmbeddedCluster,
    indexes: tuple[int, ...],
    installation: Installation,
    timeout_s: float,
    report: Report,
) -> EmbeddedCluster:
    # Other nodes may have new ports since these were started. A node that cannot find them starts its own cluster.
    write_ports(cluster, indexes)
    spawn_nodes(cluster.home, installation, cluster.settings["heap"], indexes)
    try:
        return await_ready(cluster, indexes, timeout_s, report)
    except BaseException:
        started = (read_process(process_file(cluster.home, index)) for index in indexes)
        end([process for process in started if process], _GRACE_S)
        raise


def _spawn_guardian(cluster: EmbeddedCluster) -> None:
    package_parent = Path(__file__).resolve().parents[2]
    env = {**plain_environment(), "PYTHONPATH": str(package_parent)}
    argv = [sys.executable, "-m", "ignite_tf_magic.embedded.guardian", str(cluster.home), cluster.cluster_id]
    log = cluster.home / "guardian.log"
    spawn_detached([Spawn(argv, cluster.home, env, log, guardian_file(cluster.home))])


def end_processes(cluster: EmbeddedCluster, grace_s: float = _GRACE_S) -> tuple[int, ...]:
    """End nodes and guardian; returns the process IDs of nodes that had to be killed."""
    guardian = read_process(guardian_file(cluster.home))
    if guardian is not None and guardian.pid != os.getpid():
        end([guardian], _GRACE_S)
    return tuple(process.pid for process in end(node_processes(cluster), grace_s))
