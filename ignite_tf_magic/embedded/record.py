"""The record of an embedded cluster: the values shown to callers, and their form on disk.

A home holds one cluster:

    lock              held while the cluster is started, changed or ended
    cluster.json      the record; written before the first node is started
    used              touched when the cluster is used; its age counts as idle time
    last-end.json     why the guardian ended the last cluster, until the next start reports it
    guardian.log      log of the guardian
    node-N/           config.xml, node.log, process.json, work/ (a node's files)
    data/             kept after `down`: the work directories of nodes that persist
"""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ignite_tf_magic.embedded.options import Lifetime
from ignite_tf_magic.embedded.processes import DetachedProcess, end_of, read_process
from ignite_tf_magic.errors import EmbeddedError, NodeDied
from ignite_tf_magic.launch.files import write_private
from ignite_tf_magic.settings.options import ConnectOptions, Endpoint, TlsOptions

_FORMAT = 1
_TLS_FIELDS = ("certfile", "keyfile", "cafile", "check_hostname")  # passwords must not be in the record
_USER = "ignite"  # Ignite's initial user, whose password is the same word


@dataclass(frozen=True, slots=True)
class EmbeddedNode:
    """The state of one node at the time of the query.

    Attributes:
        port: Port for clients.
        pid: Process ID; None if the node was never started.
    """

    index: int
    host: str
    port: int
    pid: int | None
    log: Path
    alive: bool

    def death(self) -> NodeDied:
        """Return an error about this node's end, with the last lines of its log."""
        return NodeDied(f"node {self.index} (pid {self.pid})", str(self.log), end_of(self.log))

    def to_dict(self) -> dict[str, Any]:
        """Return the node as JSON values."""
        return {
            "index": self.index,
            "host": self.host,
            "port": self.port,
            "pid": self.pid,
            "log": str(self.log),
            "alive": self.alive,
        }


@dataclass(frozen=True, slots=True)
class EmbeddedCluster:
    """The state of an embedded cluster at the time of the query.

    Attributes:
        ready: False while the cluster is being started.
        settings: The options it was started with: num_nodes, heap, region, persist,
            ignite_version, authentication.
        java: A description of the Java that it runs on.
        started_at: Seconds since the epoch.
        peer_ports: Discovery and communication port of each node.
    """

    home: Path
    cluster_id: str
    nodes: tuple[EmbeddedNode, ...]
    lifetime: Lifetime
    idle_timeout_s: float
    ready: bool
    settings: dict[str, Any]
    java: str
    started_at: float
    peer_ports: tuple[tuple[int, int], ...]
    tls: TlsOptions | None = None

    @property
    def connect_options(self) -> ConnectOptions:
        """How a client on this machine connects to the live nodes."""
        endpoints = tuple(Endpoint(node.host, node.port) for node in self.nodes if node.alive)
        user = _USER if self.settings.get("authentication") else None
        return ConnectOptions(endpoints=endpoints, username=user, password=user, tls=self.tls)

    def deaths(self) -> tuple[NodeDied, ...]:
        """Return one error for each node that has ended, to raise or show."""
        return tuple(node.death() for node in self.nodes if not node.alive)

    def to_dict(self) -> dict[str, Any]:
        """Return the cluster as JSON values, without secrets."""
        return {
            "home": str(self.home),
            "lifetime": self.lifetime.value,
            "idle_timeout_s": self.idle_timeout_s,
            "ready": self.ready,
            "java": self.java,
            "started_at": self.started_at,
            **self.settings,
            "nodes": [node.to_dict() for node in self.nodes],
        }


def node_directory(home: Path, index: int) -> Path:
    """Return the directory of a node's files."""
    return home / f"node-{index}"


def process_file(home: Path, index: int) -> Path:
    """Return the path of the file with a node's process ID."""
    return node_directory(home, index) / "process.json"


def guardian_file(home: Path) -> Path:
    """Return the path of the file with the guardian's process ID."""
    return home / "guardian.json"


