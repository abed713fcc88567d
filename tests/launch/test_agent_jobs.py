"""Tests of jobs: start exactly once, leases, generations, devices, and full disks."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from benchmarks import fault_kinds
from tests.bed.bed_host import HostProcess
from tests.launch.relay_client import Refusal, clean_host, processes_of, relay_at
from tests.waiting import until

SLEEP = "import time; print('up'); time.sleep(600)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLEEP


@pytest.fixture
def relay(home):
    with clean_host(home) as relay:
        yield relay


def refused(relay, code=SLEEP, **fields) -> Refusal:
    with pytest.raises(Refusal) as error:
        relay.start(code, **fields)
    return error.value


def lease(relay, lease_s: float, age_s: float = 0.0) -> dict:
    return {"token": relay.call("hello")["now"] - age_s, "lease_s": lease_s}


# --- start ------------------------------------------------------------------------------------------------------


def test_the_campaign_of_faults_finds_the_shims_that_it_is_to_kill(relay, home):
    job = relay.start(SLEEP)
    found = [HostProcess(pid, tuple(argv), None) for pid, argv in processes_of(home).items()]
    assert len(found) > len(job["keepers"]) == 2
    assert {each.pid for each in found if fault_kinds._is_shim(each)} == set(job["keepers"])


def test_a_process_gets_what_was_asked_and_no_secret_reaches_a_disk(relay, home, tmp_path):
    code = """
import json, os, sys
print(json.dumps([sys.stdin.read(), os.environ["A"], os.getcwd(), os.getsid(0) == os.getpid(), sys.argv[1:],
    [name for name in os.environ if name == "IGNITE_TF_KEEPER"], len(os.listdir("/proc/self/fd")), os.umask(0)]))
