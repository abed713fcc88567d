"""Origins of runs as seen from this process: a run is here, or elsewhere and copied here while a user watches it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Protocol

from ignite_tf_magic.errors import HostError, HostUnreachable, IgniteTfError, LaunchError
from ignite_tf_magic.launch import lock
from ignite_tf_magic.launch.hosts import Host, call_all
from ignite_tf_magic.runs.directory import RunDirectory
from ignite_tf_magic.runs.logs.mirror import Mirror
from ignite_tf_magic.runs.logs.mirror_state import MirrorState, UnreadOutput
from ignite_tf_magic.runs.reach import Reach
from ignite_tf_magic.runs.record import RunRecord
from ignite_tf_magic.runs.registry.registry import Registry
from ignite_tf_magic.runs.registry.registry_rows import Stored
from ignite_tf_magic.runs.seals import Seal

_ASK_S = 1.0
_DETACHED_PATIENCE_S = 15.0


class Copying(Protocol):
    """A run's files, while they are being copied."""

    def is_complete(self) -> bool:
        """Return whether everything that can be read is here."""
        ...

    def is_caught_up(self) -> bool:
        """Return whether everything that existed when copying began is here."""
        ...

    def unreachable(self) -> tuple[UnreadOutput, ...]:
        """Return the output that cannot be read now."""
        ...


class Origin(Protocol):
    """The operations of a run that depend on where it is."""

    def look(self, record: RunRecord) -> None:
        """Fetch news of the run, if another machine must be asked for them."""
        ...

    def has_owner(self, record: RunRecord) -> bool:
        """Return whether a process owns the run, as of the last `look`; sends no request."""
        ...

    def ask_to_stop(self, record: RunRecord) -> None:
        """Ask the run's owner to stop it."""
        ...

    def copying(self, record: RunRecord) -> AbstractContextManager[Copying]:
        """Copy the run's files here and keep them up to date while the context lasts."""
        ...


@dataclass(frozen=True, slots=True)
class _BroughtByOwner:
    directory: RunDirectory

    def is_complete(self) -> bool:
        return True

    def is_caught_up(self) -> bool:
        return True

    def unreachable(self) -> tuple[UnreadOutput, ...]:
        return MirrorState.read(self.directory).unreachable


@dataclass(frozen=True, slots=True)
class LocalRun:
    """A run whose owner works in this same directory."""

    directory: RunDirectory
    reach: Reach

    def look(self, record: RunRecord) -> None:
        """Do nothing: everything known about the run is here."""

    def has_owner(self, record: RunRecord) -> bool:
        """Return whether the run's lock is held."""
        del record
        return lock.is_held(self.directory.owner_lock)

    def ask_to_stop(self, record: RunRecord) -> None:
        """Write the request to the directory."""
        del record
        self.directory.stop_request.touch(mode=0o600)

    def copying(self, record: RunRecord) -> AbstractContextManager[Copying]:
        """Copy the run's files, unless its living owner does that, as for attached runs."""
        if self._must_copy(record):
            return _mirroring(self.directory, self.reach, record)
        return nullcontext(_BroughtByOwner(self.directory))

    def _must_copy(self, record: RunRecord) -> bool:
        if record.detached:
            return len(record.hosts) > 1
        if all(host.ssh is None for host in record.hosts):
            return False
        if record.state.has_ended:
            return bool(MirrorState.read(self.directory).unreachable)
        return not self.has_owner(record)


