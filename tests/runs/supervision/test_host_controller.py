"""Tests of what a host receives before its workers start, and what it keeps. Real agents; each root acts as a host."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from ignite_tf_magic.launch.hosts import Host
from ignite_tf_magic.launch.parcels import pack_package, pack_tree
from ignite_tf_magic.runs.logs.mirror_state import MirrorState
from ignite_tf_magic.runs.record import HostRecord
from ignite_tf_magic.runs.states import RunState
from ignite_tf_magic.runs.supervision import manager
from ignite_tf_magic.runs.supervision.host_controller import address_of, last_lines
from ignite_tf_magic.settings.options import ConnectOptions
from tests.runs.light_runs import COME_UP, await_text, text_of
from tests.runs.pipe_hosts import (
    PipeReach,
    assert_nothing_lives,
    cut_file,
    host_at,
    plan_on,
    relays,
)
from tests.waiting import until


@pytest.fixture
def place(tmp_path) -> Path:
    return tmp_path / "hosts"


@pytest.fixture
def far(place) -> HostRecord:
    return host_at(place, "far")


@pytest.fixture
def start_on(runs_dir, place):
    started = []

    def start(plan):
        started.append(manager.start_run(plan, runs_dir, PipeReach(runs_dir.parent)))
        return started[-1]

    yield start
    for run in started:
        run.stop()
    for root in place.iterdir():
        assert_nothing_lives(root)


@pytest.fixture
def job(tmp_path, monkeypatch):
    """A packed directory with a program that prints its arguments, files and working directory."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source = tmp_path / "job"
    (source / "inner").mkdir(parents=True)
    (source / "inner" / "data.txt").write_text("data")
    (source / "model.py").write_text("SIZE = 7\n")
    (source / "train.py").write_text(
        "import os, sys, model\n"
        "print(sys.argv, model.SIZE, open('inner/data.txt').read(), os.getcwd(), __name__)\n"
        "open('mine', 'x').close()\n"
    )
    return pack_tree(source)


def test_credentials_are_private_on_the_other_host_and_gone_in_the_end(start_on, far, place):
    script = (
        "import os, time\n"
        "path = os.environ['IGNITE_DATASET_CREDENTIALS_FILE']\n"
        "print(oct(os.stat(path).st_mode & 0o777), open(path).read(), path, flush=True)\n"
        "while not os.path.exists('go'): time.sleep(0.02)\n"
    )
    run = start_on(plan_on([far], script, connect=ConnectOptions(username="ada", password="hush")))
    mode, *_, path = await_text(run, "\n").split()
    assert mode == "0o600"
    assert path == f"{far.root}/runs/{run.id}/credentials.json"
    exposed = [
        each
        for each in (*place.rglob("*"), *run.directory.path.rglob("*"))
        if each.is_file()
        and each != Path(path)
        and not each.name.endswith(".log")
        and b"hush" in each.read_bytes()
    ]
    assert exposed == []
    (pid,) = [worker.pid for worker in run.info().workers]
    assert (
        b"hush" not in Path(f"/proc/{pid}/environ").read_bytes() + Path(f"/proc/{pid}/cmdline").read_bytes()
    )
    Path(far.root, "runs", run.id, "files", "go").touch()
    assert run.wait(300).state is RunState.SUCCEEDED
    until(lambda: Path(path).read_bytes() == b"", what="the credentials are gone")


def test_nothing_of_a_run_can_be_read_by_others_on_its_hosts(start_on, far):
    run = start_on(plan_on([far], "print(1)"))
    run.wait(300)
    assert all(
        path.stat().st_mode & 0o077 == 0 for path in Path(far.root).rglob("*") if "parcels" not in path.parts
    )


def test_the_package_goes_along_to_hosts_that_do_not_have_it(start_on, far, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    package = pack_package()
    script = "import ignite_tf_magic; print(ignite_tf_magic.__file__)"
    run = start_on(plan_on([far], script, parcels=(package,), package=package.digest))
    assert text_of(run) == f"{far.root}/parcels/{package.digest}/ignite_tf_magic/__init__.py\n"


def test_a_jobs_directory_is_copied_for_each_worker(start_on, far, job):
    plan = plan_on([far], None, used=[far, far], parcels=(job,), job_parcel=job.digest,
                   command=("python", "train.py", "--x"))  # fmt: skip
    run = start_on(plan)
    assert run.wait(300).state is RunState.SUCCEEDED, text_of(run)
    for worker in range(2):
        own = f"{far.root}/runs/{run.id}/work-{worker}"
        *notices, said = text_of(run, worker).splitlines(keepends=True)
        # The host lacks the library that keeps ports private, so worker 0 prints notices.
        assert [each.split(" accept ")[0] for each in notices] == [
            "ignite_tf_magic: warning: TensorFlow ports of this run"
        ] * (worker == 0)
        assert said == f"['train.py', '--x'] 7 data {own} __main__\n"
        assert Path(own, "mine").exists()
    assert not Path(far.root, "parcels", job.digest, "mine").exists()


def test_a_jobs_directory_is_copied_on_this_machine_too(start_on, job, place, runs_dir):
    place.mkdir()
    here = HostRecord("localhost", python=sys.executable)
    plan = plan_on([here], None, parcels=(job,), job_parcel=job.digest, command=("python", "train.py"))
    run = start_on(plan)
    assert run.wait(300).exit_code == 0, text_of(run)
    assert f" {run.directory.path}/work-0 " in text_of(run)


def test_an_exception_of_a_commands_script_is_told_like_a_cells(start_on, far):
    Path(far.root, "boom.py").write_text("def train():\n    1 / 0\n\ntrain()\n")
    run = start_on(plan_on([far], None, command=("python", f"{far.root}/boom.py"), max_restarts=3))
    info = run.wait(300)
    assert (info.exit_code, info.restarts) == (1, 0)
    assert run.failure().traceback.endswith("ZeroDivisionError: division by zero\n")


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        (("sh", "-c", "echo said; exit 3"), 3, "said\n"),
        (("sh", "-c", "kill -9 $$"), 137, ""),
        (("no-such-program", "--x"), 127, "cannot start 'no-such-program'"),
        (("/etc/passwd",), 126, "cannot start '/etc/passwd'"),
        (("python3", "-c", "import sys; print(sys.executable)"), 0, sys.executable),
        (("python", "-m", "json.tool", "--help"), 0, "usage"),
        (("python", "no-such-file.py"), 1, "No such file"),
    ],
)
def test_commands_and_how_they_end(start_on, far, command, code, said):
    run = start_on(plan_on([far], None, command=command))
    assert run.wait(300).exit_code == code
    assert said in text_of(run)


