"""Removes ended runs with all their files; starts with the hosts, since only they know what still lives."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

from ignite_tf_magic.errors import (
    HostRefused,
    HostUnreachable,
    IgniteTfError,
    PathNotFound,
    RecordChanged,
    RecordDamaged,
    RunNotFound,
)
from ignite_tf_magic.igfs.layout import DirectoryNode
from ignite_tf_magic.igfs.volume import Volume
from ignite_tf_magic.launch.hosts import Host, call_all
from ignite_tf_magic.runs.decisions import mark_stopped
from ignite_tf_magic.runs.directory import RunDirectory
from ignite_tf_magic.runs.handles.run import Run
from ignite_tf_magic.runs.handles.run_files import RUNS
from ignite_tf_magic.runs.reach import Reach
from ignite_tf_magic.runs.record import HostRecord, RunInfo, RunRecord
from ignite_tf_magic.runs.registry.registry import Registry
from ignite_tf_magic.runs.seals import Seal
from ignite_tf_magic.runs.states import RunState
from ignite_tf_magic.session.liveness import why_it_may_live
from ignite_tf_magic.session.run_index import RunIndex

# Reconcilers and other helpers of a run end a moment after it.
_LAST_JOBS_S = 5.0
# Bundles, agents and environments that no run here uses are kept this long after their last use.
_UNUSED = timedelta(days=14)
_POLL_S = 0.1
_MAX_RECORD_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Pruned:
    """A run that was, or would be, removed.

    Attributes:
        ended_at: When it ended. For a run that only igfs knows, when its directory was created.
        num_bytes: Size of its files in igfs.
    """

    run_id: str
    ended_at: datetime
    num_bytes: int


class Pruner:
    """Removes runs from igfs, from their hosts, from this machine and from the registry.

    Args:
        volume: The cluster's file system.
        registry: The cluster's list of runs.
        index: Finds runs.
        reach: How their hosts are reached.
        report: Called with what is kept, and why.
    """

    def __init__(
        self,
        volume: Volume,
        registry: Registry,
        index: RunIndex,
        reach: Reach,
        report: Callable[[str], None],
    ) -> None:
        self._volume = volume
        self._registry = registry
        self._index = index
        self._reach = reach
        self._report = report
        self._silent: set[str] = set()

    def prune(self, *, keep: int, older_than: timedelta | None = None, dry_run: bool = False) -> list[Pruned]:
        """Remove all but the newest ended runs; returns the removed ones, oldest first.

        Removes nothing of a run without an owner until its hosts have confirmed that none of its processes lives.

        Args:
            keep: Number of newest runs to keep, counted separately for this machine's runs and for others.
            older_than: Remove only runs that ended at least this long ago.
            dry_run: Remove nothing; only return the runs that would be removed.
        """
        listed = self._index.runs(include_ended=True)
        known = {run.id: run for run in listed}
        ended = {name: run.ended_at or run.started_at for name, run in known.items() if run.state.has_ended}
        ended |= {path.name: _changed_at(path) for path in listed.unreadable}
        ended |= self._only_in_igfs({*known, *ended})
        chosen = self._but_the_newest(ended, keep)
        if older_than is not None:
            limit = _before_now(older_than)
            chosen = [name for name in chosen if limit is not None and ended[name] < limit]
        pruned = []
        for name in chosen:
            found = Pruned(name, ended[name], _size(self._volume, (*RUNS, name)))
            reason = self._remove(name, known.get(name), dry_run=dry_run)
            if reason is None:
                pruned.append(found)
            else:
                self._report(f"run {name} stays: {reason}")
        if not dry_run:
            self._tidy(known)
        return pruned

    def _but_the_newest(self, ended: dict[str, datetime], keep: int) -> list[str]:
        """Return all but the `keep` newest of this machine's runs and of others, separately: others may be made up."""
        oldest_first = sorted(ended, key=lambda name: ended[name])
        chosen: set[str] = set()
        for is_own in (True, False):
            of_kind = [name for name in oldest_first if self._index.is_verified(name) is is_own]
            chosen.update(of_kind[: max(len(of_kind) - keep, 0)])
        return [name for name in oldest_first if name in chosen]

    def _tidy(self, known: Iterable[str]) -> None:
        """Remove what old runs left on this machine and on hosts, and copies of runs that no longer exist."""
        here = HostRecord("this machine")
        hosts = [here, *(host for host in self._index.known_hosts() if self._can_ask(host))]
        with self._reach.visiting(hosts) as opened:
            answers = call_all(opened, lambda host: host.tidy(_UNUSED.total_seconds()))
        for name, answer in answers.items():
            if isinstance(answer, HostUnreachable):
                self._silent.add(name)
            elif isinstance(answer, IgniteTfError):
                self._report(f"{name}: old files were not removed: {answer}")
            else:
                for path in answer[1]:
                    self._report(f"{name} keeps {path}")
        oldest = time.time() - _UNUSED.total_seconds()
        for copy in (self._reach.root / "seen").glob("*"):
            if copy.name not in known and copy.stat().st_mtime < oldest:
                shutil.rmtree(copy, ignore_errors=True)

    def _remove(self, run_id: str, info: RunInfo | None, *, dry_run: bool) -> str | None:
        """Remove a run; return why it was kept, or None if it was removed."""
        if info is None:
            return None if dry_run else self._remove_without_record(run_id)
        try:
            run = self._index.find(run_id)
        except RunNotFound:
            run = None
        if run is None or run.id != run_id:
            return "it no longer exists"
        if run.info().state is RunState.LOST:
            is_here = self._index.is_of_this_home(run)
            if (reason := why_it_may_live(run, self._registry, is_of_this_home=is_here)) is not None:
                return reason
            if not dry_run and (reason := self._close(run)) is not None:
                return reason
        if not run.is_over():
            return f"it has not ended; stop it first: ignite-tf stop {run_id}"
        if dry_run:
            return None
        if (reason := self._remove_from_hosts(run)) is not None:
            return reason
        self._remove_from_igfs(run_id)
        shutil.rmtree(run.directory.path, ignore_errors=True)
        self._registry.remove(run_id)
        return None

    def _remove_without_record(self, run_id: str) -> str | None:
        """Remove a run with a damaged record, or one that only igfs has; return why it was kept, or None."""
        if (self._reach.root / "runs" / run_id).is_dir():
            with self._reach.visiting([HostRecord("this machine")]) as (here,):
                if living := _living(here, run_id):
                    return f"{', '.join(living)} of the run still lives"
                _remove_when_quiet(here, run_id)
            shutil.rmtree(self._reach.root / "runs" / run_id, ignore_errors=True)
            self._registry.remove(run_id)
        self._remove_from_igfs(run_id)
        return None

    def _close(self, run: Run) -> str | None:
        """Record that a lost run has ended: an interrupted removal can then continue, and no process resumes it."""
        record = mark_stopped(run.record(), time.time())
        registry = self._registry.sealed(Seal.read(run.directory))
        try:
            if (stored := registry.get(run.id)) is not None:
                registry.replace(stored, {**record.to_json(), "told": record.version})
        except RecordChanged:
            return "it has just been resumed"
        except RecordDamaged:  # or forged: no process follows such a row, and it is removed with the rest
            pass
        record.write(run.directory)
        return None

    # Removing

    def _remove_from_hosts(self, run: Run) -> str | None:
        """Remove a run's files from all reachable hosts; return which processes still live where, or None.

        Asks all hosts before it removes anything from one of them: live processes need their files on the others.
        """
        hosts = run.hosts()
        is_here = self._index.is_of_this_home(run)
        wanted = [host for host in hosts if self._can_ask(host) and (is_here or host.ssh is not None)]
        with self._reach.visiting(wanted) as opened:
            told = call_all(opened, lambda host: _living(host, run.id))
            for name, living in told.items():
                if isinstance(living, list) and living:
                    return f"{', '.join(living)} of the run still lives on {name}, but its record says it has ended"
            silent = {name: answer for name, answer in told.items() if isinstance(answer, IgniteTfError)}
            quiet = [host for host in opened if host.name not in silent]
            answers = {**silent, **call_all(quiet, lambda host: _remove_when_quiet(host, run.id))}
        failed = {name: answer for name, answer in answers.items() if isinstance(answer, IgniteTfError)}
        for error in failed.values():
            if isinstance(error, HostRefused) and error.kind == "alive":
                return str(error)
        self._silent |= {name for name, error in failed.items() if isinstance(error, HostUnreachable)}
        unasked = [host.name for host in hosts if not self._can_ask(host) and host.name not in answers]
        if kept := [*(f"{name} ({error})" for name, error in failed.items()), *unasked]:
            self._report(f"files of run {run.id} stay on {', '.join(kept)}")
        return None

    def _can_ask(self, host: HostRecord) -> bool:
        """Return whether a host has answered so far. A silent host is not asked again for each run."""
        return host.name not in self._silent

    def _remove_from_igfs(self, run_id: str) -> None:
        with suppress(PathNotFound):  # it may never have written to igfs
            self._volume.remove_directory((*RUNS, run_id), with_contents=True)

    def _only_in_igfs(self, known: Iterable[str]) -> dict[str, datetime]:
        """Find ended runs of other machines that only have files in igfs, and when their directories were created."""
        try:
            entries = [entry for page in self._volume.entries(RUNS) for entry in page]
        except PathNotFound:
            return {}
        return {
            name: datetime.fromtimestamp(node.created_ns / 1e9, timezone.utc)
            for name, node in entries
            if isinstance(node, DirectoryNode) and name not in known and self._has_ended(name)
        }

    def _has_ended(self, name: str) -> bool:
        """Return whether a run has ended, according to the record that was copied to igfs with its output."""
        try:
            with self._volume.open_read((*RUNS, name, "run.json")) as reader:
                data = bytearray(min(reader.node.size, _MAX_RECORD_BYTES))
                reader.read_into(0, memoryview(data))
            return RunRecord.from_others(json.loads(data)).state.has_ended
        except (PathNotFound, ValueError, RecursionError):
            return False


