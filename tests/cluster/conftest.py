"""Runs of light scripts, without Ignite."""

from __future__ import annotations

from pathlib import Path

import pytest
from light_runs import make_plan

from ignite_tf_magic.cluster import manager
from ignite_tf_magic.cluster.runs import Run
from ignite_tf_magic.launch import lock
from ignite_tf_magic.launch.local import LocalLauncher


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
    """Start a script as a run; what is left of it afterwards fails the test."""
    started: list[Run] = []

    def start(script: str, num_workers: int = 1, **options) -> Run:
        plan = make_plan(script, num_workers, **{"cwd": work_dir, **options})
        started.append(manager.start_run(plan, runs_dir, LocalLauncher()))
        return started[-1]

    yield start
    for run in started:
        run.stop()
        for worker in range(run.info().num_workers):
            assert not lock.is_held(run.directory.worker_lock(worker))
