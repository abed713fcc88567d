"""Starts the processes of an embedded cluster and waits until the cluster can be used."""

from __future__ import annotations

import os
import random
import re
import shutil
import socket
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from ignite_tf_magic.embedded.config_xml import (
    LOOPBACK,
    NodeConfig,
    NodePorts,
    node_xml,
    with_ports,
)
from ignite_tf_magic.embedded.data import node_data
from ignite_tf_magic.embedded.java import ADD_OPENS, Java
from ignite_tf_magic.embedded.options import EmbeddedOptions, count_nodes
from ignite_tf_magic.embedded.processes import Spawn, end_of, spawn_detached
from ignite_tf_magic.embedded.readiness import probe
from ignite_tf_magic.embedded.record import (
    EmbeddedCluster,
    node_directory,
    process_file,
    refreshed,
)
from ignite_tf_magic.errors import DeadlineExceeded, EmbeddedError
from ignite_tf_magic.launch.files import write_private
from ignite_tf_magic.settings.options import environment

FIRST_CLIENT_PORT = 10800
"""Ignite's own; clients that name no port look here, so the first cluster takes it when it is free."""

_LAST_CLIENT_PORT = 19_999
_PEER_PORTS = range(20_000, 32_000)
"""Below the range from which systems take the ports of outgoing connections."""

_STARTED = re.compile(rb"Node started :|Ignite node started OK")
_TOPOLOGY = re.compile(rb"Topology snapshot \[ver=(\d+),.*?servers=(\d+)")
_PORT_TAKEN = ("Address already in use", "BindException", "Failed to find a free port", "Failed to bind")
_POLL_S = 0.1


class PortTaken(EmbeddedError):
    """A port that was free when chosen was taken before the node could listen on it."""


@dataclass(frozen=True, slots=True)
class Installation:
    """The Java and the jars that nodes run on."""

    java: Java
    jars: tuple[Path, ...]
    java_options: tuple[str, ...] = ()


def choose_ports(num_nodes: int, *, is_contended: bool = False) -> tuple[NodePorts, ...]:
    """Find ports on the loopback address that are free now.

    Args:
        num_nodes: Number of nodes that need ports.
        is_contended: Whether other programs also take the first free client ports, such as clusters that start at the
            same time. Then client ports are chosen at random.
    """
    with ExitStack() as held:
        first = range(FIRST_CLIENT_PORT, _LAST_CLIENT_PORT + 1)
        client = _free_ports(held, random.sample(first, k=len(first)) if is_contended else first, num_nodes)
        candidates = random.sample(_PEER_PORTS, k=len(_PEER_PORTS))
        peer = _free_ports(held, candidates, 2 * num_nodes)
    return tuple(
        NodePorts(client=client[i], discovery=peer[2 * i], communication=peer[2 * i + 1])
        for i in range(num_nodes)
    )


def _free_ports(held: ExitStack, candidates: Iterable[int], count: int) -> list[int]:
    found: list[int] = []
    for port in candidates:
        if len(found) == count:
            break
        listener = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
        listener.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
        )  # as Java binds: ports in TIME_WAIT count as free
        try:
            listener.bind((LOOPBACK, port))
            listener.listen(1)
        except OSError:
            listener.close()
        else:
            found.append(port)
    if len(found) < count:
        raise EmbeddedError(f"found only {len(found)} of {count} free ports on {LOOPBACK}")
    return found


def configure_node(home: Path, options: EmbeddedOptions, index: int, ports: Sequence[NodePorts]) -> None:
    """Create the private directory of a node and write its configuration."""
    directory = node_directory(home, index)
    if directory.exists():
        shutil.rmtree(directory)
    directory.mkdir(mode=0o700)
    work = node_data(home, index) if options.persist else directory / "work"
    work.mkdir(mode=0o700, parents=True, exist_ok=True)
    config = NodeConfig(
        index=index,
        ports=ports[index],
        discovery_ports=tuple(each.discovery for each in ports),
        work_directory=work,
        region_bytes=options.region_bytes,
        persist=options.persist,
        authentication=options.authentication,
        tls=options.tls,
    )
    write_private(directory / "config.xml", node_xml(config))


def move_nodes(cluster: EmbeddedCluster, indexes: Collection[int]) -> EmbeddedCluster:
    """Return the cluster with new ports for nodes that do not run."""
    # All at once: otherwise two nodes could get the same port, since nothing listens there yet.
    chosen = choose_ports(len(indexes), is_contended=True)
    nodes, peer_ports = list(cluster.nodes), list(cluster.peer_ports)
    for index, ports in zip(indexes, chosen, strict=True):
        nodes[index] = replace(nodes[index], port=ports.client)
        peer_ports[index] = (ports.discovery, ports.communication)
    return replace(cluster, nodes=tuple(nodes), peer_ports=tuple(peer_ports))


