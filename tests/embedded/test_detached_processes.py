from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ignite_tf_magic.embedded.processes import (
    DetachedProcess,
    Spawn,
    birth_of,
    end,
    end_of,
    read_process,
    spawn_detached,
)
from tests.waiting import until

SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(100)"]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(100)",
]
LEADERLESS = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(100,)).start()
ctypes.CDLL(None).pthread_exit(None)
"""


def spawn(folder: Path, argv: list[str]) -> DetachedProcess:
    spawn_detached([Spawn(argv, folder, {"MARK": "1"}, folder / "log", folder / "process.json")])
    process = read_process(folder / "process.json")
    assert process is not None
    until(lambda: "up" in (folder / "log").read_text())
    return process


def test_a_detached_process_is_no_child_and_has_a_session_of_its_own(tmp_path):
    process = spawn(tmp_path, SLEEP)
    try:
        assert process.is_running()
        assert os.getsid(process.pid) == process.pid
        with pytest.raises(ChildProcessError):
            os.waitpid(process.pid, os.WNOHANG)
        assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600
        assert (tmp_path / "process.json").stat().st_mode & 0o777 == 0o600
    finally:
        assert end([process], 5.0) == ()
    assert not process.is_running()


def test_a_process_that_does_not_end_when_asked_is_killed(tmp_path):
    process = spawn(tmp_path, STUBBORN)
    assert end([process], 0.2) == (process,)
    assert not process.is_running()


def test_a_pid_that_belongs_to_somebody_else_now_is_not_signalled():
    with subprocess.Popen(SLEEP, stdout=subprocess.DEVNULL) as bystander:
        earlier = DetachedProcess(bystander.pid, "an earlier start")
        assert not earlier.is_running()
        end([earlier], 0.1)
        earlier.signal(signal.SIGKILL)
        assert bystander.poll() is None
        bystander.kill()


def test_a_zombie_has_ended():
    with subprocess.Popen(["true"]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert birth_of(child.pid) is None


def test_a_zombie_whose_threads_still_run_has_not_ended():
    with subprocess.Popen([sys.executable, "-c", LEADERLESS]) as child:
        until(lambda: ") Z " in Path(f"/proc/{child.pid}/stat").read_text())
        assert birth_of(child.pid) is not None
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert birth_of(child.pid) is None


def test_a_program_that_is_missing_is_told(tmp_path):
    with pytest.raises(OSError, match="no-such-program"):
        spawn_detached(
            [Spawn(["no-such-program"], tmp_path, {}, tmp_path / "log", tmp_path / "process.json")]
        )


def test_only_the_environment_given_is_passed_on(tmp_path, monkeypatch):
    monkeypatch.setenv("HUSH_TOKEN", "hush")
    show = [sys.executable, "-c", "import os, json; print(json.dumps(dict(os.environ)), 'up', flush=True)"]
    spawn(tmp_path, show)
    seen = json.loads((tmp_path / "log").read_text().rpartition("up")[0])
    assert seen["MARK"] == "1"
    assert "HUSH_TOKEN" not in seen


def test_the_tail_of_a_log_is_cut_in_lines_and_in_width(tmp_path):
    log = tmp_path / "log"
    log.write_text("\n".join(f"line {number}" for number in range(50_000)) + "\n" + "x" * 10_000 + "\n")
    lines = end_of(log).splitlines()[-3:]
    assert lines[:2] == ["line 49998", "line 49999"]
    assert set(lines[2]) == {"x"} and len(lines[2]) < 1000


def test_a_missing_and_an_empty_log_are_told_apart(tmp_path):
    (tmp_path / "empty").touch()
    assert end_of(tmp_path / "empty") == "(the log is empty)"
    assert end_of(tmp_path / "none") == "(there is no log)"
