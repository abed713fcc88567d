"""Tests of `status`: its report on the cluster and the runs, and the three commands that it suggests."""

from __future__ import annotations

import shlex
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
import pytest

from ignite_tf_magic.errors import RunNotFound
from ignite_tf_magic.session import (
    Overview,
    RunInfo,
    RunRequest,
    RunState,
    load,
    only_run,
    open_session,
    overview,
)
from ignite_tf_magic.ui.notebook.arguments import parse_line
from ignite_tf_magic.ui.overview_view import next_steps, overview_view

NOW = datetime(2026, 11, 21, 9, 30, tzinfo=timezone.utc)


def made_up(state: RunState, run_id: str = "k3f-mnist-1121-0900") -> RunInfo:
    return RunInfo(
        *(run_id, state, None, "MNIST", ("db1",), 0, NOW, None, 2, Path("/runs")), workers=(), reason=None
    )


LIVE, ENDED = made_up(RunState.RUNNING), made_up(RunState.FAILED)
STATES = {
    "nothing": Overview(),
    "no caches": Overview(("db1:10800",)),
    "caches": Overview(("db1:10800",), caches=("MNIST",)),
    "silent": Overview(("db1:10800",), trouble="no Ignite node answers"),
    "live": Overview(("db1:10800",), caches=("MNIST",), live=(LIVE,), newest=LIVE),
    "several live": Overview(("db1:10800",), caches=("MNIST",), live=(LIVE, LIVE), newest=LIVE),
    "ended": Overview(("db1:10800",), caches=("MNIST",), newest=ENDED),
}


@pytest.mark.parametrize("seen", STATES.values(), ids=STATES)
def test_three_commands_are_proposed_that_can_be_typed(seen):
    steps = next_steps(seen, "%ignite_tf")
    assert len(steps) == 3
    for line, what in steps:
        assert what
        words = shlex.split(line)
        assert words[0] in ("%ignite_tf", "%%ignite_tf")
        if words[1:] != ["help"]:
            assert parse_line(shlex.join(words[1:])).command.name
    assert all(line in overview_view(seen, NOW, "%ignite_tf").text for line, _ in steps)


def test_what_there_is_is_told():
    shown = overview_view(STATES["live"], NOW, "ignite-tf").text
    assert "cluster   db1:10800 (configured)" in shown
    assert "caches    MNIST" in shown
    assert "k3f-mnist-1121-0900  running" in shown
    assert "does not answer: no Ignite node answers" in overview_view(STATES["silent"], NOW, "ignite-tf").text
    assert (
        "the last one: k3f-mnist-1121-0900, failed" in overview_view(STATES["ended"], NOW, "ignite-tf").text
    )
    many = Overview(("db1:10800",), caches=tuple(f"C{number}" for number in range(9)))
    assert "C5, and 3 more" in overview_view(many, NOW, "ignite-tf").text


@pytest.fixture
def configured(tmp_path, ignite, client, no_runs_left, monkeypatch):
    monkeypatch.setenv("IGNITE_TF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("IGNITE_TF_CLUSTER", ",".join(map(str, ignite.connect_options.endpoints)))
    monkeypatch.chdir(tmp_path)
    load("OVERVIEW", {"x": np.arange(9)}, options=ignite.connect_options, report=str)
    yield ignite
    client.destroy_cache("OVERVIEW")


def test_a_real_cluster_and_its_runs(configured):
    seen = overview()
    assert seen.cluster == tuple(map(str, configured.connect_options.endpoints))
    assert "OVERVIEW" in seen.caches
    assert not [name for name in seen.caches if name.startswith(("ignite-tf-", "igfs-"))]
    assert (seen.live, seen.trouble) == ((), "")
    with pytest.raises(RunNotFound, match="no run is live"):
        only_run()
    with open_session(report=str) as session:
        run = session.start_run(RunRequest("OVERVIEW", "import time; time.sleep(600)", tags=("slow",)))
        try:
            assert [each.id for each in overview().live] == [run.id] == [only_run().id]
            assert only_run().tags == ("slow",)
            other = session.start_run(RunRequest("OVERVIEW", "import time; time.sleep(600)"))
            with pytest.raises(RunNotFound, match=f"2 runs are live: {run.id}, {other.id}"):
                only_run()
            other.stop()
        finally:
            run.stop()
    with pytest.raises(RunNotFound, match=f"no run is live; the last one is {other.id}, stopped"):
        only_run()
    assert only_run(or_newest=True).id == other.id


def test_nothing_is_started_to_tell(tmp_path, monkeypatch):
    monkeypatch.setenv("IGNITE_TF_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    assert overview() == Overview()
    assert not (tmp_path / "home" / "embedded").exists()
    monkeypatch.setenv("IGNITE_TF_CLUSTER", "127.0.0.1:9")
    assert "127.0.0.1:9" in overview().trouble
