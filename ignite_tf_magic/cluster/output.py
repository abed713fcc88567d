"""The output of a run's workers, read from their log files while they grow."""

from __future__ import annotations

import codecs
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

_CHUNK_BYTES = 64 << 10
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class OutputChunk:
    """Some output of one worker, as it was written: it may end, and the next begin, within a line.

    Bytes that are not UTF-8 show as U+FFFD.
    """

    worker: int
    text: str


class _Log:
    """One log file, read from its beginning in pieces of bounded size."""

    def __init__(self, worker: int, path: Path) -> None:
        self._worker = worker
        self._path = path
        self._file: FileIO | None = None
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def next_chunk(self, *, final: bool = False) -> OutputChunk | None:
        """Read on; None when there is nothing new. `final` gives a character that was cut off, too."""
        if self._file is None and self._path.exists():
            self._file = FileIO(self._path)
        data = self._file.read(_CHUNK_BYTES) if self._file else b""
        text = self._decoder.decode(data, final=final and not data)
        return OutputChunk(self._worker, text) if text else None

    def close(self) -> None:
        if self._file:
            self._file.close()


def follow(
    logs: dict[int, Path], has_ended: Callable[[], bool], *, with_pauses: bool = False
) -> Iterator[OutputChunk]:
    """Give the output of workers from the beginning, until the run has ended and all of it was given.

    Blocks while there is nothing new. Closing the iterator, or an interrupt, ends only the reading.

    Args:
        logs: Log file of each worker; it may not exist yet.
        has_ended: Whether nobody writes to the logs any more.
        with_pauses: Also give a chunk without text before each wait of 50 ms, for readers that batch.
    """
    readers = [_Log(worker, path) for worker, path in logs.items()]
    try:
        while True:
            ended = has_ended()  # asked before reading: what was written before is read below
            if (yield from _read_once(readers)):
                continue
            if ended:
                break
            if with_pauses:
                yield OutputChunk(next(iter(logs)), "")
            time.sleep(_POLL_S)
        for reader in readers:
            while rest := reader.next_chunk(final=True):
                yield rest
    finally:
        for reader in readers:
            reader.close()


def _read_once(readers: list[_Log]) -> Generator[OutputChunk, None, bool]:
    found = False
    for reader in readers:
        if chunk := reader.next_chunk():
            found = True
            yield chunk
    return found


def tail(path: Path, num_lines: int) -> tuple[str, ...]:
    """The last lines of a log as a terminal would show them; reads at most 64 KiB."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _CHUNK_BYTES))
            text = file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return ()
    lines = (line.rstrip("\r").rpartition("\r")[2].rstrip() for line in text.rstrip().split("\n"))
    return tuple(lines)[-num_lines:] if text.strip() else ()
