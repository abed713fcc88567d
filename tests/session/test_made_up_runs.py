"""Tests of forged runs, written through an Ignite node's port: they must harm neither other runs nor viewers."""

from __future__ import annotations

import json
import socket
import sys
import time

import numpy as np
import pytest

from ignite_tf_magic.client.client import Cache, connect
from ignite_tf_magic.errors import ConfigError, PlacementError
from ignite_tf_magic.launch.hosts import Host
from ignite_tf_magic.launch.pipe import PipeTransport
from ignite_tf_magic.runs.directory import RunDirectory
from ignite_tf_magic.runs.orders import Order
from ignite_tf_magic.runs.reach import Reach
from ignite_tf_magic.runs.record import HostRecord, RunRecord, RunSpec, WorkerRecord
from ignite_tf_magic.runs.registry.registry import CACHE, Owner, Registry
from ignite_tf_magic.runs.seals import Seal
from ignite_tf_magic.session import RunRequest, RunState, get_run, list_runs, open_session
from ignite_tf_magic.ui.notebook.panel import _feed, _Panel
from ignite_tf_magic.ui.shell.cli import main

pytestmark = pytest.mark.usefixtures("no_runs_left")
NUMBERS = "MADE_UP_NUMBERS"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch, ignite):
    monkeypatch.setenv("IGNITE_TF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("IGNITE_TF_CLUSTER", ",".join(map(str, ignite.connect_options.endpoints)))
    return tmp_path / "home"


@pytest.fixture
def session():
    with open_session(report=print) as session:
        session.load(NUMBERS, {"x": np.arange(30)}, replace=True)
        yield session
        session.wait_for_copies(300)  # otherwise the next test finds and prunes this test's files in igfs


@pytest.fixture
def make_up(ignite):
    """Write the record of a run that never existed, as any client of the port can."""
    made = []
    with connect(ignite.connect_options) as client, Registry(client) as registry:
        registry.request("nobody", stop=False)
        cache = Cache(client, CACHE)

        def write(run_id, **changes):
            record = RunRecord(
                run_id, RunSpec("C"), RunState.SUCCEEDED, 1.0, ended_at=2.0, owner_host="x"
            ).to_json()
            for path, value in changes.items():
                *way, last = path.split("__")
                place = record
                for step in way:
                    place = place[step]
                place[last] = value
            names = json.loads(cache.get("index") or '{"names": []}')["names"]
            cache.put("index", json.dumps({"names": sorted({*names, run_id})}))
            cache.put(f"record/{run_id}", json.dumps({"record": record}))
            made.append(run_id)

        yield write
        for run_id in made:
            cache.remove_all([f"record/{run_id}", f"owner/{run_id}"])
            names = json.loads(cache.get("index"))["names"]
            cache.put("index", json.dumps({"names": [name for name in names if name != run_id]}))


def ended_run(session):
    run = session.start_run(RunRequest(NUMBERS, "print('hello')"))
    assert run.wait(300).state is RunState.SUCCEEDED
    return run


@pytest.mark.nightly
def test_prune_removes_the_runs_that_it_has_chosen_and_no_other(session, make_up):
    """Nightly. Shorter: test_newer_runs_of_others_push_none_of_ours_out"""
    run = ended_run(session)
    make_up(run.id[:-1])
    make_up("made_up_numbers")
    assert run.id not in {pruned.run_id for pruned in session.prune(keep=1)}
    assert run.directory.path.exists()
    assert run.id in {pruned.run_id for pruned in session.prune(keep=0)}
    assert not run.directory.path.exists()


def test_what_is_asked_of_a_run_reaches_the_one_of_that_id(session, make_up):
    run = session.start_run(RunRequest(NUMBERS, "import time; time.sleep(600)"))
    make_up(run.id[:-1])
    assert get_run(run.id[:-1]).info().state is RunState.SUCCEEDED
    session.stop_run(run.id[:-1])
    assert run.info().state is not RunState.STOPPED
    assert session.stop_run(run.id).info.state is RunState.STOPPED


def test_newer_runs_of_others_push_none_of_ours_out(session, make_up):
    run = ended_run(session)
    for number in range(3):
        make_up(f"flood-{number}", started_at=4e9, ended_at=4e9 + number)
    pruned = {each.run_id for each in session.prune(keep=1)}
    assert {"flood-0", "flood-1"} <= pruned
    assert not {"flood-2", run.id} & pruned
    assert run.directory.path.exists()


def test_a_lost_run_of_this_machine_is_judged_by_what_is_here(session, home, make_up):
    session.prune(keep=0)  # removes what other tests left in the registry and igfs
    directory = RunDirectory(home / "runs" / "lost-1123-0000-abc")
    directory.path.mkdir(parents=True, mode=0o700)
    RunRecord(
        directory.run_id,
        RunSpec(NUMBERS),
        RunState.RUNNING,
        time.time() - 60,
        owner_host=socket.gethostname(),
        owner_pid=1,
        workers=(WorkerRecord(0, "far", 1, 77),),
        hosts=(HostRecord("far", "host.invalid"),),
    ).write(directory)
    make_up(directory.run_id)
    assert {run.id: run.state for run in session.runs(include_ended=True)}[directory.run_id] is RunState.LOST
    assert session.prune(keep=0) == []
    assert directory.path.exists()


WRONG = {
    "started_at": "soon",
    "ended_at": [1],
    "left_until": 1e300,
    "hosts": [{"name": "h", "ssh": ["a"]}],
    "workers": [{"worker": 0, "host": ["x"]}],
    "order": {"generation": "7"},
    "order__generation": 10**9,
    "spec__num_workers": 10**12,
    "spec__cache": "\ud800",
    "spec__priority": "x",
    "topology": [1],
    "reason": 7,
    "failed_worker": 5,
}


def test_a_row_of_wrong_types_is_passed_over_and_named(session, make_up, capsys):
    for name, value in WRONG.items():
        make_up(f"wrong-{name}", **{name: value})
    make_up("not-a-time", started_at=float("nan"))
    make_up("x" * 300)
    for argv in (["ps", "--all"], ["ps", "--all", "--json"], ["prune", "--keep", "100", "--dry-run"]):
        assert main(argv) == 0
    told = capsys.readouterr().err
    assert all(f"'wrong-{name}'" in told for name in WRONG), told
    assert main(["describe", "wrong-topology"]) == 1
    assert "no run 'wrong-topology'" in capsys.readouterr().err


def test_a_queued_run_of_wrong_types_is_in_nobodys_way(session, make_up, ignite):
    make_up("first", state="queued", started_at=1.0, ended_at=None, spec__num_gpus=1, spec__priority="x")
    with connect(ignite.connect_options) as client, Registry(client) as registry:
        registry.touch_owner("first", Owner("h", 1, "i", 1))
    with pytest.raises(PlacementError, match="1 worker with 1 GPU each never fit"):
        session.start_run(RunRequest(NUMBERS, "pass", num_gpus=1, wait=True))


def test_the_panel_is_told_names_of_others_as_they_are(make_up, ignite):
    """The panel passes foreign names on unchanged. tests/browser checks that the widget never treats them as markup."""
    make_up("innocent", spec__cache="<img src=x>", state="running", ended_at=None, started_at=time.time())
    with connect(ignite.connect_options) as client, Registry(client) as registry:
        registry.touch_owner("innocent", Owner("h", 1, "i", 1))
    panel = _Panel()
    panel.refresh()
    (run,) = [each for each in panel.widget.seen["runs"] if each["id"] == "innocent"]
    assert (run["cache"], run["live"], run["mark"]) == ("<img src=x>", True, "innocent")
    panel.widget.close()
    _feed().close()


def test_a_host_that_never_had_a_run_has_no_say_in_what_is_resumed(
    session, home, make_up, ignite, tmp_path, monkeypatch
):
    """A forged registry row names the host. Then the registry is emptied, so that hosts are asked instead."""
    run_id, trace = "mine-1123-0000-abc", tmp_path / "somebody-ran-it"
    seal, seen = Seal.new(), RunDirectory(home / "seen" / "mine-1123-0000-abc")
    seen.path.mkdir(parents=True, mode=0o700)
    seen.seal_key.write_text(seal.to_text())
    own = RunRecord(
        run_id,
        RunSpec(NUMBERS),
        RunState.FAILED,
        1.0,
        ended_at=2.0,
        owner_host="submitter",
        detached=True,
        hosts=(HostRecord("db1", "db1", root="/nonexistent"),),
        version=5,
    )
    own.write(seen)
    make_up("bait", hosts=[{"name": "evilhost", "ssh": "evilhost", "addresses": []}])
    there = tmp_path / "evil-root" / "runs" / run_id
    there.mkdir(parents=True, mode=0o700)
    command = ("/bin/sh", "-c", f"touch {trace}")
    told = RunRecord(
        run_id,
        RunSpec(NUMBERS, command=command),
        RunState.FAILED,
        1.0,
        ended_at=2.0,
        owner_host=socket.gethostname(),
        detached=True,
        hosts=(HostRecord("h"),),
        order=Order(),
        version=1000,
    )
    (there / "run.json").write_text(json.dumps(told.to_json()))
    new = Reach._new

    def by_a_pipe(reach, host):  # replaces SSH to a machine whose key the user knows
        if host.ssh is None:
            return new(reach, host)
        root = tmp_path / ("evil-root" if host.ssh == "evilhost" else "other")
        return Host(
            host.name, PipeTransport(), python=sys.executable, root=str(root), timeouts=reach.timeouts
        )

    monkeypatch.setattr(Reach, "_new", by_a_pipe)
    list_runs(include_ended=True)
    found = get_run(run_id)
    assert found.directory.is_verified
    assert found.record().spec.command == ()
    with pytest.raises(ConfigError, match=r"the script of run .* was not found"):
        session.resume_run(run_id)
    assert not trace.exists()
