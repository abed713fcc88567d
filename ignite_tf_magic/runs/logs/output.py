"""The output of a run's workers, read from their log files while they grow."""

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
    """Some output of one worker, as it was written: it may end, and the next begin, within a line.

    Bytes that are not UTF-8 show as U+FFFD.
    """

    worker: int
    text: str


Segments = Callable[[], Sequence["Segment"]]


@dataclass(frozen=True, slots=True)
class Segment:
    """A log of one worker: it has one for each time that it was started.

    Attributes:
        title: A line shown before it; empty for none.
    """

    worker: int
    path: Path
    title: str = ""


class _LogReader:
    """One log file, read from its beginning in pieces of bounded size."""

    def __init__(self, segment: Segment) -> None:
        self.worker = segment.worker
        self._path = segment.path
        self._title = segment.title
        self._has_begun = False
        self._file: FileIO | None = None
        self._position = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def next_chunk(self, unfinished: set[int], *, final: bool = False) -> OutputChunk | None:
        """Read on; None when there is nothing new.

        Args:
            unfinished: Workers that were shown a line without its end, as one that was killed may leave.
            final: Give a character that was cut off, too.
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
    """Yield the output of workers from the beginning, until the run has ended and all of it was given.

    Blocks while there is nothing new. Closing the iterator, or an interrupt, ends only the reading.

    Args:
        segments: The logs that there are by now, oldest first; a file may not exist yet.
        has_ended: Whether nobody writes to the logs any more.
        with_pauses: Also give a chunk without text before each wait of 50 ms, for readers that batch.
    """
    readers: dict[Path, _LogReader] = {}
    unfinished: set[int] = set()
    try:
        while True:
            ended = has_ended()  # asked before reading: what was written before is read below
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
    """Read a piece of each log; of a worker that has several, of the oldest in which there is something."""
    found: set[int] = set()
    for reader in readers:
        if reader.worker not in found and (chunk := reader.next_chunk(unfinished)):
            found.add(reader.worker)
            yield chunk
    return bool(found)
