"""Keeps a run's directory on this machine up to date, from the hosts on which its workers run.

Readers of a run read files here and need not know where they come from. One process keeps a directory up to date.
Others that would do the same only read, and take over when it ends. Nothing is copied from a host that uses this same
directory.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from itertools import cycle, islice
from pathlib import Path

from ignite_tf_magic.closing import Closing
from ignite_tf_magic.errors import ConfigError, HostError, HostRefused, MirrorFailed
from ignite_tf_magic.launch import lock
from ignite_tf_magic.launch.files import write_private
from ignite_tf_magic.launch.hosts import Host
from ignite_tf_magic.launch.jobs import JobStatus
from ignite_tf_magic.launch.watch import Contact, HostView, HostWatch
from ignite_tf_magic.runs.directory import SEEN, RunDirectory, exit_name, is_directory_name, make_private
from ignite_tf_magic.runs.logs.mirror_state import (
    NOBODY,
    STATE_FILE,
    MirroredRecord,
    MirrorState,
    Stamp,
    UnreadOutput,
    is_given_up,
    read_record,
    unread,
    workers,
)
from ignite_tf_magic.runs.logs.mirrored_logs import MirroredLogs, mirror_failed
from ignite_tf_magic.runs.orders import place_of
from ignite_tf_magic.runs.record import RunRecord

__all__ = ["Mirror", "UnreadOutput", "seen_directory"]

_LOOK_S = 0.5
_JOIN_S = 3.0
_PART_BYTES = 1 << 20
_MAX_FILE_BYTES = 16 << 20
_RECORDS_AT_A_TIME = 3  # number of hosts that are asked for the run's record in each cycle


def seen_directory(state_dir: Path, run_id: str) -> RunDirectory:
    """Return the directory for a run of other machines, and create it if missing.

    Raises:
        ConfigError: The id is not a valid directory name.
    """
    if not is_directory_name(run_id):
        raise ConfigError(f"{run_id!r} cannot be the id of a run: it is not a valid directory name")
    path = state_dir / SEEN / run_id
    make_private(path)
    return RunDirectory(path)


class Mirror(Closing):
    """Keeps a run's directory up to date until it is closed. Works in a separate thread; thread-safe.

    Args:
        directory: The run's directory on this machine.
        hosts: The hosts on which the run has workers; the caller closes them, after this object.
        open_more: Opens hosts by their names in the record, because a run may get more hosts later.
    """

    def __init__(
        self,
        directory: RunDirectory,
        hosts: Iterable[Host],
        open_more: Callable[[Collection[str]], Iterable[Host]] = lambda _: (),
    ) -> None:
        self.directory = directory
        self._hosts = {host.name: host for host in hosts}
        self._open_more = open_more
        self._met = set(self._hosts)
        self._logs = MirroredLogs(directory)
        self._watches: dict[str, HostWatch] = {}
        self._is_here: dict[str, bool] = {}
        self._fetched: set[tuple[str, str]] = set()
        self._doubled: dict[tuple[str, str], UnreadOutput] = {}
        self._first_sizes: dict[tuple[str, str], int] = {}
        self._failure: MirrorFailed | None = None
        self._held: lock.HeldLock | None = None
        self._lock_file = directory.path / "mirror.lock"
        self._state = MirrorState()
        self._record = MirroredRecord(directory.record)
        self._judged: Stamp = ()
        self._judged_at = 0.0
        self._news_at: float | None = None
        self._judging = threading.Lock()
        self._turn = 0
        self._wake = threading.Event()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="ignite-tf-mirror", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop mirroring; the files remain, and another process may continue with them.

        Does not wait long for a host that does not answer: its pending request ends when the caller closes the host.
        """
        self._is_closing = True
        self._wake.set()
        self._thread.join(_JOIN_S)

    def is_complete(self) -> bool:
        """Return whether all workers on reachable hosts have ended and all their output is here.

        Read the run's record before the call, so that the result covers all workers in it.

        Raises:
            MirrorFailed: The directory is no longer kept up to date.
        """
        if self._failure:
            raise self._failure
        if self._held:
            return self._judge()[0]
        stamp, state = self._record.stamp(), MirrorState.read(self.directory)
        is_current = lock.holder_pid(self._lock_file) == state.pid or not state.unreachable
        return state.is_complete and is_current and state.record == stamp != ()

    def is_caught_up(self) -> bool:
        """Return whether all output that existed when the reachable hosts were first asked is here."""
        if not self._held:
            return lock.is_held(self._lock_file)  # another process copies it
        views = [watch.view for watch in dict(self._watches).values()]
        open_views = [view for view in views if view.contact is not Contact.UNREACHABLE]
        return len(views) == len(self._hosts) and all(self._has_caught_up(view) for view in open_views)

    def _has_caught_up(self, view: HostView) -> bool:
        if view.heard_at is None or view.host not in self._is_here:
            return False
        if self._is_here[view.host]:
            return True
        wanted = {job.log: self._first_sizes.get((view.host, job.log)) for job in workers(view)}
        return all(
            size is not None and (self._logs.offset(view.host, log) or 0) >= size
            for log, size in wanted.items()
            if (view.host, log) not in self._doubled
        )

    def unreachable(self) -> tuple[UnreadOutput, ...]:
        """Return the output that cannot be read now; for an ended run, once mirroring is complete."""
        return self._judge()[1] if self._held else MirrorState.read(self.directory).unreachable

    # In the thread

    def _run(self) -> None:
        try:
            while not self._is_closing:
                self._wake.clear()
                if self._hold():
                    self._look()
                self._wake.wait(_LOOK_S)
        except MirrorFailed as error:
            self._failure = error
        except Exception as error:  # noqa: BLE001 - readers that wait for output must see that none will come
            self._failure = mirror_failed(self.directory, error)
        finally:
            self._end()

    def _end(self) -> None:
        """Release the directory for other processes, even after errors."""
        with ExitStack() as ending:
            if self._held:
                ending.callback(self._held.release)
                ending.callback(self._leave)
            ending.callback(self._logs.end)
            for watch in self._watches.values():
                ending.callback(watch.stop)

    def _leave(self) -> None:
        """Publish that no process keeps the directory: the next holder may be this process, but knows nothing yet."""
        with suppress(OSError):  # the directory may be gone
            self._publish(replace(self._state, pid=NOBODY))

    def _hold(self) -> bool:
        """Become the process that keeps the directory, unless another one does; return whether this is the one."""
        if self._held is None and not lock.is_held(self._lock_file):
            with suppress(BlockingIOError):
                self._held = lock.HeldLock(self._lock_file)
                done = MirrorState.read(self.directory).done
                self._publish(MirrorState(secrets.token_hex(16), done=done))
        return self._held is not None

    def _look(self) -> None:
        if self._logs.failure:
            raise self._logs.failure
        self._meet()
        for host in self._hosts.values():
            if host.name not in self._watches:
                self._watches[host.name] = HostWatch(
                    host, self.directory.run_id, logs={}, sink=self._logs, on_change=self._wake.set
                )
        with_answer = [
            name for name, watch in self._watches.items() if watch.view.contact is Contact.REACHABLE
        ]
        for name in with_answer:
            with suppress(HostError):
                self._attend(self._hosts[name], self._watches[name])
        self._fetch_records([name for name in with_answer if not self._is_here.get(name, True)])
        self._publish_state()

    def _meet(self) -> None:
        """Open hosts that were added to the run since."""
        if new := self._record.hosts() - self._met:
            self._hosts.update((host.name, host) for host in self._open_more(new))
            self._met |= new

    def _attend(self, host: Host, watch: HostWatch) -> None:
        if host.name not in self._is_here:
            found = self._read(host, STATE_FILE) or b""
            self._is_here[host.name] = self._state.mark.encode() in found
        if self._is_here[host.name]:
            return
        for job in workers(watch.view):
            if self._logs.offset(host.name, job.log) is None:
                offset = self._logs.add(host.name, job.log)
                if offset is None:
                    reason = "another host has a log of that name"
                    lost = UnreadOutput(host.name, job.log, job.log_bytes, False, reason)
                    self._doubled[host.name, job.log] = lost
                else:
                    self._first_sizes[host.name, job.log] = job.log_bytes
                    watch.add_log(job.log, offset)
            if job.has_ended and (host.name, job.name) not in self._fetched:
                self._fetch_exit(host, job)

    def _fetch_exit(self, host: Host, job: JobStatus) -> None:
        place = place_of(job)
        if place:
            generation, worker = place
            name = exit_name(worker, generation)
            if content := self._read(host, name):
                write_private(self.directory.path / name, content.decode(errors="replace"))
        self._fetched.add((host.name, job.name))

    def _fetch_records(self, names: list[str]) -> None:
        """Ask a few hosts for the run's record, different ones in each cycle."""
        for name in islice(cycle(names), self._turn, self._turn + min(len(names), _RECORDS_AT_A_TIME)):
            with suppress(HostError, ValueError):
                record = read_record(self._read(self._hosts[name], self.directory.record.name))
                if record and record["version"] > self._record.version():
                    RunRecord.from_others(record)
                    self._record.offer(record)
        self._turn = (self._turn + _RECORDS_AT_A_TIME) % max(len(names), 1)

    def _read(self, host: Host, path: str) -> bytes | None:
        """Read a file of the run on a host, or return None if it does not exist or is too large."""
        content = b""
        while len(content) < _MAX_FILE_BYTES:
            try:
                part = host.read(self.directory.run_id, path, len(content), _PART_BYTES)
            except HostRefused:  # the host does not know the run
                return None
            if part is None:
                return None
            content += part
            if len(part) < _PART_BYTES:
                return content
        return None

    # Overall state

    def _judge(self) -> tuple[bool, tuple[UnreadOutput, ...], Stamp]:
        with self._judging:
            # A newer record may belong to newly started workers, so earlier reports of hosts no longer count.
            if (stamp := self._record.stamp()) != self._judged:
                self._judged_at = time.monotonic()
                self._news_at = self._judged_at if self._judged else None
                self._judged = stamp
            # In this order, so that a host opened in the meantime counts as one without a view.
            all_met = self._record.hosts() <= self._met
            views = [watch.view for watch in dict(self._watches).values()]
            open_views = [view for view in views if not self._is_done(view)]
        all_known = all_met and len(views) == len(self._hosts)
        is_complete = all_known and all(is_given_up(view, self._news_at) for view in open_views)
        away = [view for view in open_views if not self._is_here.get(view.host)]
        lost = [each for view in away for each in unread(view, partial(self._logs.offset, view.host))]
        return is_complete, (*lost, *self._doubled.values()), stamp

    def _is_done(self, view: HostView) -> bool:
        """Return whether a host, asked after the record was written, has no running workers and no unread output."""
        if view.heard_at is None:  # an earlier mirror may have heard from it
            return bool(self._judged) and self._state.done.get(view.host) == self._record.version()
        if view.contact is not Contact.REACHABLE or view.heard_at <= self._judged_at:
            return False
        return view.host in self._is_here and all(
            job.has_ended and self._is_read(view.host, job) for job in workers(view)
        )

    def _is_read(self, host: str, job: JobStatus) -> bool:
        if self._is_here.get(host):
            return True
        if doubled := self._doubled.get((host, job.log)):
            return doubled.unread_bytes >= job.log_bytes  # the unread output is fully accounted for
        offset = self._logs.offset(host, job.log)
        return offset is not None and offset >= job.log_bytes and (host, job.name) in self._fetched

    def _publish_state(self) -> None:
        version = self._record.version()  # read first, because an older version does no harm
        is_complete, lost, stamp = self._judge()
        views = [watch.view for watch in self._watches.values()]
        done = dict(self._state.done) | {view.host: version for view in views if self._is_done(view)}
        self._publish(MirrorState(self._state.mark, os.getpid(), is_complete, stamp, lost, done))

    def _publish(self, state: MirrorState) -> None:
        if state != self._state:
            state.write(self.directory)
            self._state = state
