"""Watches one run on one host, across lost links: its jobs, its output from any offset, and its lease.

The host's last answer remains in view while the host cannot be reached. Silence alone says nothing about the jobs.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from ignite_tf_magic.errors import HostError, HostRefused, HostUnreachable, IgniteTfError
from ignite_tf_magic.launch.hosts import Host
from ignite_tf_magic.launch.jobs import HostFacts, JobStatus, Renewal
from ignite_tf_magic.launch.lazy_asyncio import asyncio
from ignite_tf_magic.launch.link import RelayLink, RelayReply
from ignite_tf_magic.launch.loop import end_task, loop_thread

if TYPE_CHECKING:
    from concurrent.futures import Future

MAX_CHUNK_BYTES = 1 << 20


class LogSink(Protocol):
    """Receives output. Called on the loop's thread; no more output is requested until it returns."""

    def data(self, host: str, path: str, offset: int, data: bytes) -> None:
        """Receive the bytes of a log from `offset` on. Each byte comes once, in order."""
        ...

    def gap(self, host: str, path: str, start: int, end: int) -> None:
        """Note that the bytes from `start` to `end` of a log were deleted, at its size limit, before being read."""
        ...


class Contact(Enum):
    """Whether a host answers."""

    CONNECTING = "connecting"  # for the first time, or again just after its link broke
    REACHABLE = "reachable"
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class HostView:
    """What is known of a run on a host. Times are readings of this process's monotonic clock.

    Attributes:
        since: When `contact` last changed.
        heard_at: When the host last answered; None if it never did.
        token: The newest reading of the host's clock, for renewals; None until a new link has its first answer.
        token_heard_at: When the newest reading ever arrived. No lease of ours outlasts this by more than its length.
        jobs: The jobs by name, as of the host's last answer.
        fence: The highest generation that the host has seen.
        stop_asked: Whether a stop of the run was requested through this host.
        error: Why the host cannot be used; None while it answers.
        sink_error: The error of the sink, after which no more output is fetched; None if there was none.
    """

    host: str
    contact: Contact = Contact.CONNECTING
    since: float = field(default_factory=time.monotonic)
    heard_at: float | None = None
    token: float | None = None
    token_heard_at: float | None = None
    jobs: Mapping[str, JobStatus] = field(default_factory=lambda: MappingProxyType({}))
    fence: int = 0
    stop_asked: bool = False
    error: str | None = None
    sink_error: str | None = None
    facts: HostFacts | None = None


