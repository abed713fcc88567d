"""Tests that a run's files on this machine mirror those on its hosts, byte by byte, across all interruptions."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ignite_tf_magic.errors import ConfigError, HostUnreachable, MirrorFailed
from ignite_tf_magic.launch import lock
from ignite_tf_magic.launch.files import write_private
from ignite_tf_magic.launch.hosts import Host
from ignite_tf_magic.launch.jobs import Job, LinkTimeouts
from ignite_tf_magic.launch.pipe import PipeTransport
from ignite_tf_magic.launch.watch import HostWatch
from ignite_tf_magic.runs.directory import RunDirectory, exit_name, log_name
from ignite_tf_magic.runs.logs.mirror import Mirror, seen_directory
from ignite_tf_magic.runs.logs.mirror_state import MirroredRecord, MirrorState, UnreadOutput
from ignite_tf_magic.runs.logs.mirrored_logs import MirroredLogs
from ignite_tf_magic.runs.logs.output import Segment, follow
from ignite_tf_magic.runs.orders import job_name
from ignite_tf_magic.runs.record import HostRecord, RunRecord, RunSpec
from ignite_tf_magic.runs.states import RunState
from tests.waiting import until

RUN = "mnist-1121-0412-k3f"
SPEC = RunSpec("MNIST", num_workers=2)
QUICK = LinkTimeouts(silence_s=2.0, poll_s=0.25)


def record(version, *hosts):
    """Return a record of the run, as a host stores it."""
    seats = tuple(map(HostRecord, hosts))
    return RunRecord(RUN, SPEC, RunState.RUNNING, 0.0, hosts=seats, version=version).to_json()


def mark(count):
    return b"[ignite_tf_magic: %d bytes of output were deleted here, at the log's size bound]\n" % count


@pytest.fixture
def directory(tmp_path):
    return seen_directory(tmp_path / "here", RUN)


@pytest.mark.parametrize("run", ["", ".", "..", "../x", "a/b", "/etc"])
def test_an_id_leads_nowhere_else(tmp_path, run):
    with pytest.raises(ConfigError):
        seen_directory(tmp_path, run)
    assert list(tmp_path.iterdir()) == []


# Log files alone, without hosts.


def test_bytes_come_once_whoever_reads_on(directory):
    first = MirroredLogs(directory)
    assert first.add("a", "worker-0.log") == 0
    first.data("a", "worker-0.log", 0, b"one\n")
    first.data("a", "worker-0.log", 4, b"two\n")
    second = MirroredLogs(directory)
    assert second.offset("a", "worker-0.log") is None
    assert second.add("a", "worker-0.log") == 8
    second.data("a", "worker-0.log", 4, b"two\nthree\n")
    second.data("a", "worker-0.log", 0, b"one\n")
    assert second.offset("a", "worker-0.log") == 14
    assert directory.log(0).read_bytes() == b"one\ntwo\nthree\n"
    assert directory.log(0).stat().st_mode & 0o777 == 0o600


def test_two_hosts_never_write_one_file(directory):
    logs = MirroredLogs(directory)
    assert logs.add("a", "worker-0.log") == 0
    assert logs.add("b", "worker-0.log") is None
    assert logs.offset("b", "worker-0.log") is None
    assert logs.add("a", "worker-0.log") == 0


def test_what_was_deleted_leaves_a_mark(directory):
    logs = MirroredLogs(directory)
    logs.add("a", "worker-0.log")
    logs.data("a", "worker-0.log", 0, b"begin")
    logs.gap("a", "worker-0.log", 5, 1000)
    logs.gap("a", "worker-0.log", 5, 1000)
    logs.data("a", "worker-0.log", 1000, b"middle")
    logs.data("a", "worker-0.log", 2000, b"end")  # a gap that was not announced
    assert logs.offset("a", "worker-0.log") == 2003
    assert directory.log(0).read_bytes() == b"begin" + mark(995) + b"middle" + mark(994) + b"end"
    assert MirroredLogs(directory).add("a", "worker-0.log") == 2003


@pytest.mark.parametrize("written", [0, 1, 40, len(mark(995)) - 1])
def test_a_reader_killed_while_it_wrote_a_mark(directory, written):
    logs = MirroredLogs(directory)
    logs.add("a", "worker-0.log")
    logs.data("a", "worker-0.log", 0, b"begin")
    logs.gap("a", "worker-0.log", 5, 1000)
    os.truncate(directory.log(0), 5 + written)
    again = MirroredLogs(directory)
    assert again.add("a", "worker-0.log") == 1000
    assert directory.log(0).read_bytes() == b"begin" + mark(995)


def test_a_file_that_lost_its_end_is_filled_again(directory):
    """After a power cut the file lacks its last bytes and its gap mark. Only the note of the gap was saved."""
    logs = MirroredLogs(directory)
    logs.add("a", "worker-0.log")
    logs.data("a", "worker-0.log", 0, b"begin")
    logs.gap("a", "worker-0.log", 5, 1000)
    os.truncate(directory.log(0), 3)
    again = MirroredLogs(directory)
    assert again.add("a", "worker-0.log") == 3
    again.gap("a", "worker-0.log", 3, 1000)
    again.data("a", "worker-0.log", 1000, b"end")
    assert directory.log(0).read_bytes() == b"beg" + mark(997) + b"end"
    assert MirroredLogs(directory).add("a", "worker-0.log") == 1003


STEPS = st.lists(st.tuples(st.sampled_from(["data", "gap", "restart"]), st.integers(1, 300)), max_size=30)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_any_history_gives_the_same_file(tmp_path_factory, steps):
    directory = RunDirectory(tmp_path_factory.mktemp("logs"))
    logs, expected, offset = MirroredLogs(directory), b"", 0
    logs.add("a", "worker-0.log")
    for kind, count in steps:
        if kind == "restart":
            logs = MirroredLogs(directory)
            assert logs.add("a", "worker-0.log") == offset
            continue
        if kind == "data":
            data = bytes((offset + number) % 251 for number in range(count))
            logs.data("a", "worker-0.log", offset, data)
            expected += data
        else:
            logs.gap("a", "worker-0.log", offset, offset + count)
            expected += mark(count)
        offset += count
    assert (directory.log(0).read_bytes() if expected else b"") == expected


@contextmanager
def files_of_at_most(num_bytes):
    """Limit the size of files that this process writes, to simulate a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_ends_it_without_a_hole(directory):
    logs = MirroredLogs(directory)
    logs.add("a", "worker-0.log")
    logs.data("a", "worker-0.log", 0, b"x" * 900_000)
    with files_of_at_most(1_000_000):
        with pytest.raises(MirrorFailed, match=f"{RUN} cannot be kept in .*: File too large.*attach {RUN}"):
            logs.data("a", "worker-0.log", 900_000, b"y" * 200_000)
    with pytest.raises(MirrorFailed):
        logs.data("a", "worker-0.log", 1_100_000, b"z")
    again = MirroredLogs(directory)
    assert again.add("a", "worker-0.log") == 1_000_000
    assert directory.log(0).read_bytes() == b"x" * 900_000 + b"y" * 100_000


