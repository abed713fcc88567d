"""All runs that can be seen from here: of this machine, of the cluster's registry, of hosts asked over SSH.

What this machine's directories and the registry say is at hand at once. Hosts are asked over SSH only when no node of
Ignite answers: their directories are the truth of which the registry is an index.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ignite_tf_magic.errors import ConnectionFailed, IgniteTfError, RecordDamaged, RecordForged, RunNotFound
from ignite_tf_magic.launch.files import write_private
from ignite_tf_magic.launch.hosts import Host, call_all
from ignite_tf_magic.runs.directory import SEEN, RunDirectory, is_directory_name, resolve_prefix
from ignite_tf_magic.runs.handles.run import Run, local_run, read_runs
from ignite_tf_magic.runs.hosts.topology import connect_to_most
from ignite_tf_magic.runs.logs.mirror import seen_directory
from ignite_tf_magic.runs.record import HostRecord, RunRecord, info_of
from ignite_tf_magic.runs.registry.origins import RemoteRun
from ignite_tf_magic.runs.registry.registry import CACHE, Registry
from ignite_tf_magic.runs.seals import Seal
from ignite_tf_magic.runs.states import RunState

if TYPE_CHECKING:
    from ignite_tf_magic.runs.reach import Reach
    from ignite_tf_magic.runs.record import RunInfo
    from ignite_tf_magic.runs.registry.registry import RegistryEntry
    from ignite_tf_magic.settings.options import ConnectOptions, HostOptions

# A listing does not wait long for a cluster that does not answer.
_CONNECT_S = 2.0
_KNOWN_HOSTS = "hosts.json"
_LOST_IS_SHOWN = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Listed:
    """Runs, oldest first. Iterating gives the runs.

    Attributes:
        warnings: Why runs may be missing.
        unreadable: Runs of this machine whose record is damaged, by their directories.
    """

    runs: tuple[RunInfo, ...]
    warnings: tuple[str, ...] = ()
    unreadable: tuple[Path, ...] = ()

    def __iter__(self) -> Iterator[RunInfo]:
        return iter(self.runs)

    def __len__(self) -> int:
        return len(self.runs)


class RunIndex:
    """Lists and finds runs.

    Args:
        state_dir: This package's state on this machine.
        reach: How hosts are reached.
        cluster: Where the registry is; None when no cluster is configured or runs here.
        configured: Hosts of the configuration, asked over SSH while Ignite is down.
    """

    def __init__(
        self,
        state_dir: Path,
        reach: Reach,
        cluster: ConnectOptions | None,
        configured: Iterable[HostOptions] = (),
    ) -> None:
        self._state_dir = state_dir
        self._runs_dir = state_dir / "runs"
        self._reach = reach
        self._cluster = None if cluster is None else replace(cluster, timeout_s=_CONNECT_S)
        self._configured = tuple(configured)

    @property
    def registry(self) -> Callable[..., Registry] | None:
        """A way to the cluster's registry, which may be given a run's key; who calls it closes what it gives."""
        if self._cluster is None:
            return None
        return partial(Registry, partial(connect_to_most, self._cluster), patience_s=_CONNECT_S)

    def runs(self, *, include_ended: bool = False) -> Listed:
        """List runs, oldest first."""
        readable, unreadable = read_runs(self._runs_dir)
        native = {info.id: info for info in readable}
        others, warnings = self._others()
        infos = {info.id: info for info in others}
        # Of a detached run this machine is one of several hosts, and others may go on without it.
        infos |= {
            name: info
            for name, info in native.items()
            if name not in infos or not (_is_lost(info) and info.detached)
        }
        now = datetime.now(timezone.utc)
        chosen = [info for info in infos.values() if include_ended or is_live(info, now)]
        damaged = tuple(path for path in unreadable if path.name not in infos)
        runs = sorted(chosen, key=lambda info: (info.started_at, info.id))
        return Listed(tuple(runs), warnings, damaged)

    def find(self, run_id: str) -> Run:
        """Find a run by its id, or by the beginning of it or of its name.

        The run of that id counts before those that begin so, and one that goes on before those that have ended.

        Raises:
            RunNotFound: No id begins so, or several do; the error lists them.
            RecordDamaged: The run's record cannot be read.
        """
        readable, unreadable = read_runs(self._runs_dir)
        own = {info.id: not info.state.has_ended for info in readable}
        if run_id in own:
            return self._native(run_id)
        records, warnings = self._records()
        others = _going_on(records)
        chosen = resolve_prefix(
            {each: own.get(each, False) or others.get(each, False) for each in (*own, *others)}, run_id
        )
        if chosen in own:
            return self._native(chosen)
        if chosen is None and run_id and self.registry is not None and not warnings:
            records, warnings = self._over_ssh()  # the registry may not have been told of it yet
            chosen = resolve_prefix(_going_on(records), run_id)
        if chosen is None:
            for path in unreadable:
                if path.name == run_id:
                    raise RecordDamaged(run_id, "", "", damaged_words(path))
            raise RunNotFound(_nowhere(run_id, [*own, *records], warnings))
        return self._elsewhere(records[chosen][0])

    def _native(self, run_id: str) -> Run:
        """Return a run of this machine; a detached one is judged by all its hosts, of which this machine is one."""
        run = local_run(RunDirectory(self._runs_dir / run_id), self._reach)
        record = run.record()
        if not record.detached or len(record.hosts) == 1 or self.registry is None:
            return run
        return replace(run, origin=RemoteRun(run.directory, self._reach, self.registry))

    def _elsewhere(self, record: RunRecord) -> Run:
        directory = seen_directory(self._state_dir, record.run_id)
        is_new = not directory.record.exists() or RunRecord.read(directory).version < record.version
        # Where the run's key is, the record is ours; it is brought up to date by what is sealed with that.
        if is_new and Seal.read(directory) is None:
            record.write(directory)
        return Run(directory, RemoteRun(directory, self._reach, self.registry), self._reach)

    def _others(self) -> tuple[list[RunInfo], tuple[str, ...]]:
        records, warnings = self._records()
        seen = self._state_dir / "seen"
        infos = [
            info_of(record, seen / record.run_id, has_owner=has_owner)
            for record, has_owner in records.values()
        ]
        return infos, warnings

    def _records(self) -> tuple[dict[str, tuple[RunRecord, bool]], tuple[str, ...]]:
        """Return all records that are not of this machine alone, and whether somebody answers for each run."""
        if self.registry is None:
            return {}, ()
        try:
            with self.registry() as registry:
                listing = registry.runs()
        except IgniteTfError as error:
            found, unheard = self._over_ssh()
            reason = "no node of Ignite answers" if isinstance(error, ConnectionFailed) else str(error)
            return found, (f"{reason}; the hosts were asked instead", *unheard)
        records, warnings = {}, list(listing.warnings)
        for entry in listing:
            record = self._checked(entry, warnings)
            if record is not None:
                records[record.run_id] = record, entry.owner_alive
        self._remember(record for record, _ in records.values())
        return records, tuple(warnings)

    def _checked(self, entry: RegistryEntry, warnings: list[str]) -> RunRecord | None:
        """Read a record of the registry; where the run's key is here and does not fit, take the record that is here."""
        run_id = str(entry.record["run_id"])
        if not is_directory_name(run_id):
            warnings.append(f"{run_id!r} in cache {CACHE} cannot be the id of a run")
            return None
        for directory in map(RunDirectory, (self._runs_dir / run_id, self._state_dir / SEEN / run_id)):
            seal, key = Seal.read(directory), f"record/{run_id}"
            if seal is not None and not seal.fits(key, entry.record, entry.seal):
                warnings.append(str(RecordForged(run_id, key, CACHE, entry.record)))
                with suppress(OSError, ValueError):
                    return RunRecord.read(directory)
                return None
        if (record := _read(entry.record)) is None:
            warnings.append(f"the row of run {run_id!r} in cache {CACHE} is no record that a run can have")
        return record

    def _over_ssh(self) -> tuple[dict[str, tuple[RunRecord, bool]], tuple[str, ...]]:
        """Ask hosts that are configured or that earlier runs had; of each run the newest record counts."""
        with ExitStack() as opened:
            hosts = [opened.enter_context(self._reach.open(host)) for host in self.known_hosts()]
            answers = call_all(hosts, Host.list_runs)
        records: dict[str, tuple[RunRecord, bool]] = {}
        for answer in answers.values():
            for on_host in () if isinstance(answer, IgniteTfError) else answer:
                record = _read(on_host.record) if on_host.record else None
                if record is None:
                    continue
                lives = any(not job.has_ended for job in on_host.jobs)
                before = records.get(record.run_id)
                newest = record if before is None or before[0].version < record.version else before[0]
                records[record.run_id] = newest, lives or (before is not None and before[1])
        warnings = [str(answer) for answer in answers.values() if isinstance(answer, IgniteTfError)]
        return records, tuple(warnings)

    def known_hosts(self) -> list[HostRecord]:
        """List the other machines that are configured, or that runs of this cluster had."""
        configured = [
            HostRecord(each.name, ssh=each.ssh or each.name, root=each.root)
            for each in self._configured
            if each.ssh != "local"
        ]
        known = {host.ssh: host for host in configured}
        for name, ssh, _ in self._remembered().get(self._cluster_name, []):
            # Rows of the registry told of them: where our files lie is not theirs to say.
            known.setdefault(ssh, HostRecord(name, ssh=ssh, root=self._reach.roots.get(ssh)))
        return list(known.values())

    @property
    def _cluster_name(self) -> str:
        """Name the cluster in use by its nodes: hosts of another one are none of its runs' business."""
        return ",".join(sorted(map(str, self._cluster.endpoints))) if self._cluster else ""

    def _remembered(self) -> dict[str, list[tuple[str, str, str | None]]]:
        """Read the hosts that earlier runs had, by cluster."""
        try:
            content = json.loads((self._state_dir / _KNOWN_HOSTS).read_text())
        except (OSError, ValueError):
            return {}
        # Until lately all clusters' hosts were in one list.
        by_cluster = content if isinstance(content, dict) else {self._cluster_name: content}
        return {
            cluster: [(name, ssh, root) for name, ssh, root in rows] for cluster, rows in by_cluster.items()
        }

    def _remember(self, records: Iterable[RunRecord]) -> None:
        """Keep the names of hosts for the day when Ignite does not tell them."""
        hosts = {
            host.ssh: host
            for record in records
            for host in self._reach.seen_from_here(record, is_verified=False)
        }
        rows = sorted((host.name, ssh, host.root) for ssh, host in hosts.items() if ssh is not None)
        before = self._remembered()
        if rows and before.get(self._cluster_name) != rows:
            write_private(self._state_dir / _KNOWN_HOSTS, json.dumps({**before, self._cluster_name: rows}))

    def is_verified(self, run_id: str) -> bool:
        """Whether this machine has written itself what it knows of a run, or has its key."""
        own, seen = self._runs_dir / run_id, self._state_dir / SEEN / run_id
        return own.exists() or Seal.read(RunDirectory(seen)) is not None

    def is_of_this_home(self, run: Run) -> bool:
        """Whether the run's own directory is among those of this user here, not a copy of another machine's."""
        return run.directory.path.parent == self._runs_dir