class HostWatch:
    """Polls a host for one run until it is stopped, and reconnects whenever the link is lost."""

    def __init__(
        self,
        host: Host,
        run: str,
        *,
        logs: Mapping[str, int],
        sink: LogSink,
        renew: Renewal | None = None,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """Start to watch.

        Args:
            host: The host. The caller closes it, after the watch.
            run: The run.
            logs: The offset from which to read each log, by path.
            sink: Receives the output.
            renew: The lease to renew with every poll; None renews nothing.
            on_change: Called on the loop's thread when `view` changes in more than times, heartbeats and log sizes.
        """
        self._host = host
        self._run = run
        self._logs = dict(logs)
        self._sink = sink
        self._renewal = renew
        self._on_change = on_change
        self._view = HostView(host.name)
        self._seen: int | str | None = None
        self._link: RelayLink | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        loop_thread().spawn(self._watch()).add_done_callback(self._note_failure)

    @property
    def view(self) -> HostView:
        """What is known now. Safe to read from any thread."""
        return self._view

    def add_log(self, path: str, offset: int = 0) -> None:
        """Start to read one more log, from an offset. A log that is already read continues where it is."""
        loop_thread().loop.call_soon_threadsafe(lambda: self._logs.setdefault(path, offset))

    def set_renewal(self, renewal: Renewal | None) -> None:
        """Set the lease that the next polls renew; None renews nothing."""
        self._renewal = renewal

    @property
    def offsets(self) -> Mapping[str, int]:
        """The offset up to which each log has been read. Everything before it went to the sink."""
        return dict(self._logs)

    def stop(self) -> None:
        """End the watch. The sink is not called after this returns. Do not call it from a callback.

        The host stays open.
        """
        loop_thread().run(self._stop())

    async def _stop(self) -> None:
        if self._task is not None and self._task.get_loop() is asyncio.get_running_loop():
            await end_task(self._task)
        if self._alarm is not None:
            self._alarm.cancel()

    # On the loop's thread.

    async def _watch(self) -> None:
        self._task = asyncio.current_task()
        wait_s = self._host.timeouts.retry_min_s
        while True:
            try:
                reply = await self._poll()
                self._take(reply)
                wait_s = self._host.timeouts.retry_min_s
            except HostRefused as error:  # the host answers, but refuses the poll
                self._heard(error.facts.get("now"))
                self._change(contact=Contact.REACHABLE, error=error.reason)
                await asyncio.sleep(self._host.timeouts.poll_s)
            except IgniteTfError as error:
                self._lost(error)
                await asyncio.sleep(wait_s * random.uniform(0.5, 1.0))  # noqa: S311
                wait_s = min(wait_s * 2, self._host.timeouts.retry_max_s)

    async def _poll(self) -> RelayReply:
        timeouts = self._host.timeouts
        link = await self._host.link()
        is_new = link is not self._link
        if is_new:
            self._link = link
            # A clock reading from before a reboot would extend a lease without end.
            self._view = replace(self._view, token=None, facts=link.facts)
        fields = {
            "run": self._run,
            "logs": self._logs,
            "max_bytes": MAX_CHUNK_BYTES,
            "wait_s": 0.0 if is_new else timeouts.poll_s,
            "seen": None if is_new else self._seen,
            "renew": self._renew_fields(),
        }
        try:
            return await link.request("poll", fields, b"", timeouts.poll_s + timeouts.silence_s)
        except HostUnreachable:
            await link.close()
            raise

    def _renew_fields(self) -> dict[str, Any] | None:
        renewal = self._renewal
        token = self._view.token if renewal is None or renewal.token is None else renewal.token
        if renewal is None or token is None or self._view.token is None:
            return None
        return {"generation": renewal.generation, "token": token, "lease_s": renewal.lease_s}

    def _take(self, reply: RelayReply) -> None:
        fields = reply.fields
        self._heard(fields.get("now"))
        if self._view.sink_error is None:
            try:
                self._deliver(reply)
            except Exception as error:  # noqa: BLE001 - a sink that fails must not end the lease
                self._logs = {}
                self._change(sink_error=f"{type(error).__name__}: {error}")
            self._arm()  # the time that the sink took does not count as silence of the host
        self._seen = fields.get("seen")
        jobs = {job["name"]: JobStatus.from_wire(job) for job in fields["jobs"]}
        self._change(
            contact=Contact.REACHABLE,
            error=None,
            jobs=MappingProxyType(jobs),
            fence=fields.get("fence", 0),
            stop_asked=bool(fields.get("stop")),
        )

    def _deliver(self, reply: RelayReply) -> None:
        for path, start, end in reply.fields.get("gaps", ()):
            if self._logs.get(path) == start:
                self._sink.gap(self._host.name, path, start, end)
                self._logs[path] = end
        begin = 0
        for path, offset, size in reply.fields.get("logs", ()):
            data = reply.payload[begin : begin + size]
            begin += size
            if data and self._logs.get(path) == offset:  # else the offset has changed since the request
                self._sink.data(self._host.name, path, offset, data)
                self._logs[path] = offset + len(data)

    def _heard(self, now: Any) -> None:
        heard_at = time.monotonic()
        self._view = replace(self._view, heard_at=heard_at)
        if isinstance(now, int | float):
            self._view = replace(self._view, token=float(now), token_heard_at=heard_at)
        self._arm()

    def _arm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        silence_s = self._host.timeouts.silence_s
        self._alarm = asyncio.get_running_loop().call_later(silence_s, self._silent)

    def _silent(self) -> None:
        silence = f"it has not answered for {self._host.timeouts.silence_s:g} s"
        self._change(contact=Contact.UNREACHABLE, error=self._view.error or silence)

    def _lost(self, error: IgniteTfError) -> None:
        is_first = self._view.contact is Contact.REACHABLE and isinstance(error, HostUnreachable)
        reason = error.reason if isinstance(error, HostError) else str(error)
        self._change(contact=Contact.CONNECTING if is_first else Contact.UNREACHABLE, error=reason)

    def _change(self, **changes: Any) -> None:
        old = self._view
        new = replace(old, **changes)
        if new.contact is not old.contact:
            new = replace(new, since=time.monotonic())
        self._view = new
        if _without_clocks(new) != _without_clocks(old):
            self._on_change()

    def _note_failure(self, done: Future[None]) -> None:
        """Show a fault of this module or of `on_change` in the view, because it appears nowhere else."""
        if not done.cancelled() and (error := done.exception()) is not None:
            self._view = replace(
                self._view, contact=Contact.UNREACHABLE, error=f"the watch failed: {error!r}"
            )


def _without_clocks(view: HostView) -> HostView:
    """Return the view without times, heartbeats and log sizes, whose changes cause no `on_change`."""
    jobs = {name: replace(job, beat=0, log_bytes=0, log_start=0) for name, job in view.jobs.items()}
    return replace(view, since=0.0, heard_at=None, token=None, token_heard_at=None, jobs=jobs)
