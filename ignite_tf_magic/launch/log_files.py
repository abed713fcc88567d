"""Reads log files while programs write them: from a position, or the last lines. Standard library only."""

from __future__ import annotations

import os
from io import FileIO
from pathlib import Path

_TAIL_BYTES = 64 << 10


def read_on(file: FileIO, position: int, max_bytes: int) -> tuple[int, bytes]:
    """Read a log from a position; return the offset of the bytes, and the bytes.

    The offset is later than `position` if bytes there were deleted: on a worker's host, the shim frees the head of a
    log that exceeds its limit. Freed bytes read as zeros. Zeros that a script has written are output.
    """
    while True:
        file.seek(position)
        data = file.read(max_bytes)
        # Check after reading, because the head may have been freed meanwhile.
        begin = _begin(file.fileno()) if b"\0" in data else 0
        if begin <= position:
            return position, data
        position = begin


def _begin(descriptor: int) -> int:
    """Return the length of the hole at a file's beginning, or 0 if the system cannot tell."""
    seek_data = getattr(os, "SEEK_DATA", None)
    if seek_data is None:
        return 0
    try:
        return os.lseek(descriptor, 0, seek_data)
    except OSError:  # the file system does not support this; or ENXIO: the file has no data at all
        return 0


def tail(path: Path, num_lines: int) -> tuple[str, ...]:
    """Return the last lines of a log as a terminal would show them, or none if there is no file.

    Reads at most 64 KiB.
    """
    try:
        with FileIO(path) as file:
            size = file.seek(0, os.SEEK_END)
            return last_lines(read_on(file, max(0, size - _TAIL_BYTES), _TAIL_BYTES)[1], num_lines)
    except FileNotFoundError:
        return ()


def last_lines(data: bytes, num_lines: int) -> tuple[str, ...]:
    """Return the last lines of some output as a terminal would show them."""
    text = data.decode("utf-8", "replace")
    lines = (line.rstrip("\r").rpartition("\r")[2].rstrip() for line in text.rstrip().split("\n"))
    return tuple(lines)[-num_lines:] if text.strip() else ()
