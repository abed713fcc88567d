"""Tests of restarts: real agents, on this machine and on several roots that act as hosts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from ignite_tf_magic.errors import LaunchError, PlacementError
from ignite_tf_magic.launch import lock
from ignite_tf_magic.launch.hosts import Host
from ignite_tf_magic.runs.directory import RunDirectory
from ignite_tf_magic.runs.handles.run import StopKind, list_runs, local_run
from ignite_tf_magic.runs.logs import mirror_state
from ignite_tf_magic.runs.record import HostRecord, RunRecord
from ignite_tf_magic.runs.states import RunState
from ignite_tf_magic.runs.supervision import manager
from ignite_tf_magic.runs.supervision.manager import RunHooks
from ignite_tf_magic.runs.supervision.planning import Plan
from ignite_tf_magic.runs.timeouts import Timeouts
from tests.runs.light_runs import COME_UP, await_text, free_range, make_plan, reach_of, text_of
from tests.runs.pipe_hosts import (
    PipeReach,
    assert_nothing_lives,
    cut_file,
    host_at,
    living_jobs,
    plan_on,
    relays,
    seats_on,
)
from tests.waiting import until

# Prints which generation this is, and sleeps in the first.
TWICE = (
    "import os, time\n"
    "mark = os.environ['IGNITE_TF_RUN_DIR'] + '/seen'\n"
    "again = os.path.exists(mark)\n"
    "open(mark, 'w').close()\n"
    "print('second' if again else 'first', flush=True)\n"
    "if not again: time.sleep(60)\n"
)


SAY_PORTS = """import os
is_far = 'ADDRESS' in os.environ['TF_CONFIG']
print('PORTS', os.environ.get('IGNITE_TF_LOOPBACK_PORTS'), is_far, flush=True)
"""


def shims_of(run) -> list[int]:
    (status,) = run.directory.path.glob("jobs/g1-worker-0/status.json")
    return json.loads(status.read_text())["keepers"]


# On this machine.


@pytest.mark.smoke
def test_a_killed_worker_is_started_again_and_its_output_is_one(start):
    run = start(TWICE, max_restarts=1)
    await_text(run, "first")
    os.kill(run.info().workers[0].pid, signal.SIGKILL)
    cause = "worker 0 on localhost: exit code 137: killed by SIGKILL (out of memory?)"
    assert text_of(run) == f"first\n--- started again (1): {cause}\nsecond\n"
    info = run.info()
    assert (info.state, info.exit_code, info.restarts) == (RunState.SUCCEEDED, 0, 1)
    assert run.failure() is None


def test_all_workers_are_started_again_when_one_was_killed(start):
    run = start(COME_UP + TWICE.replace("/seen", "/seen' + str(index) + '"), 2, max_restarts=1)
    await_text(run, "first", 0)
    await_text(run, "first", 1)
    os.kill(run.info().workers[1].pid, signal.SIGKILL)
    assert run.wait(300).state is RunState.SUCCEEDED
    for worker in range(2):
        said = text_of(run, worker)
        assert [line for line in said.splitlines() if line in ("first", "second")] == ["first", "second"]
        assert "--- started again (1): worker 1 on localhost: exit code 137" in said


def test_restarts_have_an_end_and_the_last_failure_is_told(start):
    run = start("import os\nprint('try', flush=True)\nos.kill(os.getpid(), 9)", max_restarts=2)
    info = run.wait(300)
    assert (info.state, info.exit_code, info.restarts) == (RunState.FAILED, 137, 2)
    assert text_of(run).count("try") == 3
    assert run.failure().exit_text == "exit code 137: killed by SIGKILL (out of memory?)"
    assert run.failure().log.endswith("worker-0.g3.log")


def test_a_script_may_ask_for_another_attempt(start):
    run = start(TWICE.replace("time.sleep(60)", "raise SystemExit(75)"), max_restarts=1)
    assert run.wait(300).state is RunState.SUCCEEDED
    assert "--- started again (1): worker 0 on localhost: exit code 75\n" in text_of(run)


def test_an_exception_is_not_retried(start):
    run = start("raise ValueError('mine')", max_restarts=5)
    info = run.wait(300)
    assert (info.state, info.exit_code, info.restarts) == (RunState.FAILED, 1, 0)


@pytest.mark.parametrize("which", [slice(1, 2), slice(0, 2)], ids=["inner", "both"])
def test_a_killed_shim_takes_its_worker_along_and_both_are_started_again(start, which):
    run = start(TWICE, max_restarts=1)
    await_text(run, "first")
    for shim in shims_of(run)[which]:
        os.kill(shim, signal.SIGKILL)
    assert run.wait(300).state is RunState.SUCCEEDED
    assert text_of(run).startswith("first\n--- started again (1): ")
    assert text_of(run).endswith("\nsecond\n")


def test_a_killed_relay_is_replaced_and_nothing_else_happens(start, work_dir):
    run = start(
        "import os, time\nprint('up', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.02)\nprint('end')"
    )
    await_text(run, "up")
    before = relays()
    assert before
    for relay in before:
        relay.kill()
    until(lambda: set(relays()) - set(before), what="another relay")
    (work_dir / "go").touch()
    assert text_of(run) == "up\nend\n"
    info = run.wait(300)
    assert (info.state, info.restarts) == (RunState.SUCCEEDED, 0)


def test_ports_of_a_range_are_used_again(start):
    """The range has only as many ports as workers need. The second generation reuses those of the first."""
    script = TWICE.replace("time.sleep(60)", "raise SystemExit(75)")
    run = start(script, 2, max_restarts=1, port_range=free_range(2))
    info = run.wait(300)
    assert (info.state, info.restarts) == (RunState.SUCCEEDED, 1), run.failure()


def test_an_interrupt_of_the_start_stops_the_run(runs_dir, work_dir, monkeypatch):
    class SlowHost(Host):
        def start(self, job, **options):
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
            time.sleep(1.5)
            return super().start(job, **options)

    monkeypatch.setattr("ignite_tf_magic.runs.reach.Host", SlowHost)
    with pytest.raises(KeyboardInterrupt):
        manager.start_run(make_plan(TWICE, cwd=work_dir), runs_dir, reach_of(runs_dir))
    (info,) = list_runs(runs_dir, include_ended=True)
    run = local_run(RunDirectory(info.directory), reach_of(runs_dir))
    assert run.wait(300).state is RunState.STOPPED
    assert_nothing_lives(runs_dir.parent)


def test_a_stop_while_a_worker_is_being_started_leaves_nothing(runs_dir, work_dir, monkeypatch):
    """The stop arrives while the worker's start is under way, before any host knows of the worker."""
    starting = threading.Event()

    class SlowHost(Host):
        def start(self, job, **options):
            starting.set()
            time.sleep(1.5)
            return super().start(job, **options)

    def stop_soon():
        starting.wait(300)
        (path,) = runs_dir.iterdir()
        (path / "stop").touch()

    monkeypatch.setattr("ignite_tf_magic.runs.reach.Host", SlowHost)
    stopper = threading.Thread(target=stop_soon)
    stopper.start()
    run = manager.start_run(
        make_plan("import time; time.sleep(60)", cwd=work_dir), runs_dir, reach_of(runs_dir)
    )
    stopper.join()
    assert run.wait(300).state is RunState.STOPPED
    assert_nothing_lives(runs_dir.parent)


