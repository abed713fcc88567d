"""Runs as anybody sees them: another notebook or a shell lists, follows and stops them.

All of it works from the runs' directories alone, while Ignite is down and whoever the owner is.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from ignite_tf_magic.cluster.directory import RunDirectory
from ignite_tf_magic.cluster.failure import Failure, diagnose
from ignite_tf_magic.cluster.output import OutputChunk, follow, tail
from ignite_tf_magic.cluster.record import RunInfo, read_info
from ignite_tf_magic.cluster.task import GRACE_S
from ignite_tf_magic.errors import ConfigError, DeadlineExceeded, RunNotFound
from ignite_tf_magic.launch import lock
from ignite_tf_magic.launch.groups import ask_to_end, kill_group

_POLL_S = 0.05
# An owner that has not stopped its run by then is itself stopped or stuck.
_OWNER_PATIENCE_S = GRACE_S + 4.0


class StopKind(Enum):
    """What came of asking a run to stop."""

    STOPPED = "stopped"
    ALREADY_ENDED = "it had ended before"
    OWNER_WAS_GONE = "its owner was gone; what was left of it has been ended"
    OWNER_DID_NOT_ANSWER = "its owner did not answer; its workers have been killed"


@dataclass(frozen=True, slots=True)
class StopOutcome:
    """What came of asking a run to stop, and the run afterwards."""

    kind: StopKind
    info: RunInfo


@dataclass(frozen=True, slots=True)
class Run:
    """A run, seen through its directory. Any number of processes may have one of the same run."""

    directory: RunDirectory

    @property
    def id(self) -> str:
        """The id of the run."""
        return self.directory.run_id

    def info(self) -> RunInfo:
        """Read what is known of the run now."""
        return read_info(self.directory)[0]

    def follow(self, worker: int | None = None, *, with_pauses: bool = False) -> Iterator[OutputChunk]:
        """Give the output of all workers, or of one, from the beginning until the run has ended.

        Blocks while there is nothing new. Closing the iterator, or an interrupt, ends only the reading: the
        run goes on, and can be followed again, from the beginning. `with_pauses` also gives chunks without text
        while there is nothing new, some 20 a second.
        """
        workers = range(self.info().num_workers) if worker is None else [worker]
        logs = {index: self.directory.log(index) for index in workers}
        return follow(logs, self.is_over, with_pauses=with_pauses)

    def last_lines(self, worker: int, num_lines: int) -> tuple[str, ...]:
        """Give the end of a worker's output, as a terminal would show it; at most 64 KiB."""
        return tail(self.directory.log(worker), num_lines)

    def wait(self, timeout_s: float | None = None) -> RunInfo:
        """Wait until the run has ended. An interrupt ends only the waiting.

        Raises:
            DeadlineExceeded: It has not ended in that time; it goes on.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self.is_over():
            if deadline is not None and time.monotonic() > deadline:
                raise DeadlineExceeded(f"run {self.id} has not ended within {timeout_s:g} s; it goes on")
            time.sleep(_POLL_S)
        return self.info()

    def failure(self) -> Failure | None:
        """Explain why the run failed; None when it has not."""
        return diagnose(self.directory, read_info(self.directory)[1])

    def stop(self) -> StopOutcome:
        """End the run's own processes: SIGTERM, 3 s for the script to save, then SIGKILL.

        Blocks until they are gone. The owner does it; where it is gone or stuck, this process does.
        """
        before = self.info()
        if before.state.has_ended and self.is_over():
            return StopOutcome(StopKind.ALREADY_ENDED, before)
        self.directory.stop_request.touch(mode=0o600)
        kind = StopKind.STOPPED
        deadline = time.monotonic() + _OWNER_PATIENCE_S
        while not self.is_over():
            if not lock.is_held(self.directory.owner_lock):
                kind = StopKind.OWNER_WAS_GONE
                self._end_workers()
            elif time.monotonic() > deadline:
                kind = StopKind.OWNER_DID_NOT_ANSWER
                self._end_workers()
                break
            time.sleep(_POLL_S)
        return StopOutcome(kind, self.info())

    def is_over(self) -> bool:
        """Whether the run has ended and no process of it is left."""
        info = self.info()
        return info.state.has_ended and not any(self._living(info.num_workers))

    def _living(self, num_workers: int) -> Iterator[int]:
        for worker in range(num_workers):
            if (pid := lock.holder_pid(self.directory.worker_lock(worker))) is not None:
                yield pid

    def _end_workers(self) -> None:
        """End the workers without the owner. A lock names a process for sure, which a noted pid does not."""
        num_workers = self.info().num_workers
        for pid in self._living(num_workers):
            ask_to_end(pid)
        deadline = time.monotonic() + GRACE_S
        while any(self._living(num_workers)) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        for pid in self._living(num_workers):
            kill_group(pid)


def list_runs(runs_dir: Path, *, include_ended: bool = False) -> list[RunInfo]:
    """List runs, oldest first. A directory without a readable record is no run."""
    found = []
    for path in runs_dir.iterdir() if runs_dir.is_dir() else ():
        try:
            info = read_info(RunDirectory(path))[0]
        except (OSError, ValueError):
            continue
        if include_ended or not info.state.has_ended:
            found.append(info)
    return sorted(found, key=lambda info: (info.started_at, info.id))


def find_run(runs_dir: Path, run_id: str) -> Run:
    """Find a run by its id or the beginning of it.

    Raises:
        RunNotFound: No id begins so, or several do; the error lists them.
    """
    ids = [info.id for info in list_runs(runs_dir, include_ended=True)]
    matches = [run_id] if run_id in ids else [each for each in ids if run_id and each.startswith(run_id)]
    if len(matches) == 1:
        return Run(RunDirectory(runs_dir / matches[0]))
    if matches:
        raise RunNotFound(f"run {run_id!r} may be any of {', '.join(matches)}; write more of its id")
    latest = f"the latest is {ids[-1]}" if ids else "there are none on this machine"
    raise RunNotFound(f"no run {run_id!r}: {latest}; %ignite_tf ps --all lists all of them")


def forget_run(runs_dir: Path, run_id: str) -> None:
    """Remove the directory of a run that has ended, with its output.

    Raises:
        RunNotFound: There is none.
        ConfigError: A process of it still lives.
    """
    run = find_run(runs_dir, run_id)
    if not run.is_over():
        raise ConfigError(f"run {run.id} has not ended; stop it first: ignite-tf stop {run.id}")
    shutil.rmtree(run.directory.path)
