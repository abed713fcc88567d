"""Tests which worker's failure explains a run's failure, and whether another attempt may succeed."""

from __future__ import annotations

import enum
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ignite_tf_magic.runs import verdicts
from ignite_tf_magic.runs.orders import WorkerEnd
from ignite_tf_magic.runs.record import WorkerRecord
from ignite_tf_magic.runs.verdicts import (
    describe_end,
    describe_exit,
    first_failing,
    is_retryable,
    normal_exit,
    took_a_port,
)

LOST_PEER = "tensorflow.python.framework.errors_impl.UnavailableError: Socket closed"


def failed(worker, ended_at, *, signal=None, **options):
    return WorkerRecord(worker, "localhost", exit_code=1, signal=signal, ended_at=ended_at, **options)


def said(trace):
    return WorkerEnd(1, "exited", traceback=trace)


# Who failed first.


def test_the_first_by_time():
    assert first_failing([failed(0, 20.0), failed(1, 10.0), failed(2, 30.0)], {}).worker == 1


def test_not_one_that_the_owner_ended():
    assert first_failing([failed(0, 5.0, ended_by_owner=True), failed(1, 10.0)], {}).worker == 1


def test_not_one_that_only_lost_its_connection_to_the_one_that_failed():
    ends = {0: said(LOST_PEER), 1: said("ValueError: mine")}
    assert first_failing([failed(0, 10.0), failed(1, 10.5)], ends).worker == 1


def test_a_consequence_is_known_by_the_output_of_a_worker_that_aborted():
    aborted = WorkerEnd(-6, "exited", last_lines=("F0 coordination service: agent was lost",))
    assert first_failing([failed(0, 10.0, signal="SIGABRT"), failed(1, 10.5)], {0: aborted}).worker == 1


def test_a_lost_connection_long_before_is_a_failure_of_its_own():
    ends = {0: said(LOST_PEER), 1: said("ValueError: mine")}
    assert first_failing([failed(0, 10.0), failed(1, 12.0)], ends).worker == 0


def test_a_killed_worker_is_never_a_consequence():
    ends = {0: said(LOST_PEER), 1: said(LOST_PEER)}
    assert first_failing([failed(0, 10.0), failed(1, 10.2, signal="SIGKILL")], ends).worker == 1


def test_when_all_only_lost_connections_the_first_does():
    ends = {0: said(LOST_PEER), 1: said(LOST_PEER)}
    assert first_failing([failed(0, 10.1), failed(1, 10.0)], ends).worker == 1


def test_nobody_failed():
    assert first_failing([WorkerRecord(0, "localhost", exit_code=0)], {}) is None
    assert first_failing([], {}) is None


# Whether a retry may help.

OWN = "Traceback (most recent call last):\n  ...\nValueError: of its own\n"


