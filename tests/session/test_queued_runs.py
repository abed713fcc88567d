"""Tests of real runs that wait for this machine's only GPU: they start by priority, then by time."""

from __future__ import annotations

import os

import pytest

from ignite_tf_magic.protocol.messages import CacheConfig
from ignite_tf_magic.session import RunState, get_run, open_session
from ignite_tf_magic.ui.shell.cli import main
from tests.bed.fake_gpus import make_nvidia_smi
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("no_runs_left")
# Notes that it holds the GPU, and keeps it until the file `go-on` exists.
SCRIPT = """
import os, sys, time
with open(os.environ["QUEUE_TEST"] + "/turns", "a") as file: print(sys.argv[1], file=file)
while not os.path.exists(os.environ["QUEUE_TEST"] + "/go-on"): time.sleep(0.05)
"""


@pytest.fixture
def start(ignite, tmp_path, monkeypatch, capsys):
    """Run `ignite-tf start --wait` with a script that notes its turn under a name; return the run."""
    monkeypatch.setenv("IGNITE_TF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("IGNITE_TF_CLUSTER", ",".join(map(str, ignite.connect_options.endpoints)))
    monkeypatch.setenv("PATH", f"{make_nvidia_smi(tmp_path / 'smi', 1)}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "hold.py").write_text(SCRIPT)

    def start(name, *options):
        words = [
            "start",
            "QUEUED",
            "--script",
            str(tmp_path / "hold.py"),
            "--gpus",
            "1",
            "--wait",
            "--detach",
        ]
        assert main([*words, "--env", f"QUEUE_TEST={tmp_path}", *options, "--", name]) == 0
        return get_run(capsys.readouterr().out.split()[0])

    with open_session(report=lambda _: None) as session:
        session.client.get_or_create_cache(CacheConfig("QUEUED")).put(1, 1)
        yield start
        for run in session.runs():  # left by a failed test
            session.stop_run(run.id)
        session.client.destroy_cache("QUEUED")


def test_priority_comes_before_time(start, tmp_path):
    turns = tmp_path / "turns"
    runs = [start("first")]
    until(lambda: turns.exists() and turns.read_text() == "first\n", what=lambda: runs[0].last_lines(0, 9))
    runs += [start("early"), start("late"), start("urgent", "--priority", "5")]
    for run in runs[1:]:
        until(lambda run=run: run.info().state is RunState.QUEUED, timeout_s=30, what=run.info)
    (tmp_path / "go-on").touch()
    for run in runs:
        assert run.wait(300).state is RunState.SUCCEEDED, run.failure()
    assert turns.read_text().split() == ["first", "urgent", "early", "late"]
