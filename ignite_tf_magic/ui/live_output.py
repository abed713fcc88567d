"""What several workers write, joined for one screen. Pure text: no clock, no file, no terminal."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ignite_tf_magic.serialization.terminal_text import coloured, plain, visible

_CONTROL = re.compile(r"([\n\r])")
# What TensorFlow's libraries write before they heed any setting: which CPU they use, that there is no GPU.
_NATIVE_NOISE = re.compile(
    r"WARNING: All log messages before absl::InitializeLog|I0000 00:00:\d+|E0000 .* failed call to cuInit"
)
_MAX_LINE_CHARS = 8192
_PROGRESS_CHARS = 160


class LiveOutput:
    r"""Joins the output of several workers to one stream that a notebook cell or a terminal understands.

    Whole lines are passed on in the order in which they came. What a worker has on its unfinished line,
    a progress bar rewritten with "\r" above all, is shown on one last line that is rewritten in place.
    No line is lost; what was fed is kept until it is taken. Only what TensorFlow's libraries say when they start
    is left out; the log files have that, too.
    """

    def __init__(self, tasks: Sequence[str], *, is_screen: bool = True) -> None:
        """Begin with an empty screen, or with a file, which gets whole lines alone.

        Args:
            tasks: Names of those whose output it is, "worker 0"; one alone is not named.
            is_screen: Whether lines can be rewritten.
        """
        self._is_screen = is_screen
        self._prefixes = [f"{name} | " if len(tasks) > 1 else "" for name in tasks]
        self._unfinished = [""] * len(tasks)
        self._returned = [False] * len(tasks)
        self._waiting: list[str] = []
        self._note = ""
        self._on_screen = ""

    def feed(self, worker: int, text: str) -> None:
        """Take what a worker wrote."""
        for piece in _CONTROL.split(text.replace("\b", "")):
            if piece == "\n":
                self._finish_line(worker)
            elif piece == "\r":
                self._returned[worker] = True
            elif piece:
                self._write(worker, piece)

    def say(self, line: str) -> None:
        """Take a line that no worker wrote."""
        self._waiting.append(visible(line))

    def note(self, text: str) -> None:
        """Take what stands behind the last line from now on: no line, and on screens only."""
        self._note = visible(text)

    def take(self, *, with_progress: bool = True) -> str:
        """Return what to write now; empty when nothing changed.

        Args:
            with_progress: Also rewrite the last line when only unfinished lines have changed.
        """
        lines, self._waiting = self._waiting, []
        progress = self._progress()
        if not lines and (progress == self._on_screen or not with_progress):
            return ""
        screen = [*lines, progress]
        if self._on_screen:
            num_old_chars = len(self._on_screen) - len(plain(screen[0]))
            home = "" if screen[0] or lines else "\r"
            screen[0] = "\r" + screen[0] + " " * num_old_chars + home
        text = "\n".join(screen)
        self._on_screen = progress
        return text

    def lift(self) -> str:
        """Return what takes the last line off the screen, so that something can stand below; `take` shows it again."""
        lines, self._waiting = self._waiting, []
        blank = f"\r{' ' * len(self._on_screen)}\r" if self._on_screen else ""
        self._on_screen = ""
        return blank + "".join(f"{line}\n" for line in lines)

    def finish(self) -> str:
        """Return all that is left, unfinished lines as whole ones."""
        self._note = ""
        for worker, line in enumerate(self._unfinished):
            if line:
                self._finish_line(worker)
        return self.take()

    def _write(self, worker: int, piece: str) -> None:
        if self._returned[worker]:
            self._unfinished[worker], self._returned[worker] = "", False
        self._unfinished[worker] += piece
        while len(self._unfinished[worker]) > _MAX_LINE_CHARS:
            rest = self._unfinished[worker][_MAX_LINE_CHARS:]
            self._unfinished[worker] = self._unfinished[worker][:_MAX_LINE_CHARS]
            self._finish_line(worker)
            self._unfinished[worker] = rest

    def _finish_line(self, worker: int) -> None:
        line = self._unfinished[worker]
        self._unfinished[worker], self._returned[worker] = "", False
        if _NATIVE_NOISE.match(line):
            return
        self._waiting.append(self._prefixes[worker] + coloured(line))

    def _progress(self) -> str:
        if not self._is_screen:
            return ""
        busy = [
            prefix + plain(line)
            for prefix, line in zip(self._prefixes, self._unfinished, strict=True)
            if line
        ]
        room = _PROGRESS_CHARS // max(len(busy), 1)
        return "   ".join([*(line[:room].rstrip() for line in busy), *([self._note] if self._note else [])])
