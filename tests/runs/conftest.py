"""Runs of light scripts, without Ignite."""

from __future__ import annotations

from pathlib import Path

import pytest

from ignite_tf_magic.runs.handles.run import Run
from ignite_tf_magic.runs.registry import registry_host_pool
from ignite_tf_magic.runs.supervision import manager
from tests.runs.light_runs import make_plan, reach_of
from tests.runs.pipe_hosts import assert_nothing_lives


@pytest.fixture
def runs_dir(tmp_path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def work_dir(tmp_path) -> Path:
    path = tmp_path / "work"
    path.mkdir()
    return path


@pytest.fixture
def start(runs_dir, work_dir):
    """Start a script as a run. The test fails if any of its processes survive."""
    started: list[Run] = []

    def start(script: str, num_workers: int = 1, **options) -> Run:
        plan = make_plan(script, num_workers, **{"cwd": work_dir, **options})
        started.append(manager.start_run(plan, runs_dir, reach_of(runs_dir)))
        return started[-1]

    yield start
    for run in started:
        run.stop()
        assert_nothing_lives(runs_dir.parent, run=run.id)


class Clock:
    """A replacement for the module `time` whose clock only moves when the test sets it."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    """The clock of all `RegistryHostPool` objects."""
    clock = Clock()
    monkeypatch.setattr(registry_host_pool, "time", clock)
    return clock
