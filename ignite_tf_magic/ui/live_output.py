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
_TRACEBACK = "Traceback (most recent call last):"
_MAX_LINE_CHARS = 8192
_PROGRESS_CHARS = 160


class LiveOutput:
    r"""Joins the output of several workers to one stream that a notebook cell or a terminal understands.

    Whole lines are passed on in the order in which they came. What a worker has on its unfinished line,
    a progress bar rewritten with "\r" above all, is shown on one last line that is rewritten in place.
    No line is lost; what was fed is kept until it is taken. Only what TensorFlow's libraries say when they start
    is left out; the log files have that, too.
    """

    def __init__(
        self, tasks: Sequence[str], *, is_screen: bool = True, holds_tracebacks: bool = False
    ) -> None:
        """Begin with an empty screen, or with a file, which gets whole lines alone.

        Args:
            tasks: Names of those whose output it is, "worker 0"; one alone is not named.
            is_screen: Whether lines can be rewritten.
            holds_tracebacks: Keep a traceback, and what the same worker writes behind it, until `release`: where it is
                what the run fails of, it is told once, by whoever tells of the failure.
        """
        self.tasks = tuple(tasks)
        self._is_screen = is_screen
        self._prefixes = [f"{name} | " if len(tasks) > 1 else "" for name in tasks]
        self._unfinished = [""] * len(tasks)
        self._returned = [False] * len(tasks)
        self._waiting: list[tuple[int | None, str]] = []
        self._holds_tracebacks = holds_tracebacks
        self._held: dict[int, list[str]] = {}
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
        self._waiting.append((None, visible(line)))

    def note(self, text: str) -> None:
        """Take what stands behind the last line from now on: no line, and on screens only."""
        self._note = visible(text)

    def take(self, *, with_progress: bool = True) -> str:
        """Return what to write now; empty when nothing changed.

        Args:
            with_progress: Also rewrite the last line when only unfinished lines have changed.
        """
        lines, progress = self.take_lines()
        if not lines and (progress == self._on_screen or not with_progress):
            return ""
        screen = [*(self.named(*line) for line in lines), progress]
        if self._on_screen:
            num_old_chars = len(self._on_screen) - len(plain(screen[0]))
            home = "" if screen[0] or lines else "\r"
            screen[0] = "\r" + screen[0] + " " * num_old_chars + home
        text = "\n".join(screen)
        self._on_screen = progress
        return text

    def take_lines(self) -> tuple[list[tuple[int | None, str]], str]:
        """Return the whole lines that came since, each with its worker, and the last line, which is rewritten."""
        lines, self._waiting = self._waiting, []
        return lines, self._progress()

    def finish(self) -> str:
        """Return all that is left, unfinished lines as whole ones."""
        self.end_lines()
        self.release()
        return self.take()

    @property
    def holds(self) -> bool:
        """Whether something waits for `release`."""
        return bool(self._held)

    def end_lines(self) -> None:
        """Take unfinished lines for whole ones, as no more will come."""
        self._note = ""
        for worker, line in enumerate(self._unfinished):
            if line:
                self._finish_line(worker)

    def release(self, told: str = "") -> None:
        """Let go of what was held, but for a traceback at its end that is told elsewhere.

        Args:
            told: That traceback. Of another worker that ended with the same error the last line stays.
        """
        held, self._held = self._held, {}
        for worker, lines in held.items():
            kept = _without_told(lines, plain(told).strip()) if told.strip() else lines
            self._waiting += [(worker, line) for line in kept]

    def named(self, worker: int | None, line: str) -> str:
        """Return a line with its worker's name in front, where there are several."""
        return line if worker is None else self._prefixes[worker] + line

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
        if self._holds_tracebacks and (worker in self._held or line.startswith(_TRACEBACK)):
            self._held.setdefault(worker, []).append(coloured(line))
        else:
            self._waiting.append((worker, coloured(line)))

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


def _without_told(lines: Sequence[str], told: str) -> list[str]:
    """Return lines without the traceback at their end, where it is the one that is told, or ends as that does."""
    starts = [number for number, line in enumerate(lines) if line.startswith(_TRACEBACK)]
    is_cut = not told.startswith(_TRACEBACK)
    for start in reversed(starts) if is_cut else starts:
        written = plain("\n".join(lines[start:])).strip()
        if written == told or (is_cut and written.endswith(told)):
            return list(lines[:start])
    last = told.rpartition("\n")[2]
    if plain(lines[-1]).strip() == last.strip():
        return [*lines[: starts[-1]], f"[it failed of the same: {last[:_PROGRESS_CHARS]}]"]
    return list(lines)
