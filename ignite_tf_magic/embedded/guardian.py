"""The process that ends an idle cluster: python -m ignite_tf_magic.embedded.guardian HOME CLUSTER_ID.

It is started with a cluster whose lifetime is `UNTIL_IDLE`, and does not belong to a kernel. A cluster is idle if for
the idle time no client was connected to a node and no process touched the file `used`. The guardian exits when the
cluster ends, becomes `UNTIL_DOWN`, or is replaced by another. It imports only modules that need little memory.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from ignite_tf_magic.embedded.lock import locked
from ignite_tf_magic.embedded.options import Lifetime
from ignite_tf_magic.embedded.processes import DetachedProcess, end
from ignite_tf_magic.embedded.record import (
    EmbeddedCluster,
    node_processes,
    read_cluster,
    remove_cluster,
    write_end,
)

_LOOK_EVERY_S = 2.0
_LOOK_AT_START_EVERY_S = 0.1
_GRACE_S = 10.0


class _Busy(Exception):
    """Another process holds the lock of the home."""


def watch(home: Path, cluster_id: str, say: Callable[[str], None]) -> None:
    """Watch the cluster until it has ended or no longer needs a guardian."""
    last_use, used = time.monotonic(), _used(home)
    told: set[int] = set()
    nodes: set[DetachedProcess] = set()
    while (cluster := read_cluster(home)) is not None:
        if not _is_guarded(cluster, cluster_id):
            return
        nodes.update(node_processes(cluster))  # kept in memory, because their process files may be removed
        _tell_deaths(cluster, told, say)
        if not cluster.ready or _in_use(cluster, used):
            last_use, used = time.monotonic(), _used(home)
        is_idle = time.monotonic() - last_use >= cluster.idle_timeout_s
        if (is_idle or not cluster.ready) and _end(home, cluster_id, used if cluster.ready else None, say):
            return
        pause_s = _LOOK_EVERY_S if cluster.ready else _LOOK_AT_START_EVERY_S
        time.sleep(min(pause_s, cluster.idle_timeout_s / 4))
    end(nodes, _GRACE_S)  # the files were removed, but not by `down`, which ends this process first


def _is_guarded(cluster: EmbeddedCluster, cluster_id: str) -> bool:
    return cluster.cluster_id == cluster_id and cluster.lifetime is Lifetime.UNTIL_IDLE


def _end(home: Path, cluster_id: str, used: float | None, say: Callable[[str], None]) -> bool:
    """End the cluster unless it is in use; return False if it is, or if another process is changing it.

    Args:
        home: The cluster's directory.
        cluster_id: The ID of the cluster to end.
        used: Last known time of use of a ready cluster. None for a cluster that is being started: it is ended only if
            the process that started it ended before the cluster was ready.
        say: Called with the reason.
    """
    with suppress(_Busy, FileNotFoundError), locked(home / "lock", _refuse_to_wait):
        cluster = read_cluster(home)
        if cluster is None or not _is_guarded(cluster, cluster_id):
            return False
        if cluster.ready and (used is None or _in_use(cluster, used)):
            return False
        why = (
            f"no client was connected for {cluster.idle_timeout_s / 60:g} minutes"
            if cluster.ready
            else "the process that was starting it ended"
        )
        say(f"ending the cluster: {why}")
        end(node_processes(cluster), _GRACE_S)
        remove_cluster(home)
        write_end(home, why)
        return True
    return False


def _refuse_to_wait() -> None:
    raise _Busy


def _tell_deaths(cluster: EmbeddedCluster, told: set[int], say: Callable[[str], None]) -> None:
    for node in cluster.nodes:
        if node.pid is not None and not node.alive and node.pid not in told:
            told.add(node.pid)
            say(str(node.death()))


def _in_use(cluster: EmbeddedCluster, used: float) -> bool:
    return _used(cluster.home) != used or num_connections([node.port for node in cluster.nodes]) != 0


def _used(home: Path) -> float:
    try:
        return (home / "used").stat().st_mtime
    except FileNotFoundError:
        return 0.0


def num_connections(ports: Collection[int]) -> int:
    """Return the number of this machine's established connections whose local port is one of these.

    Return 1 if neither Linux's /proc nor netstat is available: a cluster that runs too long is better than lost data.
    """
    table = Path("/proc/net/tcp")
    if table.exists():
        return _established_in_proc(table.read_text(), ports)
    try:
        answer = subprocess.run(["netstat", "-an", "-p", "tcp"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return 1
    return _established_in_netstat(answer.stdout, ports)


def _established_in_proc(table: str, ports: Collection[int]) -> int:
    rows = (line.split() for line in table.splitlines()[1:])
    return sum(row[3] == "01" and int(row[1].rpartition(":")[2], 16) in ports for row in rows)


def _established_in_netstat(table: str, ports: Collection[int]) -> int:
    ends = re.findall(r"^tcp\S*\s+\d+\s+\d+\s+\S+[.:](\d+)\s+\S+\s+ESTABLISHED", table, re.MULTILINE)
    return sum(int(port) in ports for port in ends)


def _say(text: str) -> None:
    sys.stdout.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    watch(Path(sys.argv[1]), sys.argv[2], _say)
