"""Workers that wait for each other print and raise messages. Real processes; timeouts are divided by 5."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from ignite_tf_magic.training.roll_call import Operations, difference
from tests.training.processes import Workers
from tests.waiting import until

SCRIPT = Path(__file__).with_name("differ_on.py")
QUICK = {"IGNITE_TF_TIMINGS_DIVISOR": "5"}


def said(folder: Path, num_workers: int) -> list[dict]:
    return [json.loads((folder / f"said-{index}.json").read_text()) for index in range(num_workers)]


def output(folder: Path, index: int) -> str:
    return (folder / f"output-{index}.txt").read_text(errors="replace")


@pytest.mark.parametrize("num_workers", [2, pytest.param(3, marks=pytest.mark.nightly)])
def test_workers_that_come_to_different_operations_end_with_the_name_of_the_callback(tmp_path, num_workers):
    """Nightly with three. Shorter: with two, so no third worker observes the difference."""
    Workers(tmp_path, num_workers, SCRIPT, arguments=("different",)).run(**QUICK)
    for of_worker in said(tmp_path, num_workers):
        assert of_worker["raised"].startswith("ConfigError: the workers have come to different operations: ")
        assert "worker 1 to `evaluate` in callback `Check`" in of_worker["raised"]
        assert "worker 0 to `fit`" in of_worker["raised"]


@pytest.mark.nightly
def test_a_slow_worker_is_waited_for_and_named(tmp_path):
    """Nightly. Shorter: test_a_worker_that_is_stopped_is_named_with_its_silence"""
    Workers(tmp_path, 2, SCRIPT, arguments=("slow",)).run(**QUICK)
    first, second = said(tmp_path, 2)
    assert first == second
    assert len(first["loss"]) == 4
    assert "waits for worker 1, which has come to" in output(tmp_path, 0)
    assert "silent" not in output(tmp_path, 0)


def test_a_worker_that_is_stopped_is_named_with_its_silence(tmp_path):
    processes = Workers(tmp_path, 2, SCRIPT, arguments=("stopped",)).start(**QUICK)
    try:
        until((tmp_path / "waits-1").exists)
        processes[1].send_signal(signal.SIGSTOP)
        until(lambda: "worker 1 has been silent for" in output(tmp_path, 0))
        processes[1].send_signal(signal.SIGCONT)
        until(lambda: "worker 1 answers again" in output(tmp_path, 0))
        (tmp_path / "go").touch()
        assert [process.wait(300) for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    first, second = said(tmp_path, 2)
    assert first == second
    assert "silent" not in output(tmp_path, 1)


def test_the_last_operation_of_both_is_compared():
    first, second = Operations(), Operations()
    for operations, labels in ((first, "aaab"), (second, "aaac")):
        for label in labels:
            with operations.within(label):
                operations.begin()
        assert difference(first.history(), first.history()) is None
    assert difference(first.history(), second.history()) == (4, "b", "c")
    with second.within("c"):
        second.begin()  # one operation ahead
    assert difference(first.history(), second.history()) == (4, "b", "c")
    behind = Operations()
    with behind.within("a"):
        behind.begin()
    assert difference(first.history(), behind.history()) is None
