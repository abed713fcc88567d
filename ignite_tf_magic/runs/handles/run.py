"""Runs as any process sees them: another notebook or a shell lists, follows and stops them.

Everything works from the runs' directories alone, even while Ignite is down, and for any owner.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from ignite_tf_magic.errors import DeadlineExceeded
from ignite_tf_magic.launch import lock
from ignite_tf_magic.launch.log_files import tail
from ignite_tf_magic.runs.decisions import mark_stopped
from ignite_tf_magic.runs.directory import RunDirectory
from ignite_tf_magic.runs.handles.failure import Failure, diagnose
from ignite_tf_magic.runs.logs.mirror_state import UnreadOutput
from ignite_tf_magic.runs.logs.output import OutputChunk, Segment, follow
from ignite_tf_magic.runs.reach import Reach
from ignite_tf_magic.runs.record import HostRecord, RunInfo, RunRecord, read_info
from ignite_tf_magic.runs.registry.origins import Copying, LocalRun, Origin, end_on_hosts
from ignite_tf_magic.runs.states import RunState
from ignite_tf_magic.runs.task import GRACE_S

_POLL_S = 0.05
# An owner that has not stopped its run within this time is itself stopped or stuck.
_OWNER_PATIENCE_S = GRACE_S + 4.0


class StopKind(Enum):
    """The outcome of a request to stop a run."""

    STOPPED = "stopped"
    ALREADY_ENDED = "it had ended before"
    OWNER_WAS_GONE = "its owner was gone; what was left of it has been ended"
    OWNER_DID_NOT_ANSWER = "its owner did not answer; its workers have been killed"


@dataclass(frozen=True, slots=True)
class StopOutcome:
    """The outcome of a request to stop a run, and the run's state afterwards."""

    kind: StopKind
    info: RunInfo