def test_a_run_for_which_there_is_no_place_any_more_says_what_it_waits_for(start, runs_dir, work_dir):
    def plan(*_):
        raise PlacementError("no node has partitions of MNIST")

    run = manager.start_run(make_plan("raise SystemExit(75)", cwd=work_dir, max_restarts=3), runs_dir,
                            reach_of(runs_dir), lambda run_id: RunHooks(planner=plan))  # fmt: skip
    until(lambda: run.info().waiting_for, what="a reason")
    assert (run.info().state, run.info().waiting_for) == (
        RunState.RESTARTING,
        "no node has partitions of MNIST",
    )
    assert run.stop().info.state is RunState.STOPPED


@pytest.fixture
def counted():
    """An event that the planner waits for before it returns a plan."""
    done = threading.Event()
    yield done
    done.set()


def counting_long(counted, runs_dir, work_dir):
    """A run whose worker asks for a restart. The planner then counts rows until `counted` is set."""
    plan = make_plan("import os; raise SystemExit(75 * (not os.path.exists('again')))", cwd=work_dir)
    plan = replace(plan, spec=replace(plan.spec, max_restarts=3))

    def count(*_):
        Path(work_dir, "again").touch()
        counted.wait(300)
        return plan.plan

    return manager.start_run(plan, runs_dir, reach_of(runs_dir), lambda _: RunHooks(planner=count))


