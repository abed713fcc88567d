"""Tests of whole runs, from start to end, with real processes."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from datetime import datetime, timezone
from pathlib import Path

import pytest

from ignite_tf_magic.errors import DeadlineExceeded, LaunchError, ScriptError
from ignite_tf_magic.runs.directory import RunDirectory
from ignite_tf_magic.runs.handles.run import Run, StopKind, list_runs, local_run
from ignite_tf_magic.runs.states import RunState
from tests.alive import is_alive
from tests.runs.light_runs import COME_UP, MEET, await_text, reach_of, text_of
from tests.runs.pipe_hosts import assert_nothing_lives
from tests.waiting import until

OWNER = """
import os, sys, time
from pathlib import Path
sys.path[:0] = [sys.argv[1]]
from tests.runs.light_runs import make_plan, reach_of
from ignite_tf_magic.runs.supervision import manager
script, num_workers, runs_dir = sys.argv[3], int(sys.argv[4]), Path(sys.argv[2])
run = manager.start_run(make_plan(script, num_workers, cwd=Path.cwd()), runs_dir, reach_of(runs_dir))
print(run.id, flush=True)
if sys.argv[5] == "stay": time.sleep(60)
"""
STUBBORN = (
    "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('ready')\ntime.sleep(60)"
)
PATIENT = "import time\ntry:\n    print('ready')\n    time.sleep(60)\nfinally:\n    print('saved')"


@pytest.fixture
def other_process(runs_dir, work_dir):
    """Start a run that another process owns; return (process, run)."""
    owners = []

    def begin(script, num_workers=1, then="stay") -> tuple[subprocess.Popen[bytes], Run]:
        root = str(Path(__file__).parents[3])
        argv = [sys.executable, "-c", OWNER, root, str(runs_dir), script, str(num_workers), then]
        owners.append(subprocess.Popen(argv, cwd=work_dir, stdout=subprocess.PIPE))
        run_id = owners[-1].stdout.readline().decode().strip()
        return owners[-1], local_run(RunDirectory(runs_dir / run_id), reach_of(runs_dir))

    yield begin
    for owner in owners:
        owner.kill()
        owner.wait()
        owner.stdout.close()


def indented(script: str) -> str:
    return textwrap.indent(script, "    ")


def assert_nothing_left(run: Run) -> None:
    assert_nothing_lives(run.directory.path.parents[1], run=run.id)
    for worker in run.info().workers:
        assert worker.pid is None or not is_alive(worker.pid)


# Ends.


def test_a_run_that_succeeds(start, runs_dir):
    before = datetime.now(timezone.utc)
    run = start("print('done')", name="My run!")
    assert text_of(run) == "done\n"
    info = run.info()
    assert re.fullmatch(r"[a-z0-9]{3}-my-run-\d{4}-\d{4}", info.id)
    assert (info.state, info.exit_code, info.restarts, info.num_workers) == (RunState.SUCCEEDED, 0, 0, 1)
    assert (info.cache, info.hosts, info.directory) == ("MNIST", ("localhost",), runs_dir / info.id)
    assert before <= info.started_at <= info.ended_at <= datetime.now(timezone.utc)
    assert run.failure() is None
    assert_nothing_left(run)


@pytest.mark.nightly
def test_a_run_whose_processes_run_is_running_though_no_server_of_tensorflow_ever_listens(start, work_dir):
    """For example preprocessing or a plain loop: it takes longer than the start timeout, which does not apply.

    Nightly. Shorter: tests/runs/test_decisions.py::test_processes_that_run_are_a_run_that_runs
    """
    script = (
        "import os, time\nfor step in range(80):\n    print('step', step, flush=True)\n    time.sleep(0.25)\n"
        "while not os.path.exists('go'): time.sleep(0.02)"
    )
    run = start(script, 2, start_timeout_s=15)
    await_text(run, "step 79")
    assert run.info().state is RunState.RUNNING
    (work_dir / "go").touch()
    assert run.wait(300).state is RunState.SUCCEEDED


@pytest.mark.smoke
def test_a_failing_worker_ends_the_others_and_is_named(start):
    script = COME_UP + (
        "try:\n" + indented(MEET) + "    if index == 1: raise RuntimeError('the cause')\n"
        "    time.sleep(60)\n"
        "finally: print('saved')"
    )
    run = start(script, 3)
    info = run.wait(300)
    failure = run.failure()
    assert (info.state, info.exit_code) == (RunState.FAILED, 1)
    assert failure.worker == 1
    assert "RuntimeError: the cause" in failure.traceback
    assert [worker.ended_by_owner for worker in info.workers] == [True, False, True]
    assert "saved" in text_of(run, 0)
    assert "saved" in text_of(run, 2)
    assert_nothing_left(run)


def test_a_worker_that_does_not_listen_to_sigterm_is_killed_when_another_failed(start):
    ignore = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    script = ignore + COME_UP + MEET + "if index == 1: 1 / 0\ntime.sleep(60)"
    run = start(script, 2)
    info = run.wait(300)
    assert run.failure().worker == 1
    assert info.workers[0].signal == "SIGKILL"
    assert_nothing_left(run)


def test_a_killed_worker_is_the_failure(start):
    run = start(COME_UP + "print('up', flush=True)\ntime.sleep(60)", 2)
    await_text(run, "up", 1)
    os.kill(run.info().workers[1].pid, signal.SIGKILL)
    assert run.wait(300).exit_code == 137
    assert run.failure().worker == 1
    assert run.failure().exit_text == "exit code 137: killed by SIGKILL (out of memory?)"


def test_a_worker_that_joins_late_is_told_of_and_not_ended(start, work_dir):
    script = COME_UP.replace("server.listen()", "if index == 0: server.listen()") + (
        "import os\nprint('loading data')\nwhile not os.path.exists('go'): time.sleep(0.02)"
    )
    run = start(script, 2, start_timeout_s=15.0)
    waiting_for = until(lambda: run.info().waiting_for, what="the run to say whom it waits for")
    assert "worker 1 runs, but has not joined within 15 s; worker 0 waits for it" in waiting_for
    assert run.info().state is RunState.RUNNING
    (work_dir / "go").touch()
    assert run.wait(300).state is RunState.SUCCEEDED


def test_workers_that_end_well_need_not_join(start):
    run = start("import time; time.sleep(0.3)", 2, start_timeout_s=300.0)
    assert run.wait(300).state is RunState.SUCCEEDED


def test_without_a_limit_workers_may_take_their_time(start):
    run = start("import time; time.sleep(0.5)", 2, start_timeout_s=None)
    assert run.wait(300).state is RunState.SUCCEEDED


def test_a_port_that_was_taken_is_replaced(start):
    """TensorFlow reports the conflict: on the first launch, worker 1 finds its port in use."""
    script = (
        "import os, sys, time, pathlib\n"
        "mark = pathlib.Path(os.environ['IGNITE_TF_RUN_DIR'], 'seen')\n"
        "print(os.environ['TF_CONFIG'], flush=True)\n"
        "if mark.exists(): sys.exit(0)\n"
        "if '\"index\": 1' in os.environ['TF_CONFIG']:\n"
        "    mark.touch()\n"
        "    raise RuntimeError('Could not start gRPC server')\n"
        "time.sleep(60)"
    )
    run = start(script, 2)
    info = run.wait(300)
    assert (info.state, info.restarts) == (RunState.SUCCEEDED, 1)
    configs = [json.loads(line) for line in text_of(run, 1).splitlines() if line.startswith("{")]
    assert len(configs) == 2
    assert configs[0]["cluster"] != configs[1]["cluster"]
    assert "--- started again (1): worker 1 on localhost could not use its port, which is taken\n" in text_of(
        run, 0
    )


def test_ports_are_tried_three_times(start):
    run = start("raise RuntimeError('Could not start gRPC server')", 2)
    info = run.wait(300)
    assert (info.state, info.restarts) == (RunState.FAILED, 2)
    assert "took a port" in run.failure().hint


def test_nobody_else_gets_the_ports_of_a_run(start):
    run = start("import os; print(os.environ['TF_CONFIG'], flush=True); import time; time.sleep(60)", 2)
    await_text(run, "\n")
    config = json.loads(run.directory.log(0).read_text())
    for address in config["cluster"]["worker"]:
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("", int(address.partition(":")[2])))


# Refused starts.


def test_a_syntax_error_starts_nothing(start, runs_dir):
    with pytest.raises(ScriptError) as caught:
        start("x = 1\nfor x in\n", script_name="cell 7")
    assert str(caught.value).splitlines()[:3] == ['  File "cell 7", line 2', "    for x in", "            ^"]
    assert (caught.value.line, caught.value.column) == (2, 9)
    assert not runs_dir.exists()


def test_a_magic_in_the_script_is_explained(start):
    with pytest.raises(ScriptError, match="plain Python"):
        start("%matplotlib inline\n")


@pytest.mark.parametrize("script", ["x = '\ud800'", "a\x00b", "(" * 10_000, "-" * 200_000 + "1"])
def test_scripts_that_cannot_be_compiled(start, script, runs_dir):
    with pytest.raises(ScriptError, match="No worker was started"):
        start(script)
    assert not runs_dir.exists()


def test_a_warning_of_the_compiler_is_no_error(start):
    run = start(r"x = '\d'" + "\nprint('ok')")
    assert text_of(run).endswith("ok\n")


def test_an_interpreter_that_is_not_there(start, runs_dir):
    with pytest.raises(LaunchError, match="no-such-python"):
        start("pass", 2, python="/no-such-python")
    (info,) = list_runs(runs_dir, include_ended=True)
    assert info.state is RunState.FAILED
    assert "no-such-python" in local_run(RunDirectory(info.directory), reach_of(runs_dir)).failure().summary


# Stopping.


def test_stop_lets_the_script_save(start):
    run = start(PATIENT)
    await_text(run, "ready")
    outcome = run.stop()
    assert outcome.kind is StopKind.STOPPED
    assert (outcome.info.state, outcome.info.exit_code) == (RunState.STOPPED, 143)
    assert text_of(run) == "ready\nsaved\n"
    assert run.failure() is None


def test_stop_kills_what_does_not_listen_and_its_children(start):
    script = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print(child.pid, flush=True)\n" + STUBBORN
    )
    run = start(script)
    await_text(run, "ready")
    child = int(text_of_now(run).split()[0])
    run.stop()
    assert run.info().workers[0].signal == "SIGKILL"
    assert not is_alive(child)
    assert_nothing_left(run)


def text_of_now(run: Run) -> str:
    return run.directory.log(0).read_text()


def test_stop_ends_only_its_own_run(start):
    first, second = start(PATIENT), start(PATIENT)
    await_text(second, "ready")
    first.stop()
    assert second.info().state is RunState.RUNNING


def test_stopping_what_has_ended(start):
    run = start("pass")
    run.wait(300)
    assert run.stop().kind is StopKind.ALREADY_ENDED
    assert run.info().state is RunState.SUCCEEDED


def test_stop_from_another_process(other_process):
    _, run = other_process(PATIENT)
    await_text(run, "ready")
    assert run.stop().kind is StopKind.STOPPED
    assert run.info().state is RunState.STOPPED
    assert text_of(run) == "ready\nsaved\n"


def test_stop_by_two_at_once(other_process):
    _, run = other_process(PATIENT)
    await_text(run, "ready")
    outcomes = []
    threads = [threading.Thread(target=lambda: outcomes.append(run.stop())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [outcome.info.state for outcome in outcomes] == [RunState.STOPPED] * 2


def test_stop_when_the_owner_is_stuck(other_process):
    owner, run = other_process(PATIENT)
    await_text(run, "ready")
    os.kill(owner.pid, signal.SIGSTOP)
    try:
        assert run.stop().kind is StopKind.OWNER_DID_NOT_ANSWER
        assert_nothing_left(run)
    finally:
        os.kill(owner.pid, signal.SIGCONT)
    assert run.wait(300).state is RunState.STOPPED


# Owners.


def test_workers_end_when_their_owner_is_killed(other_process, runs_dir):
    owner, run = other_process(COME_UP + PATIENT, 2)
    await_text(run, "ready", 0)
    await_text(run, "ready", 1)
    owner.kill()
    owner.wait()
    assert "saved" in text_of(run, 0)
    assert "owned this run has ended" in text_of(run, 1)
    assert run.wait(300).state is RunState.LOST
    assert_nothing_left(run)
    assert [info.id for info in list_runs(runs_dir, include_ended=True)] == [run.id]
    assert list_runs(runs_dir) == []
    assert run.stop().kind is StopKind.OWNER_WAS_GONE
    assert run.info().state is RunState.STOPPED
    assert run.stop().kind is StopKind.ALREADY_ENDED


def test_a_stubborn_worker_and_its_children_end_with_their_owner(other_process):
    family = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print(child.pid, flush=True)\n"
    )
    owner, run = other_process(family + STUBBORN)
    await_text(run, "ready")
    child = int(text_of_now(run).split()[0])
    owner.kill()
    owner.wait()
    assert run.wait(300).state is RunState.LOST
    assert not is_alive(child)
    assert_nothing_left(run)


def test_stopping_a_lost_run_ends_what_is_left(other_process):
    owner, run = other_process(STUBBORN)
    await_text(run, "ready")
    owner.kill()
    owner.wait()
    assert run.stop().kind is StopKind.OWNER_WAS_GONE
    assert_nothing_left(run)


def test_an_owner_that_ends_properly_stops_its_runs(other_process):
    owner, run = other_process("print('x')\n" + PATIENT, then="leave")
    owner.wait(300)
    assert run.info().state is RunState.STOPPED
    assert_nothing_left(run)


def test_a_pid_that_was_given_to_another_process_is_left_alone(other_process):
    """The test writes the pid of another process into the record, as if the system had reused the worker's pid."""
    owner, run = other_process(PATIENT)
    await_text(run, "ready")
    owner.kill()
    owner.wait()
    run.wait(300)
    with subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True
    ) as bystander:
        record = json.loads(run.directory.record.read_text())
        record["workers"][0]["pid"] = bystander.pid
        run.directory.record.write_text(json.dumps(record))
        for status in run.directory.path.glob("jobs/*/status.json"):
            status.write_text(json.dumps(json.loads(status.read_text()) | {"pid": bystander.pid}))
        run.stop()
        assert bystander.poll() is None
        bystander.kill()


