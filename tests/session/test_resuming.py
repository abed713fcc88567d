"""Tests of runs whose owner ended early: their description, and how they resume at the exact step."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from datetime import datetime, timezone
from itertools import islice

import pytest

from ignite_tf_magic.errors import ConfigError, HostUnreachable, LaunchError
from ignite_tf_magic.launch.agent.disk import host_clock
from ignite_tf_magic.launch.hosts import Host
from ignite_tf_magic.protocol.messages import CacheConfig
from ignite_tf_magic.session import RunState, get_run, left_runs, open_session
from ignite_tf_magic.ui.render import runs_view
from ignite_tf_magic.ui.run_views import describe_view
from ignite_tf_magic.ui.shell.cli import main
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("no_runs_left")
NUM_STEPS = 40
# A small training: it saves each finished step and resumes after the last one. It ends only after a file given as
# argument exists, however slowly the test proceeds on a busy machine.
SCRIPT = """
import fsspec, os, sys, time
path = os.environ["IGNITE_TF_RUN_URI"] + "/checkpoints/steps"
files = fsspec.filesystem("igfs")
done = int(files.cat(path)) if files.exists(path) else 0
print("begins at", done, sys.argv[1:-1], flush=True)
for step in range(done, 40):
    while step == 20 and not os.path.exists(sys.argv[-1]):
        time.sleep(0.1)
    print("step", step, flush=True)
    files.pipe(path, str(step + 1).encode())
    time.sleep(0.1)
"""
OWNER = """
import sys, time
from ignite_tf_magic.session import RunRequest, open_session
session = open_session(report=print)
survives_s, num_runs, args = float(sys.argv[2]), int(sys.argv[3]), ("--rate", "0.1", sys.argv[4])
for _ in range(num_runs):
    run = session.start_run(RunRequest("RESUMED", sys.argv[1], 1, args=args, survives_s=survives_s))
    print("run", run.id, flush=True)
# Not one long sleep: a signal that comes between its call and the kernel's would wait for its end.
while True:
    time.sleep(0.1)
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
def survives_s():
    return 0.0


@pytest.fixture
def gate(tmp_path):
    """The file whose creation lets a run end."""
    return tmp_path / "gate"


