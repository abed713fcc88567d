"""Whether a process lives."""

from __future__ import annotations

import psutil


def is_alive(pid: int) -> bool:
    """Whether it does; a zombie, which nobody has asked for its exit code yet, does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