def write_cluster(cluster: EmbeddedCluster) -> None:
    """Write the record of a cluster. The caller holds the lock of its home."""
    tls = cluster.tls
    record = {
        "format": _FORMAT,
        "cluster_id": cluster.cluster_id,
        "ready": cluster.ready,
        "lifetime": cluster.lifetime.value,
        "idle_timeout_s": cluster.idle_timeout_s,
        "settings": cluster.settings,
        "java": cluster.java,
        "started_at": cluster.started_at,
        "nodes": [{"index": node.index, "host": node.host, "port": node.port} for node in cluster.nodes],
        "peer_ports": cluster.peer_ports,
        "tls": tls and {name: getattr(tls, name) for name in _TLS_FIELDS},
    }
    write_private(cluster.home / "cluster.json", json.dumps(record, indent=1))


def read_cluster(home: Path) -> EmbeddedCluster | None:
    """Read the record of a home and check which nodes live; None if there is no cluster.

    Raises:
        EmbeddedError: The record is damaged or from another version of this package.
    """
    path = home / "cluster.json"
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["format"] != _FORMAT:
            raise ValueError(f"format {record['format']} is not {_FORMAT}")
        return _from_record(home, record)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise EmbeddedError(
            f"cannot read the record of the embedded cluster in {path}: {error}. End its nodes (their pids "
            f"are in {home}/node-*/process.json), then remove the folder {home}."
        ) from error


def _from_record(home: Path, record: dict[str, Any]) -> EmbeddedCluster:
    tls = record["tls"]
    return EmbeddedCluster(
        home=home,
        cluster_id=record["cluster_id"],
        nodes=tuple(
            look_at_node(home, node["index"], node["host"], node["port"]) for node in record["nodes"]
        ),
        lifetime=Lifetime(record["lifetime"]),
        idle_timeout_s=float(record["idle_timeout_s"]),
        ready=bool(record["ready"]),
        settings=dict(record["settings"]),
        java=record["java"],
        started_at=float(record["started_at"]),
        peer_ports=tuple((first, second) for first, second in record["peer_ports"]),
        tls=TlsOptions(**tls) if tls else None,
    )


def look_at_node(home: Path, index: int, host: str, port: int) -> EmbeddedNode:
    """Return a node with the current state of its process."""
    process = read_process(process_file(home, index))
    return EmbeddedNode(
        index=index,
        host=host,
        port=port,
        pid=process.pid if process else None,
        log=node_directory(home, index) / "node.log",
        alive=process is not None and process.is_running(),
    )


def refreshed(cluster: EmbeddedCluster) -> EmbeddedCluster:
    """Return the cluster with the current state of its nodes."""
    nodes = tuple(look_at_node(cluster.home, node.index, node.host, node.port) for node in cluster.nodes)
    return replace(cluster, nodes=nodes)


def node_processes(cluster: EmbeddedCluster) -> tuple[DetachedProcess, ...]:
    """Return the processes of all nodes that were started, whether or not they still run."""
    found = (read_process(process_file(cluster.home, node.index)) for node in cluster.nodes)
    return tuple(process for process in found if process is not None)


def remove_cluster(home: Path, *, keep_logs: bool = False) -> None:
    """Remove the record and files of a cluster whose processes have ended, except `data/`."""
    for directory in home.glob("node-*"):
        if keep_logs:
            shutil.rmtree(directory / "work", ignore_errors=True)
            (directory / "config.xml").unlink(missing_ok=True)
            (directory / "process.json").unlink(missing_ok=True)
        else:
            shutil.rmtree(directory)
    for name in ("used", "guardian.json", "guardian.log", "cluster.json"):
        (home / name).unlink(missing_ok=True)


def touch_used(home: Path) -> None:
    """Mark the cluster as in use now, for the guardian."""
    (home / "used").touch(mode=0o600)


def write_end(home: Path, why: str) -> None:
    """Record why the guardian ended a cluster; the next start reports it."""
    write_private(home / "last-end.json", json.dumps({"at": time.time(), "why": why}))


def take_end(home: Path) -> str | None:
    """Read and remove the record of `write_end`; None if there is none."""
    path = home / "last-end.json"
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        moment = time.strftime("%Y-%m-%d %H:%M", time.localtime(record["at"]))
        told = f"the previous embedded cluster ended on {moment}: {record['why']}"
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        told = None
    path.unlink(missing_ok=True)
    return told