def write_ports(cluster: EmbeddedCluster, indexes: Iterable[int]) -> None:
    """Write the nodes' own ports and the discovery ports of the whole cluster into the nodes' configurations."""
    discovery_ports = [discovery for discovery, _ in cluster.peer_ports]
    for index in indexes:
        config = node_directory(cluster.home, index) / "config.xml"
        ports = NodePorts(cluster.nodes[index].port, *cluster.peer_ports[index])
        write_private(config, with_ports(config.read_text(encoding="utf-8"), ports, discovery_ports))


def spawn_nodes(home: Path, installation: Installation, heap: str, indexes: Iterable[int]) -> None:
    """Start the processes of configured nodes. They outlive this process."""
    spawns = []
    for index in indexes:
        directory = node_directory(home, index)
        log = directory / "node.log"
        if log.exists():  # keep the log of a node that died
            log.replace(directory / "node.previous.log")
        argv = java_command(installation, heap, directory / "config.xml")
        spawns.append(Spawn(argv, directory, plain_environment(), log, process_file(home, index)))
    spawn_detached(spawns)


def java_command(installation: Installation, heap: str, config: Path) -> list[str]:
    """Return the command line of a node."""
    return [
        installation.java.path,
        *installation.java_options,
        f"-Xmx{heap}",
        # Measured with 512 MB heaps and unbounded requests for 1 MiB rows: a node died with 32 MiB in flight under G1
        # and Parallel, and with 64 MiB under Serial. Serial needs half of G1's CPU time for such scans, and the same
        # for small rows.
        "-XX:+UseSerialGC",
        "-Djava.net.preferIPv4Stack=true",
        "-Djava.awt.headless=true",
        # Ignite stores SQL times as instants, and converts them from and to text in the node's time zone.
        "-Duser.timezone=UTC",
        "-Djava.util.logging.SimpleFormatter.format=%1$tF %1$tT %4$s %5$s%6$s%n",
        "-DIGNITE_QUIET=false",
        "-DIGNITE_UPDATE_NOTIFIER=false",
        "-DIGNITE_PERFORMANCE_SUGGESTIONS_DISABLED=true",
        *(item for package in ADD_OPENS for item in ("--add-opens", f"{package}=ALL-UNNAMED")),
        "-cp",
        os.pathsep.join(map(str, installation.jars)),
        "org.apache.ignite.startup.cmdline.CommandLineStartup",
        str(config),
    ]


def plain_environment() -> dict[str, str]:
    """Return the environment variables of nodes and guardian. Any client can read those of a node over SQL."""
    names = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR")
    given = environment("", names)
    return {name: given[name.lower()] for name in names if name.lower() in given}


def await_ready(
    cluster: EmbeddedCluster, started: Collection[int], timeout_s: float, report: Callable[[str], None]
) -> EmbeddedCluster:
    """Block until the started nodes see all nodes and a cache can be created; returns the refreshed cluster.

    Raises:
        NodeDied: A node ended.
        PortTaken: A node ended because another program took its port in the meantime.
        DeadlineExceeded: The nodes were not ready in time.
    """
    deadline = time.monotonic() + timeout_s
    ready = -1
    while True:
        cluster = refreshed(cluster)
        for node in cluster.nodes:
            if not node.alive:
                raise _death(node.death())
        awaited = [node for node in cluster.nodes if node.index in started]
        joined = [_has_joined(node.log, len(cluster.nodes)) for node in awaited]
        if sum(joined) != ready:
            ready = sum(joined)
            report(f"{ready} of {count_nodes(len(joined))} ready")
        if all(joined):
            probe(cluster)
            return cluster
        if time.monotonic() > deadline:
            slow = awaited[joined.index(False)]
            raise DeadlineExceeded(
                f"Ignite node {slow.index} had not joined the others after {timeout_s:g} s; give it more time "
                f"(start_timeout_s) or start fewer nodes. The last lines of {slow.log}:\n{end_of(slow.log)}"
            )
        time.sleep(_POLL_S)


def _death(death: Exception) -> Exception:
    text = str(death)
    return PortTaken(text) if any(sign in text for sign in _PORT_TAKEN) else death


def _has_joined(log: Path, num_nodes: int) -> bool:
    """Return whether a node is up and sees the whole topology, according to its log.

    The log is used because a client that connects earlier can halt the node.
    """
    try:
        text = log.read_bytes()
    except FileNotFoundError:
        return False
    snapshots = [(int(version), int(size)) for version, size in _TOPOLOGY.findall(text)]
    newest = max(snapshots, default=(0, 0))  # not the last one: the node logs its first snapshot late
    return newest[1] == num_nodes and _STARTED.search(text) is not None
