"""Starts, recognizes and ends detached processes of this machine. POSIX; standard library only.

A process is identified by its process ID and start time, so that a process with a reused ID is never signalled.
An intermediate process starts the processes and exits, so that they belong to the system's init. They leave no
zombies and no open handles in the caller.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ignite_tf_magic.launch.files import write_private
from ignite_tf_magic.launch.log_files import tail
from ignite_tf_magic.launch.spawner import spawn

_POLL_S = 0.05
_LAST_LINES, _MAX_LINE = 20, 400
_SPAWN_S = 10.0
_SPAWNER = """
import sys
sys.path.insert(0, sys.argv[1])
from ignite_tf_magic.embedded.processes import start_all
start_all()
"""


@dataclass(frozen=True, slots=True)
class DetachedProcess:
    """A process that this module started.

    Attributes:
        birth: Start time of the process in the system's format; it differs for another process with the same ID.
    """

    pid: int
    birth: str

    def is_running(self) -> bool:
        """Return whether the process still runs."""
        return birth_of(self.pid) == self.birth

    def signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.is_running():
            with suppress(ProcessLookupError):  # it may end in between
                os.kill(self.pid, number)


def birth_of(pid: int) -> str | None:
    """Return the start time of a process in the system's format; None if it has ended, reaped or not."""
    stat = Path(f"/proc/{pid}/stat")
    if not Path("/proc/self/stat").exists():
        return _birth_from_ps(pid)
    try:
        fields = stat.read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    # A killed process becomes a zombie at once, but its ports stay open until its last thread has ended.
    has_ended = fields[0] in "ZX" and int(fields[17]) <= 1
    return None if has_ended else f"{boot} {fields[19]}"


def _birth_from_ps(pid: int) -> str | None:
    answer = subprocess.run(
        ["ps", "-o", "state=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    state, _, started = answer.stdout.strip().partition(" ")
    return None if not started or state.startswith("Z") else started.strip()


@dataclass(frozen=True, slots=True)
class Spawn:
    """A process to start.

    Attributes:
        env: The complete environment of the process.
        log: File to which its output is appended; created with mode 0600.
        process_file: File that receives the `DetachedProcess` as soon as the process runs.
    """

    argv: Sequence[str]
    cwd: Path
    env: Mapping[str, str]
    log: Path
    process_file: Path


def spawn_detached(spawns: Iterable[Spawn]) -> None:
    """Start processes in sessions of their own, which outlive this process.

    When this returns, all `process_file`s are written. After an interrupt, those of the started processes are.

    Raises:
        OSError: A process could not be started; those before it run.
    """
    specs = [
        {
            "argv": list(spawn.argv),
            "cwd": str(spawn.cwd),
            "env": dict(spawn.env),
            "log": str(spawn.log),
            "process_file": str(spawn.process_file),
        }
        for spawn in spawns
    ]
    with subprocess.Popen(
        [sys.executable, "-I", "-c", _SPAWNER, str(Path(__file__).resolve().parents[2])],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C in this process must not reach it
    ) as spawner:
        try:
            _, errors = spawner.communicate(json.dumps(specs))
        except BaseException:
            spawner.wait(_SPAWN_S)  # lets it record the processes that it started, so that they can be ended
            raise
    if spawner.returncode:
        raise OSError(f"could not start a process: {errors.strip().rpartition(chr(10))[2]}")


def read_process(process_file: Path) -> DetachedProcess | None:
    """Read a file written by `spawn_detached`; None if it does not exist."""
    try:
        record = json.loads(process_file.read_text())
    except FileNotFoundError:
        return None
    return DetachedProcess(int(record["pid"]), str(record["birth"]))


def end(processes: Iterable[DetachedProcess], grace_s: float) -> tuple[DetachedProcess, ...]:
    """Send SIGTERM to processes, wait, and kill those that still run after `grace_s` seconds.

    Returns:
        The processes that had to be killed.
    """
    remaining = [process for process in processes if process.is_running()]
    for process in remaining:
        process.signal(signal.SIGTERM)
    remaining = _wait_ended(remaining, grace_s)
    for process in remaining:
        process.signal(signal.SIGKILL)
    _wait_ended(remaining, 5.0)
    return tuple(remaining)


def _wait_ended(processes: list[DetachedProcess], timeout_s: float) -> list[DetachedProcess]:
    deadline = time.monotonic() + timeout_s
    while processes := [process for process in processes if process.is_running()]:
        if time.monotonic() > deadline:
            break
        time.sleep(_POLL_S)
    return processes


def end_of(log: Path) -> str:
    """Return the last lines of a log file, for a message."""
    lines = tail(log, _LAST_LINES)
    nothing = "(the log is empty)" if log.exists() else "(there is no log)"
    return "\n".join(line[:_MAX_LINE] for line in lines) or nothing


def start_all() -> None:
    """Run as the intermediate process: start the processes listed on standard input, and exit."""
    for spec in json.load(sys.stdin):
        process = spawn(spec["argv"], cwd=Path(spec["cwd"]), env=spec["env"], output=Path(spec["log"]))
        record = {"pid": process.pid, "birth": birth_of(process.pid) or ""}
        write_private(Path(spec["process_file"]), json.dumps(record))
    os._exit(0)  # without waiting for the children