def _changed_at(path: Path) -> datetime:
    return datetime.fromtimestamp(RunDirectory(path).record.stat().st_mtime, timezone.utc)


def _living(host: Host, run_id: str) -> list[str]:
    """Return the names of a run's live processes on a host, after waiting a moment for them to end."""
    deadline = time.monotonic() + _LAST_JOBS_S
    while True:
        living = [job.name for job in host.jobs_of(run_id) or () if not job.has_ended]
        if not living or time.monotonic() > deadline:
            return living
        time.sleep(_POLL_S)


def _remove_when_quiet(host: Host, run_id: str) -> None:
    deadline = time.monotonic() + _LAST_JOBS_S
    while True:
        try:
            host.remove(run_id)
        except HostRefused as error:
            if error.kind != "alive" or time.monotonic() > deadline:
                raise
        else:
            return
        time.sleep(_POLL_S)


def _before_now(span: timedelta) -> datetime | None:
    """Return the moment this long ago; None if it is before the earliest date."""
    try:
        return datetime.now(timezone.utc) - span
    except OverflowError:
        return None


def _size(volume: Volume, path: tuple[str, ...]) -> int:
    try:
        pages = list(volume.entries(path))
    except PathNotFound:
        return 0
    total = 0
    for name, node in (entry for page in pages for entry in page):
        total += _size(volume, (*path, name)) if isinstance(node, DirectoryNode) else node.size
    return total
