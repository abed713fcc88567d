"""A short form of benchmarks/partial.py: a node is killed between two epochs of a run and restarts empty."""

from __future__ import annotations

from contextlib import closing

import pytest

from benchmarks.partial import Killed, play

pytestmark = pytest.mark.faults
KIND, NUMBER = "killed_between_epochs", 7


@pytest.fixture
def killed(tmp_path, monkeypatch):
    monkeypatch.setenv("IGNITE_TF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("IGNITE_TF_TIMINGS_DIVISOR", "4")
    tmp_path.chmod(0o700)
    with closing(Killed(tmp_path)) as ground:
        yield ground


def test_a_run_does_not_go_on_with_what_is_left(killed):
    outcome = play(killed, KIND, NUMBER)
    assert outcome["policy"] == "ignore"  # then it is the worker that notices the loss
    assert outcome["outcome"] == "refused", outcome
    assert outcome["read"], outcome
    assert any("rows, and had" in line for line in outcome["said"])