"""
    (tmp_path / "dir").mkdir()
    argv = [sys.executable, "-c", code, "x", "ä"]
    mask = os.umask(0o022)
    os.umask(mask)
    relay.start(argv=argv, env={"A": "ß"}, cwd=str(tmp_path / "dir"), stdin=b"secret", log="deep/er/out.log")
    assert relay.until_ended()["code"] == 0
    relay.call("read", run="r", path="deep/er/out.log")
    # Four descriptors: the three standard ones, and the one that lists the directory.
    expected = ["secret", "ß", str(tmp_path / "dir"), True, ["x", "ä"], [], 4, mask]
    assert json.loads(relay.payload) == expected
    (home / "runs/r/deep/er/out.log").unlink()
    assert not [path for path in home.rglob("*") if path.is_file() and b"secret" in path.read_bytes()]
    modes = {path.stat().st_mode & 0o077 for path in home.rglob("*")}
    assert modes == {0}


@pytest.mark.parametrize(("stdin", "expected"), [(b"", b"0\n"), (bytes(1 << 20), b"1048576\n")])
def test_input_ends(relay, stdin, expected):
    relay.start("import sys; print(len(sys.stdin.buffer.read()))", stdin=stdin)
    relay.until_ended()
    assert relay.output() == expected


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"argv": ["/no/such/program"]}, "no_program"),
        ({"argv": ["no-such-program"]}, "no_program"),
        ({"argv": ["/etc/passwd"]}, "no_program"),
        ({"argv": ["/"]}, "no_program"),
        ({"cwd": "/no/such/directory"}, "no_directory"),
        ({"cwd": "/etc/passwd"}, "no_directory"),
        ({"argv": []}, "bad_request"),
        ({"argv": [5]}, "bad_request"),
        ({"env": {"A": None}}, "bad_request"),
        ({"argv": ["a\0b"]}, "no_program"),
        ({"run": "../r"}, "bad_request"),
        ({"run": ".."}, "bad_request"),
        ({"name": "a/b"}, "bad_request"),
        ({"name": ".hidden", "log": "log"}, "bad_request"),
        ({"log": "../log"}, "bad_path"),
        ({"log": "/tmp/log"}, "bad_path"),
        ({"log": "jobs"}, "bad_path"),
        ({"log": ""}, "bad_path"),
        ({"generation": None}, "bad_request"),
        ({"lease": {"token": 0.0, "lease_s": 1.0}}, "lease_over"),
    ],
)
def test_what_cannot_start_is_refused_and_leaves_no_job(relay, fields, kind):
    assert refused(relay, **fields).kind == kind
    assert relay.poll()["jobs"] == []
    relay.start("pass", run="r")
    assert relay.until_ended()["code"] == 0


def test_a_log_is_not_written_through_a_link(relay, home, tmp_path):
    (home / "runs/r").mkdir(parents=True)
    (home / "runs/r/link.log").symlink_to(tmp_path / "target")
    (home / "runs/r/directory").symlink_to(tmp_path)
    assert refused(relay, log="link.log").kind == "bad_path"
    assert refused(relay, log="directory/log").kind == "bad_path"
    assert not (tmp_path / "target").exists()


def test_a_missing_directory_is_made_when_asked(relay, home):
    relay.start("import os; print(os.getcwd())", cwd="made/for/it", cwd_create=True)
    relay.until_ended()
    assert relay.output().decode().strip() == str(home / "runs/r/made/for/it")


def test_a_start_repeated_after_a_lost_answer_starts_once(relay, home):
    first = relay.start(SLEEP, stdin=b"x", lease=lease(relay, 500))
    with relay_at(home) as other:
        again = other.start(SLEEP, stdin=b"x", lease=lease(relay, 500))
    assert again["pid"] == first["pid"]
    assert refused(relay, SLEEP, stdin=b"y").kind == "exists"
    assert refused(relay, SLEEP + "#", stdin=b"x").kind == "exists"
    relay.call("end", run="r", grace_s=0)
    ended = relay.until_ended()
    assert relay.start(SLEEP, stdin=b"x", lease=lease(relay, 500)) == ended


def test_two_relays_that_start_the_same_job_at_the_same_time_start_it_once(relay, home):
    with relay_at(home) as other:
        for round_number in range(5):
            name = f"job-{round_number}"
            found = []

            def start(each, name=name, found=found):
                found.append(each.start("print('once')", name=name))

            threads = [threading.Thread(target=start, args=(each,)) for each in (relay, other)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len({job["started_at"] for job in found}) == 1
            relay.until_ended(name)
            assert relay.output(name) == b"once\n"


def test_a_failed_start_is_told_to_both_who_asked(relay, home):
    with relay_at(home) as other:
        numbers = [
            (each, each.send("start", run="r", name="x", generation=1, argv=["/no"], env={}, log="x.log"))
            for each in (relay, other)
        ]
        for each, number in numbers:
            with pytest.raises(Refusal, match="/no"):
                each.answer(number)


# --- generations ------------------------------------------------------------------------------------------------


def test_older_generations_are_refused_and_ended_before_newer_ones_start(relay):
    relay.start(STUBBORN, name="g1", grace_s=0.5)
    relay.until_output(b"up", "g1")
    error = refused(relay, name="g2", generation=2)
    assert (error.kind, [job["name"] for job in error.reply["jobs"]]) == ("older_alive", ["g1"])
    error = refused(relay, name="late", generation=1)
    assert (error.kind, error.reply["fence"]) == ("stale_generation", 2)
    job = relay.until_ended("g1")
    assert (job["reason"], job["code"]) == ("fenced", -signal.SIGKILL)
    relay.start(SLEEP, name="g2", generation=2)
    assert refused(relay, STUBBORN, name="g1", grace_s=0.5).kind == "stale_generation"


def test_a_fence_ends_older_jobs_of_its_run_only_and_is_never_lowered(relay):
    relay.start(SLEEP, name="old")
    relay.start(SLEEP, name="kept", keep=True)
    relay.start(SLEEP, name="current", run="s", generation=7)
    assert relay.call("fence", run="r", generation=5)["fence"] == 5
    assert relay.call("fence", run="r", generation=3)["fence"] == 5
    assert relay.until_ended("old")["reason"] == "fenced"
    assert relay.job("kept")["state"] == relay.job("current", "s")["state"] == "running"
    assert relay.poll()["fence"] == 5
    assert relay.call("fence", run="unheard-of", generation=2)["fence"] == 2
    assert refused(relay, run="unheard-of").kind == "stale_generation"


# --- lease ------------------------------------------------------------------------------------------------------


def test_a_job_whose_lease_is_over_is_ended(relay, home):
    # Long enough for a busy machine to start Python, because SIGTERM is ignored only after that.
    relay.start(STUBBORN, lease=lease(relay, 5.0), grace_s=0.3)
    relay.kill()
    until(lambda: not processes_of(home))
    with relay_at(home) as later:
        job = later.job()
        assert (job["reason"], job["code"]) == ("lease", -signal.SIGKILL)


def test_only_recent_tokens_prolong_a_lease(relay, home):
    """A renewal counts from the time of its token, which the client last knew, not from its arrival."""
    relay.start(SLEEP, lease=lease(relay, 1.0))
    relay.poll(renew={"generation": 1, **lease(relay, 500)})
    deadline = relay.call("hello")["now"] + 400
    for renewal in (lease(relay, 30, age_s=60), lease(relay, 30), {"token": 0.0, "lease_s": 0.1}):
        relay.poll(renew={"generation": 1, **renewal})
    path = home / "runs/r/jobs/g1-worker-0/lease"
    assert float(path.read_text()) > deadline
    relay.poll(renew={"generation": 1, "token": 1e12, "lease_s": 600})
    assert float(path.read_text()) < deadline + 1000


def test_a_delayed_renewal_does_not_prolong(relay):
    relay.start(SLEEP, lease=lease(relay, 0.5))
    late = {"generation": 1, **lease(relay, 0.5)}
    while relay.job()["state"] == "running":
        relay.poll(renew=late)
    assert relay.until_ended()["reason"] == "lease"


def test_renewals_keep_a_job_alive_of_that_generation_only(relay):
    relay.start(SLEEP, name="a", lease=lease(relay, 4.0))
    relay.start(SLEEP, name="other", run="s", lease=lease(relay, 4.0))
    while relay.job("other", "s")["state"] == "running":
        relay.poll(renew={"generation": 1, **lease(relay, 4.0)})
        relay.poll("s", renew={"generation": 2, **lease(relay, 4.0)})
    assert relay.job("a")["state"] == "running"


def test_a_lease_is_set_further_off_and_back_for_one_generation_only(relay):
    relay.start(SLEEP, lease=lease(relay, 4.0))
    relay.start(SLEEP, name="other", run="s", lease=lease(relay, 4.0))
    relay.start(SLEEP, name="free", run="s")
    relay.call("lease", run="r", generation=1, lease_s=500)
    relay.call("lease", run="s", generation=2, lease_s=500)
    relay.poll(renew={"generation": 1, **lease(relay, 0.1)})
    relay.until_ended("other", "s")
    assert relay.job()["state"] == "running"
    relay.call("lease", run="r", generation=1, lease_s=0.1)
    assert relay.until_ended()["reason"] == "lease"
    relay.call("lease", run="s", generation=1, lease_s=0)
    assert relay.job("free", "s")["state"] == "running"


# --- kept jobs --------------------------------------------------------------------------------------------------


def test_a_kept_job_is_started_again_until_it_ends_well(relay, tmp_path):
    code = """