@pytest.fixture
def run(session, survives_s, gate):
    """A run in the middle of its steps, and the process that owns it."""
    words = [sys.executable, "-c", OWNER, SCRIPT, str(survives_s), "1", str(gate)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as owner:
        try:
            found = next(line.split()[1] for line in owner.stdout if line.startswith("run "))
            run = get_run(found)
            until(lambda: "step 5\n" in written(run))
            yield run, owner
        finally:
            owner.kill()


def written(run) -> str:
    return "".join(path.read_text() for path in run.logs(0))


def steps_of(run) -> list[int]:
    return [int(line.split()[1]) for line in written(run).splitlines() if line.startswith("step ")]


def described(run) -> str:
    return describe_view(run.info(), run.record(), None, {}, datetime.now(timezone.utc)).text


def test_a_run_whose_owner_was_killed_is_told_of_and_resumed(run, session, gate):
    run, owner = run
    owner.kill()
    until(lambda: run.info().state is RunState.LOST)
    told = described(run)
    assert "has ended without notice" in told
    assert f"resume {run.id}" in told
    assert "ended with its owner" in told
    assert "runs for" not in told and "last seen" in told
    assert "it was asked to stop" not in told
    info = run.info()
    assert info.started_at < info.seen_at <= datetime.now(timezone.utc)
    gate.touch()
    resumed = session.resume_run(run.id)
    assert resumed.id == run.id
    assert resumed.wait(300).state is RunState.SUCCEEDED
    steps = steps_of(resumed)
    assert sorted(set(steps)) == list(range(NUM_STEPS)) and len(steps) <= NUM_STEPS + 1
    assert "begins at 0 ['--rate', '0.1']" in written(resumed)
    assert resumed.record().generation == 2
    assert "has ended without notice" not in described(resumed)
    assert re.search(r"^1 .* its owner had ended$", described(resumed), re.M)
    with pytest.raises(ConfigError, match="has succeeded"):
        session.resume_run(run.id)


def test_attach_of_a_lost_run_says_how_long_it_ran_and_how_to_go_on(run, capsys):
    run, owner = run
    until(lambda: "step 15\n" in written(run))  # takes more than a second
    owner.kill()
    until(lambda: run.info().state is RunState.LOST)
    main(["attach", run.id])
    shown = capsys.readouterr()
    told = shown.out + shown.err
    took = re.search(rf"run {run.id}: lost after (\d+):(\d\d):(\d\d)", told)
    assert took is not None, told
    hours, minutes, seconds = map(int, took.groups())
    asked_s = (datetime.now(timezone.utc) - run.info().started_at).total_seconds()
    assert 1 <= 3600 * hours + 60 * minutes + seconds <= asked_s + 1  # rounded to seconds
    assert "has ended without notice" in told
    assert f"resume {run.id}" in told


@pytest.mark.nightly
def test_a_run_that_ends_with_its_owner_says_so(run, capsys, gate):
    """A kernel that is told to restart ends like this. The user did not ask for the run to stop.

    Nightly. Shorter: tests/runs/handles/test_runs.py::test_an_owner_that_ends_properly_stops_its_runs
    """
    run, owner = run
    owner.send_signal(signal.SIGINT)  # the interpreter exits normally
    until(lambda: run.info().state is RunState.STOPPED)
    assert "the process that owned it has ended" in described(run)
    assert "it was asked to stop" not in described(run)
    gate.touch()
    assert main(["resume", run.id]) == 0
    assert steps_of(run)[-1] == NUM_STEPS - 1
    assert "step 39" in capsys.readouterr().out


@pytest.mark.nightly
def test_a_run_ends_with_its_owner_also_where_nothing_can_be_written(run):
    """Nightly. Shorter: tests/runs/handles/test_runs.py::test_an_owner_that_ends_properly_stops_its_runs"""
    run, owner = run
    request = run.directory.stop_request
    request.symlink_to(request.name)  # writing the request fails, as on a full disk
    owner.send_signal(signal.SIGINT)
    until(lambda: run.info().state is RunState.STOPPED)
    assert "the process that owned it has ended" in described(run)


# Runs that outlive their owner.


def leave(run, owner) -> None:
    """End the owner as a kernel restart does."""
    owner.send_signal(signal.SIGINT)
    assert owner.wait(300) is not None


@pytest.mark.parametrize("survives_s", [500.0])
def test_a_run_that_its_owner_leaves_is_taken_over_and_its_worker_notices_nothing(run, session, gate):
    run, owner = run
    leave(run, owner)
    info = run.info()
    assert info.state is RunState.RUNNING
    assert 400 < (info.left_until - datetime.now(timezone.utc)).total_seconds() < 500
    assert f"take it over with attach {run.id}" in described(run)
    assert re.search(rf"{run.id} +running \(left until \d\d:\d\d\)", runs_view([info], info.started_at).text)
    with pytest.raises(ConfigError, match="is running: watch it with attach"):
        session.resume_run(run.id)
    taken = session.take_over_run(run.id)
    assert taken.info().left_until is None
    lease = run.directory.path / "jobs/g1-worker-0/lease"
    assert float(lease.read_text()) - host_clock() < 60, (
        "a silent host would be given up before its workers end"
    )
    with pytest.raises(ConfigError, match="has an owner, or has ended"):
        session.take_over_run(run.id)
    gate.touch()
    assert taken.wait(300).state is RunState.SUCCEEDED
    assert steps_of(taken) == list(range(NUM_STEPS))
    assert written(taken).count("begins at") == taken.record().generation == 1


@pytest.mark.parametrize("survives_s", [1.0])
@pytest.mark.nightly
def test_a_run_that_nobody_takes_over_ends_and_goes_on_from_its_checkpoints_later(run, session, gate):
    """Nightly. Shorter: test_a_run_that_its_owner_leaves_is_taken_over_and_its_worker_notices_nothing"""
    run, owner = run
    leave(run, owner)
    until(lambda: run.info().state is RunState.LOST and run.is_over())
    assert "and nobody attached until" in described(run)
    assert steps_of(run)[-1] < NUM_STEPS - 1
    gate.touch()
    taken = session.take_over_run(run.id)
    assert taken.wait(300).state is RunState.SUCCEEDED, taken.failure()
    steps = steps_of(taken)
    assert sorted(set(steps)) == list(range(NUM_STEPS)) and len(steps) <= NUM_STEPS + 1
    assert taken.record().generation == 2


@pytest.mark.parametrize("survives_s", [500.0])
@pytest.mark.nightly
def test_a_run_is_not_taken_over_from_a_host_that_cannot_be_asked(run, session, monkeypatch, gate):
    """Nightly. No shorter one: no other test takes a run over while a host does not answer."""
    run, owner = run
    leave(run, owner)
    with monkeypatch.context() as patched:
        patched.setattr(Host, "jobs_of", unreachable)
        with pytest.raises(LaunchError, match="may still run on localhost, which cannot be asked"):
            session.take_over_run(run.id)
    assert run.info().state is RunState.RUNNING
    assert run.info().left_until is not None
    gate.touch()
    assert session.take_over_run(run.id).wait(300).state is RunState.SUCCEEDED
    assert steps_of(run) == list(range(NUM_STEPS))


def unreachable(host, run_id):
    raise HostUnreachable(host.name, "no route")


@pytest.mark.nightly
def test_all_runs_of_an_owner_are_left(session, gate):
    """Nightly. Shorter: test_a_run_that_its_owner_leaves_is_taken_over_and_its_worker_notices_nothing"""
    words = [sys.executable, "-c", OWNER, SCRIPT, "500", "2", str(gate)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as owner:
        runs = [get_run(line.split()[1]) for line in islice(owner.stdout, 2)]
        leave(runs[0], owner)
    assert [run.id for run in runs] == [info.id for info in left_runs()]
    for run in runs:
        run.stop()


@pytest.mark.parametrize("survives_s", [500.0])
def test_a_run_that_its_owner_has_left_can_be_stopped(run):
    run, owner = run
    leave(run, owner)
    assert run.stop().info.state is RunState.STOPPED
    assert run.info().left_until is None
    assert steps_of(run)[-1] < NUM_STEPS - 1


def test_a_run_that_was_stopped_is_resumed(run, session, gate):
    run, _ = run
    run.stop()
    assert "reason" not in described(run)
    gate.touch()
    resumed = session.resume_run(run.id)
    assert resumed.wait(300).state is RunState.SUCCEEDED
    assert sorted(set(steps_of(run))) == list(range(NUM_STEPS))
    told = described(resumed)
    assert re.search(r"^1 .* it was stopped$", told, re.M)
    started, again = (re.search(rf"^{word} +(.+)$", told, re.M)[1] for word in ("started", "resumed"))
    assert started < again
    assert resumed.log(0) == resumed.logs(0)[-1] != resumed.logs(0)[0]


def test_a_run_that_lives_is_not_resumed(run, session):
    run, _ = run
    with pytest.raises(ConfigError, match=f"is running: watch it with attach {run.id}"):
        session.resume_run(run.id)
    run.stop()
