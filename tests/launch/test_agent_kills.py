"""Tests that no process of a job survives the job's end, whatever is killed and however processes try to escape."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.launch.relay_client import Relay, clean_host, processes_of, relay_at
from tests.waiting import until

SLEEP = "import time; print('up'); time.sleep(600)"
# The process, a child in its group, a grandchild in its own session, an orphan, and one that ignores SIGTERM.
FAMILY = """
import os, signal, time
told, tell = os.pipe()
def child(setsid, ignore, orphan):
    if os.fork() == 0:
        if setsid: os.setsid()
        if ignore: signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if orphan and os.fork(): os._exit(0)
        os.write(tell, b'.')
        time.sleep(600)
        os._exit(0)
for setsid in (0, 1):
    for ignore in (0, 1):
        for orphan in (0, 1):
            child(setsid, ignore, orphan)
for _ in range(8): os.read(told, 1)
print('up')
time.sleep(600)
"""
# Chains of processes that fork and exit repeatedly, so that any list of processes is already outdated.
STORM = """
import os, sys, time
give_up_at = time.time() + 60
def chain(setsid):
    if os.fork(): return
    while time.time() < give_up_at:
        if os.fork(): os._exit(0)
        if setsid: os.setsid()
        os.write(1, b'.')
    os._exit(0)
for number in range(8): chain(%d)
print('up')
time.sleep(600)
"""


@pytest.fixture
def relay(home):
    with clean_host(home) as relay:
        yield relay


def start(relay: Relay, code: str, **fields) -> dict:
    relay.start(code, **fields)
    name = fields.get("name", "g1-worker-0")
    if "up" in code:
        relay.until_output(b"up", name)
    return relay.job(name)


def assert_silent(relay: Relay) -> None:
    """Assert that a job's log stopped growing. Lists of processes could miss survivors of a storm."""
    size = relay.job()["log_bytes"]
    time.sleep(0.2)
    assert relay.job()["log_bytes"] == size


def others(home: Path, relay: Relay) -> dict[int, list[str]]:
    return {pid: argv for pid, argv in processes_of(home).items() if pid != relay.process.pid}


def test_end_with_grace_lets_the_process_save_and_then_kills_what_it_leaves(relay, home):
    saving = "import signal\ndef save(*_):\n    print('saved', flush=True)\n    raise SystemExit(7)\n"
    start(relay, FAMILY.replace("print('up')", saving + "signal.signal(signal.SIGTERM, save)\nprint('up')"))
    relay.call("end", run="r", grace_s=20)
    job = relay.until_ended()
    assert (job["code"], job["reason"], job["oom"]) == (7, "ended", False)
    assert b"saved" in relay.output()
    until(lambda: not others(home, relay))


@pytest.mark.parametrize("grace_s", [0, 0.3])
def test_a_family_that_ignores_the_request_is_killed_whole(relay, home, grace_s):
    ignoring = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    start(relay, ignoring + FAMILY)
    assert len(others(home, relay)) > 9
    relay.call("end", run="r", grace_s=grace_s, reason="stopped by the user")
    job = relay.until_ended()
    assert (job["code"], job["reason"]) == (-signal.SIGKILL, "stopped by the user")
    until(lambda: not others(home, relay))


