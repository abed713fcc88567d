"""Tests of what `prune` removes and keeps, for runs that may have living processes; real hosts and workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from datetime import timedelta

import psutil
import pytest

from ignite_tf_magic.client.client import Cache
from ignite_tf_magic.errors import PathNotFound, RecordDamaged
from ignite_tf_magic.igfs.volume import Volume
from ignite_tf_magic.protocol.messages import CacheConfig
from ignite_tf_magic.runs.registry.registry import CACHE, Registry
from ignite_tf_magic.session import RunRequest, RunState, get_run, list_runs, open_session
from ignite_tf_magic.ui.shell.cli import main
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("no_runs_left")
SCRIPT = """
import os, time, pathlib
print("begun", flush=True)
end = pathlib.Path(os.environ["PRUNE_TEST_END"])
while not end.exists(): time.sleep(0.05)
print("done", flush=True)
"""


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("IGNITE_TF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PRUNE_TEST_END", str(tmp_path / "end"))
    monkeypatch.delenv("IGNITE_TF_CLUSTER", raising=False)
    return tmp_path / "home"


@pytest.fixture
def end(tmp_path):
    """The file whose creation lets the scripts end."""
    return tmp_path / "end"


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def session(ignite, said):
    with open_session(ignite.connect_options, report=said.append) as opened:
        cache = opened.client.get_or_create_cache(CacheConfig("PRUNED"))
        cache.put_all({key: key for key in range(100)})
        yield opened
        for run in list_runs():
            opened.stop_run(run.id)
        opened.client.destroy_cache("PRUNED")


@pytest.fixture
def volume(ignite):
    with Volume(lambda: ignite.connect_options) as opened:
        yield opened


def state_of(run_id, session) -> RunState | None:
    return {info.id: info.state for info in session.runs(include_ended=True)}.get(run_id)


def leave_checkpoint(volume, run_id):
    volume.make_directory(("runs", run_id, "checkpoints"), parents=True, exist_ok=True)
    volume.write_file(("runs", run_id, "checkpoints", "step-1"), b"what was learned")


def runs_in_igfs(volume) -> set[str]:
    try:
        return {name for page in volume.entries(("runs",)) for name, _ in page}
    except PathNotFound:
        return set()


def shims_and_reconciler(home, run_id) -> tuple[list[psutil.Process], psutil.Process]:
    """Return the two shims of a run's reconciler on this machine, and the reconciler."""
    reconciler = shims = None
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
        except psutil.Error:
            continue
        if "ignite_tf_magic.runs.supervision.reconciler" in words and words[-1].endswith(run_id):
            reconciler = process
    assert reconciler is not None
    inner = reconciler.parent()
    shims = [inner, inner.parent()]
    return shims, reconciler


@pytest.mark.nightly
def test_a_run_that_lives_without_anybody_who_answers_for_it_stays(session, volume, home, said, end):
    """Its reconciler is gone for a moment: no process holds its lock, and its worker goes on.

    Nightly. Shorter:
    tests/session/test_made_up_runs.py::test_a_lost_run_of_this_machine_is_judged_by_what_is_here
    """
    run = session.start_run(RunRequest("PRUNED", SCRIPT, detach=True))
    until(lambda: run.info().state is RunState.RUNNING and "begun" in run.last_lines(0, 5))
    leave_checkpoint(volume, run.id)
    shims, reconciler = shims_and_reconciler(home, run.id)
    for shim in shims:
        shim.send_signal(signal.SIGSTOP)
    try:
        reconciler.kill()
        until(lambda: run.info().state is RunState.LOST)  # seen in its directory; the registry follows later
        Cache(session.client, CACHE).remove_all([f"owner/{run.id}"])  # the row would expire after a minute
        assert state_of(run.id, session) is RunState.LOST
        assert run.id not in {pruned.run_id for pruned in session.prune(keep=0, dry_run=True)}
        assert run.id not in {pruned.run_id for pruned in session.prune(keep=0)}
        assert volume.stat(("runs", run.id, "checkpoints", "step-1")).size == 16
        assert any(run.id in line and "lives" in line for line in said)
    finally:
        for shim in shims:
            shim.send_signal(signal.SIGCONT)
    end.touch()
    until(lambda: run.info().state is RunState.SUCCEEDED)
    assert run.id in {pruned.run_id for pruned in session.prune(keep=0)}
    assert run.id not in runs_in_igfs(volume)
    assert not (home / "runs" / run.id).exists()


