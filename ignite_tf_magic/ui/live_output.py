"""Merges the output of several workers for one screen. Pure: uses no clock, file or terminal."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ignite_tf_magic.serialization.terminal_text import coloured, plain, visible

_CONTROL = re.compile(r"([\n\r])")
# Lines that TensorFlow's libraries write before they read any setting, such as the CPU type or a missing GPU.
_NATIVE_NOISE = re.compile(
    r"WARNING: All log messages before absl::InitializeLog|I0000 00:00:\d+|E0000 .* failed call to cuInit"
)
_TRACEBACK = "Traceback (most recent call last):"
_MAX_LINE_CHARS = 8192
_PROGRESS_CHARS = 160


class LiveOutput:
    r"""The output of several workers, merged into one stream for a notebook cell or a terminal.

    Passes complete lines on in the order of their arrival. Shows the unfinished lines of all workers, mostly progress
    bars rewritten with "\r", together on one last line that is rewritten in place. Loses no line: keeps all output
    until it is taken. Omits only the startup messages of TensorFlow's libraries, which the log files contain.
    """

    def __init__(
        self, tasks: Sequence[str], *, is_screen: bool = True, holds_tracebacks: bool = False
    ) -> None:
        """Create an empty stream.

        Args:
            tasks: Names of the workers, such as "worker 0". Lines of a single worker do not show its name.
            is_screen: Whether lines can be rewritten. If not, the stream has complete lines only, as for a file.
            holds_tracebacks: Hold a traceback, and what the same worker writes after it, until `release`. If the
                traceback is the cause of the run's failure, only the failure message shows it.
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
        """Add output of a worker."""
        for piece in _CONTROL.split(text.replace("\b", "")):
            if piece == "\n":
                self._finish_line(worker)
            elif piece == "\r":
                self._returned[worker] = True
            elif piece:
                self._write(worker, piece)

    def say(self, line: str) -> None:
        """Add a line that is not from a worker."""
        self._waiting.append((None, visible(line)))

    def note(self, text: str) -> None:
        """Set the text to show after the last line; files do not get it."""
        self._note = visible(text)

    def take(self, *, with_progress: bool = True) -> str:
        """Return the text to write now; empty if nothing changed.

        Args:
            with_progress: Also rewrite the last line if only unfinished lines have changed.
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
        """Return the new complete lines, each with its worker, and the last line, which is rewritten in place."""
        lines, self._waiting = self._waiting, []
        return lines, self._progress()

    def finish(self) -> str:
        """Return all remaining text, with unfinished lines as complete ones."""
        self.end_lines()
        self.release()
        return self.take()

    @property
    def holds(self) -> bool:
        """Whether lines wait for `release`."""
        return bool(self._held)

    def end_lines(self) -> None:
        """Treat unfinished lines as complete, because no more output will come."""
        self._note = ""
        for worker, line in enumerate(self._unfinished):
            if line:
                self._finish_line(worker)

    def release(self, told: str = "") -> None:
        """Release the held lines, except for a traceback at their end that the caller shows elsewhere.

        Args:
            told: That traceback. If another worker failed with the same error, a short line replaces its traceback.
        """
        held, self._held = self._held, {}
        for worker, lines in held.items():
            kept = _without_told(lines, plain(told).strip()) if told.strip() else lines
            self._waiting += [(worker, line) for line in kept]

    def named(self, worker: int | None, line: str) -> str:
        """Return a line, with its worker's name in front if there are several workers."""
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
    """Return lines without the traceback `told` at their end, or with a short line in place of one like it."""
    starts = [number for number, line in enumerate(lines) if line.startswith(_TRACEBACK)]
    is_cut = not told.startswith(_TRACEBACK)
    for start in reversed(starts) if is_cut else starts:
        written = plain("\n".join(lines[start:])).strip()
        if written == told or (is_cut and written.endswith(told)):
            return list(lines[:start])
    last = told.rpartition("\n")[2]
    if plain(lines[-1]).strip() == last.strip():
        return [*lines[: starts[-1]], f"[it failed for the same reason: {last[:_PROGRESS_CHARS]}]"]
    return list(lines)