@dataclass(frozen=True, slots=True)
class Run:
    """A run, seen through its directory. Any number of processes may have a `Run` object for the same run.

    Attributes:
        directory: The run's files, or copies of them.
        origin: Where the run is.
        reach: How to reach its hosts from here if its owner does not answer.
    """

    directory: RunDirectory
    origin: Origin
    reach: Reach

    @property
    def id(self) -> str:
        """The id of the run."""
        return self.directory.run_id

    def info(self) -> RunInfo:
        """Return the run's current summary."""
        return self._look()[0]

    def _look(self) -> tuple[RunInfo, RunRecord]:
        self.origin.look(RunRecord.read(self.directory))
        return read_info(self.directory, self.origin.has_owner)

    def record(self) -> RunRecord:
        """Return the run's record."""
        return self._look()[1]

    def hosts(self) -> tuple[HostRecord, ...]:
        """Return the run's hosts as this machine reaches them."""
        return self.reach.seen_from_here(self.record(), is_verified=self.directory.is_verified)

    def follow(
        self, worker: int | None = None, *, with_pauses: bool = False
    ) -> Generator[OutputChunk, None, None]:
        """Yield the output of all workers, or of one, from the beginning until the run has ended.

        Blocks while there is nothing new. Closing the iterator, or an interrupt, ends only the reading: the run
        continues and can be followed again from the beginning. With `with_pauses`, also yields chunks without text
        while there is nothing new, about 20 per second. Output that cannot be read is reported in lines at the end.
        """
        with self.origin.copying(self.record()) as copying:
            segments = _Segments(self.directory, worker)
            yield from follow(
                segments, lambda: self.is_over() and copying.is_complete(), with_pauses=with_pauses
            )
            for lost in self._missing(copying):
                yield OutputChunk(worker or 0, f"ignite_tf_magic: {lost}\n")

    def last_lines(self, worker: int, num_lines: int) -> tuple[str, ...]:
        """Return the end of a worker's output, as a terminal would show it; at most 64 KiB."""
        return tail(self.log(worker), num_lines)

    def log(self, worker: int) -> Path:
        """Return the file with a worker's output since it was last started."""
        return self.directory.log(worker, max(self.record().generation, 1))

    def logs(self, worker: int) -> list[Path]:
        """Return the files with a worker's output that exist here, oldest first."""
        generations = range(1, self.record().generation + 1)
        paths = [self.directory.log(worker, generation) for generation in generations]
        return [path for path in paths if path.exists()]

    def fetch(self, timeout_s: float = 30.0) -> tuple[UnreadOutput, ...]:
        """Copy all output that exists by now to this machine; return what cannot be read."""
        deadline = time.monotonic() + timeout_s
        with self.origin.copying(self.record()) as copying:
            while not copying.is_complete() and time.monotonic() < deadline:
                time.sleep(_POLL_S)
                if not self.info().state.has_ended and copying.is_caught_up():
                    break  # a run that continues never completes
            return self._missing(copying)

    def _missing(self, copying: Copying) -> tuple[UnreadOutput, ...]:
        """Return the output that cannot be read, from hosts that had workers."""
        record = self.record()
        used = {host for worker in range(len(record.spec.roles)) for _, host in record.hosts_of(worker)}
        return tuple(lost for lost in copying.unreachable() if lost.log is not None or lost.host in used)

    def wait(self, timeout_s: float | None = None) -> RunInfo:
        """Wait until the run has ended. An interrupt ends only the waiting.

        Raises:
            DeadlineExceeded: It has not ended in that time; it continues.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self.origin.copying(self.record()):
            while not self.is_over():
                if deadline is not None and time.monotonic() > deadline:
                    raise DeadlineExceeded(
                        f"run {self.id} has not ended within {timeout_s:g} s; it still runs"
                    )
                time.sleep(_POLL_S)
        return self.info()

    def failure(self) -> Failure | None:
        """Return the explanation if the run failed, else None."""
        return diagnose(self.directory, self.record())

    def stop(self) -> StopOutcome:
        """End the run's own processes: SIGTERM, 3 s for the script to save, then SIGKILL.

        Blocks until they have ended. The owner ends them; if the owner is gone or stuck, this process does.

        Raises:
            HostUnreachable: Some of its hosts cannot be reached; workers there end when their leases expire.
        """
        before = self.info()
        record = self.record()
        if before.state.has_ended and self.is_over() and not self._is_lost():
            return StopOutcome(StopKind.ALREADY_ENDED, before)
        self.origin.ask_to_stop(record)
        with self.origin.copying(record):
            kind = self._await_owner(record)
        if kind is not StopKind.STOPPED:
            end_on_hosts(self.record(), self.reach, GRACE_S, is_verified=self.directory.is_verified)
        self._await_shims()
        if kind is StopKind.OWNER_WAS_GONE:
            self._mark_stopped()
        return StopOutcome(kind, self.info())

    def _await_owner(self, record: RunRecord) -> StopKind:
        deadline = time.monotonic() + _OWNER_PATIENCE_S
        while self._is_lost() or not self.is_over():
            if not self.origin.has_owner(record):
                # The owner may have exited after its work was done, a moment before its workers' shims.
                return StopKind.STOPPED if self.record().state.has_ended else StopKind.OWNER_WAS_GONE
            if time.monotonic() > deadline:
                return StopKind.OWNER_DID_NOT_ANSWER
            time.sleep(_POLL_S)
        return StopKind.STOPPED

    def _is_lost(self) -> bool:
        """Return whether no process owns the run. Parts of it may still live, here or on hosts with long leases."""
        return self.info().state is RunState.LOST

    def _await_shims(self) -> None:
        """Wait for the shims on this machine, which exit just after reporting the end of their workers."""
        deadline = time.monotonic() + GRACE_S
        while self._has_living_jobs() and time.monotonic() < deadline:
            time.sleep(_POLL_S)

    def _mark_stopped(self) -> None:
        """Write the end of a run that has no owner."""
        record = self.record()
        if (ended := mark_stopped(record, time.time())) is not record:  # else its owner had just ended it
            ended.write(self.directory)

    def is_over(self) -> bool:
        """Return whether the run has ended and none of its processes is left on this machine."""
        return self.info().state.has_ended and not self._has_living_jobs()

    def _has_living_jobs(self) -> bool:
        return any(lock.is_held(path) for path in self.directory.path.glob("jobs/g*/lock"))


class _Segments:
    """The existing logs of a run. Called often, so the list is only rebuilt when the record has changed."""

    def __init__(self, directory: RunDirectory, worker: int | None) -> None:
        self._directory = directory
        self._worker = worker
        self._found: list[Segment] = []
        self._record: RunRecord | None = None

    def __call__(self) -> list[Segment]:
        record = RunRecord.read(self._directory)
        if record is not self._record:
            self._record, self._found = record, self._segments_of(record)
        return self._found

    def _segments_of(self, record: RunRecord) -> list[Segment]:
        causes = {past.generation + 1: past.cause for past in record.past}
        found = []
        for generation in range(1, record.generation + 1):
            for worker in range(len(record.spec.roles)) if self._worker is None else [self._worker]:
                title = ""
                if generation > 1 and worker == (self._worker or 0):
                    title = (
                        f"--- started again ({generation - 1}): {causes.get(generation, 'unknown cause')}\n"
                    )
                found.append(Segment(worker, self._directory.log(worker, generation), title))
        return found


def local_run(directory: RunDirectory, reach: Reach) -> Run:
    """Return a run whose owner works in this directory."""
    return Run(directory, LocalRun(directory, reach), reach)


def read_runs(runs_dir: Path) -> tuple[list[RunInfo], list[Path]]:
    """Read all runs; return their summaries, oldest first, and the directories of runs with a damaged record.

    A directory without a record is not a run.
    """
    found, damaged = [], []
    for path in runs_dir.iterdir() if runs_dir.is_dir() else ():
        try:
            found.append(read_info(RunDirectory(path))[0])
        except OSError:
            continue
        except ValueError:
            damaged.append(path)
    return sorted(found, key=lambda info: (info.started_at, info.id)), sorted(damaged)


def list_runs(runs_dir: Path, *, include_ended: bool = False) -> list[RunInfo]:
    """Return the runs with a readable record, oldest first."""
    return [info for info in read_runs(runs_dir)[0] if include_ended or not info.state.has_ended]
