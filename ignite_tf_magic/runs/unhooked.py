"""Tells of processes of a worker that use TensorFlow, and that the run cannot make part of it. Standard library only.

Python listens to PYTHONPATH unless it is told not to (-I, -E, -S), and a shell script may have put another in its
place. Such a process looks like any other from within; from outside, Linux tells. Elsewhere nothing is told.
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
    """Looks at the processes of this session now and then, and tells once of each that is not part of the run.

    Args:
        directory: What is the first of PYTHONPATH in those that are.
        say: Takes a line.
    """

    def __init__(self, directory: str, say: Callable[[str], None]) -> None:
        self._directory = directory
        self._say = say
        self._known = {os.getpid()}
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
                self._say(self._words(pid, command))

    def _is_hooked(self, pid: int, command: bytes) -> bool:
        variables = _read(pid, "environ").split(b"\0")
        paths = [each.partition(b"=")[2] for each in variables if each.startswith(b"PYTHONPATH=")]
        return any(self._directory.encode() in each.split(b":") for each in paths) and not _is_deaf(command)

    def _words(self, pid: int, command: bytes) -> str:
        shown = " ".join(each.decode(errors="replace") for each in command.split(b"\0") if each)[:100]
        return (
            f"ignite_tf_magic: process {pid} ({shown}) uses TensorFlow, but its interpreter knows nothing of this run: "
            "what it trains, it trains alone, not with the other workers. Keep the run's PYTHONPATH "
            '(PYTHONPATH="/my/path:$PYTHONPATH"), and leave python\'s options -I, -E and -S out'
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
