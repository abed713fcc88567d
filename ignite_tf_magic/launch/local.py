"""Processes on this machine, each with its children in a group of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import PurePath
from typing import Any

from ignite_tf_magic.errors import LaunchError
from ignite_tf_magic.launch.base import Command
from ignite_tf_magic.launch.groups import kill_group

LOCAL_HOST = "localhost"
_POLL_S = 0.02


class LocalLauncher:
    """Starts processes on this machine; see `launch.base.Launcher`."""

    def start(self, host: str, command: Command, output_path: PurePath) -> LocalProcess:
        """Start a process here; `host` can only be "localhost"."""
        if host != LOCAL_HOST:
            raise LaunchError(
                f"cannot start a process on {host!r}: the local launcher only serves {LOCAL_HOST!r}"
            )
        try:
            output = os.open(output_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as error:
            raise LaunchError(f"cannot write the output of {command.argv[0]!r}: {error}") from error
        try:
            return LocalProcess(_popen(command, output))
        except OSError as error:
            raise LaunchError(f"cannot start {command.argv[0]!r} on this machine: {error}") from error
        finally:
            os.close(output)


def _popen(command: Command, output: int) -> subprocess.Popen[bytes]:
    with tempfile.TemporaryFile() as stdin:
        if command.stdin_text is not None:
            stdin.write(command.stdin_text.encode())
            stdin.seek(0)
        return subprocess.Popen(
            list(command.argv),
            env={**os.environ, **command.env},
            cwd=command.cwd,
            stdin=subprocess.DEVNULL if command.stdin_text is None else stdin,
            stdout=output,
            stderr=subprocess.STDOUT,
            **_own_group(),
        )


def _own_group() -> dict[str, Any]:
    if sys.platform == "win32":
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
    return {"start_new_session": True}


class LocalProcess:
    """A process of this machine; see `launch.base.Process`."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self._popen = popen

    @property
    def pid(self) -> int:
        """Number of the process and of its group."""
        return self._popen.pid

    def poll(self) -> int | None:
        """Give the exit code, or None while the process runs."""
        if self._popen.returncode is None and _is_zombie(self.pid):
            kill_group(self.pid)  # before it is waited for: its number is still taken
        return self._popen.poll()

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Wait until the process has ended."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while (code := self.poll()) is None and (deadline is None or time.monotonic() < deadline):
            time.sleep(_POLL_S)
        return code

    def terminate(self) -> None:
        """Ask the process to end."""
        self._popen.terminate()

    def kill(self) -> None:
        """Kill the process and its group."""
        if self._popen.returncode is None:
            kill_group(self.pid)


def _is_zombie(pid: int) -> bool:
    """Tell whether a child has ended and was not waited for; False where the system cannot tell."""
    if not hasattr(os, "waitid"):
        return False
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # somebody else in this process has waited for it
        return False
