"""Copies of other hosts' logs, in files here that grow with them.

The position in each log is not stored: the size of the copy shows it (see `gaps.LogCopy`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from io import FileIO
from pathlib import Path

from ignite_tf_magic.errors import MirrorFailed
from ignite_tf_magic.runs.directory import RunDirectory
from ignite_tf_magic.runs.logs.gaps import LogCopy


def _copy_at(path: Path) -> LogCopy:
    size = path.stat().st_size if path.exists() else 0
    return LogCopy(size, partial(_append, path), path.with_name(f"{path.name}.gaps.json"))


def _append(path: Path, data: bytes) -> None:
    """Append to a file. A reader may see a part of the data before the rest."""
    with FileIO(path, "ab", opener=_private) as file:
        rest = memoryview(data)
        while rest:
            rest = rest[file.write(rest) :]


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


class MirroredLogs:
    """The logs of a run in its directory here; a `launch.watch.LogSink`. Only one process at a time may write them.

    After a failed write, nothing more is written, because a log with an unmarked gap would be misleading.

    Attributes:
        failure: The error of the failed write.
    """

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._logs: dict[tuple[str, str], LogCopy] = {}
        self._has_ended = False
        self.failure: MirrorFailed | None = None

    def add(self, host: str, name: str) -> int | None:
        """Begin to copy a host's log; return the offset from which to read it, or None if another host has this log.

        Raises:
            MirrorFailed: The existing copy cannot be read.
        """
        with self._lock:
            if (host, name) in self._logs:
                return self._logs[host, name].offset
            if any(name == other for _, other in self._logs):
                return None
            try:
                log = _copy_at(self._directory.path / name)
            except (OSError, ValueError, TypeError) as error:
                raise self._failed(error) from error
            self._logs[host, name] = log
            return log.offset

    def offset(self, host: str, name: str) -> int | None:
        """Return the offset up to which a host's log was read, or None if it is not copied."""
        with self._lock:
            log = self._logs.get((host, name))
            return log.offset if log else None

    def data(self, host: str, path: str, offset: int, data: bytes) -> None:
        """Write bytes of a log; bytes that were written before are skipped.

        Raises:
            MirrorFailed: This write or an earlier one failed.
        """
        with self._writing(host, path) as log:
            if not self._has_ended:
                log.take(offset, data)

    def gap(self, host: str, path: str, start: int, end: int) -> None:
        """Record that bytes of a log were deleted.

        Raises:
            MirrorFailed: This write or an earlier one failed.
        """
        del start  # the copy's own offset is more accurate
        with self._writing(host, path) as log:
            if not self._has_ended:
                log.take(end, b"")

    def end(self) -> None:
        """Write nothing more from now on, so that another process may write."""
        with self._lock:
            self._has_ended = True

    @contextmanager
    def _writing(self, host: str, name: str) -> Iterator[LogCopy]:
        with self._lock:
            if self.failure:
                raise self.failure
            try:
                yield self._logs[host, name]
            except OSError as error:
                raise self._failed(error) from error

    def _failed(self, error: Exception) -> MirrorFailed:
        self.failure = mirror_failed(self._directory, error)
        return self.failure


def mirror_failed(directory: RunDirectory, error: Exception) -> MirrorFailed:
    """Return the error that says that a run's output can no longer be stored."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return MirrorFailed(
        f"the output of run {directory.run_id} cannot be kept in {directory.path}: {reason}. The run goes on; "
        f"make room there and attach again: ignite-tf attach {directory.run_id}"
    )