@dataclass(slots=True)
class RemoteRun:
    """A run on other machines.

    Attributes:
        registry: Opens the registry with the owner's heartbeats, with the run's key as `seal`; None if the cluster
            cannot be asked.
    """

    directory: RunDirectory
    reach: Reach
    registry: Callable[..., Registry] | None
    _asked_at: float = field(default=float("-inf"))
    _seen_at: float = field(default=float("-inf"))
    _has_owner: bool = True
    _stored: Stored | None = None
    _seal: Seal | None = None

    def look(self, record: RunRecord) -> None:
        """Ask the registry for the owner's heartbeat and a newer record, at most once a second."""
        if self.registry is None or time.monotonic() - self._asked_at <= _ASK_S:
            return
        self._asked_at = time.monotonic()
        if (seal := Seal.read(self.directory)) != self._seal:
            self._seal, self._stored = seal, None  # the earlier record was not checked with this key
        try:
            with self.registry(seal=seal) as registry:
                self._has_owner = registry.owner(record.run_id) is not None
                self._take_newer(registry, record)
        except IgniteTfError:
            self._has_owner = True
        if self._has_owner:
            self._seen_at = time.monotonic()

    def has_owner(self, record: RunRecord) -> bool:
        """Return whether the owner's heartbeat is recent. If the cluster could not be asked, assume that it is.

        A detached run counts as owned for some more seconds, in which another of its hosts may replace the last one.
        """
        patience_s = _DETACHED_PATIENCE_S if record.detached else 0.0
        return self._has_owner or time.monotonic() - self._seen_at < patience_s

    def _take_newer(self, registry: Registry, record: RunRecord) -> None:
        """Update the run's directory with a newer record from the cluster, even while no host is being copied.

        Without the run's key, any client may have written the record. So it is then only used for runs that are merely
        watched from this machine.
        """
        if self.directory.is_verified and not self.directory.seal_key.exists():
            return
        self._stored = registry.get(record.run_id, self._stored)
        if self._stored is not None and self._stored.version > record.version:
            with suppress(ValueError):
                RunRecord.from_others(self._stored.record).write(self.directory)

    def ask_to_stop(self, record: RunRecord) -> None:
        """Ask on every reachable host, and in the registry.

        Raises:
            LaunchError: Neither a host nor the registry could be asked.
        """
        reasons = []
        with ExitStack() as opened:
            hosts = [
                opened.enter_context(self.reach.open(host))
                for host in self.reach.seen_from_here(record, is_verified=self.directory.is_verified)
            ]
            answers = call_all(hosts, lambda host: host.request_stop(record.run_id))
        reasons += [str(answer) for answer in answers.values() if isinstance(answer, HostError)]
        was_asked = len(reasons) < len(answers)
        if self.registry is not None:
            try:
                with self.registry() as registry:
                    registry.request(record.run_id, stop=True)
                was_asked = True
            except IgniteTfError as error:
                reasons.append(str(error))
        if not was_asked:
            raise LaunchError(f"run {record.run_id} cannot be asked to stop: {'; '.join(reasons)}")

    def copying(self, record: RunRecord) -> AbstractContextManager[Copying]:
        """Copy from all hosts."""
        return _mirroring(self.directory, self.reach, record)


@contextmanager
def _mirroring(directory: RunDirectory, reach: Reach, record: RunRecord) -> Iterator[Copying]:
    def open_hosts(record: RunRecord, names: Collection[str] | None = None) -> list[Host]:
        seen = reach.seen_from_here(record, is_verified=directory.is_verified)
        wanted = [each for each in seen if names is None or each.name in names]
        return [opened.enter_context(reach.open(host)) for host in wanted]

    with ExitStack() as opened:
        hosts = open_hosts(record)
        with Mirror(directory, hosts, lambda names: open_hosts(RunRecord.read(directory), names)) as mirror:
            yield mirror


def end_on_hosts(record: RunRecord, reach: Reach, grace_s: float, *, is_verified: bool) -> None:
    """End a run's workers on all its hosts without its owner; block until they have ended.

    Args:
        record: The run's record.
        reach: How to reach its hosts.
        grace_s: How long workers may take to end.
        is_verified: As for `Reach.seen_from_here`.

    Raises:
        HostUnreachable: A host does not answer; the workers on the others have been ended.
    """
    with ExitStack() as opened:
        seen = reach.seen_from_here(record, is_verified=is_verified)
        hosts = [opened.enter_context(reach.open(host)) for host in seen]
        answers = call_all(hosts, lambda host: host.end(record.run_id, grace_s=grace_s, reason="ended"))
        deadline = time.monotonic() + 2 * grace_s + 2.0
        reached = [host for host in hosts if not isinstance(answers[host.name], IgniteTfError)]
        while time.monotonic() < deadline:
            found = call_all(reached, lambda host: {run.run: run for run in host.list_runs()})
            runs = [each.get(record.run_id) for each in found.values() if isinstance(each, dict)]
            if all(run is None or all(job.has_ended for job in run.jobs) for run in runs):
                break
            time.sleep(0.05)
    failed = [answer for answer in answers.values() if isinstance(answer, IgniteTfError)]
    if failed:
        reason = "; ".join(map(str, failed))
        raise HostUnreachable(
            ", ".join(host.name for host in hosts if host not in reached),
            f"{reason}. Workers there end automatically when their lease expires",
        )
