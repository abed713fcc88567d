"""Tests of parked processes: each serves at most one job, which then behaves like any other."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
from pathlib import Path

import psutil
import pytest

from tests.launch.parked_jobs import ParkedJobs, input_of
from tests.launch.relay_client import Refusal, clean_host, processes_of, relay_at
from tests.waiting import until

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="parks on Linux only")

SLEEP = "import time; print('up'); time.sleep(600)"
PID = "import os; print(os.getpid())"


@pytest.fixture
def relay(home):
    with clean_host(home) as relay:
        yield relay


@pytest.fixture
def jobs(tmp_path, home):
    return ParkedJobs(tmp_path, home)


def pid_told(relay, name: str = "g1-worker-0") -> int:
    assert relay.until_ended(name)["code"] == 0, relay.output(name)
    return int(relay.output(name).split()[-1])


# --- a job takes a parked process -------------------------------------------------------------------------------


def test_a_job_takes_the_process_that_waits_for_it_and_the_next_one_has_its_own(relay, jobs):
    assert jobs.park(relay) == 1
    (parked,) = jobs.parked()
    assert jobs.start(relay, PID)["pid"] == parked == pid_told(relay)
    assert jobs.start(relay, PID, name="g1-worker-1")["pid"] != parked
    pid_told(relay, "g1-worker-1")
    jobs.until_nothing_is_parked()


def test_what_a_parked_process_has_said_is_in_the_log_of_its_job(relay, jobs):
    (jobs.path / "says.py").write_text("print('a warning')\n")
    jobs.park(relay, input_text=input_of(("says",)))
    jobs.start(relay, PID, input_text=input_of(("says",)))
    pid_told(relay)
    assert relay.output().startswith(b"a warning\n")


def test_so_many_are_parked_as_were_asked_for_and_no_more_than_four(relay, jobs):
    assert jobs.park(relay, 2) == 2
    assert jobs.park(relay, 2) == 2
    old = set(jobs.parked())
    assert jobs.park(relay, 9, input_text=input_of(("ast",))) == 4
    until(lambda: len(jobs.parked()) == 4 and not old & set(jobs.parked()))
    assert jobs.park(relay, 1) == 1
    until(lambda: len(jobs.parked()) == 4)


def test_none_is_parked_where_memory_is_short(relay, jobs):
    assert jobs.park(relay, memory_bytes=1 << 60) == 0
    assert jobs.parked() == []


@pytest.mark.parametrize(
    "fields", [{"argv": []}, {"argv": [1]}, {"env": {"A": 1}}, {"input": None}, {"count": "x"}]
)
def test_a_bad_request_is_refused(relay, jobs, fields):
    with pytest.raises(Refusal) as error:
        jobs.park(relay, **{"count": 1, **fields})
    assert error.value.kind == "bad_request"


def test_a_program_that_is_not_there_is_refused(relay, jobs):
    with pytest.raises(Refusal) as error:
        jobs.park(relay, argv=["/no/such/python"])
    assert error.value.kind == "no_program"
    jobs.until_nothing_is_parked()


def test_only_one_of_the_same_kind_is_taken(relay, jobs):
    jobs.park(relay)
    (parked,) = jobs.parked()
    others = [
        {"env": {**jobs.env, "A": "1"}},
        {"input_text": input_of(("ast",))},
        {"warm": None},
        {"warm": {**jobs.early(), "argv": ["/usr/bin/env", "python3"]}},
    ]
    for number, fields in enumerate(others):
        name = f"g1-worker-{number}"
        assert jobs.start(relay, PID, name=name, **fields)["pid"] != parked
        pid_told(relay, name)
    assert jobs.start(relay, PID, name="g1-worker-9")["pid"] == parked


def test_another_connection_is_no_other_kind_and_its_variables_are_the_jobs(relay, jobs, home):
    jobs.park(relay)
    (parked,) = jobs.parked()
    code = "import os; print(os.environ['SSH_CLIENT'], os.getpid())"
    with relay_at(home, env={"SSH_CLIENT": "10.0.0.7 4711 22"}) as other:
        jobs.start(other, code)
        assert pid_told(other) == parked
        assert other.output().startswith(b"10.0.0.7 4711 22 ")
    with relay_at(home, env={"OF_THE_HOST": "1"}) as other:
        jobs.park(relay)
        assert jobs.start(other, PID, name="g1-worker-1")["pid"] not in jobs.parked()
        pid_told(other, "g1-worker-1")


def test_what_was_imported_and_has_changed_since_is_imported_anew_by_the_same_process(relay, jobs):
    jobs.park(relay)
    (parked,) = jobs.parked()
    (jobs.path / "installed.py").write_text("")
    jobs.start(relay, "import sys; print('argparse' in sys.modules, end=' ');" + PID)
    assert pid_told(relay) == parked
    assert Path(f"/proc/{parked}").exists() is False


def test_an_import_that_fails_is_left_to_the_job(relay, jobs):
    (jobs.path / "broken.py").write_text("raise RuntimeError('broken')\n")
    broken = input_of(("broken",))
    jobs.park(relay, input_text=broken)
    (parked,) = jobs.parked()
    jobs.start(
        relay, "import sys; print(sorted({'broken', 'runpy'} & set(sys.modules)));" + PID, input_text=broken
    )
    assert pid_told(relay) == parked
    assert b"broken" not in relay.output()


# --- jobs behave like others ------------------------------------------------------------------------------------

PROBE = """
import ctypes, json, os, resource, signal, subprocess, sys, threading, warnings
def link(number):
    try: return os.readlink(f"/proc/self/fd/{number}").partition(":")[0].replace(name, "NAME")
    except OSError: return None
