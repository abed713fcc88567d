from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from ignite_tf_magic.errors import HostRefused, HostUnreachable, NoInterpreter
from ignite_tf_magic.launch.hosts import Host, call_all
from ignite_tf_magic.launch.jobs import JobState, LinkTimeouts
from ignite_tf_magic.launch.loop import end_task, loop_thread
from ignite_tf_magic.launch.parcels import pack_tree
from ignite_tf_magic.launch.pipe import PipeTransport
from ignite_tf_magic.launch.ssh import SshTransport
from tests.alive import is_alive
from tests.launch.relay_jobs import end_all, job, shell_job, status_of
from tests.waiting import until


@pytest.fixture(params=["pipe", "ssh"])
def host(request, home):
    if request.param == "pipe":
        transport = PipeTransport({"IGNITE_TF_HOME": str(home)})
    else:
        transport = SshTransport("box", request.getfixturevalue("box").options)
    with Host("h1", transport, python=sys.executable) as host:
        yield host
        end_all(host)


def test_a_host_tells_who_it_is(host, home):
    assert host.facts is None
    facts = host.hello()
    assert (facts.root, facts.uid, facts.python) == (str(home), os.getuid(), sys.version.split()[0])
    assert host.facts is not None
    assert host.facts.boot_id == facts.boot_id


def test_a_job_from_start_to_end(host):
    started = host.start(job("w0", "print(input())", stdin_text="hello\n", log="logs/w0.log"))
    assert (started.name, started.generation) == ("w0", 1)
    until(lambda: status_of(host, "w0").has_ended)
    ended = status_of(host, "w0")
    assert (ended.state, ended.code, ended.reason) == (JobState.ENDED, 0, "exited")
    assert host.read("r1", "logs/w0.log") == b"hello\n"
    assert host.start(job("w0", "print(input())", stdin_text="hello\n", log="logs/w0.log")).pid == ended.pid


def test_a_lease_that_nobody_renews_ends_the_job(host):
    host.start(shell_job("w0", "exec sleep 60", lease_s=0.6, grace_s=0.2))
    until(lambda: status_of(host, "w0").has_ended)
    assert status_of(host, "w0").reason == "lease"


def test_a_lease_that_was_set_further_off_is_over_later_and_can_be_set_back(host):
    host.start(shell_job("w0", "exec sleep 60", lease_s=1.0, grace_s=0.2))
    host.set_lease("r1", 1, 500)
    time.sleep(1.6)  # longer than the first lease
    assert status_of(host, "w0").state is JobState.RUNNING
    host.set_lease("r1", 1, 0.1)
    until(lambda: status_of(host, "w0").has_ended)
    assert status_of(host, "w0").reason == "lease"


def test_older_generations_are_refused_with_their_facts(host):
    assert host.fence("r1", 5) == 5
    with pytest.raises(HostRefused, match="generation") as caught:
        host.start(job("w0", "pass", generation=4))
    assert (caught.value.kind, caught.value.facts["fence"], caught.value.host) == (
        "stale_generation",
        5,
        "h1",
    )


def test_ending_with_grace_and_without(host):
    stubborn = (
        "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    )
    host.start(job("w0", stubborn))
    until(lambda: host.read("r1", "w0.log"))
    host.end("r1", names=["w0"], grace_s=0.2, reason="stopped")
    until(lambda: status_of(host, "w0").has_ended)
    assert (status_of(host, "w0").code, status_of(host, "w0").reason) == (-9, "stopped")


def test_files_of_a_run(host):
    assert host.read("r1", "none.json") is None
    large = os.urandom(2_500_000)
    host.write("r1", "a/large.bin", large)
    parts = [host.read("r1", "a/large.bin", offset) for offset in range(0, len(large), 1 << 20)]
    assert b"".join(part or b"" for part in parts) == large
    host.write("r1", "a/large.bin", b"small")
    assert host.read("r1", "a/large.bin") == b"small"
    with pytest.raises(HostRefused):
        host.write("r1", "../outside", b"x")


def test_runs_are_listed_with_their_record_and_removed(host):
    host.write("r1", "run.json", b'{"state": "running", "name": "\xc3\xbc"}')
    host.request_stop("r1")
    (found,) = host.list_runs()
    assert (found.run, found.record, found.stop, found.jobs) == (
        "r1",
        {"state": "running", "name": "ü"},
        True,
        (),
    )
    host.remove("r1")
    assert host.list_runs() == []


def test_runs_with_large_records_hide_no_other(host):
    """Records of caches with 20,000 partitions are this large. The four of them do not fit into one reply."""
    sizes = {str(number): [1_000_000, 1000] for number in range(20_000)}
    records = {
        f"run{number}": {"number": number, "sizes": sizes, "name": "\u00fc" * 100_000} for number in range(4)
    }
    for name, record in records.items():
        host.write(name, "run.json", json.dumps(record, indent=1).encode())
    host.write("huge", "run.json", json.dumps(["x" * (3 << 20)]).encode())
    host.write("huger", "run.json", json.dumps({"x": "x" * (3 << 20)}).encode())
    assert {run.run: run.record for run in host.list_runs()} == {**records, "huge": None, "huger": None}
    for name in (*records, "huge", "huger"):
        host.remove(name)


def test_a_tree_is_sent_once(host, tmp_path, home):
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "sub" / "large.bin").write_bytes(os.urandom(3_000_000))
    parcel = pack_tree(tree)
    assert host.has_parcels([parcel.digest]) == set()
    host.put_parcel(parcel)
    assert host.has_parcels([parcel.digest, "0" * 64]) == {parcel.digest}
    there = home / "parcels" / parcel.digest / "sub" / "large.bin"
    assert there.read_bytes() == (tree / "sub" / "large.bin").read_bytes()