def test_a_run_goes_on_once_its_rows_have_been_counted_however_long_that_takes(counted, runs_dir, work_dir):
    run = counting_long(counted, runs_dir, work_dir)
    until(lambda: run.info().waiting_for, what="a reason")
    assert run.info().waiting_for == "the rows of the cache are being counted"
    counted.set()
    info = run.wait(300)
    assert (info.state, info.restarts, info.waiting_for) == (RunState.SUCCEEDED, 1, None)


def test_a_run_can_be_stopped_while_its_rows_are_counted(counted, runs_dir, work_dir):
    run = counting_long(counted, runs_dir, work_dir)
    until(lambda: run.info().waiting_for, what="a reason")
    assert run.stop().info.state is RunState.STOPPED


def test_the_supervisors_own_fault_ends_the_start(runs_dir, work_dir, monkeypatch):
    def broken(self, record):
        raise KeyError("a fault of ours")

    monkeypatch.setattr("ignite_tf_magic.runs.supervision.host_controller.HostController.reconcile", broken)
    with pytest.raises(LaunchError, match="a fault of ours"):
        manager.start_run(make_plan("pass", cwd=work_dir), runs_dir, reach_of(runs_dir))


def test_a_record_that_cannot_be_written_for_a_while_ends_nothing(start):
    """A directory blocks the record's path, as a full disk would, until the second worker was started."""
    run = start(TWICE, max_restarts=1)
    await_text(run, "first")
    pid = run.info().workers[0].pid
    record = run.directory.record
    record.rename(record.with_suffix(".away"))
    record.mkdir()
    os.kill(pid, signal.SIGKILL)
    until(lambda: (run.directory.path / "jobs" / "g2-worker-0").exists(), what="the second worker")
    record.rmdir()
    until(record.exists, what="the record")
    assert run.wait(300).state is RunState.SUCCEEDED
    assert run.info().restarts == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_of_the_owner_leaves_its_runs_alone(runs_dir, work_dir):
    """The child exits like any Python process, and runs all registered exit handlers."""
    owner = (
        "import os, sys, warnings\nfrom pathlib import Path\n"
        "sys.path[:0] = [sys.argv[1]]\n"
        "from tests.runs.light_runs import make_plan, reach_of\n"
        "from ignite_tf_magic.runs.supervision import manager\n"
        "warnings.simplefilter('ignore')\n"
        "runs_dir = Path(sys.argv[2])\n"
        "script = 'import os, time\\nwhile not os.path.exists(\"go\"): time.sleep(0.02)'\n"
        "run = manager.start_run(make_plan(script, cwd=Path.cwd()), runs_dir, reach_of(runs_dir))\n"
        "child = os.fork()\n"
        "if not child: sys.exit(3)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3\n"
        "print(run.info().state.value)\n"
        "Path('go').touch()\n"
        "print(run.wait(300).state.value)\n"
    )
    argv = [sys.executable, "-c", owner, str(Path(__file__).parents[3]), str(runs_dir)]
    done = subprocess.run(argv, cwd=work_dir, capture_output=True, text=True, timeout=300)
    assert done.stdout.split() == ["running", "succeeded"], done.stderr


# On several hosts.


@pytest.fixture
def place(tmp_path) -> Path:
    return tmp_path / "hosts"


@pytest.fixture
def start_on(runs_dir, place):
    """Start a run on several hosts. The test fails if any of its processes survive there."""
    started = []

    def start(plan, hooks=lambda run_id: RunHooks()):
        started.append(manager.start_run(plan, runs_dir, PipeReach(runs_dir.parent), hooks))
        return started[-1]

    yield start
    for run in started:
        run.stop()
    for root in place.iterdir() if place.is_dir() else ():
        assert_nothing_lives(root)


def record_on(root: str, run) -> RunRecord:
    return RunRecord.from_json(json.loads(Path(root, "runs", run.id, "run.json").read_text()))


