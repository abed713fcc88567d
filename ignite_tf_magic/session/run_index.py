"""Lists and finds all visible runs: of this machine, of the cluster's registry, and of hosts asked over SSH.

This machine's directories and the registry answer at once. Hosts are asked over SSH only if no Ignite node answers.
The directories on the hosts are authoritative; the registry is only an index of them.
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

# Short: a listing must not wait long for a cluster that does not answer.
_CONNECT_S = 2.0
_KNOWN_HOSTS = "hosts.json"
_LOST_IS_SHOWN = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Listed:
    """Runs, oldest first. Iteration yields the runs.

    Attributes:
        warnings: Reasons why runs may be missing.
        unreadable: Directories of this machine's runs whose record is damaged.
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
        state_dir: This package's state directory on this machine.
        reach: How hosts are reached.
        cluster: Cluster with the registry; None if no cluster is configured or runs here.
        configured: Configured hosts, which are asked over SSH while Ignite is down.
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
        """A function that opens the registry, or None without a cluster.

        It optionally takes a run's key. The caller closes the result.
        """
        if self._cluster is None:
            return None
        return partial(Registry, partial(connect_to_most, self._cluster), patience_s=_CONNECT_S)

    def runs(self, *, include_ended: bool = False) -> Listed:
        """List runs, oldest first."""
        readable, unreadable = read_runs(self._runs_dir)
        native = {info.id: info for info in readable}
        others, warnings = self._others()
        infos = {info.id: info for info in others}
        # This machine is only one of the hosts of a detached run. The run may continue on the others.
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
        """Return the run with this ID, or whose ID or name starts with it.

        An exact ID takes precedence over beginnings, and a live run takes precedence over ended ones.

        Raises:
            RunNotFound: No run matches, or several do; the error lists them.
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
            records, warnings = self._over_ssh()  # the registry may not have it yet
            chosen = resolve_prefix(_going_on(records), run_id)
        if chosen is None:
            for path in unreadable:
                if path.name == run_id:
                    raise RecordDamaged(run_id, "", "", damaged_words(path))
            raise RunNotFound(_nowhere(run_id, [*own, *records], warnings))
        return self._elsewhere(records[chosen][0])

    def _native(self, run_id: str) -> Run:
        """Return a run of this machine. The state of a detached run with several hosts is that on all of them."""
        run = local_run(RunDirectory(self._runs_dir / run_id), self._reach)
        record = run.record()
        if not record.detached or len(record.hosts) == 1 or self.registry is None:
            return run
        return replace(run, origin=RemoteRun(run.directory, self._reach, self.registry))

    def _elsewhere(self, record: RunRecord) -> Run:
        directory = seen_directory(self._state_dir, record.run_id)
        is_new = not directory.record.exists() or RunRecord.read(directory).version < record.version
        # If the run's key is here, the record is ours. Then only signed records may update it.
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
        """Return the records that the cluster or the hosts know, and for each run whether it has a live owner."""
        if self.registry is None:
            return {}, ()
        try:
            with self.registry() as registry:
                listing = registry.runs()
        except IgniteTfError as error:
            found, unheard = self._over_ssh()
            reason = "no Ignite node answers" if isinstance(error, ConnectionFailed) else str(error)
            return found, (f"{reason}; the hosts were asked instead", *unheard)
        records, warnings = {}, list(listing.warnings)
        for entry in listing:
            record = self._checked(entry, warnings)
            if record is not None:
                records[record.run_id] = record, entry.owner_alive
        self._remember(record for record, _ in records.values())
        return records, tuple(warnings)

    def _checked(self, entry: RegistryEntry, warnings: list[str]) -> RunRecord | None:
        """Read a registry record; return the local one if the run's key is here and the signature is wrong."""
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
            warnings.append(f"the row of run {run_id!r} in cache {CACHE} is not a valid record of a run")
        return record

    def _over_ssh(self) -> tuple[dict[str, tuple[RunRecord, bool]], tuple[str, ...]]:
        """Ask hosts that are configured or were used by earlier runs; keep the newest record of each run."""
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
        """List the other machines that are configured or were used by runs of this cluster."""
        configured = [
            HostRecord(each.name, ssh=each.ssh or each.name, root=each.root)
            for each in self._configured
            if each.ssh != "local"
        ]
        known = {host.ssh: host for host in configured}
        for name, ssh, _ in self._remembered().get(self._cluster_name, []):
            # These hosts come from registry rows, which must not decide where our files are.
            known.setdefault(ssh, HostRecord(name, ssh=ssh, root=self._reach.roots.get(ssh)))
        return list(known.values())

    @property
    def _cluster_name(self) -> str:
        """The nodes of the cluster in use, as a key that keeps the hosts of different clusters apart."""
        return ",".join(sorted(map(str, self._cluster.endpoints))) if self._cluster else ""

    def _remembered(self) -> dict[str, list[tuple[str, str, str | None]]]:
        """Read the hosts of earlier runs, by cluster."""
        try:
            content = json.loads((self._state_dir / _KNOWN_HOSTS).read_text())
        except (OSError, ValueError):
            return {}
        # Earlier versions kept the hosts of all clusters in one list.
        by_cluster = content if isinstance(content, dict) else {self._cluster_name: content}
        return {
            cluster: [(name, ssh, root) for name, ssh, root in rows] for cluster, rows in by_cluster.items()
        }

    def _remember(self, records: Iterable[RunRecord]) -> None:
        """Store the hosts of these runs, to find them when Ignite does not answer."""
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
        """Return whether this machine wrote its data about a run itself, or has the run's key."""
        own, seen = self._runs_dir / run_id, self._state_dir / SEEN / run_id
        return own.exists() or Seal.read(RunDirectory(seen)) is not None

    def is_of_this_home(self, run: Run) -> bool:
        """Return whether the run's own directory is one of this user's here, not a copy from another machine."""
        return run.directory.path.parent == self._runs_dir


def damaged_words(path: Path) -> str:
    """Return a message that the record in a run's directory is damaged, and what to do."""
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
    """Return whether a listing of live runs shows the run. A lost run is shown for a day, or until it is stopped."""
    if _is_lost(info):
        return now - _last_sign(info) < _LOST_IS_SHOWN
    return not info.state.has_ended


def _last_sign(info: RunInfo) -> datetime:
    """Return when this machine last saw anything of a lost run, or when it was started."""
    return max(info.started_at, info.seen_at or info.started_at)


def _read(content: Mapping[str, Any]) -> RunRecord | None:
    try:
        return RunRecord.from_others(content)
    except ValueError:
        return None