def test_what_an_interpreter_offers(host):
    facts = host.probe(sys.executable, ["psutil", "no-such-module"])
    assert facts.modules == {"psutil": psutil.__version__, "no-such-module": None}
    assert facts.version == sys.version.split()[0]
    assert facts.memory_bytes > 1 << 20
    assert facts.disk_free_bytes > 1 << 20


def test_ports_and_reachability(host):
    ports = host.reserve_ports(3, (42000, 42999))
    assert len(set(ports)) == 3
    assert all(42000 <= port <= 42999 for port in ports)
    host.unreserve_ports(ports)
    port = host.listen()
    reached, refused = host.connect_to([("127.0.0.1", port), ("127.0.0.1", ports[0])])
    assert reached is None
    assert refused
    assert [host.listens("127.0.0.1", each) for each in (port, ports[0])] == [True, False]
    host.unlisten(port)
    assert not host.listens("127.0.0.1", port)
    assert host.route(["127.0.0.1"]) == ["127.0.0.1"]
    with pytest.raises(HostRefused) as caught:
        host.reserve_ports(3, (42000, 42001))
    assert caught.value.kind == "no_ports"


def test_many_threads_share_one_link(host):
    with ThreadPoolExecutor(16) as pool:
        pids = set(pool.map(lambda _: host.hello().pid, range(64)))
    assert len(pids) == 1


def test_after_the_relay_died_the_next_call_starts_another(host):
    first = host.hello().pid
    host.start(shell_job("w0", "exec sleep 60"))
    psutil.Process(first).kill()
    until(lambda: not is_alive(first))
    until(lambda: not host._link.is_open, what="this side to be told")
    assert host.hello().pid != first
    assert status_of(host, "w0").state is JobState.RUNNING


def test_a_call_that_was_waiting_when_the_link_broke_is_told(host):
    pid = host.hello().pid
    threading.Timer(0.2, psutil.Process(pid).kill).start()
    with pytest.raises(HostUnreachable, match="h1.*broke"):
        host.call(
            "poll", run="r1", logs={}, max_bytes=0, wait_s=20.0, seen=_seen(host), renew=None, timeout_s=30
        )


def _seen(host: Host):
    fields = {"run": "r1", "logs": {}, "max_bytes": 0, "wait_s": 0.0, "seen": None, "renew": None}
    return host.call("poll", **fields).fields["seen"]


def test_no_answer_in_time_is_told_and_the_link_stays(host):
    pid = host.hello().pid
    with pytest.raises(HostUnreachable, match="no answer to 'poll' within 0.1 s"):
        host.call(
            "poll", run="r1", logs={}, max_bytes=0, wait_s=1.0, seen=_seen(host), renew=None, timeout_s=0.1
        )
    assert host.hello().pid == pid


def test_no_interpreter(host):
    with Host("h2", host.transport, python="/no/such/python3") as other:
        with pytest.raises(NoInterpreter, match=r"/no/such/python3.*\[hosts.\"h2\"\]"):
            other.hello()


def test_an_interpreter_that_is_none(host):
    with Host("h2", host.transport, python="true", timeouts=LinkTimeouts(connect_s=5)) as other:
        with pytest.raises(HostUnreachable, match="true ended before its first output"):
            other.hello()


def test_an_interpreter_that_is_too_old(host, tmp_path):
    old = tmp_path / "python2"
    old.write_text("#!/bin/sh\necho\necho IGNITE-TF-AGENT 1 OLD 2.7\nexit 3\n")
    old.chmod(0o755)
    with Host("h2", host.transport, python=str(old)) as other:
        with pytest.raises(NoInterpreter, match=r"Python 2.7.*3.8"):
            other.hello()


def test_a_directory_into_which_others_may_write(host, home):
    home.mkdir(exist_ok=True)
    home.chmod(0o775)
    with Host("h2", host.transport, python=sys.executable, root=str(home)) as other:
        with pytest.raises(HostUnreachable, match=rf"other users can write to '{home}'.*chmod go-w"):
            other.hello()
        home.chmod(0o755)
        assert other.hello().root == str(home)