# Hosts: real relays and real jobs on this machine, each host with its own root directory.


class Cable(PipeTransport):
    """A connection to a host that tests can cut."""

    def __init__(self, env):
        super().__init__(env)
        self.is_cut = False
        self.pipes = []

    async def open(self, argv, timeouts):
        if self.is_cut:
            raise HostUnreachable("far", "no route to it")
        self.pipes.append(await super().open(argv, timeouts))
        return self.pipes[-1]

    def cut(self):
        self.is_cut = True
        for pipe in self.pipes:
            with suppress(ProcessLookupError):
                pipe._process.kill()
        self.pipes.clear()


class FarHost:
    def __init__(self, name, root):
        root.mkdir(mode=0o700)
        self.root = root
        self.cable = Cable({"IGNITE_TF_HOME": str(root)})
        self.host = Host(name, self.cable, python=sys.executable, root=str(root), timeouts=QUICK)

    def go_on(self):
        """Let TWO_LINES print its second line."""
        (self.directory.path / "go").touch()

    def start(self, script, worker=0, generation=1):
        """Start a script as a worker in the run's directory."""
        self.host.start(
            Job(
                RUN,
                job_name(generation, worker),
                generation,
                (sys.executable, "-u", "-c", script),
                {},
                log_name(worker, generation),
                cwd=str(self.directory.path),
            )
        )

    @property
    def directory(self):
        return RunDirectory(self.root / "runs" / RUN)


@pytest.fixture
def far(tmp_path):
    """Create hosts. Their processes end with the test."""
    made = []

    def make(name="far"):
        made.append(FarHost(name, tmp_path / name))
        return made[-1]

    yield make
    for each in made:
        each.cable.is_cut = False
        each.host.end(RUN, grace_s=0)
        until(lambda each=each: all(j.has_ended for run in each.host.list_runs() for j in run.jobs))
        each.host.close()


# Prints one line, waits for the file `go`, and prints another one.
TWO_LINES = "import os, time\nprint('one')\nwhile not os.path.exists('go'): time.sleep(0.01)\nprint('two')"
COUNT = "import time\nfor n in range({num}):\n    print(n, {letter!r} * 50)\n    time.sleep({pause})\n"


