"""Finds processes of a worker that use TensorFlow but cannot take part in the run. Standard library only.

Python reads PYTHONPATH unless an option forbids it (-I, -E, -S). A shell script may have replaced it, or put a
directory with another sitecustomize.py in front. Linux shows such processes from outside; other systems do not, so
none is found there.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

_LOOK_S = 2.0
_MARK = b"libtensorflow_framework"
_PROC = Path("/proc")


class UnhookedWatch:
    """Checks the processes of this session at intervals and reports each process outside the run once.

    Attributes:
        found: The reported lines.

    Args:
        directory: First entry of PYTHONPATH in the processes that belong to the run.
        say: Called with each line to report.
    """

    def __init__(self, directory: str, say: Callable[[str], None]) -> None:
        self._directory = directory
        self._say = say
        self._known = {os.getpid()}
        self.found: list[str] = []
        self._own = _read(os.getpid(), "cmdline")

    def start(self) -> None:
        """Start checking, in a thread that ends with the process."""
        if _PROC.joinpath("self", "maps").exists():
            threading.Thread(target=self._work, name="unhooked-watch", daemon=True).start()

    def _work(self) -> None:
        pause = threading.Event()
        while not pause.wait(_LOOK_S):
            self.look()

    def look(self) -> None:
        """Check once."""
        for pid in _session():
            if pid in self._known or _MARK not in _read(pid, "maps"):
                continue
            self._known.add(pid)
            command = _read(pid, "cmdline")
            # A forked process has the import hooks of its parent.
            if command != self._own and not self._is_hooked(pid, command):
                self.found.append(self._words(pid, command))
                self._say(self.found[-1])

    def _is_hooked(self, pid: int, command: bytes) -> bool:
        variables = _read(pid, "environ").split(b"\0")
        paths = [each.partition(b"=")[2] for each in variables if each.startswith(b"PYTHONPATH=")]
        return any(map(self._comes_first, paths)) and not _is_deaf(command)

    def _comes_first(self, paths: bytes) -> bool:
        """Return whether the run's directory is the first one that has a sitecustomize."""
        for each in os.fsdecode(paths).split(":"):
            if each == self._directory or Path(each, "sitecustomize.py").exists():
                return each == self._directory
        return False

    def _words(self, pid: int, command: bytes) -> str:
        shown = " ".join(each.decode(errors="replace") for each in command.split(b"\0") if each)[:100]
        return (
            f"ignite_tf_magic: process {pid} ({shown}) uses TensorFlow, but its interpreter does not know "
            "this run, so it trains alone, not with the other workers. Keep the run's PYTHONPATH "
            '(PYTHONPATH="$PYTHONPATH:/my/path"), and do not pass -I, -E or -S to python'
        )


def _session() -> Iterator[int]:
    """Yield the process ids of this process's session, which the worker's first process started."""
    own = os.getsid(0)
    for path in _PROC.iterdir():
        if path.name.isdigit():
            try:
                if os.getsid(int(path.name)) == own:
                    yield int(path.name)
            except OSError:  # it has ended
                continue


def _read(pid: int, name: str) -> bytes:
    try:
        return _PROC.joinpath(str(pid), name).read_bytes()
    except OSError:  # it has ended, or is another user's
        return b""


def _is_deaf(command: bytes) -> bool:
    """Return whether an interpreter's options make it ignore its environment or skip `site`."""
    for word in command.split(b"\0")[1:]:
        if not word.startswith(b"-") or word in (b"-c", b"-m", b"-"):
            return False
        if not word.startswith((b"--", b"-W", b"-X")) and set(word) & set(b"IES"):
            return True
    return False