@pytest.mark.parametrize("noise", ["printf 'Welcome\\n\\nIGNITE-'", "head -c 60000 /dev/zero"])
def test_a_login_shell_may_print_first(host, tmp_path, noise):
    loud = tmp_path / "python"
    loud.write_text(f'#!/bin/sh\n{noise}\nexec {sys.executable} "$@"\n')
    loud.chmod(0o755)
    with Host("h2", host.transport, python=str(loud)) as other:
        assert other.hello().pid


def test_a_login_shell_may_not_print_for_ever(host, tmp_path):
    loud = tmp_path / "python"
    loud.write_text("#!/bin/sh\nexec yes noise\n")
    loud.chmod(0o755)
    with Host("h2", host.transport, python=str(loud)) as other:
        with pytest.raises(HostUnreachable, match="prints without end"):
            other.hello()


def test_an_interpreter_that_hangs(host, tmp_path):
    hung = tmp_path / "python"
    hung.write_text("#!/bin/sh\nexec sleep 30\n")
    hung.chmod(0o755)
    with Host("h2", host.transport, python=str(hung), timeouts=LinkTimeouts(connect_s=0.5)) as other:
        with pytest.raises(HostUnreachable, match="printed nothing for 0.5 s"):
            other.hello()


def test_closing_ends_the_relay_and_leaves_the_job(host):
    with Host("h2", host.transport, python=sys.executable) as other:
        relay = psutil.Process(other.hello().pid)
        started = other.start(shell_job("w0", "exec sleep 60"))
    relay.wait(300)
    assert started.pid is not None
    assert psutil.pid_exists(started.pid)
    with pytest.raises(HostUnreachable, match="closed"):
        other.hello()


def test_who_closes_a_link_can_be_cancelled_and_the_link_is_closed_all_the_same(host):
    relay = psutil.Process(host.hello().pid)

    async def close() -> bool:
        link = await host.link()
        closing = asyncio.get_running_loop().create_task(link.close())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait([closing])
        await link.close()
        return closing.cancelled()

    assert loop_thread().run(close())
    with contextlib.suppress(psutil.NoSuchProcess):
        relay.wait(300)
    assert host.hello().pid != relay.pid


def test_a_task_that_passes_over_a_cancel_is_ended():
    async def end() -> bool:
        async def stubborn() -> None:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(600)
            await asyncio.sleep(600)

        task = asyncio.get_running_loop().create_task(stubborn())
        await asyncio.sleep(0)
        await end_task(task)
        return task.cancelled()

    assert loop_thread().run(end())


def test_a_call_on_the_loop_thread_itself_is_an_error(host):
    async def call() -> None:
        host.hello()

    with pytest.raises(RuntimeError, match="for ever"):
        loop_thread().run(call())


def test_one_thing_on_many_hosts(host):
    with Host("h2", host.transport, python="/no/such/python3") as other:
        found = call_all([host, other], Host.hello)
    assert list(found) == ["h1", "h2"]
    assert found["h1"] == host.facts or found["h1"].pid == host.facts.pid
    assert isinstance(found["h2"], NoInterpreter)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_makes_links_of_its_own(host):
    first = host.hello().pid
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writable, str(host.hello().pid).encode())
        finally:
            os._exit(0)
    os.close(writable)
    with os.fdopen(readable, "rb") as answer:
        assert int(answer.read()) not in (0, first)
    os.waitpid(child, 0)
    assert host.hello().pid == first


EXITING = """
import sys
from ignite_tf_magic.launch.hosts import Host
from ignite_tf_magic.launch.pipe import PipeTransport
from ignite_tf_magic.launch.ssh import SshOptions, SshTransport
from ignite_tf_magic.launch.watch import HostWatch
transport = SshTransport("box", SshOptions(config_file=sys.argv[1])) if sys.argv[1] else PipeTransport()
host = Host("h1", transport, python=sys.executable)
watch = HostWatch(host, "r1", logs={}, sink=None)
print(host.hello().pid, flush=True)
"""


def test_a_process_that_ends_without_closing_leaves_no_relay_and_says_nothing(host, request, home):
    config = (
        str(request.getfixturevalue("box").ssh_config) if isinstance(host.transport, SshTransport) else ""
    )
    env = {**os.environ, "IGNITE_TF_HOME": str(home)}
    command = [sys.executable, "-c", EXITING, config]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int(done.stdout)).wait(300)


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_an_interrupt_ends_the_waiting_and_not_the_link(host):
    pid, seen = host.hello().pid, _seen(host)
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        host.call("poll", run="r1", logs={}, max_bytes=0, wait_s=20.0, seen=seen, renew=None, timeout_s=30)
    assert host.hello().pid == pid
