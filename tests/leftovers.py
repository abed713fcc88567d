"""Ends the processes that a test session left running."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

_GRACE_S = 10.0


def end_leftovers(directory: Path) -> list[str]:
    """End all processes whose TMPDIR, working directory or command line contains a directory.

    Returns:
        Their command lines.
    """
    found = list(_processes_of(directory))
    words = [_command_line(process) for process in found]
    for process in found:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    _, alive = psutil.wait_procs(found, _GRACE_S)
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(alive, _GRACE_S)
    return words


def _processes_of(directory: Path) -> Iterator[psutil.Process]:
    own = psutil.Process()
    for process in psutil.process_iter():
        # Skip processes that belong to another account or end at this moment.
        with suppress(psutil.Error):
            names = [process.environ().get("TMPDIR", ""), process.cwd(), *process.cmdline()]
            if process != own and any(str(directory) in name for name in names):
                yield process


def _command_line(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return f"{process.pid} {' '.join(process.cmdline())[:200]}"
    return f"{process.pid} (ended)"