OWNER = """
import os, sys, time
from pathlib import Path
from ignite_tf_magic.settings.options import ConnectOptions, Endpoint
from ignite_tf_magic.session import RunRequest, open_session
session = open_session(ConnectOptions((Endpoint.parse(sys.argv[1]),)), report=print)
run = session.start_run(RunRequest("PRUNED", sys.argv[2]))
print("run", run.id, flush=True)
time.sleep(600)
"""


@pytest.fixture
def elsewhere(ignite, session, tmp_path):
    """A run whose owner seems to belong to another user; yields (owner, run id, home)."""
    home = tmp_path / "elsewhere"
    endpoint = str(ignite.connect_options.endpoints[0])
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, endpoint, SCRIPT],
        env={**os.environ, "IGNITE_TF_HOME": str(home), "IGNITE_TF_TIMINGS_DIVISOR": "4"},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        run_id = next(line.split()[1] for line in iter(owner.stdout.readline, "") if line.startswith("run "))
        yield owner, run_id, home
    finally:
        owner.send_signal(signal.SIGCONT)
        owner.kill()
        owner.wait()
        owner.stdout.close()


def test_a_run_of_an_owner_that_sleeps_elsewhere_stays(elsewhere, session, volume, said):
    """For example a laptop with a closed lid: the owner does not respond, and the run's files are in another home."""
    owner, run_id, _ = elsewhere
    leave_checkpoint(volume, run_id)
    owner.send_signal(signal.SIGSTOP)
    until(lambda: state_of(run_id, session) is RunState.LOST)
    assert run_id not in {pruned.run_id for pruned in session.prune(keep=0)}
    assert volume.stat(("runs", run_id, "checkpoints", "step-1")).size == 16
    assert any(run_id in line and "IGNITE_TF_HOME" in line for line in said)


def test_a_lost_run_of_which_nothing_lives_goes(elsewhere, session, volume, monkeypatch, said):
    owner, run_id, home = elsewhere
    owner.kill()
    monkeypatch.setenv("IGNITE_TF_HOME", str(home))
    until(lambda: state_of(run_id, session) is RunState.LOST)
    pruned = until(
        lambda: [run for run in session.prune(keep=0) if run.run_id == run_id]
    )  # its worker needs a moment
    assert pruned and run_id not in runs_in_igfs(volume)
    assert not list((home / "runs").iterdir())
    with Registry(session.client) as registry:
        assert registry.get(run_id) is None


def test_runs_ended_longer_ago_than_there_are_days(session):
    assert session.prune(keep=0, older_than=timedelta(days=999_999_999)) == []


def test_prune_bounds_what_runs_of_long_ago_have_left_here(session, home, said):
    long_ago = time.time() - 30 * 86_400
    for name in (
        "parcels/" + "a" * 64,
        "venvs/old",
        "seen/mnist-0101-0000-abc",
        "runs/.mnist-0101-0000-xyz.1234",
    ):
        (home / name / "inner").mkdir(parents=True)
        os.utime(home / name, (long_ago, long_ago))
    session.prune(keep=1000, dry_run=True)
    assert (home / "venvs/old").exists()
    session.prune(keep=1000)
    assert [
        path.name for part in ("parcels", "venvs", "seen", "runs") for path in (home / part).iterdir()
    ] == []
    assert said == []


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"run_id": "caf\xe9"}', b"[" * 100_000])
def test_a_run_whose_record_is_damaged_is_listed_and_removed(session, home, content, capsys):
    directory = home / "runs" / "abc-numbers-0101-1200"
    directory.mkdir(parents=True)
    (directory / "run.json").write_bytes(content)
    assert main(["ps", "--all"]) == 0
    assert (
        f"the record of run {directory.name} cannot be read ({directory}/run.json)" in capsys.readouterr().err
    )
    with pytest.raises(RecordDamaged, match="To remove the run .*: ignite-tf prune"):
        get_run(directory.name)
    assert directory.name in [each.run_id for each in session.prune(keep=0)]
    assert not directory.exists()
    assert not list_runs(include_ended=True).unreadable