def test_a_command_is_asked_to_end_and_may_save(start_on, far):
    script = "trap 'echo saved; exit 0' TERM; echo ready; while true; do sleep 0.05; done"
    run = start_on(plan_on([far], None, command=("sh", "-c", script)))
    await_text(run, "ready")
    assert run.stop().info.state is RunState.STOPPED
    assert text_of(run) == "ready\nsaved\n"


def test_a_stop_may_be_asked_for_on_a_host(start_on, far):
    run = start_on(plan_on([far], "import time; print('up', flush=True); time.sleep(60)"))
    await_text(run, "up")
    with run.reach.open(far) as host:
        host.request_stop(run.id)
    assert run.wait(300).state is RunState.STOPPED


def test_a_record_that_cannot_be_left_on_a_host_ends_no_worker(start_on, far):
    """The record's path is blocked by a directory, which has the same effect as a full disk."""
    script = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.02)"
    run = start_on(plan_on([far], "print('up', flush=True)\n" + script))
    await_text(run, "up")
    home = Path(far.root, "runs", run.id)
    (home / "run.json").unlink()
    (home / "run.json").mkdir()
    (home / "files" / "go").touch()
    assert run.wait(300).state is RunState.SUCCEEDED


def test_output_beyond_a_megabyte_comes_whole_from_another_host(start_on, far):
    run = start_on(plan_on([far], "for i in range(300_000): print(f'{i:09d}')"))
    assert text_of(run).split() == [f"{i:09d}" for i in range(300_000)]


@pytest.fixture
def breaking(far, monkeypatch):
    """Break the link to the host each time it is asked for the directory's owner, until the test empties the list."""
    breaks = [None]

    class Breaking(Host):
        def read(self, run, path, *args, **options):
            if path != "owner.lock" or self.name != far.name or not breaks:
                return super().read(run, path, *args, **options)
            if breaks == ["once"]:
                breaks.clear()
            cut_file(far.root).touch()
            for relay in relays(far.root):
                relay.kill()
            try:
                return super().read(run, path, *args, **options)
            finally:
                cut_file(far.root).unlink()

    monkeypatch.setattr("tests.runs.pipe_hosts.Host", Breaking)
    return breaks


def test_a_link_that_breaks_when_a_worker_was_started_costs_none_of_its_output(start_on, far, breaking):
    breaking[:] = ["once"]
    run = start_on(plan_on([far], "print('said')"))
    assert text_of(run) == "said\n"
    assert (run.info().state, breaking) == (RunState.SUCCEEDED, [])


def test_output_that_was_never_asked_for_is_told_and_read_later(start_on, far, place, breaking):
    """The run ends before the link to one host has worked even once."""
    near = host_at(place, "near")
    script = COME_UP + (
        "if index == 0:\n"
        "    print('said', flush=True)\n"
        "    time.sleep(60)\n"
        f"while not os.path.exists({str(place / 'go')!r}): time.sleep(0.02)\n"
        "raise SystemExit(3)\n"
    )
    run = start_on(plan_on([far, near], script))
    log = Path(far.root, "runs", run.id, "worker-0.log")
    until(lambda: log.exists() and log.read_bytes() == b"said\n", what="the worker's words")
    (place / "go").touch()
    assert run.wait(300).exit_code == 3
    (lost,) = MirrorState.read(run.directory).unreachable
    assert str(lost).startswith("5 bytes of worker-0.log cannot be read: host far: ")
    breaking.clear()
    assert text_of(run, 0) == "said\n"


def test_the_address_by_which_others_know_a_host():
    assert address_of(HostRecord("a", addresses=("127.0.0.1", "::1", "localhost", "10.0.0.7"))) == "10.0.0.7"
    assert address_of(HostRecord("a", addresses=("10.0.0.7",), tf_address="ib0.a")) == "ib0.a"
    assert address_of(HostRecord("a", addresses=("127.0.1.1",))) is None


def test_last_lines_are_those_of_a_terminal():
    assert last_lines(b"", 3) == ()
    assert last_lines(b" \n\n", 3) == ()
    assert last_lines(b"1\n2\r\n 10%\r100%\nbad \xff\n\n", 3) == ("2", "100%", "bad \ufffd")


def test_tasks_hold_no_secret(start_on, far):
    run = start_on(plan_on([far], "pass", args=("--x",)))
    run.wait(300)
    task = json.loads(Path(far.root, "runs", run.id, "task-0.json").read_text())
    assert (task["args"], task["owner_lock"], task["copy_from"]) == (["--x"], "", "")