import os, sys
print(sys.stdin.read())
with open('n', 'a') as file: file.write('x')
sys.exit(os.stat('n').st_size < 3)
"""
    (tmp_path / "n").write_text("")
    relay.start(code, name="kept", keep=True, generation=5, cwd=str(tmp_path), stdin=b"in")
    job = relay.until_ended("kept")
    assert (job["restarts"], job["code"], job["reason"], job["generation"]) == (2, 0, "exited", 0)
    assert relay.output("kept") == b"in\n" * 3


def test_a_kept_job_ends_when_it_is_named(relay):
    relay.start("raise SystemExit(1)", name="kept", keep=True)
    until(lambda: relay.job("kept")["restarts"])
    relay.call("end", run="r", grace_s=0)
    relay.call("end", run="r", names=["kept"], grace_s=5)
    assert relay.until_ended("kept")["reason"] == "ended"


# --- jobs that are started again ------------------------------------------------------------------------------


def test_a_process_that_a_signal_ended_is_started_again_so_often(relay):
    code = "import os; print('here', flush=True); os.kill(os.getpid(), 9)"
    relay.start(code, respawns=2)
    job = relay.until_ended()
    assert (job["restarts"], job["code"], job["reason"], job["generation"]) == (2, -9, "exited", 1)
    again = b"ignite_tf_magic: ended by signal 9; started again (%d)\n"
    assert relay.output() == b"here\n" + again % 1 + b"here\n" + again % 2 + b"here\n"


def test_a_process_that_ends_by_itself_is_not_started_again(relay):
    relay.start("raise SystemExit(3)", respawns=2)
    job = relay.until_ended()
    assert (job["restarts"], job["code"]) == (0, 3)


def test_a_process_that_has_reported_its_end_and_lives_on_is_ended_as_it_reported(relay, home):
    """For example a process that hangs in a library's destructor."""
    code = """
import pathlib, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path("exit.json").write_text('{"exit_code": 3}')
print("reported", flush=True)
time.sleep(600)
"""
    relay.start(code, exit_file="exit.json", cwd=".")
    job = relay.until_ended()
    assert (job["code"], job["reason"]) == (3, "exited")
    assert relay.output() == b"reported\n"


