"""Gaps in logs, where bytes were deleted at the size limit: the line that replaces them, and their offsets."""

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
        at: Offset in a copy of the log at which the line about the gap begins.
        start: Offset in the log of the first deleted byte.
        end: Offset in the log after the last deleted byte.
    """

    at: int
    start: int
    end: int

    @property
    def mark(self) -> bytes:
        """The line that replaces the deleted bytes."""
        count = self.end - self.start
        return f"[ignite_tf_magic: {count} bytes of output were deleted here, at the log's size bound]\n".encode()


class LogCopy:
    """A copy of a log. Its size shows how far the log was copied, so copying can continue after a kill.

    Where bytes were deleted before they were copied, the copy contains a line about that, and a small file beside the
    log records it. After such a line, the copy's size differs from the log's offset. Only one process may write the
    copy.

    Args:
        size: Current size of the copy.
        append: Writes at the end of the copy.
        noted: The small file.

    Raises:
        OSError: The small file cannot be read, or the copy cannot be written.
        ValueError: The small file is damaged.
        TypeError: The small file is damaged.
    """

    def __init__(self, size: int, append: Callable[[bytes], object], noted: Path) -> None:
        self._size = size
        self._append = append
        self._noted = noted
        found = [Gap(*numbers) for numbers in json.loads(noted.read_bytes())] if noted.exists() else []
        # A later gap was recorded, but its line was not written.
        self._gaps = [gap for gap in found if gap.at <= size]
        if self._gaps:
            self._write(self._gaps[-1].mark[size - self._gaps[-1].at :])

    @property
    def offset(self) -> int:
        """Offset in the log at which to continue."""
        return self._size + sum(gap.end - gap.start - len(gap.mark) for gap in self._gaps)

    def take(self, begin: int, data: bytes) -> None:
        """Append bytes of the log from an offset; bytes that were copied before are skipped."""
        offset = self.offset
        if begin > offset:
            gap = Gap(self._size, offset, begin)
            # Before the line is written: an unrecorded line would be taken for output.
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
