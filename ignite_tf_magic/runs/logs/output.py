"""Reads the output of a run's workers from their log files while these grow."""

from __future__ import annotations

import codecs
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from ignite_tf_magic.launch.log_files import read_on
from ignite_tf_magic.runs.logs.gaps import Gap

_CHUNK_BYTES = 64 << 10
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class OutputChunk:
    """A piece of one worker's output. Its boundaries need not be line boundaries.

    Bytes that are not UTF-8 become U+FFFD.
    """

    worker: int
    text: str


Segments = Callable[[], Sequence["Segment"]]


@dataclass(frozen=True, slots=True)
class Segment:
    """One log of a worker; a worker has one for each time it was started.

    Attributes:
        title: A line to show before the log; empty for none.
    """

    worker: int
    path: Path
    title: str = ""


class _LogReader:
    """Reads one log file from its beginning, in pieces of limited size."""

    def __init__(self, segment: Segment) -> None:
        self.worker = segment.worker
        self._path = segment.path
        self._title = segment.title
        self._has_begun = False
        self._file: FileIO | None = None
        self._position = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def next_chunk(self, unfinished: set[int], *, final: bool = False) -> OutputChunk | None:
        """Return the next piece, or None if there is nothing new.

        Args:
            unfinished: Workers whose last line was shown without its end, as a killed worker may leave it.
            final: Whether to also return an incomplete character at the end.
        """
        if self._file is None and self._path.exists():
            self._file = FileIO(self._path)
        data = self._read_on(self._file) if self._file else b""
        text = self._decoder.decode(data, final=final and not data)
        if not text:
            return None
        head = "" if self._has_begun else ("\n" if self.worker in unfinished else "") + self._title
        self._has_begun = True
        (unfinished.discard if text.endswith("\n") else unfinished.add)(self.worker)
        return OutputChunk(self.worker, head + text)

    def _read_on(self, file: FileIO) -> bytes:
        begin, data = read_on(file, self._position, _CHUNK_BYTES)
        mark = Gap(0, self._position, begin).mark if begin > self._position else b""
        self._position = begin + len(data)
        return mark + data

    def close(self) -> None:
        if self._file:
            self._file.close()


def follow(
    segments: Segments, has_ended: Callable[[], bool], *, with_pauses: bool = False
) -> Iterator[OutputChunk]:
    """Yield the output of workers from the beginning, until the run has ended and all output was yielded.

    Blocks while there is nothing new. Closing the iterator, or an interrupt, ends only the reading.

    Args:
        segments: Returns the current logs, oldest first; their files may not exist yet.
        has_ended: Returns whether no process writes to the logs any more.
        with_pauses: Whether to yield an empty chunk before each wait of 50 ms, for readers that batch.
    """
    readers: dict[Path, _LogReader] = {}
    unfinished: set[int] = set()
    try:
        while True:
            ended = has_ended()  # checked first, so that all output written before is read below
            for segment in segments():
                readers.setdefault(segment.path, _LogReader(segment))
            if (yield from _read_once(readers.values(), unfinished)):
                continue
            if ended:
                break
            if with_pauses:
                yield OutputChunk(0, "")
            time.sleep(_POLL_S)
        for reader in readers.values():
            while rest := reader.next_chunk(unfinished, final=True):
                yield rest
    finally:
        for reader in readers.values():
            reader.close()


def _read_once(readers: Iterable[_LogReader], unfinished: set[int]) -> Generator[OutputChunk, None, bool]:
    """Yield the next piece of each worker's oldest log with unread output; return whether there was any."""
    found: set[int] = set()
    for reader in readers:
        if reader.worker not in found and (chunk := reader.next_chunk(unfinished)):
            found.add(reader.worker)
            yield chunk
    return bool(found)
