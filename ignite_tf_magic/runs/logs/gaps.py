"""Bytes that were deleted from a log at its size bound: the line that stands for them, and where they were."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ignite_tf_magic.launch.files import write_private


@dataclass(frozen=True, slots=True)
class Gap:
    """Bytes of a log that were deleted before they were read.

    Attributes:
        at: Where the line about it begins in a copy of the log.
        start: Offset in the log of the first one.
        end: Offset in the log behind the last one.
    """

    at: int
    start: int
    end: int

    @property
    def mark(self) -> bytes:
        """The line that stands for them."""
        count = self.end - self.start
        return f"[ignite_tf_magic: {count} bytes of output were deleted here, at the log's size bound]\n".encode()


class LogCopy:
    """A copy of a log, whose size tells how far the log was read: whoever goes on after a kill needs nothing else.

    Where bytes were deleted before they were copied, the copy says so in a line, and a small file beside the log notes
    it: behind such a line, the copy's size is not the log's offset. Nobody else writes the copy.

    Args:
        size: Of the copy as it is.
        append: Writes at its end.
        noted: The small file.

    Raises:
        OSError: The small file cannot be read, or the copy not be written.
        ValueError: The small file is damaged.
        TypeError: The small file is damaged.
    """

    def __init__(self, size: int, append: Callable[[bytes], object], noted: Path) -> None:
        self._size = size
        self._append = append
        self._noted = noted
        found = [Gap(*numbers) for numbers in json.loads(noted.read_bytes())] if noted.exists() else []
        self._gaps = [
            gap for gap in found if gap.at <= size
        ]  # others were noted, and their lines never begun
        if self._gaps:
            self._write(self._gaps[-1].mark[size - self._gaps[-1].at :])

    @property
    def offset(self) -> int:
        """Where in the log to read on."""
        return self._size + sum(gap.end - gap.start - len(gap.mark) for gap in self._gaps)

    def take(self, begin: int, data: bytes) -> None:
        """Take bytes of the log, from an offset; those that were taken before are passed over."""
        offset = self.offset
        if begin > offset:
            gap = Gap(self._size, offset, begin)
            # Before its line is written: a line that is not noted would be taken for output.
            write_private(
                self._noted, json.dumps([[each.at, each.start, each.end] for each in [*self._gaps, gap]])
            )
            self._gaps.append(gap)
            self._write(gap.mark)
        self._write(data[max(offset - begin, 0) :])

    def _write(self, data: bytes) -> None:
        if data:
            self._append(data)
            self._size += len(data)
