"""Finds processes of a worker that use TensorFlow, and that the run cannot make part of it. Standard library only.

Python reads PYTHONPATH unless an option forbids it (-I, -E, -S). A shell script may have replaced it, or put a
directory with another sitecustomize.py in front. Linux shows such a process from outside; elsewhere none is found.
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
    """Looks at the processes of this session now and then, and reports each that is not part of the run once.

    Attributes:
        found: What was reported.

    Args:
        directory: What is the first of PYTHONPATH in those that are.
        say: Takes a line.
    """

    def __init__(self, directory: str, say: Callable[[str], None]) -> None:
        self._directory = directory
        self._say = say
        self._known = {os.getpid()}
        self.found: list[str] = []
        self._own = _read(os.getpid(), "cmdline")

    def start(self) -> None:
        """Begin to look, in a thread that ends with the process."""
        if _PROC.joinpath("self", "maps").exists():
            threading.Thread(target=self._work, name="unhooked-watch", daemon=True).start()

    def _work(self) -> None:
        pause = threading.Event()
        while not pause.wait(_LOOK_S):
            self.look()

    def look(self) -> None:
        """Look once."""
        for pid in _session():
            if pid in self._known or _MARK not in _read(pid, "maps"):
                continue
            self._known.add(pid)
            command = _read(pid, "cmdline")
            # One that was forked has the hooks of the process that it was forked from.
            if command != self._own and not self._is_hooked(pid, command):
                self.found.append(self._words(pid, command))
                self._say(self.found[-1])

    def _is_hooked(self, pid: int, command: bytes) -> bool:
        variables = _read(pid, "environ").split(b"\0")
        paths = [each.partition(b"=")[2] for each in variables if each.startswith(b"PYTHONPATH=")]
        return any(map(self._comes_first, paths)) and not _is_deaf(command)

    def _comes_first(self, paths: bytes) -> bool:
        """Tell whether the first directory with a sitecustomize is that of the run."""
        for each in os.fsdecode(paths).split(":"):
            if each == self._directory or Path(each, "sitecustomize.py").exists():
                return each == self._directory
        return False

    def _words(self, pid: int, command: bytes) -> str:
        shown = " ".join(each.decode(errors="replace") for each in command.split(b"\0") if each)[:100]
        return (
            f"ignite_tf_magic: process {pid} ({shown}) uses TensorFlow, but its interpreter knows nothing of this run: "
            "what it trains, it trains alone, not with the other workers. Keep the run's PYTHONPATH "
            '(PYTHONPATH="$PYTHONPATH:/my/path"), and leave python\'s options -I, -E and -S out'
        )


def _session() -> Iterator[int]:
    """Yield the processes of this one's session: a worker's first process has begun one."""
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
    """Whether an interpreter was told to ignore its environment, or to leave `site` out."""
    for word in command.split(b"\0")[1:]:
        if not word.startswith(b"-") or word in (b"-c", b"-m", b"-"):
            return False
        if not word.startswith((b"--", b"-W", b"-X")) and set(word) & set(b"IES"):
            return True
    return False
