"""Which worker is blamed, and what is said of it. The records are made by hand: moments matter."""

from __future__ import annotations

import sys

import pytest

from ignite_tf_magic.cluster.directory import create_directory
from ignite_tf_magic.cluster.failure import describe_exit, first_failing, normal_exit
from ignite_tf_magic.cluster.record import WorkerRecord
from ignite_tf_magic.cluster.task import ExitReport

LOST_PEER = "tensorflow.python.framework.errors_impl.UnavailableError: Socket closed"


@pytest.fixture
def directory(runs_dir):
    return create_directory(runs_dir, "x")


def failed(directory, worker, ended_at, *, trace="", signal=None, **options):
    ExitReport(1, 0.0, ended_at, traceback=trace).write(directory.exit(worker))
    return WorkerRecord(worker, "localhost", exit_code=1, signal=signal, ended_at=ended_at, **options)


def test_the_first_by_time(directory):
    workers = [failed(directory, 0, 20.0), failed(directory, 1, 10.0), failed(directory, 2, 30.0)]
    assert first_failing(directory, workers).worker == 1


def test_not_one_that_the_owner_ended(directory):
    workers = [failed(directory, 0, 5.0, ended_by_owner=True), failed(directory, 1, 10.0)]
    assert first_failing(directory, workers).worker == 1


def test_not_one_that_only_lost_its_connection_to_the_one_that_failed(directory):
    workers = [
        failed(directory, 0, 10.0, trace=LOST_PEER),
        failed(directory, 1, 10.5, trace="ValueError: mine"),
    ]
    assert first_failing(directory, workers).worker == 1


def test_a_lost_connection_long_before_is_a_failure_of_its_own(directory):
    workers = [
        failed(directory, 0, 10.0, trace=LOST_PEER),
        failed(directory, 1, 12.0, trace="ValueError: mine"),
    ]
    assert first_failing(directory, workers).worker == 0


def test_a_killed_worker_is_never_a_consequence(directory):
    workers = [
        failed(directory, 0, 10.0, trace=LOST_PEER),
        failed(directory, 1, 10.2, signal="SIGKILL", trace=LOST_PEER),
    ]
    assert first_failing(directory, workers).worker == 1


def test_when_all_only_lost_connections_the_first_does(directory):
    workers = [failed(directory, 0, 10.1, trace=LOST_PEER), failed(directory, 1, 10.0, trace=LOST_PEER)]
    assert first_failing(directory, workers).worker == 1


def test_nobody_failed(directory):
    assert first_failing(directory, [WorkerRecord(0, "localhost", exit_code=0)]) is None


@pytest.mark.parametrize(
    ("return_code", "exit_code", "text"),
    [
        (3, 3, "exit code 3"),
        (-9, 137, "exit code 137: killed by SIGKILL (out of memory?)"),
        (137, 137, "exit code 137: killed by SIGKILL (out of memory?)"),
        (-15, 143, "exit code 143: killed by SIGTERM"),
        (-6, 134, "exit code 134: killed by SIGABRT (aborted)"),
        (128, 128, "exit code 128"),
        (255, 255, "exit code 255"),
        (3221225477, 3221225477, "exit code 3221225477"),
    ],
)
def test_exit_codes_in_words(return_code, exit_code, text):
    assert normal_exit(return_code)[0] == exit_code
    assert describe_exit(exit_code) == text


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
    run.wait(30)
    found = run.failure().hint
    assert found is None if hint is None else hint in found


def test_the_last_lines_are_shown_without_the_traceback(start):
    run = start("for i in range(100): print('line', i)\n1 / 0")
    run.wait(30)
    failure = run.failure()
    assert failure.last_lines == tuple(f"line {i}" for i in range(70, 100))
    assert failure.traceback.endswith("ZeroDivisionError: division by zero\n")
    assert failure.summary == "worker 0 on localhost failed: exit code 1"
    assert failure.log == str(run.directory.log(0))