def test_workers_of_several_hosts_know_each_others_addresses(start_on, place):
    a, b = host_at(place, "a"), host_at(place, "b")
    script = COME_UP + "print(os.environ['TF_CONFIG'], flush=True)\nprint(os.environ['IGNITE_TF_RUN_DIR'])\n"
    run = start_on(plan_on([a, b], script, used=[a, b, a]))
    assert run.wait(300).state is RunState.SUCCEEDED
    said = [text_of(run, worker).splitlines() for worker in range(3)]
    configs = [json.loads(lines[0]) for lines in said]
    assert [config["task"]["index"] for config in configs] == [0, 1, 2]
    addresses = configs[0]["cluster"]["worker"]
    assert all(config["cluster"]["worker"] == addresses for config in configs)
    assert [address.partition(":")[0] for address in addresses] == [a.tf_address, b.tf_address, a.tf_address]
    assert addresses[0] != addresses[2]
    homes = [f"{host.root}/runs/{run.id}/files" for host in (a, b, a)]
    assert [lines[1] for lines in said] == homes


def test_every_host_has_the_newest_record_in_the_end(start_on, place):
    hosts = [host_at(place, "a"), host_at(place, "b")]
    run = start_on(plan_on(hosts, "print(1)"))
    run.wait(300)
    mine = RunRecord.read(run.directory)
    for host in hosts:
        path = Path(host.root, "runs", run.id, "run.json")
        until(
            lambda path=path: path.exists() and record_on(path.parents[2], run) == mine,
            what="the last record",
        )
        assert path.stat().st_mode & 0o777 == 0o600


def test_a_host_without_an_interpreter_is_named_at_once(start_on, place):
    good, bad = host_at(place, "good"), host_at(place, "bad", agent_python="/no-such-python")
    with pytest.raises(LaunchError, match="(?s)bad.*no-such-python"):
        start_on(plan_on([good, bad], "pass", max_restarts=5))
    assert_nothing_lives(Path(good.root))


def test_the_next_generation_may_have_other_hosts_and_addresses(start_on, place):
    """The first generation uses one host, which needs no address. The second uses two hosts, which do."""
    a, b = host_at(place, "a"), host_at(place, "b")
    alone = replace(a, tf_address=None)
    script = TWICE.replace("time.sleep(60)", "raise SystemExit(75)")
    script = script.replace("/seen", "/seen' + os.environ['TF_CONFIG'][-3:-2] + '")
    script = SAY_PORTS.replace("ADDRESS", str(b.tf_address)) + script
    script += "print(os.environ['TF_CONFIG'])\nif not again and 'a/runs' not in mark: raise SystemExit(0)\n"
    plan = plan_on([alone, b], script, used=[alone, alone], max_restarts=1)
    later = Plan(seats_on([a, b]), (a, b))
    run = start_on(plan, lambda run_id: RunHooks(planner=lambda *_: later))
    run.wait(300)
    record = RunRecord.read(run.directory)
    assert record.hosts_of(0) == ((1, "a"), (2, "a"))
    assert record.hosts_of(1) == ((1, "a"), (2, "b"))
    assert [address.partition(":")[0] for address in record.order.addresses] == [a.tf_address, b.tf_address]
    ports = {tuple(line.split()[1:]) for line in text_of(run).splitlines() if line.startswith("PORTS")}
    assert {far: port == "None" for port, far in ports} == {"False": False, "True": True}


OWNER = """
import sys, time
from pathlib import Path
sys.path[:0] = [sys.argv[1]]
from tests.runs.pipe_hosts import PipeReach, assert_nothing_lives, host_at, plan_on
from ignite_tf_magic.runs.logs import mirror_state
from ignite_tf_magic.runs.supervision import manager
from ignite_tf_magic.runs.timeouts import Timeouts
place, runs_dir, script = Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
timeouts = Timeouts(lease_s=float(sys.argv[5]), grace_s=0.5)
plan = plan_on([host_at(place, "a"), host_at(place, "b")], script, timeouts=timeouts)
run = manager.start_run(plan, runs_dir, PipeReach(runs_dir.parent))
print(run.id, flush=True)
time.sleep(100)
"""


