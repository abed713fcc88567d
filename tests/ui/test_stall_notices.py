"""Tests of the notices that explain to a watching user why a run is stalled."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest

from ignite_tf_magic.session import RunInfo, RunState
from ignite_tf_magic.ui.stall_notices import StallNotices

RUNNING = RunInfo(
    "mnist-1",
    RunState.RUNNING,
    None,
    "MNIST",
    ("bed1",),
    0,
    datetime.now(timezone.utc),
    None,
    1,
    Path(),
    (),
    None,
)
SILENT = replace(RUNNING, waiting_for="bed1: out of reach, trying to reconnect")


def told(*looks: tuple[float, RunInfo]) -> list[str]:
    notices = StallNotices()
    return [line for now, info in looks if (line := notices.look(info, now))]


def test_a_run_that_goes_on_is_not_spoken_of():
    assert told((0, RUNNING), (5, RUNNING), (10, replace(RUNNING, state=RunState.SUCCEEDED))) == []


def test_what_passes_soon_is_not_told():
    assert told((0, SILENT), (1.9, SILENT), (2, RUNNING), (3, SILENT), (4, SILENT)) == []


def test_a_cause_is_told_once_and_the_next_one_too():
    full = replace(RUNNING, state=RunState.RESTARTING, reason="bed1: No space left on device")
    assert told((0, SILENT), (2, SILENT), (9, SILENT), (10, full), (12, full), (60, full)) == [
        "ignite_tf_magic: the run waits: bed1: out of reach, trying to reconnect",
        "ignite_tf_magic: the run is being started again: bed1: No space left on device",
    ]


@pytest.mark.parametrize(
    ("state", "words"),
    [(RunState.FAILING, "is ending its workers"), (RunState.RESTARTING, "is being started again")],
)
def test_without_a_reason(state, words):
    info = replace(RUNNING, state=state)
    assert told((0, info), (2, info)) == [f"ignite_tf_magic: the run {words}"]
