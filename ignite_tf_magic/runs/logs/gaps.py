"""Bytes that were deleted from a log at its size bound: the line that stands for them, and where they were."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from io import FileIO
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


@dataclass(slots=True)
class Gaps:
    """The gaps in a copy of a log, noted in a small file: behind one, the copy's size is not the log's offset."""

    path: Path
    known: list[Gap] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path, size: int) -> Gaps:
        """Read what was noted of a copy that has this size now; what is not in it yet is forgotten.

        Raises:
            OSError: The file cannot be read.
            ValueError: It is damaged.
            TypeError: It is damaged.
        """
        noted = [Gap(*numbers) for numbers in json.loads(path.read_bytes())] if path.exists() else []
        return cls(path, [gap for gap in noted if gap.at <= size])

    def rest_of_mark(self, size: int) -> bytes:
        """Give what the copy lacks of its last line about a gap, when that was begun or is still to be written."""
        return self.known[-1].mark[size - self.known[-1].at :] if self.known else b""

    def offset(self, size: int) -> int:
        """Tell where in the log to read on, given the copy's size."""
        return size + sum(gap.end - gap.start - len(gap.mark) for gap in self.known)

    def note(self, gap: Gap) -> None:
        """Take note of a gap, before its line is written: a line that is not noted would be taken for output."""
        self.known.append(gap)
        write_private(self.path, json.dumps([[gap.at, gap.start, gap.end] for gap in self.known]))


def read_on(file: FileIO, position: int, max_bytes: int) -> tuple[int, bytes]:
    """Read a log from a position on; gives where what was read begins, which is later when bytes were deleted.

    On the host of a worker, its shim frees the head of a log that outgrows its bound; what is freed reads as zeros.
    Zeros that a script has written are output.
    """
    while True:
        file.seek(position)
        data = file.read(max_bytes)
        # Asked after the reading: the head may have been freed meanwhile.
        begin = _begin(file.fileno()) if b"\0" in data else 0
        if begin <= position:
            return position, data
        position = begin


def _begin(descriptor: int) -> int:
    """Tell how long the hole at a file's beginning is; 0 where the system does not know."""
    seek_data = getattr(os, "SEEK_DATA", None)
    if seek_data is None:
        return 0
    try:
        return os.lseek(descriptor, 0, seek_data)
    except OSError:  # no such thing on this file system; ENXIO: there is nothing at all in the file
        return 0