@pytest.fixture
def owner(runs_dir, place):
    """Start a run on two hosts that another process owns; return (process, run)."""
    owners = []

    def begin(script, lease_s):
        argv = [
            sys.executable,
            "-c",
            OWNER,
            str(Path(__file__).parents[3]),
            str(place),
            str(runs_dir),
            script,
            str(lease_s),
        ]
        owners.append(subprocess.Popen(argv, stdout=subprocess.PIPE))
        run_id = owners[-1].stdout.readline().decode().strip()
        return owners[-1], local_run(RunDirectory(runs_dir / run_id), PipeReach(runs_dir.parent))

    yield begin
    for owner in owners:
        owner.kill()
        owner.wait()
        owner.stdout.close()


FAMILY = (
    COME_UP + "import signal, subprocess, sys\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(100)'], start_new_session=True)\n"
    "print(child.pid, 'ready', flush=True)\ntime.sleep(100)\n"
)


def children_of(place, run) -> list[int]:
    logs = [place / "a" / "runs" / run.id / "worker-0.log", place / "b" / "runs" / run.id / "worker-1.log"]
    until(lambda: all(log.exists() and "ready" in log.read_text() for log in logs), what="both workers")
    return [int(log.read_text().split()[0]) for log in logs]


def test_when_the_owner_is_killed_nothing_is_left_on_any_host_once_the_lease_is_over(owner, place):
    process, run = owner(FAMILY, 3.0)
    children = children_of(place, run)
    process.kill()
    process.wait()
    until(lambda: not living_jobs(place / "a") + living_jobs(place / "b"), what="the end of the lease")
    until(lambda: not any(map(psutil.pid_exists, children)), what="the end of the workers' children")
    assert run.info().state is RunState.LOST


def test_what_workers_say_after_their_owner_was_killed_can_be_read(owner, place):
    count = COME_UP + "for i in range(10000): print(i, flush=True); time.sleep(0.01)\n"
    process, run = owner(count, 3.0)
    log = place / "a" / "runs" / run.id / "worker-0.log"
    until(lambda: log.exists() and log.stat().st_size > 100, what="some output")
    process.kill()
    process.wait()
    seen = text_of(run, 0)
    until(lambda: not living_jobs(place / "a") + living_jobs(place / "b"), what="the end of the lease")
    assert seen == log.read_text()


def test_a_lost_run_can_be_stopped_before_its_lease_is_over(owner, place):
    process, run = owner(FAMILY, 300.0)
    children = children_of(place, run)
    process.kill()
    process.wait()
    assert run.info().state is RunState.LOST
    assert run.stop().kind is StopKind.OWNER_WAS_GONE
    assert_nothing_lives(place / "a", place / "b")
    assert not any(map(psutil.pid_exists, children))
    assert run.info().state is RunState.STOPPED
    assert run.stop().kind is StopKind.ALREADY_ENDED


SHORT = Timeouts(lease_s=2.0, grace_s=0.5, margin_s=0.5, first_backoff_s=0.1)


@pytest.fixture
def leaving(start_on, place):
    """A run whose only worker is on host b and stays there; the next one is planned on host a. Returns (run, b)."""
    a, b = host_at(place, "a"), host_at(place, "b")
    script = (
        "import os, time\nprint('up', flush=True)\n"
        f"if os.environ['IGNITE_TF_RUN_DIR'].startswith({b.root!r}): time.sleep(100)\n"
    )
    plan = plan_on([a, b], script, used=[b], max_restarts=1, timeouts=SHORT)
    later = Plan(seats_on([a]), (a, b))
    run = start_on(plan, lambda run_id: RunHooks(planner=lambda *_: later))
    await_text(run, "up")
    return run, b


def test_a_host_that_stays_out_of_reach_is_given_up_and_the_run_goes_on_elsewhere(leaving):
    run, b = leaving
    cut_file(b.root).touch()
    for relay in relays(b.root):
        relay.kill()
    info = run.wait(300)
    assert (info.state, info.restarts, info.hosts) == (RunState.SUCCEEDED, 1, ("a",))
    assert "--- started again (1): host b has not answered for" in text_of(run)


