"""The guardian ends idle clusters, and no others."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from ignite_tf_magic.client.client import connect
from ignite_tf_magic.embedded import EmbeddedCluster, EmbeddedOptions, Lifetime, down, ensure_up, status
from ignite_tf_magic.embedded import guardian as guardian_module
from ignite_tf_magic.embedded.guardian import num_connections
from ignite_tf_magic.embedded.processes import read_process
from ignite_tf_magic.embedded.record import guardian_file, touch_used
from tests.waiting import until

START = """
import sys
from pathlib import Path
from ignite_tf_magic.embedded import EmbeddedOptions, Lifetime, ensure_up
options = EmbeddedOptions(num_nodes=1, heap="256m", idle_timeout_s=float(sys.argv[2]))
ensure_up(options, Lifetime.UNTIL_IDLE, print, Path(sys.argv[1]))
print("up", flush=True)
sys.stdin.read()
"""

NETSTAT_OF_MACOS = """Active Internet connections (including servers)
Proto Recv-Q Send-Q  Local Address          Foreign Address        (state)
tcp4       0      0  127.0.0.1.10800        127.0.0.1.52114        ESTABLISHED
tcp4       0      0  127.0.0.1.52114        127.0.0.1.10800        ESTABLISHED
tcp4       0      0  127.0.0.1.10801        127.0.0.1.52115        TIME_WAIT
tcp4       0      0  127.0.0.1.10800        *.*                    LISTEN
"""


@contextmanager
def started_elsewhere(home: Path, idle_timeout_s: float) -> Iterator[subprocess.Popen[str]]:
    argv = [sys.executable, "-u", "-c", START, str(home), str(idle_timeout_s)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()
            down(home)


def pids_of(home: Path) -> list[int]:
    return [
        int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit() and _mentions(path, home)
    ]


def _mentions(process: Path, home: Path) -> bool:
    try:
        words = (process / "cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return any(word.startswith(bytes(home) + b"/") or word == bytes(home) for word in words[1:])


@pytest.mark.faults
def test_nodes_outlive_a_killed_parent_while_a_client_is_connected_and_end_when_idle(tmp_path):
    with started_elsewhere(tmp_path, idle_timeout_s=2.0) as parent:
        assert parent.stdout is not None
        until(lambda: parent.stdout.readline() == "up\n")
        cluster = status(tmp_path)
        assert cluster is not None
        with connect(cluster.connect_options) as client:
            os.kill(parent.pid, signal.SIGKILL)
            parent.wait()
            time.sleep(4.0)  # twice the idle time
            assert len(client.nodes()) == 1
        until(lambda: status(tmp_path) is None)
        until(lambda: not pids_of(tmp_path))
        assert sorted(path.name for path in tmp_path.iterdir()) == ["last-end.json", "lock"]


@pytest.mark.faults
def test_a_start_whose_process_was_killed_is_cleaned_up_by_the_guardian(tmp_path):
    with started_elsewhere(tmp_path, idle_timeout_s=1000.0) as parent:
        until(lambda: read_process(tmp_path / "node-0" / "process.json") is not None)
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
        until(lambda: not pids_of(tmp_path))
        assert status(tmp_path) is None


@pytest.mark.faults
def test_a_promoted_cluster_loses_its_guardian_and_a_used_one_keeps_going(new_cluster):
    cluster: EmbeddedCluster = new_cluster(num_nodes=1, idle_timeout_s=5.0)
    for _ in range(40):
        touch_used(cluster.home)
        time.sleep(0.2)
    assert status(cluster.home) is not None
    told: list[str] = []
    again = ensure_up(EmbeddedOptions(num_nodes=1), Lifetime.UNTIL_DOWN, told.append, cluster.home)
    assert again.promoted
    assert "stay until" in told[-2]
    guardian = read_process(guardian_file(cluster.home))
    assert guardian is not None
    until(lambda: not guardian.is_running())
    found = status(cluster.home)
    assert found is not None and found.nodes[0].alive and found.lifetime is Lifetime.UNTIL_DOWN


def test_a_cluster_that_became_ready_while_its_guardian_looked_is_left_alone(new_cluster, monkeypatch):
    cluster: EmbeddedCluster = new_cluster(num_nodes=1)
    seen = iter([replace(cluster, ready=False), cluster, replace(cluster, cluster_id="another")])
    monkeypatch.setattr(guardian_module, "read_cluster", lambda home: next(seen))
    told: list[str] = []
    guardian_module.watch(cluster.home, cluster.cluster_id, told.append)
    assert told == []
    found = status(cluster.home)
    assert found is not None and found.nodes[0].alive


@pytest.mark.faults
def test_nodes_whose_home_was_removed_by_hand_do_not_stay(tmp_path):
    home = tmp_path / "home"
    with started_elsewhere(home, idle_timeout_s=1000.0) as parent:
        assert parent.stdout is not None
        until(lambda: parent.stdout.readline() == "up\n")
        parent.kill()
        parent.wait()
        (home / "cluster.json").unlink()
        shutil.rmtree(home)
        until(lambda: not pids_of(home))


@pytest.mark.faults
def test_the_guardian_writes_down_that_a_node_died_and_the_next_start_tells_why_the_cluster_ended(
    new_cluster,
):
    cluster: EmbeddedCluster = new_cluster(num_nodes=1, idle_timeout_s=4.0)
    assert cluster.nodes[0].pid is not None
    said: list[str] = []
    with (
        cluster.home / "guardian.log"
    ).open() as log:  # an open file stays readable after the guardian removes it
        os.kill(cluster.nodes[0].pid, signal.SIGKILL)
        until(lambda: said.append(log.read()) or "node 0" in "".join(said))
    until(lambda: status(cluster.home) is None)
    told: list[str] = []
    ensure_up(EmbeddedOptions(num_nodes=1, heap="256m"), Lifetime.UNTIL_DOWN, told.append, cluster.home)
    ended = next(line for line in told if line.startswith("the previous embedded cluster ended on 20"))
    assert "no client was connected" in ended


def test_connections_are_counted_at_the_ports_given_only():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert num_connections([port]) == 0
        with socket.create_connection(("127.0.0.1", port)):
            accepted, _ = server.accept()
            with accepted:
                assert num_connections([port]) == 1
                assert num_connections([port - 1]) == 0


def test_connections_are_counted_in_the_words_of_macos():
    assert guardian_module._established_in_netstat(NETSTAT_OF_MACOS, [10800, 10801]) == 1


def test_the_guardian_loads_nothing_heavy():
    heavy = {
        "numpy",
        "pyignite",
        "jgo",
        "ssl",
        "asyncio",
        "ignite_tf_magic.client",
        "ignite_tf_magic.protocol",
    }
    script = "import sys, ignite_tf_magic.embedded.guardian; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert heavy.isdisjoint(loaded.stdout.split())