def test_a_later_generation_fences_a_job_that_waits_to_be_started_again(relay):
    relay.start("import os; os.kill(os.getpid(), 9)", respawns=100)
    until(lambda: relay.job()["restarts"])
    relay.call("fence", run="r", generation=2)
    assert relay.until_ended()["reason"] == "fenced"


# --- devices ----------------------------------------------------------------------------------------------------


def test_ports_belong_to_one_job_and_its_own_server_can_use_them(relay, home):
    (port, spare) = relay.call("reserve", count=2)["ports"]
    code = f"""
import socket, time
for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, option, 1); s.bind(("", {port})); s.listen()
print("up"); time.sleep(600)
"""
    relay.start(code, ports=[port])
    relay.until_output(b"up")
    with relay_at(home) as other:
        error = refused(other, run="s", ports=[port])
        assert (error.kind, error.reply["port"]) == ("port_taken", port)
        assert refused(relay, run="s", ports=[port]).kind == "port_taken"
        relay.call("unreserve", ports=[port, spare])
        assert other.call("reserve", count=1, range=[spare, spare])["ports"] == [spare]
        for relays in (relay, other):
            with pytest.raises(Refusal, match="free") as taken:
                relays.call("reserve", count=1, range=[port, port])
            assert taken.value.kind == "no_ports"
    relay.call("end", run="r", grace_s=0)
    relay.until_ended()
    relay.start(SLEEP, run="s", ports=[port])