@pytest.mark.parametrize(
    ("exit_code", "signal_name", "end", "expected"),
    [
        (1, None, WorkerEnd(1, "exited", exception="ValueError", traceback=OWN), False),
        (2, None, WorkerEnd(2, "exited"), False),
        (127, None, WorkerEnd(127, "exited"), False),
        (75, None, WorkerEnd(75, "exited"), True),
        (75, None, WorkerEnd(75, "exited", exception="SystemExit"), True),
        (137, "SIGKILL", WorkerEnd(-9, "exited"), True),
        (137, "SIGKILL", WorkerEnd(-9, "exited", oom=True), True),
        (139, "SIGSEGV", WorkerEnd(-11, "exited"), True),
        (137, "SIGKILL", WorkerEnd(None, "agent_lost"), True),
        (113, None, None, True),
        (1, None, None, True),  # no process saw how it ended
        (1, None, WorkerEnd(1, "exited", exception="ConnectionLost"), True),
        (1, None, WorkerEnd(1, "exited", exception="ConnectionResetError"), True),
        (1, None, WorkerEnd(1, "exited", exception="PartitionsLost"), True),
        (1, None, WorkerEnd(1, "exited", exception="NoSpace"), True),
        (
            1,
            None,
            WorkerEnd(1, "exited", exception="OSError", traceback="OSError: [Errno 28] No space"),
            True,
        ),
        (
            1,
            None,
            WorkerEnd(1, "exited", last_lines=("cp: error writing 'x': No space left on device",)),
            True,
        ),
        (1, None, WorkerEnd(1, "exited", exception="RuntimeError", traceback=LOST_PEER), True),
        (1, None, WorkerEnd(1, "exited", exception="OSError", traceback="Address already in use"), True),
        (
            1,
            None,
            WorkerEnd(1, "exited", exception="OSError", traceback="[Errno 113] No route to host"),
            True,
        ),
        (1, None, WorkerEnd(1, "exited", exception="CacheNotFound"), False),
        (1, None, WorkerEnd(1, "exited", exception="SyntaxError"), False),
        (1, None, WorkerEnd(1, "exited", exception="ModuleNotFoundError"), False),
        (1, None, WorkerEnd(1, "exited", exception="MemoryError"), False),
    ],
)
def test_whether_another_attempt_may_succeed(exit_code, signal_name, end, expected):
    worker = WorkerRecord(0, "a", exit_code=exit_code, signal=signal_name)
    assert is_retryable(worker, end) is expected


def test_a_port_that_was_taken_is_told_from_other_failures():
    taken = WorkerEnd(1, "exited", last_lines=("E: Could not start gRPC server",))
    assert took_a_port({3: taken, 4: WorkerEnd(0)})
    assert not took_a_port({3: WorkerEnd(1, traceback=OWN)})
    assert not took_a_port({})


# Exit codes.


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
        (verdicts.EXIT_HOST_LOST, 113, "its host is out of reach"),
    ],
)
def test_exit_codes_in_words(return_code, exit_code, text):
    assert normal_exit(return_code)[0] == exit_code
    assert describe_exit(exit_code) == text


def test_a_kill_for_want_of_memory_is_said_for_certain():
    assert describe_exit(137, oom=True) == "exit code 137: killed by SIGKILL (out of memory)"


@given(st.sampled_from([each.value for each in signal.Signals if each < 32]))
def test_a_signal_is_the_same_however_it_is_told(number):
    assert normal_exit(-number) == normal_exit(128 + number) == (128 + number, signal.Signals(number).name)


@given(st.integers(0, 255).filter(lambda code: not 128 < code < 160))
def test_other_codes_stay_as_they_are(code):
    assert normal_exit(code) == (code, None)


def test_a_client_with_other_signals_sees_those_of_the_hosts(monkeypatch):
    """For example Windows, where 0 and 1 are console events and most other signals are missing."""
    windows = enum.IntEnum(
        "Signals", {"CTRL_C_EVENT": 0, "CTRL_BREAK_EVENT": 1, "SIGINT": 2, "SIGTERM": 15, "SIGBREAK": 21}
    )
    monkeypatch.setattr(signal, "Signals", windows)
    assert [normal_exit(code) for code in (0, 1, 128)] == [(0, None), (1, None), (128, None)]
    assert normal_exit(-9) == normal_exit(137) == (137, "SIGKILL")
    assert normal_exit(-21) == (149, "SIGTTIN")
    assert describe_exit(0) == "exit code 0"


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ("/run/r (12 bytes left)", "exit code 75; the disk is full: /run/r (12 bytes left)"),
        (
            "/run/r (no inode left for another file)",
            "the disk is full: /run/r (no inode left for another file)",
        ),
        ("/tmp (read-only)", "the disk is read-only: /tmp (read-only)"),
        (None, "exit code 75"),
    ],
)
def test_the_disk_of_a_worker_that_failed_is_named(found, told):
    assert describe_end(75, WorkerEnd(code=75, full_disk=found)).endswith(told)
