"""Processes on hosts that are reached through relays; implements `launchers.Launcher`."""

from __future__ import annotations

import itertools
import secrets
import threading
import time
from collections.abc import Mapping
from pathlib import PurePath

from ignite_tf_magic.closing import Closing
from ignite_tf_magic.errors import HostRefused, LaunchError
from ignite_tf_magic.launch.hosts import Host
from ignite_tf_magic.launch.jobs import Job, JobState, JobStatus
from ignite_tf_magic.launch.watch import HostWatch
from tests.launch.launchers import Command

# `terminate` never kills: callers decide when to call `kill`.
_GRACE_S = 24 * 3600.0


class AgentLauncher(Closing):
    """Starts processes on hosts, as jobs of one run. `close` stops watching them, but does not end them."""

    def __init__(self, hosts: Mapping[str, Host], *, run: str | None = None) -> None:
        """Take the usable hosts by name, and the run whose directory on each host receives the output."""
        self.run = run or f"launch-{secrets.token_hex(6)}"
        self._hosts = dict(hosts)
        self._numbers = itertools.count()
        self._watches: dict[str, _Watched] = {}

    def start(self, host: str, command: Command, output_path: PurePath) -> AgentProcess:
        """Start a process. `output_path` must be in the run's directory on that host."""
        if host not in self._hosts:
            known = ", ".join(sorted(self._hosts)) or "none"
            raise LaunchError(f"cannot start a process on {host!r}: this launcher's hosts are: {known}")
        to = self._hosts[host]
        job = Job(
            run=self.run,
            name=f"g1-{next(self._numbers)}-{secrets.token_hex(3)}",
            generation=1,
            argv=tuple(command.argv),
            env=dict(command.env),
            log=self._log(to, output_path),
            cwd=None if command.cwd is None else str(command.cwd),
            stdin_text=command.stdin_text,
            grace_s=_GRACE_S,
        )
        if host not in self._watches:
            self._watches[host] = _Watched(to, self.run)
        return AgentProcess(to, job, to.start(job), self._watches[host])

    def _log(self, host: Host, output_path: PurePath) -> str:
        facts = host.facts or host.hello()
        folder = PurePath(facts.root) / "runs" / self.run
        try:
            return output_path.relative_to(folder).as_posix()
        except ValueError:
            raise LaunchError(
                f"cannot write the output of {self.run} to {output_path} on {host.name!r}: it must be in {folder}"
            ) from None

    def close(self) -> None:
        """Stop watching; the processes go on."""
        for watched in self._watches.values():
            watched.watch.stop()


class _Watched:
    """One run on one host, and a condition that is notified of each change."""

    def __init__(self, host: Host, run: str) -> None:
        self.news = threading.Condition()
        self.watch = HostWatch(host, run, logs={}, sink=_NoSink(), on_change=self._tell)

    def _tell(self) -> None:
        with self.news:
            self.news.notify_all()


class _NoSink:
    def data(self, host: str, path: str, offset: int, data: bytes) -> None:
        del host, path, offset, data

    def gap(self, host: str, path: str, start: int, end: int) -> None:
        del host, path, start, end


class AgentProcess:
    """A process on a host; implements `launchers.Process`. Its status does not change while its host is unreachable."""

    def __init__(self, host: Host, job: Job, status: JobStatus, watched: _Watched) -> None:
        self._host = host
        self._job = job
        self._first = status
        self._watched = watched

    @property
    def status(self) -> JobStatus:
        """The last known status."""
        return self._watched.watch.view.jobs.get(self._job.name, self._first)

    @property
    def pid(self) -> int:
        """The pid, which is also the process group id."""
        if self._first.pid is None:
            raise LaunchError(f"host {self._host.name!r} has not told the number of {self._job.name!r}")
        return self._first.pid

    def poll(self) -> int | None:
        """Return the exit code, or None as long as the host has reported no end.

        Raises:
            LaunchError: The process has ended, but its host does not know its exit code.
        """
        status = self.status
        if not status.has_ended:
            return None
        if status.code is None:
            why = "the host was booted since" if status.state is JobState.LOST else f"reason: {status.reason}"
            raise LaunchError(f"{self._job.name!r} on {self._host.name!r} ended, nobody knows how ({why})")
        return status.code

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Wait until the process has ended; return the exit code, or None after the timeout."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._watched.news:
            while (code := self.poll()) is None:
                left_s = None if deadline is None else deadline - time.monotonic()
                if left_s is not None and left_s <= 0:
                    break
                self._watched.news.wait(left_s)
        return code

    def terminate(self) -> None:
        """Ask the process to end (SIGTERM)."""
        self._end(_GRACE_S)

    def kill(self) -> None:
        """Kill the process and all its children."""
        self._end(0.0)

    def _end(self, grace_s: float) -> None:
        if self.status.has_ended:
            return
        try:
            self._host.end(self._job.run, names=[self._job.name], grace_s=grace_s)
        except HostRefused:
            if not self.status.has_ended:  # otherwise it ended in the meantime
                raise