def test_a_second_request_may_hasten_the_end_but_not_delay_it(relay):
    start(relay, "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLEEP)
    relay.call("end", run="r", grace_s=1000)
    until(lambda: relay.job()["state"] == "ending")
    relay.call("end", run="r", grace_s=0, reason="second")
    assert relay.until_ended()["reason"] == "ended"


def test_what_a_process_leaves_behind_is_killed_when_it_ends(relay, home):
    relay.start(FAMILY.replace("print('up')\ntime.sleep(600)", "raise SystemExit(3)"))
    job = relay.until_ended()
    assert (job["code"], job["reason"]) == (3, "exited")
    until(lambda: not others(home, relay))


@pytest.mark.parametrize("setsid", [0, 1])
def test_a_storm_of_forks_is_ended(relay, home, setsid):
    start(relay, STORM % setsid)
    relay.call("end", run="r", grace_s=0)
    assert relay.until_ended()["code"] == -signal.SIGKILL
    assert_silent(relay)


def test_a_killed_process_is_told_by_its_signal(relay):
    job = start(relay, SLEEP)
    os.kill(job["pid"], signal.SIGKILL)
    job = relay.until_ended()
    assert (job["code"], job["reason"], job["oom"]) == (-signal.SIGKILL, "exited", False)


@pytest.mark.parametrize(
    "killed", [[0], [1], [0, 1], [1, 0]], ids=["outer", "inner", "both", "both, inner first"]
)
@pytest.mark.parametrize("code", [FAMILY, STORM % 0], ids=["family", "storm"])
def test_a_killed_shim_takes_the_job_along_or_leaves_it_guarded(relay, home, killed, code):
    job = start(relay, code)
    for index in killed:
        os.kill(job["keepers"][index], signal.SIGKILL)
    if killed == [0]:
        assert relay.job()["state"] == "running"
        relay.call("end", run="r", grace_s=0)
        assert relay.until_ended()["reason"] == "ended"
    else:
        job = relay.until_ended()
        assert (job["code"], job["reason"], job["pid"]) == (None, "agent_lost", None)
    assert_silent(relay)
    until(lambda: not others(home, relay))


def test_any_relay_cleans_up_after_both_shims(relay, home):
    job = start(relay, FAMILY)
    relay.close()
    for shim in job["keepers"]:
        os.kill(shim, signal.SIGKILL)
    until(lambda: job["pid"] not in processes_of(home))  # although no client polls
    with relay_at(home) as first, relay_at(home) as second:
        answers = [each.answer(each.send("list"))["runs"][0]["jobs"][0] for each in (first, second)]
        assert {"ended"} == {first.until_ended()["state"], second.until_ended()["state"]}
        assert all(answer["state"] in ("running", "ending", "ended") for answer in answers)
        assert first.job() == second.job()
        until(lambda: not others(home, first).keys() - {second.process.pid})


def test_a_job_of_another_run_is_left_alone(relay, home):
    start(relay, SLEEP, name="mine")
    relay.start(SLEEP, name="other", run="s")
    job = relay.job("mine")
    for shim in job["keepers"]:
        os.kill(shim, signal.SIGKILL)
    assert relay.until_ended("mine")["reason"] == "agent_lost"
    relay.call("end", run="r", grace_s=0)
    assert relay.job("other", "s")["state"] == "running"


def test_after_a_reboot_a_job_is_lost(relay, home):
    job = start(relay, SLEEP)
    for shim in job["keepers"]:
        os.kill(shim, signal.SIGKILL)
    until(lambda: not others(home, relay))
    path = home / "runs/r/jobs/g1-worker-0/job.json"
    asked = json.loads(path.read_text())
    path.write_text(json.dumps({**asked, "boot_id": "another"}))
    with relay_at(home) as later:
        job = later.job()
        assert (job["state"], job["reason"], job["code"]) == ("lost", "reboot", None)
        later.start("pass", name="g2-worker-0", generation=2)
        assert later.until_ended("g2-worker-0")["code"] == 0


def test_jobs_of_another_host_in_a_shared_home_are_not_told_of(relay, home):
    relay.start("pass")
    relay.until_ended()
    path = home / "runs/r/jobs/g1-worker-0"
    (path / "exit.json").unlink()
    asked = json.loads((path / "job.json").read_text())
    (path / "job.json").write_text(json.dumps({**asked, "hostname": "elsewhere"}))
    with relay_at(home) as later:
        assert later.poll()["jobs"] == []
        assert later.call("list")["runs"][0]["jobs"] == []


def test_the_job_outlives_its_relay(relay, home):
    start(relay, "import time\nprint('up')\nwhile True: print('still here', flush=True); time.sleep(0.01)")
    relay.kill()
    with relay_at(home) as later:
        size = later.job()["log_bytes"]
        until(lambda: later.job()["log_bytes"] > size)
        assert later.job()["state"] == "running"


def test_a_shutdown_of_the_host_lets_the_process_save(relay):
    saving = "import signal\ndef save(*_):\n    print('saved', flush=True)\n    raise SystemExit(0)\n"
    job = start(relay, saving + "signal.signal(signal.SIGTERM, save)\n" + SLEEP)
    for shim in job["keepers"]:
        os.kill(shim, signal.SIGTERM)
    job = relay.until_ended()
    assert (job["code"], job["reason"]) == (0, "terminated")
    assert b"saved" in relay.output()


RELAY_IN_A_JOB = """
import sys, time
sys.path[:0] = [%r]
from pathlib import Path
from tests.launch.relay_client import Relay
relay = Relay(Path(%r))
relay.start("import time; print('up'); time.sleep(600)", name="nested", run="s")
relay.until_output(b"up", "nested", "s")
print('up', flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("kill_shims", [False, True])
def test_a_job_started_by_a_job_has_a_life_of_its_own(relay, home, kill_shims):
    root = str(Path(__file__).parents[2])
    job = start(relay, RELAY_IN_A_JOB % (root, str(home)), env={"PYTHONDONTWRITEBYTECODE": "1"})
    if kill_shims:
        for shim in job["keepers"]:
            os.kill(shim, signal.SIGKILL)
    else:
        relay.call("end", run="r", grace_s=0)
    relay.until_ended()
    nested = relay.job("nested", "s")
    assert nested["state"] == "running"
    os.kill(nested["pid"], 0)
    relay.call("end", run="s", grace_s=0)
    assert relay.until_ended("nested", "s")["reason"] == "ended"
