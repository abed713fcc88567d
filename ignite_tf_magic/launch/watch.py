"""Watches one run on one host: its jobs, its output from any offset, its lease; through lost links too.

What the host last said stays known while it cannot be reached; nothing is concluded from silence.
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
    """Takes output. Called on the loop's thread; nothing more is asked for until it returns."""

    def data(self, host: str, path: str, offset: int, data: bytes) -> None:
        """Take the bytes of a log from `offset` on; each byte comes once, in order."""
        ...

    def gap(self, host: str, path: str, start: int, end: int) -> None:
        """Take note that these bytes of a log were deleted at its size bound before they were read."""
        ...


class Contact(Enum):
    """Whether a host answers."""

    CONNECTING = "connecting"  # for the first time, or again just after its link broke
    REACHABLE = "reachable"
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class HostView:
    """What is known of a run on a host. Times are this process's monotonic clock.

    Attributes:
        since: When `contact` changed last.
        heard_at: When the host answered last; None when it never did.
        token: The newest reading of the host's clock, for renewals; None after a link broke.
        token_heard_at: When the newest one ever was heard: no lease of ours outlives it by more than its length.
        jobs: By name, as they stood when the host answered last.
        fence: The highest generation that the host has seen.
        stop_asked: Somebody asked through this host for the run's end.
        error: Why the host cannot be used; None while it answers.
        sink_error: Why no more output is fetched: the sink failed.
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
    """Polls a host for one run until it is stopped, and connects again whenever the link was lost."""

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
        """Begin to watch.

        Args:
            host: The host; the caller closes it, after the watch.
            run: The run.
            logs: Where to read on in each of its logs.
            sink: Takes the output.
            renew: Whose lease to prolong with every poll; None prolongs nothing.
            on_change: Called on the loop's thread when something in `view` other than a time or a clock changed.
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
        """What is known now; callable from any thread."""
        return self._view

    def add_log(self, path: str, offset: int = 0) -> None:
        """Read one more log, from an offset; one that is read already goes on where it is."""
        loop_thread().loop.call_soon_threadsafe(lambda: self._logs.setdefault(path, offset))

    def set_renewal(self, renewal: Renewal | None) -> None:
        """Replace whose lease the next poll prolongs."""
        self._renewal = renewal

    @property
    def offsets(self) -> Mapping[str, int]:
        """Where each log is read up to: what is before went to the sink."""
        return dict(self._logs)

    def stop(self) -> None:
        """End the watch; when this returns the sink is not called any more. Not from a callback.

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
            except HostRefused as error:  # it answers, and has nothing for us
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
            # A reading of another boot's clock would prolong a lease for ever.
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
            self._arm()  # the time that the sink took is not the host's silence
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
            if data and self._logs.get(path) == offset:  # else it was replaced since we asked
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
        """Show a fault of this module or of `on_change`, which nobody else would see."""
        if not done.cancelled() and (error := done.exception()) is not None:
            self._view = replace(
                self._view, contact=Contact.UNREACHABLE, error=f"the watch failed: {error!r}"
            )


def _without_clocks(view: HostView) -> HostView:
    """Return what a change is worth a call for: no times, no heartbeats, no growth of logs."""
    jobs = {name: replace(job, beat=0, log_bytes=0, log_start=0) for name, job in view.jobs.items()}
    return replace(view, since=0.0, heard_at=None, token=None, token_heard_at=None, jobs=jobs)
