"""Tests of warm starts: workers of a second run start in processes that the first run left on its hosts."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from ignite_tf_magic.launch.hosts import Host
from ignite_tf_magic.launch.jobs import EarlyProgram, Job
from ignite_tf_magic.launch.pipe import PipeTransport
from ignite_tf_magic.runs import warm
from ignite_tf_magic.runs.record import HostRecord
from ignite_tf_magic.runs.states import RunState
from ignite_tf_magic.runs.supervision import manager
from ignite_tf_magic.runs.supervision.warm_hosts import WARM_HOSTS, WarmHosts
from ignite_tf_magic.session.listing import kept_ready
from tests.runs.light_runs import make_plan, reach_of, text_of
from tests.waiting import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="parks on Linux only")

PARKED = "ignite_tf_magic.runs.parked"
# Prints all that a script can see of how it was started. It mentions TensorFlow, which makes it eligible for a warm
# start, but does not import it, to save time. It names nothing that would force a cold start.
SCRIPT = """
import json, os, sys, threading
if not sys.argv:
    import tensorflow
variables = vars(os)["envi" + "ron"]
of_the_run = ("IGNITE_", "TF_CONFIG", "MASTER_PORT", "PYTEST_")
print(json.dumps({
    "is_warm": "runs.parked" in open("/proc/self/cmdline").read(),
    "argv": sys.argv, "orig_argv": sys.orig_argv[:3], "cwd": os.getcwd(), "path": vars(sys)["path"],
    "name": __name__, "main": sorted(vars(sys.modules["__main__"])), "file": __file__,
    "threads": threading.active_count(), "umask": os.umask(0o077),
    "variables": {name: value for name, value in variables.items() if not name.startswith(of_the_run)},
}).replace(variables["IGNITE_TF_RUN_ID"], "RUN"))
"""


@pytest.fixture(autouse=True)
def light(monkeypatch):
    """Make the early imports of a warm worker take no time."""
    monkeypatch.setattr(warm, "_IMPORTS", ("json",))
    yield
    WARM_HOSTS.close()


def parked(root: Path) -> list[int]:
    found = []
    for each in psutil.process_iter(["cmdline", "cwd"]):
        if PARKED in (each.info["cmdline"] or ()) and each.info["cwd"] == str(root / "parked" / "empty"):
            found.append(each.pid)
    return found


def told_by(runs_dir: Path, work_dir: Path, num_workers: int = 2, **changes) -> list[dict]:
    plan = replace(make_plan(SCRIPT, num_workers, cwd=work_dir), **{"warm_s": 60.0, **changes})
    run = manager.start_run(plan, runs_dir, reach_of(runs_dir))
    assert run.wait(300).state is RunState.SUCCEEDED, text_of(run)
    return [json.loads(text_of(run, worker)) for worker in range(num_workers)]


def test_the_second_run_is_warm_and_its_scripts_see_nothing_of_it(runs_dir, work_dir, tmp_path, monkeypatch):
    monkeypatch.setenv("IGNITE_TF_HOME", str(tmp_path))
    cold = told_by(runs_dir, work_dir)
    assert [each.pop("is_warm") for each in cold] == [False, False]
    until(lambda: len(parked(tmp_path)) == 2, what=lambda: parked(tmp_path))
    count, num_bytes = kept_ready()
    sizes = [psutil.Process(pid).memory_info().rss for pid in parked(tmp_path)]
    assert (count, num_bytes) == (2, pytest.approx(sum(sizes), rel=0.2))
    warm_ones = told_by(runs_dir, work_dir)
    assert [each.pop("is_warm") for each in warm_ones] == [True, True]
    for before, after in zip(cold, warm_ones, strict=True):
        assert not {key: (after[key], value) for key, value in before.items() if after[key] != value}
    until(lambda: len(parked(tmp_path)) == 2, what=lambda: parked(tmp_path))
    WARM_HOSTS.close()
    until(lambda: not parked(tmp_path), what=lambda: parked(tmp_path))
    assert kept_ready() == (0, 0)


def test_a_run_that_asks_for_none_leaves_none_and_one_of_another_kind_takes_none(
    runs_dir, work_dir, tmp_path, monkeypatch
):
    told_by(runs_dir, work_dir, warm_s=0.0)
    assert parked(tmp_path) == []
    told_by(runs_dir, work_dir, 1)
    until(lambda: len(parked(tmp_path)) == 1)
    assert [each["is_warm"] for each in told_by(runs_dir, work_dir, 1, warm_s=0.0)] == [False]
    monkeypatch.setenv("OF_THE_KERNEL", "1")
    assert [each["is_warm"] for each in told_by(runs_dir, work_dir, 1)] == [False]
    # The processes that are parked now have the kernel's current environment.
    until(lambda: len(parked(tmp_path)) == 1)
    until(lambda: told_by(runs_dir, work_dir, 1)[0]["is_warm"])


def test_a_script_fails_warm_as_it_does_cold(runs_dir, work_dir, tmp_path):
    script = (
        "import sys\nif not sys.argv:\n    import tensorflow\ndef f():\n    raise ValueError('bad')\nf()\n"
    )
    ends = []
    for _ in range(2):
        plan = replace(make_plan(script, cwd=work_dir), warm_s=60.0)
        run = manager.start_run(plan, runs_dir, reach_of(runs_dir))
        info = run.wait(300)
        ends.append((info.state, info.exit_code, text_of(run).replace(run.id, "RUN")))
        until(lambda: len(parked(tmp_path)) == 1)
    assert ends[0] == ends[1]
    assert ends[0][:2] == (RunState.FAILED, 1)


def test_those_of_an_earlier_run_make_room_and_end_with_their_time(tmp_path):
    def jobs(text: str, count: int) -> list[tuple[Job, tuple[int, ...]]]:
        early = EarlyProgram((sys.executable, "-m", PARKED), text)
        env = {"PYTHONPATH": str(Path(__file__).resolve().parents[3])}
        return [(Job("r", f"g1-worker-{n}", 1, (), env, "log", early=early), ()) for n in range(count)]

    def settings(imports: list[str]) -> str:
        return json.dumps({"environment": {}, "imports": imports, "hidden": []})

    hosts, here, reach = (
        WarmHosts(),
        HostRecord("localhost", python=sys.executable),
        reach_of(tmp_path / "runs"),
    )
    try:
        hosts.park(reach, here, jobs(settings(["json"]), 2), 60.0)
        until(lambda: len(parked(tmp_path)) == 2)
        first = set(parked(tmp_path))
        hosts.park(reach, here, [*jobs(settings(["ast"]), 1), *jobs(settings(["json"]), 1)], 60.0)
        until(lambda: len(first.symmetric_difference(parked(tmp_path))) == 4)
        hosts.park(reach, here, jobs(settings(["json"]), 5), 60.0)
        assert len(parked(tmp_path)) == 2
        hosts.park(reach, here, jobs(settings(["json"]), 1), 0.5)
        until(lambda: not parked(tmp_path))
    finally:
        hosts.close()


def test_a_host_parks_nothing_for_a_job_without_an_early_program(tmp_path):
    with Host("here", PipeTransport(), python=sys.executable, root=str(tmp_path)) as host:
        job = Job("r", "g1-worker-0", 1, ("true",), {}, "log")
        assert host.park(job, count=2, age_s=60.0, memory_bytes=1) == 0
