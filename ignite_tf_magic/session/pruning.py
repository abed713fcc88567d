"""Removes runs that have ended, with all that they have left: hosts first, which alone know what still lives."""

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

# What looks after a run's processes ends a moment after the run.
_LAST_JOBS_S = 5.0
# Parcels, agents and environments that no run here names stay for so long after their last use.
_UNUSED = timedelta(days=14)
_POLL_S = 0.1
_MAX_RECORD_BYTES = 64 << 20


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


class Pruner:
    """Removes runs from igfs, from their hosts, from this machine and from the registry.

    Args:
        volume: The cluster's file system.
        registry: The cluster's list of runs.
        index: Where runs are found.
        reach: How their hosts are reached.
        report: Told what stays, and why.
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
        """Remove all but the newest; gives those that were removed, oldest first.

        Of a run that nobody answers for, nothing is removed before its hosts have said that nothing of it lives.

        Args:
            keep: So many of the newest stay, of this machine's runs and of others' each.
            older_than: Only runs that ended longer ago are removed.
            dry_run: Only tell what would be removed.
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
        """Return all runs but so many that ended last, of those of this machine and of others: these may be made up."""
        oldest_first = sorted(ended, key=lambda name: ended[name])
        chosen: set[str] = set()
        for is_own in (True, False):
            of_kind = [name for name in oldest_first if self._index.is_verified(name) is is_own]
            chosen.update(of_kind[: max(len(of_kind) - keep, 0)])
        return [name for name in oldest_first if name in chosen]

    def _tidy(self, known: Iterable[str]) -> None:
        """Remove what runs of long ago have left on this machine and on hosts, and copies of runs that are gone."""
        here = HostRecord("this machine")
        hosts = [here, *(host for host in self._index.known_hosts() if self._can_ask(host))]
        with self._reach.visiting(hosts) as opened:
            answers = call_all(opened, lambda host: host.tidy(_UNUSED.total_seconds()))
        for name, answer in answers.items():
            if isinstance(answer, HostUnreachable):
                self._silent.add(name)
            elif isinstance(answer, IgniteTfError):
                self._report(f"{name} was not tidied: {answer}")
            else:
                for path in answer[1]:
                    self._report(f"{name} keeps {path}")
        oldest = time.time() - _UNUSED.total_seconds()
        for copy in (self._reach.root / "seen").glob("*"):
            if copy.name not in known and copy.stat().st_mtime < oldest:
                shutil.rmtree(copy, ignore_errors=True)

    def _remove(self, run_id: str, info: RunInfo | None, *, dry_run: bool) -> str | None:
        """Remove a run; gives why it had to stay instead."""
        if info is None:
            return None if dry_run else self._remove_without_record(run_id)
        try:
            run = self._index.find(run_id)
        except RunNotFound:
            run = None
        if run is None or run.id != run_id:
            return "it is not to be found any more"
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
        """Remove a run whose record is damaged, or of which only igfs knows; return why it had to stay instead."""
        if (self._reach.root / "runs" / run_id).is_dir():
            with self._reach.visiting([HostRecord("this machine")]) as (here,):
                if living := _living(here, run_id):
                    return f"{', '.join(living)} of it lives"
                _remove_when_quiet(here, run_id)
            shutil.rmtree(self._reach.root / "runs" / run_id, ignore_errors=True)
            self._registry.remove(run_id)
        self._remove_from_igfs(run_id)
        return None

    def _close(self, run: Run) -> str | None:
        """Write down that a lost run has ended: an interrupted removal is then gone on with, and nobody takes it up."""
        record = mark_stopped(run.record(), time.time())
        registry = self._registry.sealed(Seal.read(run.directory))
        try:
            if (stored := registry.get(run.id)) is not None:
                registry.replace(stored, {**record.to_json(), "told": record.version})
        except RecordChanged:
            return "somebody has just gone on with it"
        except RecordDamaged:  # or forged: nobody goes on by such a row, and it is removed with the rest
            pass
        record.write(run.directory)
        return None

    # Removing

    def _remove_from_hosts(self, run: Run) -> str | None:
        """Remove a run's files on its hosts, but for those that cannot be reached; gives who has what lives.

        All hosts are asked before anything is removed on one of them: what goes on needs its files on the others.
        """
        hosts = run.hosts()
        is_here = self._index.is_of_this_home(run)
        wanted = [host for host in hosts if self._can_ask(host) and (is_here or host.ssh is not None)]
        with self._reach.visiting(wanted) as opened:
            told = call_all(opened, lambda host: _living(host, run.id))
            for name, living in told.items():
                if isinstance(living, list) and living:
                    return f"{', '.join(living)} of it lives on {name}, though it is said to have ended"
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
        """Whether a host has not been silent before: it is not waited for again for each run."""
        return host.name not in self._silent

    def _remove_from_igfs(self, run_id: str) -> None:
        with suppress(PathNotFound):  # it may never have written there
            self._volume.remove_directory((*RUNS, run_id), with_contents=True)

    def _only_in_igfs(self, known: Iterable[str]) -> dict[str, datetime]:
        """Find ended runs of other machines that only their files tell of, and when these were made."""
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
        """Tell whether a run has ended, as its record says that was copied when its output was."""
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
    """Name what lives of a run on a host; it gets a moment to end."""
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
    """Return the moment so long ago; None when there was none."""
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