def test_two_hosts_and_a_second_generation(directory, far):
    one, two = far("one"), far("two")
    one.start(COUNT.format(num=200, letter="a", pause=0.002), 0)
    two.start("open('exit-1.json', 'w').write('{\"code\": 3}'); print('ü'); raise SystemExit(3)", 1)
    two.host.write(RUN, "run.json", json.dumps(record(2)).encode())
    one.host.write(RUN, "run.json", json.dumps(record(4)).encode())
    with Mirror(directory, [one.host, two.host]) as mirror:
        until(mirror.is_complete)
        assert mirror.unreachable() == ()
        for each in (one, two):
            for path in each.directory.path.glob("worker-*.log"):
                assert (directory.path / path.name).read_bytes() == path.read_bytes() != b""
        assert json.loads(directory.exit(1).read_text()) == {"code": 3}
        until(lambda: directory.record.exists() and json.loads(directory.record.read_text())["version"] == 4)
        two.start("open('exit-1.g2.json', 'w').write('{}'); print('again')", 1, 2)
        two.host.write(RUN, "run.json", json.dumps(record(5)).encode())
        until(lambda: json.loads(directory.record.read_text())["version"] == 5 and mirror.is_complete())
        assert directory.log(1, 2).read_bytes() == b"again\n"
        assert (directory.path / exit_name(1, 2)).exists()


@pytest.mark.parametrize("pause_s", [0.0, 0.3])
def test_a_host_that_the_run_is_given_later(directory, far, monkeypatch, pause_s):
    """Also if the mirror finds the new host while a caller asks whether all output has arrived."""
    hosts = MirroredRecord.hosts

    def hosts_and_pause(mirrored: MirroredRecord) -> frozenset[str]:
        found = hosts(mirrored)
        if threading.current_thread() is threading.main_thread():
            time.sleep(pause_s)
        return found

    monkeypatch.setattr(MirroredRecord, "hosts", hosts_and_pause)
    one, two = far("one"), far("two")
    one.start("print('first')", 0)
    one.host.write(RUN, "run.json", json.dumps(record(2, "one")).encode())
    with Mirror(directory, [one.host], lambda names: [{"two": two.host}[name] for name in names]) as mirror:
        until(mirror.is_complete)
        two.start("print('second')", 1, 2)
        one.host.write(RUN, "run.json", json.dumps(record(3, "one", "two")).encode())
        until(lambda: json.loads(directory.record.read_text())["version"] == 3 and mirror.is_complete())
        assert directory.log(1, 2).read_text() == "second\n"


def test_it_is_followed_while_it_grows(directory, far):
    host = far()
    host.start(COUNT.format(num=300, letter="b", pause=0.005))
    with Mirror(directory, [host.host]) as mirror:
        text = "".join(
            chunk.text for chunk in follow(lambda: [Segment(0, directory.log(0))], mirror.is_complete)
        )
    assert text == host.directory.log(0).read_text()
    assert text.count("\n") == 300


