"""What a run leaves in igfs: igfs:///runs/RUN_ID/{checkpoints,events,logs,model}, and what removes it again."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from io import FileIO
from pathlib import Path

from ignite_tf_magic.closing import Closing
from ignite_tf_magic.cluster.gaps import Gap, Gaps, read_on
from ignite_tf_magic.cluster.record import RunInfo
from ignite_tf_magic.cluster.runs import Run
from ignite_tf_magic.config import ConnectOptions
from ignite_tf_magic.errors import IgniteTfError, PathNotFound
from ignite_tf_magic.igfs.layout import DirectoryNode
from ignite_tf_magic.igfs.volume import Volume
from ignite_tf_magic.igfs.writer import FileWriter, WriteMode

RUNS = ("runs",)
PARTS = ("checkpoints", "events", "logs", "model")
_COPY_INTERVAL_S = 2.0
_MAX_COPY_BYTES = 4 * 1024 * 1024
_JOIN_S = 5.0

Report = Callable[[str], None]


class RunFiles(Closing):
    """Makes a run's directories in igfs and keeps a copy of its workers' output there, in a thread of its own.

    A run never fails for it: what cannot be copied is told to `report`, once, and stays in the run's own directory.

    Args:
        host: Only the output of workers on this host is copied: of a detached run, each host copies its own.
    """

    def __init__(self, run: Run, options: ConnectOptions, report: Report, *, host: str | None = None) -> None:
        self._run = run
        self._report = report
        self._volume = Volume(lambda: options)
        self._path = (*RUNS, run.id)
        self._host = host
        self._logs: dict[str, _LogCopy] = {}
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._copy, name=f"files-{run.id}", daemon=True)

    def start(self) -> None:
        """Begin; ends by itself after the run."""
        atexit.register(self.close)
        self._thread.start()

    def wait(self, timeout_s: float) -> None:
        """Wait for the end of a run's copying, for some time."""
        self._thread.join(timeout_s)

    def close(self) -> None:
        """Copy what is there and end."""
        self._ending.set()
        if self._thread is not threading.current_thread():
            self._thread.join(_JOIN_S)

    def _copy(self) -> None:
        try:
            with self._volume:
                for part in PARTS:
                    self._volume.make_directory((*self._path, part), parents=True, exist_ok=True)
                while not self._ending.wait(_COPY_INTERVAL_S) and not self._run.info().state.has_ended:
                    self._copy_logs()
                self._copy_logs()
                self._end()
        except IgniteTfError as error:
            self._report(f"the output of run {self._run.id} is not copied to igfs any more: {error}")
        except FileNotFoundError:
            return  # somebody has removed the run
        except (OSError, ValueError, TypeError) as error:  # no note of a gap can be written, or it is damaged
            self._report(f"the output of run {self._run.id} is not copied to igfs any more: {error}")
        finally:
            atexit.unregister(self.close)

    def _copy_logs(self) -> None:
        for worker in range(self._run.info().num_workers):
            for path in self._own_logs(worker):
                if path.name not in self._logs and path.stat().st_size > 0:
                    writer = self._volume.open_write((*self._path, "logs", path.name), WriteMode.APPEND)
                    self._logs[path.name] = _LogCopy(path, writer)
        for copy in self._logs.values():
            copy.go_on()

    def _own_logs(self, worker: int) -> list[Path]:
        if self._host is None:
            return self._run.logs(worker)
        launches = self._run.record().hosts_of(worker)
        paths = [self._run.directory.log(worker, number) for number, host in launches if host == self._host]
        return [path for path in paths if path.exists()]

    def _end(self) -> None:
        for copy in self._logs.values():
            copy.writer.close()
        record = self._run.directory.record.read_bytes()
        self._volume.write_file((*self._path, "run.json"), record)


class _LogCopy:
    """A log and its copy in igfs, whose size tells how far it was copied, also by one that was killed.

    Nobody else writes the copy.
    Where bytes were deleted before they were copied, the copy says so in a line; a small file beside the log notes it.
    """

    def __init__(self, log: Path, writer: FileWriter) -> None:
        self._log = log
        self.writer = writer
        self._gaps = Gaps.read(log.with_name(f"{log.name}.igfs.json"), writer.tell())
        writer.write(self._gaps.rest_of_mark(writer.tell()))

    def go_on(self) -> None:
        """Copy what there is by now."""
        while chunk := self._next():
            self.writer.write(chunk)
            self.writer.flush()

    def _next(self) -> bytes:
        position = self._gaps.offset(self.writer.tell())
        try:
            with FileIO(self._log) as file:
                begin, data = read_on(file, position, _MAX_COPY_BYTES)
        except FileNotFoundError:
            return b""
        if begin == position:
            return data
        gap = Gap(self.writer.tell(), position, begin)
        self._gaps.note(gap)
        return gap.mark + data


@dataclass(frozen=True, slots=True)
class Pruned:
    """A run that was, or would be, forgotten.

    Attributes:
        ended_at: When it ended; for a run that only igfs knows, when its directory was made.
        num_bytes: What its files in igfs held.
    """

    run_id: str
    ended_at: datetime
    num_bytes: int


def prune_runs(
    volume: Volume,
    known: Sequence[RunInfo],
    forget: Callable[[str], None],
    *,
    keep: int,
    older_than: timedelta | None = None,
    dry_run: bool = False,
) -> list[Pruned]:
    """Remove runs that have ended, but for the newest.

    Args:
        volume: The cluster's file system.
        known: Runs that are listed; those that have not ended are never removed.
        forget: Removes one of these runs from wherever it is listed.
        keep: So many of the newest stay.
        older_than: Only runs that ended longer ago are removed.
        dry_run: Only tell what would be removed.

    Returns:
        The runs that were removed, oldest first.
    """
    ids = {run.id for run in known}
    ended = {run.id: run.ended_at or run.started_at for run in known if run.state.has_ended}
    for name, created_at in _in_igfs(volume).items():
        if name not in ids and _has_ended(volume, name):
            ended[name] = created_at
    oldest_first = sorted(ended, key=lambda name: ended[name])
    limit = datetime.now(timezone.utc) - older_than if older_than is not None else None
    chosen = [
        name
        for name in oldest_first[: max(len(oldest_first) - keep, 0)]
        if limit is None or ended[name] < limit
    ]
    pruned = [Pruned(name, ended[name], _size(volume, (*RUNS, name))) for name in chosen]
    for run in () if dry_run else pruned:
        with suppress(PathNotFound):  # it may never have written there
            volume.remove_directory((*RUNS, run.run_id), with_contents=True)
        if run.run_id in ids:
            forget(run.run_id)
    return pruned


def _in_igfs(volume: Volume) -> dict[str, datetime]:
    try:
        entries = [entry for page in volume.entries(RUNS) for entry in page]
    except PathNotFound:
        return {}
    return {
        name: datetime.fromtimestamp(node.created_ns / 1e9, timezone.utc)
        for name, node in entries
        if isinstance(node, DirectoryNode)
    }


def _has_ended(volume: Volume, name: str) -> bool:
    """Tell whether a run of another machine has ended: its record is copied when it has."""
    try:
        volume.stat((*RUNS, name, "run.json"))
    except PathNotFound:
        return False
    return True


def _size(volume: Volume, path: tuple[str, ...]) -> int:
    try:
        pages = list(volume.entries(path))
    except PathNotFound:
        return 0
    total = 0
    for name, node in (entry for page in pages for entry in page):
        total += _size(volume, (*path, name)) if isinstance(node, DirectoryNode) else node.size
    return total
