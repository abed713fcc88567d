"""Signals to processes of this machine and to their groups. Standard library only; a worker imports it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys


def kill_group(pid: int) -> None:
    """Kill a process and its group. The caller knows that the number still is that process's."""
    if sys.platform == "win32":
        import subprocess

        subprocess.run(["taskkill", "/F", "/T", "/PID", str(pid)], capture_output=True, check=False)
        return
    # Gone; macOS says EPERM of a group of which only the dead leader is left.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def ask_to_end(pid: int) -> None:
    """Send SIGTERM to a process. The caller knows that the number still is that process's."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
