"""Runs whose owner ended in the middle: what is said of them, and how they are gone on with, to the exact step."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from datetime import datetime, timezone

import pytest

from ignite_tf_magic.cli import main
from ignite_tf_magic.errors import ConfigError
from ignite_tf_magic.protocol.messages import CacheConfig
from ignite_tf_magic.run_views import describe_view
from ignite_tf_magic.session import RunState, get_run, open_session

NUM_STEPS = 40
# A training in small: it writes down each step that is done, and goes on behind the last.
SCRIPT = """
import fsspec, os, sys, time
path = os.environ["IGNITE_TF_RUN_URI"] + "/checkpoints/steps"
files = fsspec.filesystem("igfs")
done = int(files.cat(path)) if files.exists(path) else 0
print("begins at", done, sys.argv[1:], flush=True)
for step in range(done, 40):
    files.pipe(path, str(step + 1).encode())
    print("step", step, flush=True)
    time.sleep(0.1)
"""
OWNER = """
import sys, time
from ignite_tf_magic.session import RunRequest, open_session
session = open_session(report=print)
run = session.start_run(RunRequest("RESUMED", sys.argv[1], 1, args=("--rate", "0.1")))
print("run", run.id, flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def home(ignite, tmp_path, monkeypatch):
    monkeypatch.setenv("IGNITE_TF_HOME", str(tmp_path))
    monkeypatch.setenv("IGNITE_TF_CLUSTER", ",".join(map(str, ignite.connect_options.endpoints)))


@pytest.fixture
def session():
    with open_session(report=print) as opened:
        opened.client.get_or_create_cache(CacheConfig("RESUMED")).put_all({key: key for key in range(100)})
        yield opened
        opened.wait_for_copies(30)
        opened.client.destroy_cache("RESUMED")


@pytest.fixture
def run(session):
    """A run in the middle, and the process that owns it."""
    words = [sys.executable, "-c", OWNER, SCRIPT]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as owner:
        try:
            found = next(line.split()[1] for line in owner.stdout if line.startswith("run "))
            run = get_run(found)
            until(lambda: "step 5\n" in written(run))
            yield run, owner
        finally:
            owner.kill()


def until(condition, timeout_s=120.0):
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def written(run) -> str:
    return "".join(path.read_text() for path in run.logs(0))


def steps_of(run) -> list[int]:
    return [int(line.split()[1]) for line in written(run).splitlines() if line.startswith("step ")]


def described(run) -> str:
    return describe_view(run.info(), run.record(), None, datetime.now(timezone.utc)).text


def test_a_run_whose_owner_was_killed_is_told_of_and_resumed(run, session):
    run, owner = run
    owner.kill()
    until(lambda: run.info().state is RunState.LOST)
    told = described(run)
    assert "which owned it, has ended without a word" in told
    assert f"resume {run.id}" in told
    assert "gone with its owner" in told
    assert "runs for" not in told and "last seen" in told
    assert "it was asked to stop" not in told
    info = run.info()
    assert info.started_at < info.seen_at <= datetime.now(timezone.utc)
    resumed = session.resume_run(run.id)
    assert resumed.id == run.id
    assert resumed.wait(120).state is RunState.SUCCEEDED
    steps = steps_of(resumed)
    assert sorted(set(steps)) == list(range(NUM_STEPS)) and len(steps) <= NUM_STEPS + 1
    assert "begins at 0 ['--rate', '0.1']" in written(resumed)
    assert resumed.record().generation == 2
    assert "has ended without a word" not in described(resumed)
    with pytest.raises(ConfigError, match="has succeeded"):
        session.resume_run(run.id)


def test_a_run_that_ends_with_its_owner_says_so(run, capsys):
    """As a kernel does that is told to restart: nobody asked for the run to be stopped."""
    run, owner = run
    owner.send_signal(signal.SIGINT)  # the interpreter ends in order
    until(lambda: run.info().state is RunState.STOPPED)
    assert "the process that owned it has ended" in described(run)
    assert "it was asked to stop" not in described(run)
    assert main(["resume", run.id]) == 0
    assert steps_of(run)[-1] == NUM_STEPS - 1
    assert "step 39" in capsys.readouterr().out


def test_a_run_that_was_stopped_is_resumed(run, session):
    run, _ = run
    run.stop()
    assert "reason" not in described(run)
    resumed = session.resume_run(run.id)
    assert resumed.wait(120).state is RunState.SUCCEEDED
    assert sorted(set(steps_of(run))) == list(range(NUM_STEPS))


def test_a_run_that_lives_is_not_resumed(run, session):
    run, _ = run
    with pytest.raises(ConfigError, match=f"is running: watch it with attach {run.id}"):
        session.resume_run(run.id)
    run.stop()