# Reading output.


def test_following_ends_on_an_interrupt_and_the_run_goes_on(start, work_dir):
    script = "import os, time\nprint('one')\nwhile not os.path.exists('go'): time.sleep(0.01)\nprint('two')"
    run = start(script)
    interrupt = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    interrupt.start()
    seen = []
    with pytest.raises(KeyboardInterrupt):
        seen.extend(chunk.text for chunk in run.follow())
    interrupt.join()
    assert run.info().state is RunState.RUNNING
    (work_dir / "go").touch()
    assert text_of(run) == "one\ntwo\n"


def test_waiting_has_a_limit_and_the_run_goes_on(start):
    run = start(PATIENT)
    with pytest.raises(DeadlineExceeded, match="still runs"):
        run.wait(0.1)
    assert run.info().state is RunState.RUNNING


def test_runs_are_listed_oldest_first(start, runs_dir):
    ids = [start("pass", name=name).id for name in ("zebra", "ant", "ant-hill")]
    assert [info.id for info in list_runs(runs_dir, include_ended=True)] == ids


def test_only_live_runs_are_listed_by_default(start, runs_dir):
    ended, live = start("pass"), start(PATIENT)
    ended.wait(300)
    assert [info.id for info in list_runs(runs_dir)] == [live.id]


def test_no_runs_at_all(tmp_path):
    assert list_runs(tmp_path / "never") == []


def test_records_of_other_versions_and_damaged_ones(start, runs_dir):
    run = start("pass")
    run.wait(300)
    record = json.loads(run.directory.record.read_text())
    record |= {"version": 99, "added_later": {"x": 1}}
    del record["reason"], record["order"]
    record["workers"][0]["added_later"] = 1
    run.directory.record.write_text(json.dumps(record))
    assert run.info().state is RunState.SUCCEEDED
    good = run.directory.record.read_text()
    for content in ("", "{", "[]", "{}", '{"workers": 3, "state": "x"}', '{"workers": [], "state": "odd"}'):
        run.directory.record.write_text(content)
        assert list_runs(runs_dir, include_ended=True) == []
    (runs_dir / "a-file").touch()
    (runs_dir / "just-made").mkdir()
    assert list_runs(runs_dir, include_ended=True) == []
    run.directory.record.write_text(good)