@pytest.mark.parametrize("option", [0, socket.SO_REUSEADDR, socket.SO_REUSEPORT])
def test_a_port_at_which_somebody_listens_is_taken(relay, option):
    with socket.socket() as listener:
        if option:
            listener.setsockopt(socket.SOL_SOCKET, option, 1)
        listener.bind(("", 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert refused(relay, ports=[port]).kind == "port_taken"
        with pytest.raises(Refusal):
            relay.call("reserve", count=1, range=[port, port])
    assert relay.poll()["jobs"] == []


def test_listening_connecting_and_routes(relay):
    port = relay.call("listen")["port"]
    targets = [["127.0.0.1", port], ["127.0.0.1", 1], ["no such host", 1]]
    results = relay.call("connect", targets=targets, timeout_s=5)["results"]
    assert results[0] is None
    assert "refused" in results[1]
    assert results[2]
    relay.call("unlisten", port=port)
    assert relay.call("connect", targets=targets[:1], timeout_s=5)["results"][0]
    assert relay.call("route", addresses=["127.0.0.1", "nonsense::"])["sources"] == ["127.0.0.1", None]


SMI = """#!/bin/sh
printf '0, GPU-a, Tesla, 16384\\n1, GPU-b, Tesla, 16384\\n2, GPU-c, Tesla, [N/A]\\n'
"""


def test_gpus_are_given_to_one_job_each(home, tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/nvidia-smi").write_text(SMI)
    (tmp_path / "bin/nvidia-smi").chmod(0o755)
    env = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    with clean_host(home), relay_at(home, env=env) as relay:
        show = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])\n" + SLEEP
        assert relay.start(show, gpus=2)["gpus"] == [0, 1]
        error = refused(relay, show, run="s", gpus=2)
        assert (error.kind, error.reply["free"], error.reply["total"]) == ("no_gpu", 1, 3)
        assert relay.start(show, run="s", gpus=1)["gpus"] == [2]
        assert relay.until_output(b"up") == b"0,1\nup\n"
        relay.call("end", run="r", grace_s=0)
        relay.until_ended()
        assert relay.start(show, run="t", gpus=1)["gpus"] == [0]
        probed = relay.call("probe", modules=["pytest", "no-such-thing"])
        assert [gpu["memory_mb"] for gpu in probed["gpus"]] == [16384, 16384, None]
        assert probed["modules"]["pytest"] == pytest.__version__
        assert probed["modules"]["no-such-thing"] is None


def test_without_gpus_none_are_given(home, tmp_path):
    (tmp_path / "empty").mkdir()
    with clean_host(home), relay_at(home, env={"PATH": str(tmp_path / "empty")}) as relay:
        assert refused(relay, gpus=1).kind == "no_gpu"


# --- out of memory, out of disk ---------------------------------------------------------------------------------


def test_a_kill_for_want_of_memory_is_told(relay):
    group = Path(f"/sys/fs/cgroup/memory/ignite-tf-test-{os.getpid()}")
    try:
        group.mkdir()
    except OSError:
        pytest.skip("may not make memory groups")
    try:
        (group / "memory.limit_in_bytes").write_text(str(64 << 20))
        join = f"import os; open('{group}/cgroup.procs', 'w').write(str(os.getpid()))\n"
        relay.start(join + "print('up')\nkept = []\nwhile True: kept.append(bytearray(b'x' * (1 << 20)))")
        job = relay.until_ended()
        assert (job["code"], job["oom"]) == (-signal.SIGKILL, True)
    finally:
        until(lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()


@pytest.fixture
def small_disk(home):
    """Mount a disk of 24 MiB as home."""
    home.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m,mode=700", "tmpfs", str(home)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False).returncode:
        pytest.skip("may not mount a small disk")
    yield home
    subprocess.run(["umount", "-l", str(home)], check=True)


def fill(directory) -> None:
    with (directory / "filler").open("ab", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                pass


def test_on_a_full_disk_jobs_go_on_and_end_and_new_ones_are_refused(small_disk):
    with clean_host(small_disk) as relay:
        relay.start(
            """
import time
print('up')
while True:
    try: print('x' * 4000, flush=True)
    except OSError: pass
    time.sleep(0.01)
""",
            lease=lease(relay, 500),
        )
        relay.until_output(b"up")
        fill(small_disk)
        beat = relay.job()["beat"]
        until(lambda: relay.job()["beat"] > beat)
        size = relay.job()["log_bytes"]
        assert refused(relay, name="new").kind == "disk_full"
        assert [job["name"] for job in relay.poll()["jobs"]] == ["g1-worker-0"]
        with pytest.raises(Refusal) as full:
            relay.call("write", b"x" * 5000, run="r", path="file", mode=0o600)
        assert full.value.kind == "disk_full"
        relay.poll(renew={"generation": 1, **lease(relay, 500)})
        (small_disk / "filler").unlink()
        until(lambda: relay.job()["log_bytes"] > size)
        fill(small_disk)
        relay.call("end", run="r", grace_s=5)
        job = relay.until_ended()
        assert (job["code"], job["reason"]) == (-signal.SIGTERM, "ended")
        (small_disk / "filler").unlink()
        relay.start("pass", name="new")
        assert relay.until_ended("new")["code"] == 0


def test_a_relay_works_although_the_disk_has_no_room_for_it(small_disk):
    fill(small_disk)
    with clean_host(small_disk) as relay:
        assert relay.word == "NEED"
        assert relay.call("list")["runs"] == []
        assert refused(relay).kind == "disk_full"


# --- files ------------------------------------------------------------------------------------------------------


def test_files_of_a_run(relay, home):
    relay.call("write", b"12345", run="r", path="a/b/file", mode=0o600)
    relay.call("write", b"67", run="r", path="a/b/file", mode=0o600, append=True)
    assert relay.call("read", run="r", path="a/b/file", offset=4, max_bytes=2)["file_size"] == 7
    assert relay.payload == b"56"
    relay.call("write", b"new", run="r", path="a/b/file", mode=0o700)
    assert (home / "runs/r/a/b/file").stat().st_mode & 0o777 == 0o700
    assert not relay.call("read", run="r", path="a/none")["exists"]
    assert not relay.call("read", run="none", path="a")["exists"]
    assert sorted(path.name for path in (home / "runs/r/a/b").iterdir()) == ["file"]


@pytest.mark.parametrize(
    "path", ["", "/etc/passwd", "..", "a/../../x", "a//b", "./a", "a/", "a\0b", "x" * 300, None]
)
def test_paths_stay_in_the_run(relay, path):
    for op in ("read", "write"):
        with pytest.raises(Refusal) as error:
            relay.call(op, b"", run="r", path=path)
        assert error.value.kind == "bad_path"
    with pytest.raises(Refusal):
        relay.poll(logs={str(path): 0} if path is not None else {"": 0})


def test_links_are_not_followed_and_our_own_files_not_overwritten(relay, home, tmp_path):
    relay.start("pass")
    relay.until_ended()
    (tmp_path / "secret").write_text("secret")
    (home / "runs/r/link").symlink_to(tmp_path / "secret")
    (home / "runs/r/out").symlink_to(tmp_path)
    os.mkfifo(home / "runs/r/pipe")
    for path in ("link", "out/secret", "pipe", "jobs"):
        with pytest.raises(Refusal) as error:
            relay.call("read", run="r", path=path)
        assert error.value.kind == "bad_path", path
    with pytest.raises(Refusal):
        relay.call("write", b"x", run="r", path="out/secret")
    for path in ("fence", "jobs/g1-worker-0/lease", "stop"):
        with pytest.raises(Refusal) as error:
            relay.call("write", b"x", run="r", path=path)
        assert error.value.kind == "denied"
    assert (tmp_path / "secret").read_text() == "secret"


def test_a_run_is_removed_only_when_nothing_of_it_lives(relay, home):
    relay.call("write", json.dumps({"cache": "MNIST"}).encode(), run="r", path="run.json")
    relay.start(SLEEP)
    with pytest.raises(Refusal) as error:
        relay.call("remove", run="r")
    assert error.value.kind == "alive"
    relay.call("stop", run="r")
    (run,) = relay.call("list")["runs"]
    assert (run["run"], run["record"], run["stop"], run["fence"]) == ("r", {"cache": "MNIST"}, True, 1)
    relay.call("end", run="r", grace_s=0)
    relay.until_ended()
    relay.call("remove", run="r")
    relay.call("remove", run="r")
    assert relay.call("list")["runs"] == []
    assert list((home / "runs").iterdir()) == []
    with pytest.raises(Refusal) as error:
        relay.call("stop", run="r")
    assert error.value.kind == "no_run"


def test_damaged_files_of_one_run_hide_no_other(relay, home):
    for run in ("good", "bad"):
        relay.start("pass", run=run)
        relay.until_ended(run=run)
    (home / "runs/bad/run.json").write_text("{")
    (home / "runs/bad/jobs/g1-worker-0/job.json").write_text("")
    (home / "runs/bad/jobs/g1-worker-0/exit.json").write_text("")
    (home / "runs/bad/jobs/empty").mkdir()
    (home / "runs/file").write_text("")
    with relay_at(home) as later:
        runs = {run["run"]: run for run in later.call("list")["runs"]}
        assert [job["code"] for job in runs["good"]["jobs"]] == [0]
        assert runs["bad"]["record"] is None
    (home / "runs/file").unlink()
