"""Tests of the diagnosis of a failed run."""

from __future__ import annotations

import sys

import pytest

from ignite_tf_magic.runs.directory import create_directory
from ignite_tf_magic.runs.handles.failure import diagnose
from ignite_tf_magic.runs.orders import Order, WorkerEnd
from ignite_tf_magic.runs.record import HostRecord, RunRecord, RunSpec, WorkerRecord
from ignite_tf_magic.runs.states import RunState


@pytest.fixture
def failed(runs_dir):
    """Diagnose a run that failed on another machine. This machine has only the run's record."""
    directory = create_directory(runs_dir, "x")

    def failed(end, *, exit_code=1, signal=None, **options):
        workers = (WorkerRecord(0, "db1"), WorkerRecord(1, "db2", exit_code=exit_code, signal=signal))
        hosts = (HostRecord("db1"), HostRecord("db2", ssh="db2", python="/opt/python"))
        known = {"failed_worker": 1, "end": end, **options}
        record = RunRecord(
            "x", RunSpec("c", num_workers=2), RunState.FAILED, 0.0, workers, Order(3), hosts, **known
        )
        return diagnose(directory, record)

    return failed


def test_the_words_come_from_the_record_not_from_files_here(failed):
    end = WorkerEnd(
        1,
        "exited",
        traceback="Traceback\nValueError: x\n",
        last_lines=("before", "Traceback", "ValueError: x"),
    )
    failure = failed(end)
    assert failure.summary == "worker 1 on db2 failed: exit code 1"
    assert (failure.last_lines, failure.traceback) == (("before",), "Traceback\nValueError: x\n")
    assert failure.log.endswith("worker-1.g3.log")


def test_a_hint_names_the_host_and_its_own_interpreter(failed):
    missing = WorkerEnd(1, "exited", traceback="ModuleNotFoundError: No module named 'numpy.core'")
    assert "/opt/python -m pip install numpy" in failed(missing).hint
    full = WorkerEnd(1, "exited", last_lines=("write: No space left on device",))
    assert failed(full).hint == "the disk of db2 is full; free some of it"


def test_a_kill_for_want_of_memory_is_said_when_the_system_says_so(failed):
    killed = failed(WorkerEnd(-9, "exited", oom=True), exit_code=137, signal="SIGKILL")
    assert killed.exit_text == "exit code 137: killed by SIGKILL (out of memory)"


def test_a_reason_of_the_supervisor_comes_before_what_a_worker_said(failed):
    failure = failed(None, exit_code=None, reason="host db2 has not answered for 40 s")
    assert failure.summary == "host db2 has not answered for 40 s"
    assert (failure.exit_text, failure.traceback, failure.hint) == (None, None, None)


def test_without_a_worker_to_blame_the_reason_is_all(failed):
    assert failed(None, failed_worker=None, reason="no room").summary == "no room"


@pytest.mark.parametrize(
    ("statement", "hint"),
    [
        ("import no_such_module.inner", f"{sys.executable} -m pip install no_such_module"),
        (
            "import socket; s = socket.socket(); s.bind(('', 0)); s.listen(); socket.create_server(s.getsockname())",
            "a port that another program holds",
        ),
        ("raise MemoryError", "smaller batch"),
        ("raise TypeError('PerReplica is unsupported type')", "Keras 3's own fit"),
        ("import os; os.kill(os.getpid(), 9)", "dmesg"),
        ("raise ValueError('something of its own')", None),
    ],
)
def test_hints_for_known_causes(start, statement, hint):
    run = start(statement)
    run.wait(300)
    found = run.failure().hint
    assert found is None if hint is None else hint in found


def test_the_last_lines_are_shown_without_the_traceback(start):
    run = start("for i in range(100): print('line', i)\n1 / 0")
    run.wait(300)
    failure = run.failure()
    assert failure.last_lines == tuple(f"line {i}" for i in range(70, 100))
    assert failure.traceback.endswith("ZeroDivisionError: division by zero\n")
    assert failure.summary == "worker 0 on localhost failed: exit code 1"
    assert failure.log == str(run.directory.log(0))