def damaged_words(path: Path) -> str:
    """Say of a run's directory that its record is damaged, and what to do."""
    return (
        f"the record of run {path.name} cannot be read ({RunDirectory(path).record}); its output lies beside it. "
        "To remove the run when nothing of it lives: ignite-tf prune"
    )


def _going_on(records: Mapping[str, tuple[RunRecord, bool]]) -> dict[str, bool]:
    return {
        run_id: has_owner and not record.state.has_ended for run_id, (record, has_owner) in records.items()
    }


def _nowhere(run_id: str, known: Sequence[str], warnings: Iterable[str]) -> str:
    near = difflib.get_close_matches(run_id, known, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    hint += "`ps --all` lists all" if known else "none is known here; another cluster is named by -c FILE"
    return "; ".join([f"no run {run_id!r}: {hint}", *warnings])


def _is_lost(info: RunInfo) -> bool:
    return info.state is RunState.LOST


def is_live(info: RunInfo, now: datetime) -> bool:
    """Whether a listing of what goes on shows the run; a lost one is shown until it is stopped, for a day."""
    if _is_lost(info):
        return now - _last_sign(info) < _LOST_IS_SHOWN
    return not info.state.has_ended


def _last_sign(info: RunInfo) -> datetime:
    """Tell when something of a lost run was last written here, else when it was started."""
    return max(info.started_at, info.seen_at or info.started_at)


def _read(content: Mapping[str, Any]) -> RunRecord | None:
    try:
        return RunRecord.from_others(content)
    except ValueError:
        return None