@pytest.mark.nightly
def test_output_that_a_host_has_kept_for_itself_is_announced_and_comes_with_the_host(leaving):
    """Nightly. Shorter: test_a_host_that_was_lost_is_waited_for_once_more_when_the_run_has_ended"""
    run, b = leaving
    cut_file(b.root).touch()
    for relay in relays(b.root):
        relay.kill()
    told = "ignite_tf_magic: output of worker-0.log cannot be read: host b: no route to host"
    assert text_of(run).splitlines()[-1] == told
    assert text_of(run).endswith("cannot be read: host b: no route to host\n")
    with Path(b.root, "runs", run.id, "worker-0.log").open("a") as log:
        log.write("last words\n")
    cut_file(b.root).unlink()
    assert run.fetch() == ()
    first, second, title, *rest = text_of(run).splitlines()
    assert (first, second, rest) == ("up", "last words", ["up"])
    assert title.startswith("--- started again")


def test_a_host_that_was_lost_is_waited_for_once_more_when_the_run_has_ended(
    start_on, place, tmp_path, monkeypatch
):
    monkeypatch.setattr(mirror_state, "_PATIENCE_S", 4.0)
    a, b = host_at(place, "a"), host_at(place, "b")
    script = (
        "import os, time\nprint('up', flush=True)\n"
        f"if os.environ['IGNITE_TF_RUN_DIR'].startswith({b.root!r}): time.sleep(100)\n"
        f"while not os.path.exists({str(tmp_path / 'go')!r}): time.sleep(0.02)\n"
    )
    plan = plan_on([a, b], script, used=[b], max_restarts=1, timeouts=SHORT)
    later = Plan(seats_on([a]), (a, b))
    run = start_on(plan, lambda run_id: RunHooks(planner=lambda *_: later))
    await_text(run, "up")
    log = Path(b.root, "runs", run.id, "worker-0.log")
    cut_file(b.root).touch()
    for relay in relays(b.root):
        relay.kill()
    cut_at = time.monotonic()
    with log.open("a") as words:
        words.write("last words\n")
    until(lambda: time.monotonic() > cut_at + 4.5 and run.info().restarts == 1, what="its place to be taken")
    (tmp_path / "go").touch()
    until(lambda: not living_jobs(Path(a.root)), what="the end on the other host")
    cut_file(b.root).unlink()
    assert sorted(text_of(run).splitlines())[1:] == ["last words", "up", "up"]


def test_a_host_that_is_this_very_machine_by_another_name_writes_its_output_once(start_on, runs_dir, place):
    place.mkdir()
    me = HostRecord(
        "me", ssh="me", root=str(runs_dir.parent), python=sys.executable, agent_python=sys.executable
    )
    run = start_on(plan_on([me], "for i in range(1000): print(i, flush=True)"))
    assert text_of(run) == "".join(f"{i}\n" for i in range(1000))
    assert run.info().state is RunState.SUCCEEDED


def test_a_host_that_has_lost_all_trace_of_a_worker_is_not_waited_for(leaving):
    """For example after the loss of its disk: the host answers, but does not know the worker."""
    run, b = leaving
    Path(b.root, "runs").rename(Path(b.root, "away"))
    try:
        info = run.wait(300)
    finally:
        until(
            lambda: (
                not list(Path(b.root, "away").glob("*/jobs/*/lock"))
                or not any(lock.is_held(path) for path in Path(b.root, "away").glob("*/jobs/*/lock"))
            ),
            what="the lease's end",
        )
    assert (info.state, info.restarts, info.hosts) == (RunState.SUCCEEDED, 1, ("a",))


def test_a_short_cut_restarts_nothing(start_on, place):
    b = host_at(place, "b")
    script = (
        "import os, time\nprint('up', flush=True)\n"
        f"while not os.path.exists({b.root + '/go'!r}): time.sleep(0.02)\nprint('end')"
    )
    run = start_on(plan_on([b], script, max_restarts=1))
    await_text(run, "up")
    cut_file(b.root).touch()
    for relay in relays(b.root):
        relay.kill()
    until(lambda: run.info().waiting_for, what="the word that b is out of reach")
    assert run.info().waiting_for == "b: out of reach, trying to reconnect"
    Path(b.root, "go").touch()
    cut_file(b.root).unlink()
    assert text_of(run) == "up\nend\n"
    assert (run.info().state, run.info().restarts) == (RunState.SUCCEEDED, 0)