name = sys.argv[2]
main = sys.modules["__main__"]
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
signal_of_death = ctypes.c_int()
ctypes.CDLL(None).prctl(2, ctypes.byref(signal_of_death), 0, 0, 0)
child = subprocess.run([sys.executable, "-c", "import os, json; print(json.dumps(dict(os.environ)))"],
                       capture_output=True, check=True).stdout
print(json.dumps({
    "input": sys.stdin.read(), "argv": sys.argv, "orig_argv": sys.orig_argv, "cwd": os.getcwd(), "path": sys.path,
    "flags": repr(sys.flags), "warnoptions": sys.warnoptions, "filters": repr(warnings.filters),
    "xoptions": sys._xoptions, "executable": sys.executable, "prefix": sys.prefix,
    "main": {key: repr(value).partition(" at 0x")[0] for key, value in vars(main).items()
             if key.startswith("__") and key != "__builtins__"},
    "builtins": type(main.__builtins__).__name__, "main_names": sorted(vars(main)),
    "environ": list(os.environ.items()), "environ_of_child": json.loads(child),
    "umask": os.umask(0o077), "nice": os.nice(0), "limits": [resource.getrlimit(each) for each in range(16)],
    "signals": {number: repr(signal.getsignal(number)) for number in signal.valid_signals()},
    "kernel": [status[each] for each in ("SigBlk", "SigIgn", "SigCgt", "Uid", "Gid", "NoNewPrivs")],
    "descriptors": {each: link(each) for each in os.listdir("/proc/self/fd") if link(each)},
    "streams": [[each.encoding, each.errors, each.line_buffering, each.write_through, each.mode, each.name,
                 each.isatty(), each.buffer.seekable() if each is not sys.stdin else None]
                for each in (sys.stdin, sys.stdout, sys.stderr)],
    "leads": [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()], "death": signal_of_death.value,
    "finders": [repr(each) if isinstance(each, type) else type(each).__name__ for each in sys.meta_path],
    "importers": [each for each in sys.path_importer_cache if not each.startswith(sys.base_prefix)
                  and "/ignite_tf_magic" not in each],
    "hooks": [sys.excepthook is sys.__excepthook__, sys.gettrace()],
    "threads": threading.active_count(), "recursion": sys.getrecursionlimit(),
    "parent_is_shim": open(f"/proc/{os.getppid()}/cmdline").read().split("\\0")[4][:9],
}))
"""


@pytest.mark.parametrize("stdin", [b"", b"secret"], ids=["no input", "input"])
def test_a_job_finds_the_same_warm_and_cold(relay, jobs, home, stdin):
    def found(name, is_warm):
        argv = [sys.executable, "-m", "told", PROBE, name]
        started = jobs.start(relay, PROBE, name=name, stdin=stdin, argv=argv)
        assert (started["pid"] in jobs.parked()) is is_warm
        assert relay.until_ended(name)["code"] == 0, relay.output(name)
        told = json.loads(relay.output(name).replace(name.encode(), b"NAME"))
        assert told["environ_of_child"].pop("IGNITE_TF_JOB")
        told["environ"] = [each for each in told["environ"] if each[0] != "IGNITE_TF_JOB"]
        told["environ_of_child"].pop("_", None)
        return told

    cold = found("g1-worker-0", is_warm=False)
    jobs.park(relay)
    warm = found("g1-worker-1", is_warm=True)
    assert not {key: (value, cold[key]) for key, value in warm.items() if cold[key] != value}
    assert cold["input"] == stdin.decode()
    files = {path for path in home.rglob("*") if not path.is_symlink()}
    assert {path.stat().st_mode & 0o077 for path in files} == {0}


def test_a_warm_job_ends_with_its_lease_its_fence_and_when_it_is_asked(relay, jobs):
    now = relay.call("hello")["now"]
    save = "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n" + SLEEP
    cases = {
        "lease": (SLEEP, {"lease": {"token": now, "lease_s": 30.0}}, -15),
        "ended": (save, {}, 7),
        "fenced": (SLEEP, {}, -15),
    }
    for number, (reason, (code, fields, exit_code)) in enumerate(cases.items()):
        name = f"g1-worker-{number}"
        jobs.park(relay)
        assert jobs.start(relay, code, name=name, **fields)["pid"] in jobs.parked()
        relay.until_output(b"up", name)
        if reason == "lease":
            relay.call("lease", run="r", generation=1, lease_s=0.1)
        elif reason == "ended":
            relay.call("end", run="r", names=[name], grace_s=20)
        else:
            relay.call("fence", run="r", generation=2)
        ended = relay.until_ended(name)
        assert (ended["reason"], ended["code"]) == (reason, exit_code)
    jobs.until_nothing_is_parked()


def test_a_warm_job_that_is_started_again_is_so_cold(relay, jobs):
    jobs.park(relay)
    first = jobs.start(relay, SLEEP, respawns=1)["pid"]
    relay.until_output(b"up")
    os.kill(first, signal.SIGKILL)
    until(lambda: relay.output().count(b"up") == 2)
    job = relay.job()
    assert (job["restarts"], job["pid"] != first) == (1, True)
    assert jobs.parked() == []


def test_a_warm_job_with_a_port_a_limit_of_memory_and_a_generation(relay, jobs):
    (port,) = relay.call("reserve", count=1)["ports"]
    relay.call("unreserve", ports=[port])
    jobs.park(relay, 2)
    eat = "rows = b'x' * (1 << 28)\n" + SLEEP
    assert jobs.start(relay, eat, ports=[port], memory_bytes=1 << 27)["pid"] in jobs.parked()
    with pytest.raises(Refusal) as error:
        jobs.start(relay, SLEEP, name="g1-worker-1", ports=[port])
    assert error.value.kind == "port_taken"
    assert relay.until_ended()["reason"] == "memory"
    relay.call("fence", run="r", generation=3)
    with pytest.raises(Refusal) as error:
        jobs.start(relay, SLEEP, name="g2-worker-1", generation=2)
    assert error.value.kind == "stale_generation"


@pytest.mark.parametrize("whom", ["outer", "inner", "both"])
def test_nothing_of_a_warm_job_survives_its_shim(relay, jobs, whom):
    jobs.park(relay)
    family = (
        "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
    )
    outer, inner = jobs.start(relay, family + SLEEP)["keepers"]
    relay.until_output(b"up")
    for pid in {"outer": [outer], "inner": [inner], "both": [outer, inner]}[whom]:
        os.kill(pid, signal.SIGKILL)
    if whom == "outer":
        assert relay.job()["state"] == "running"
        relay.call("end", run="r", grace_s=0)
    ended = relay.until_ended()
    assert ended["reason"] == ("ended" if whom == "outer" else "agent_lost")
    until(lambda: set(processes_of(jobs.home)) == {relay.process.pid}, what=lambda: processes_of(jobs.home))


# --- unused processes end ---------------------------------------------------------------------------------------


def test_they_end_with_the_client_that_asked_for_them(relay, jobs, home):
    with relay_at(home) as other:
        assert jobs.park(other, 2) == 2
        other.kill()
        jobs.until_nothing_is_parked()


def test_a_job_that_took_one_does_not_end_with_that_client(relay, jobs, home):
    with relay_at(home) as other:
        jobs.park(other)
        jobs.start(other, SLEEP)
        other.until_output(b"up")
    assert relay.job()["state"] == "running"


def test_they_end_when_they_are_old_or_asked_to(relay, jobs):
    jobs.park(relay, age_s=0.5)
    jobs.until_nothing_is_parked()
    jobs.park(relay)
    os.kill(max(jobs.shims()), signal.SIGTERM)
    jobs.until_nothing_is_parked()


def test_no_other_operation_sees_them(relay, jobs, home):
    jobs.park(relay)
    assert relay.call("list")["runs"] == []
    assert relay.call("tidy", unused_s=0.0)["kept"] == []
    assert len(jobs.parked()) == len(jobs.sockets()) == 1
    jobs.start(relay, PID)
    pid_told(relay)
    relay.call("remove", run="r")
    assert list((home / "runs").iterdir()) == []


# --- failures ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("whom", ["process", "inner", "outer", "all"])
def test_one_that_was_killed_is_taken_by_nobody(relay, jobs, whom):
    jobs.park(relay)
    outer, inner = sorted(jobs.shims())
    killed = {"process": jobs.parked(), "inner": [inner], "outer": [outer], "all": [outer, inner]}[whom]
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    jobs.start(relay, PID)
    pid_told(relay)
    jobs.until_nothing_is_parked()


@pytest.mark.nightly
@pytest.mark.parametrize("whom", ["inner", "outer"])
def test_one_whose_shim_stands_still_is_ended_and_the_job_starts_cold(relay, jobs, whom):
    """Nightly. Shorter: test_one_that_was_killed_is_taken_by_nobody"""
    jobs.park(relay)
    outer, inner = sorted(jobs.shims())
    os.kill({"inner": inner, "outer": outer}[whom], signal.SIGSTOP)
    jobs.start(relay, PID)
    pid_told(relay)
    jobs.until_nothing_is_parked()


def test_several_relays_at_once_start_each_job_once(relay, jobs, home, tmp_path):
    num_jobs, failures = 6, []
    jobs.park(relay, 3)
    parked = set(jobs.parked())
    count = (
        f"import os; os.write(os.open({str(tmp_path / 'COUNT')!r} + sys.argv[2], 1089, 0o600), b'.');" + PID
    )

    def start(number):
        try:
            with relay_at(home) as own:
                argv = [sys.executable, "-m", "told", count, str(number)]
                jobs.start(own, "", name=f"g1-worker-{number}", argv=argv)
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=start, args=(number,)) for number in range(num_jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    pids = [pid_told(relay, f"g1-worker-{number}") for number in range(num_jobs)]
    assert len(set(pids)) == num_jobs
    assert len(parked & set(pids)) == 3
    assert [(tmp_path / f"COUNT{number}").read_text() for number in range(num_jobs)] == ["."] * num_jobs
    jobs.until_nothing_is_parked()


@pytest.mark.parametrize("num_rounds", [4, pytest.param(60, marks=pytest.mark.nightly)])
def test_whatever_is_killed_while_a_job_is_handed_over_it_runs_once_at_most(
    relay, jobs, tmp_path, num_rounds
):
    chosen = random.Random(7)
    for number in range(num_rounds):
        jobs.park(relay)
        name, mark = f"g1-worker-{number}", tmp_path / f"mark{number}"
        code = f"import os; os.write(os.open({str(mark)!r}, 1089, 0o600), b'.');" + PID
        victims = [*jobs.shims(), *jobs.parked()]
        victim, pause_s = chosen.choice(victims), chosen.uniform(0.0, 0.04)
        killer = threading.Timer(
            pause_s, lambda pid=victim: psutil.pid_exists(pid) and os.kill(pid, signal.SIGKILL)
        )
        killer.start()
        jobs.start(relay, code, name=name)
        ended = relay.until_ended(name)
        killer.join()
        runs = mark.read_text() if mark.exists() else ""
        assert runs == "." or (runs == "" and ended["code"] != 0), (ended, runs)
        jobs.until_nothing_is_parked()