MIRRORING = """
import sys, time
from pathlib import Path
from ignite_tf_magic.runs.logs.mirror import Mirror
from ignite_tf_magic.runs.directory import RunDirectory
from ignite_tf_magic.launch.hosts import Host
from ignite_tf_magic.launch.jobs import LinkTimeouts
from ignite_tf_magic.launch.pipe import PipeTransport
directory, name, root = sys.argv[1:]
way = PipeTransport({"IGNITE_TF_HOME": root})
host = Host(name, way, python=sys.executable, root=root, timeouts=LinkTimeouts(poll_s=0.25))
with Mirror(RunDirectory(Path(directory)), [host]) as mirror:
    while not mirror.is_complete():
        time.sleep(0.02)
host.close()
import resource
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def mirroring(directory, host):
    """Start a process that mirrors the run until all output has arrived."""
    argv = [sys.executable, "-c", MIRRORING, str(directory.path), host.host.name, str(host.root)]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)


def test_readers_that_are_killed_lose_and_double_nothing(directory, far):
    host = far()
    host.start(COUNT.format(num=1500, letter="c", pause=0.002))
    for _ in range(2):
        before = directory.log(0).stat().st_size if directory.log(0).exists() else 0
        with mirroring(directory, host) as process:
            until(lambda: directory.log(0).exists() and directory.log(0).stat().st_size > before + 1000)  # noqa: B023
            process.send_signal(signal.SIGKILL)
    with Mirror(directory, [host.host]) as mirror:
        until(mirror.is_complete)
    assert directory.log(0).read_bytes() == host.directory.log(0).read_bytes()


def test_one_process_keeps_it_and_another_takes_over(directory, far):
    host = far()
    host.start(TWO_LINES)
    with mirroring(directory, host) as process:
        until(lambda: directory.log(0).exists() and directory.log(0).read_bytes() == b"one\n")
        with Mirror(directory, [host.host]) as mirror:
            assert not mirror.is_complete()
            assert lock.holder_pid(directory.path / "mirror.lock") == process.pid
            process.send_signal(signal.SIGKILL)
            host.go_on()
            until(mirror.is_complete)
            assert lock.holder_pid(directory.path / "mirror.lock") == os.getpid()
    assert directory.log(0).read_bytes() == b"one\ntwo\n"


def test_who_only_reads_is_told_when_it_is_complete(directory, far):
    host = far()
    host.start("print('all')")
    host.host.write(RUN, "run.json", json.dumps(record(1)).encode())
    with Mirror(directory, [host.host]) as keeping:
        until(keeping.is_complete)
        with Mirror(directory, [host.host]) as reading:
            until(reading.is_complete)
            assert reading.unreachable() == ()
            assert reading._held is None


def test_what_was_complete_before_the_newest_record_may_not_be_now(directory):
    """Workers may have started and ended since. The record shows this before the mirror does."""
    write_private(directory.record, "{}")
    lost = UnreadOutput("far", "worker-0.log", 7, False, "cut")
    state = MirrorState("mark", os.getpid(), True, MirroredRecord(directory.record).stamp(), (lost,))
    state.write(directory)
    with lock.HeldLock(directory.path / "mirror.lock") as held, Mirror(directory, []) as reading:
        assert reading.is_complete() and reading.unreachable() == (lost,)
        replace(state, pid=1).write(directory)  # written by an earlier mirror process
        assert not reading.is_complete()
        state.write(directory)
        write_private(directory.record, "{}")
        assert not reading.is_complete()
        held.release()
        until(reading.is_complete)  # now this process mirrors the directory itself


def test_what_an_earlier_mirror_of_this_process_found_is_not_taken_for_the_next_ones(directory, far):
    host = far()
    host.cable.cut()
    write_private(directory.record, "{}")
    with Mirror(directory, [host.host]) as mirror:
        until(lambda: mirror.is_complete() and MirrorState.read(directory).unreachable)
    host.cable.is_cut = False
    host.start("print('late')")
    with lock.HeldLock(directory.path / "mirror.lock"), Mirror(directory, [host.host]) as reading:
        assert not reading.is_complete()


def test_a_directory_that_is_removed_meanwhile_hinders_no_end(directory, far):
    host = far()
    host.start("print('all')")
    with Mirror(directory, [host.host]) as mirror:
        until(mirror.is_complete)
        shutil.rmtree(directory.path)


def test_the_runs_own_directory_is_left_alone(far):
    """The host's files are the run's files here. Copying them would append them to themselves forever."""
    host = far()
    host.start(COUNT.format(num=100, letter="d", pause=0.01))
    with Mirror(host.directory, [host.host]) as mirror:
        until(mirror.is_complete)
        assert mirror.unreachable() == ()
    lines = host.directory.log(0).read_text().splitlines()
    assert lines == [f"{n} {'d' * 50}" for n in range(100)]


def test_a_host_that_cannot_be_reached_is_named(directory, far):
    near, host = far("near"), far("far")
    near.start("print('near')", 0)
    host.start(TWO_LINES, 1)
    with Mirror(directory, [near.host, host.host]) as mirror:
        until(lambda: directory.log(1).exists() and directory.log(1).read_bytes() == b"one\n")
        assert not mirror.is_complete()
        host.cable.cut()
        until(mirror.is_complete)  # complete, as far as hosts are reachable
        (lost,) = mirror.unreachable()
        assert (lost.host, lost.log, lost.unread_bytes, lost.may_have_more) == (
            "far",
            "worker-1.log",
            0,
            True,
        )
        assert "no route to it" in lost.reason
        host.go_on()
        host.cable.is_cut = False
        until(lambda: not mirror.unreachable() and mirror.is_complete())
    assert directory.log(1).read_bytes() == b"one\ntwo\n"


def test_a_host_that_was_just_lost_is_waited_for(directory, far):
    host = far()
    host.start(TWO_LINES)
    with Mirror(directory, [host.host]) as mirror:
        until(lambda: directory.log(0).exists() and directory.log(0).read_bytes() == b"one\n")
        host.cable.cut()
        until(mirror.unreachable)
        assert not mirror.is_complete()
        host.go_on()
        host.cable.is_cut = False
        until(mirror.is_complete)
        assert mirror.unreachable() == ()
    assert directory.log(0).read_bytes() == b"one\ntwo\n"


def test_nothing_is_known_of_a_host_that_never_answered(directory, far):
    host = far()
    host.cable.cut()
    with Mirror(directory, [host.host]) as mirror:
        until(mirror.unreachable)
        (lost,) = mirror.unreachable()
        assert (lost.host, lost.log, lost.may_have_more) == ("far", None, True)


def test_a_host_that_was_read_to_the_end_is_not_missed(directory, far):
    host = far()
    host.start("print('all')")
    host.host.write(RUN, "run.json", json.dumps(record(3)).encode())
    with Mirror(directory, [host.host]) as mirror:
        until(lambda: directory.record.exists() and mirror.is_complete())
        until(lambda: json.loads((directory.path / "mirror.json").read_text())["done"] == {"far": 3})
    host.cable.cut()
    with Mirror(directory, [host.host]) as mirror:
        until(mirror.is_complete)
        assert mirror.unreachable() == ()
        write_private(directory.record, json.dumps(record(4)))  # workers may have been started since
        until(lambda: [each.host for each in mirror.unreachable()] == ["far"])


def test_100_mb_pass_through_little_memory(directory, far):
    host = far()
    with mirroring(directory, host) as process:
        empty = int(process.communicate(timeout=300)[0])
    host.start("import os\nfor n in range(1600):\n    os.write(1, os.urandom(65536))")
    with mirroring(directory, host) as process:
        peak = int(process.communicate(timeout=300)[0])
    assert directory.log(0).stat().st_size == 1600 * 65536
    assert same_content(directory.log(0), host.directory.log(0))
    assert peak < empty + 40_000  # KiB


def same_content(*paths):
    return subprocess.run(["cmp", *paths], timeout=300).returncode == 0


def test_a_full_disk_here_ends_only_the_mirroring(directory, far):
    host = far()
    host.start(
        "import time, sys\nsys.stdout.write('x' * 3_000_000)\nsys.stdout.flush()\ntime.sleep(1)\nprint('on')"
    )
    with files_of_at_most(1_000_000), Mirror(directory, [host.host]) as mirror:
        with pytest.raises(MirrorFailed, match="The run goes on"):
            until(mirror.is_complete)
    assert not lock.is_held(directory.path / "mirror.lock")
    with Mirror(directory, [host.host]) as mirror:
        until(mirror.is_complete)
    assert directory.log(0).read_bytes() == b"x" * 3_000_000 + b"on\n"


def test_a_damaged_record_or_state_harms_nothing(directory, far):
    host = far()
    host.start("print('all')")
    host.host.write(RUN, "run.json", b"{")
    (directory.path / "mirror.json").write_text("[]")
    with Mirror(directory, [host.host]) as mirror:
        until(mirror.is_complete)
        assert not directory.record.exists()


def test_logs_of_one_name_on_two_hosts(directory, far):
    """This cannot happen in practice, but it must not block callers that wait for completion."""
    one, two = far("one"), far("two")
    for each in (one, two):
        each.start("print(12345)")
    with Mirror(directory, [one.host, two.host]) as mirror:
        until(mirror.is_complete)
        (lost,) = mirror.unreachable()
    assert lost.host in ("one", "two") and (lost.log, lost.unread_bytes) == ("worker-0.log", 6)
    assert directory.log(0).read_bytes() == b"12345\n"


def test_closing_leaves_no_thread(directory, far):
    before = set(threading.enumerate())
    with Mirror(directory, [far().host]):
        pass
    assert not [each for each in set(threading.enumerate()) - before if each.name == "ignite-tf-mirror"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_watch_that_cannot_be_stopped_leaves_the_directory_to_others(directory, far, monkeypatch):
    stop, stopped = HostWatch.stop, []

    def stop_and_fail(watch):
        stop(watch)
        stopped.append(watch)
        raise RuntimeError("a fault of ours")

    one, two = far("one"), far("two")
    with Mirror(directory, [one.host, two.host]) as mirror:
        until(mirror.is_complete)
        monkeypatch.setattr(HostWatch, "stop", stop_and_fail)
    until(lambda: not lock.is_held(directory.path / "mirror.lock"))
    assert len(stopped) == 2


def test_an_older_record_takes_no_newer_ones_place(directory):
    kept = MirroredRecord(directory.record)
    for version, expected in ((5, 5), (3, 5), (6, 6)):
        kept.offer(record(version))
        assert json.loads(directory.record.read_text())["version"] == expected
