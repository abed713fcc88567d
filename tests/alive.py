"""Checks whether a process is alive."""

from __future__ import annotations

import psutil


def is_alive(pid: int) -> bool:
    """Return whether the process is alive. A zombie, whose exit code no parent has read yet, is not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
