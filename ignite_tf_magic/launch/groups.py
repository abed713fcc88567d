"""Sends signals to local processes and their groups. Standard library only, because workers import it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys


def kill_group(pid: int) -> None:
    """Kill a process and its group. The caller must know that the pid still belongs to that process."""
    if sys.platform == "win32":
        import subprocess

        subprocess.run(["taskkill", "/F", "/T", "/PID", str(pid)], capture_output=True, check=False)
        return
    # The group is gone. macOS raises EPERM if only the dead leader of the group is left.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def ask_to_end(pid: int) -> None:
    """Send SIGTERM to a process. The caller must know that the pid still belongs to that process."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
