"""A host, reached through a relay: what it can be asked, blocking for callers, on one loop thread inside."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from ignite_tf_magic.closing import Closing
from ignite_tf_magic.errors import HostUnreachable, IgniteTfError
from ignite_tf_magic.launch.jobs import (
    DeviceFacts,
    HostFacts,
    Job,
    JobStatus,
    LinkTimeouts,
    ProbeFacts,
    RunOnHost,
)
from ignite_tf_magic.launch.lazy_asyncio import asyncio
from ignite_tf_magic.launch.link import Pipe, RelayLink, RelayReply, Transport
from ignite_tf_magic.launch.loop import loop_thread

__all__ = ["Host", "Pipe", "RelayReply", "Transport", "call_all"]

T = TypeVar("T")

MAX_PAYLOAD_BYTES = 1 << 20
UNPACKED_LIMIT_BYTES = 4 << 30
_FRESH_TOKEN_S = 0.5
_SLOW_S = 60.0


class SendableTree(Protocol):
    """A tree to be sent, known by the hash of its bytes; see `launch.parcels.Parcel`."""

    @property
    def digest(self) -> str:
        """SHA-256 of the archive, in hex."""
        ...

    @property
    def path(self) -> Path:
        """Where the archive lies."""
        ...


class Host(Closing):
    """A host. Connects at the first call, and again at the first call after its link was lost.

    Safe to use from any thread. A call that fails with `HostUnreachable` may have been done or not; the
    operations are made so that they can be repeated.
    """

    def __init__(
        self,
        name: str,
        transport: Transport,
        *,
        python: str = "python3",
        root: str | None = None,
        timeouts: LinkTimeouts | None = None,
    ) -> None:
        """Name a host and the way to it; does not connect.

        Args:
            name: How users and records call it.
            transport: The way to it.
            python: Interpreter of the relay there, 3.8 or newer; "~/" is the home directory there.
            root: Where our files lie there; None is the user's state directory there.
            timeouts: How long to wait for what.
        """
        self.name = name
        self.transport = transport
        self.timeouts = timeouts or LinkTimeouts()
        self._python = python
        self._root = root
        self._loop: asyncio.AbstractEventLoop | None = None
        self._link: RelayLink | None = None
        self._opening: asyncio.Task[RelayLink] | None = None
        self._is_closed = False

    def __repr__(self) -> str:
        return f"Host({self.name!r}, {self.transport.describe()!r})"

    @property
    def facts(self) -> HostFacts | None:
        """What the host said of itself when it was reached last; None when it never was."""
        link = self._link
        return link.facts if link is not None else None

    # The core, on the loop's thread.

    async def link(self) -> RelayLink:
        """Return the open link, opened when there is none; those who ask meanwhile wait for the same one."""
        here = asyncio.get_running_loop()
        if self._loop is not here:  # the first call, or the first one in a forked child
            self._loop, self._link, self._opening = here, None, None
        if self._is_closed:
            raise HostUnreachable(self.name, "it was closed here")
        if self._link is not None and self._link.is_open:
            return self._link
        if self._opening is None or self._opening.done():
            self._opening = here.create_task(self._open())
            self._opening.add_done_callback(_look_at_error)
        return await asyncio.shield(self._opening)

    async def _open(self) -> RelayLink:
        if self._link is not None:
            await self._link.close()
        link = await RelayLink.open(self.name, self.transport, self._python, self._root, self.timeouts)
        self._link = link
        return link

    async def acall(
        self, op: str, payload: bytes = b"", *, timeout_s: float = 10.0, **fields: Any
    ) -> RelayReply:
        """As `call`, for coroutines on the loop's thread."""
        return await self._request(op, fields, payload, timeout_s)

    async def _request(
        self, op: str, fields: Mapping[str, Any], payload: bytes, timeout_s: float
    ) -> RelayReply:
        return await (await self.link()).request(op, fields, payload, timeout_s)

    async def _close(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
        if self._link is not None:
            await self._link.close()

    # The facade.

    def call(self, op: str, payload: bytes = b"", *, timeout_s: float = 10.0, **fields: Any) -> RelayReply:
        """Ask the host's relay for an operation and wait for its answer.

        Args:
            op: Name of the operation.
            payload: Bytes that go along, at most 1 MiB.
            timeout_s: Limit for the answer, once the host is connected; connecting has limits of its own.
            fields: The fields of the operation.

        Raises:
            HostRefused: The relay answered that it did not do it; `kind` says why.
            HostError: The host could not be used; the class says why.
        """
        return loop_thread().run(self.acall(op, payload, timeout_s=timeout_s, **fields))

    def hello(self) -> HostFacts:
        """Ask the host who it is."""
        return HostFacts.from_wire(self.call("hello").fields)

    def start(self, job: Job, *, token: float | None = None, timeout_s: float = 20.0) -> JobStatus:
        """Start a job; gives its status once its process runs. May be repeated after a lost answer.

        Args:
            job: What to start.
            token: The reading of the host's clock from which its lease counts; None is one of now.
            timeout_s: Limit for the answer.
        """
        return loop_thread().run(self.astart(job, token, timeout_s))

    async def astart(self, job: Job, token: float | None = None, timeout_s: float = 20.0) -> JobStatus:
        """As `start`, for coroutines on the loop's thread."""
        fields = job.to_wire()
        stdin = b"" if job.stdin_text is None else job.stdin_text.encode()
        fields["stdin"] = job.stdin_text is not None
        if len(stdin) > MAX_PAYLOAD_BYTES:
            fields["stdin"] = f"stdin-{job.name}"
            await self._awrite(job.run, fields["stdin"], stdin)
            stdin = b""
        if job.lease_s is not None:
            began = await self._token() if token is None else token
            fields["lease"] = {"token": began, "lease_s": job.lease_s}
        reply = await self.acall("start", stdin, timeout_s=timeout_s, **fields)
        return JobStatus.from_wire(reply.fields["job"])

    def park(self, job: Job, gpus: Sequence[int] = (), *, count: int, age_s: float, memory_bytes: int) -> int:
        """Have the early program of a job started, to wait for later jobs of its kind; tells how many wait.

        They end with the link of this host, or after `age_s`.

        Args:
            job: The job, whose environment they get.
            gpus: The GPUs that such a job is given.
            count: How many there are to be; there may be fewer, as where memory is short.
            age_s: How long they wait.
            memory_bytes: None is started where less than twice that is free, and all end where less than that is.
        """
        if job.early is None:
            return 0
        reply = self.call(
            "park",
            timeout_s=_SLOW_S,
            **job.early.to_wire(),
            env=dict(job.env),
            gpus=list(gpus),
            count=count,
            age_s=age_s,
            memory_bytes=memory_bytes,
        )
        return int(reply.fields["parked"])

    async def _token(self) -> float:
        """Return a reading of the host's clock that was heard a moment ago."""
        link = await self.link()
        if link.now is None or asyncio.get_running_loop().time() - link.heard_at > _FRESH_TOKEN_S:
            return float((await self.acall("hello")).fields["now"])
        return link.now

    def end(
        self,
        run: str,
        *,
        names: Collection[str] | None = None,
        generation: int | None = None,
        grace_s: float = 3.0,
        reason: str = "ended",
    ) -> None:
        """Have jobs ended: asked to, and killed after `grace_s`; does not wait for it.

        Args:
            run: Their run.
            names: Which; None is all but those that are kept.
            generation: Only those up to this one.
            grace_s: How long they may take; 0 kills them at once.
            reason: What their status will say.
        """
        chosen = None if names is None else list(names)
        self.call("end", run=run, names=chosen, generation=generation, grace_s=grace_s, reason=reason)

    def fence(self, run: str, generation: int) -> int:
        """Have older generations ended and refused from now on; gives the highest that the host has seen."""
        return int(self.call("fence", run=run, generation=generation).fields["fence"])

    def request_stop(self, run: str) -> None:
        """Ask the run's owner to stop it, through this host."""
        self.call("stop", run=run)

    def take_back_stop(self, run: str) -> None:
        """Take back what `request_stop` has asked."""
        self.call("unstop", run=run)

    def set_lease(self, run: str, generation: int, lease_s: float) -> None:
        """Let the lease of a generation's jobs be over in so long, be that sooner or later than before.

        Only for who owns the run, as nobody else renews it then: renewals only ever move it further off.
        """
        self.call("lease", run=run, generation=generation, lease_s=lease_s)

    def read(self, run: str, path: str, offset: int = 0, max_bytes: int = MAX_PAYLOAD_BYTES) -> bytes | None:
        """Read a file of a run; None when there is none. At most 1 MiB at a time."""
        reply = self.call("read", run=run, path=path, offset=offset, max_bytes=max_bytes)
        return reply.payload if reply.fields.get("exists") else None

    def write(self, run: str, path: str, data: bytes, mode: int = 0o600) -> None:
        """Write a file of a run, readable by its owner only; up to 1 MiB appears at once or not at all."""
        loop_thread().run(self._awrite(run, path, data, mode))

    async def _awrite(self, run: str, path: str, data: bytes, mode: int = 0o600) -> None:
        for start in range(0, max(len(data), 1), MAX_PAYLOAD_BYTES):
            part = data[start : start + MAX_PAYLOAD_BYTES]
            await self.acall("write", part, run=run, path=path, mode=mode, append=start > 0)

    def remove(self, run: str) -> None:
        """Remove a run's files. Refused (`alive`) while a job of it lives."""
        self.call("remove", run=run, timeout_s=_SLOW_S)

    def tidy(self, unused_s: float) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Have removed what nobody needs there any more; gives what was, and what would not go."""
        fields = self.call("tidy", unused_s=unused_s, timeout_s=_SLOW_S).fields
        return tuple(fields["removed"]), tuple(fields["kept"])

    def list_runs(self) -> list[RunOnHost]:
        """List the runs that this host knows."""
        found: list[RunOnHost] = []
        while True:
            answer = self.call("list", known=[run.run for run in found]).fields
            found += [RunOnHost.from_wire(run) for run in answer["runs"]]
            if not answer["more"]:
                return found

    def jobs_of(self, run: str) -> tuple[JobStatus, ...] | None:
        """List the jobs of one run; None when the host has nothing of it."""
        found = self.call("list", runs=[run]).fields["runs"]
        return RunOnHost.from_wire(found[0]).jobs if found else None

    def has_parcels(self, digests: Iterable[str]) -> set[str]:
        """Tell which of these trees the host has."""
        return set(self.call("has", digests=list(digests)).fields["have"])

    def put_parcel(self, parcel: SendableTree, *, max_bytes: int = UNPACKED_LIMIT_BYTES) -> None:
        """Send a tree; the host unpacks it under its digest. `max_bytes` bounds it unpacked."""
        with parcel.path.open("rb") as file:
            part, data = 0, file.read(MAX_PAYLOAD_BYTES)
            while True:
                following = file.read(MAX_PAYLOAD_BYTES)
                fields = {
                    "digest": parcel.digest,
                    "part": part,
                    "last": not following,
                    "max_bytes": max_bytes,
                }
                self.call("put", data, timeout_s=_SLOW_S, **fields)
                if not following:
                    return
                part, data = part + 1, following

    def probe(self, python: str, modules: Sequence[str] = (), *, timeout_s: float = _SLOW_S) -> ProbeFacts:
        """Ask what an interpreter there offers, and what the host has."""
        return ProbeFacts.from_wire(
            self.call("probe", interpreter=python, modules=list(modules), timeout_s=timeout_s).fields
        )

    def devices(
        self, *, with_gpus: bool, port_range: tuple[int, int] | None = None, num_ports: int = 0
    ) -> DeviceFacts:
        """Ask which GPUs, ports and memory jobs could have.

        Args:
            with_gpus: Whether to ask for the GPUs, which may take some seconds.
            port_range: Where free ports are counted; None counts none.
            num_ports: Where the counting ends.
        """
        wanted = None if port_range is None else list(port_range)
        return DeviceFacts.from_wire(
            self.call(
                "devices", with_gpus=with_gpus, range=wanted, wanted=num_ports, timeout_s=_SLOW_S
            ).fields
        )

    def reserve_ports(self, count: int, port_range: tuple[int, int] | None = None) -> tuple[int, ...]:
        """Have free ports held until `unreserve_ports`, or until the link is gone.

        Args:
            count: How many.
            port_range: The first and the last that may be taken; None lets the system choose.
        """
        wanted = None if port_range is None else list(port_range)
        return tuple(self.call("reserve", count=count, range=wanted).fields["ports"])

    def unreserve_ports(self, ports: Iterable[int]) -> None:
        """Let go of ports that were reserved."""
        self.call("unreserve", ports=list(ports))

    def listen(self) -> int:
        """Have the host listen on a free port, for others to test whether they reach it; gives the port."""
        return int(self.call("listen").fields["port"])

    def unlisten(self, port: int) -> None:
        """End what `listen` began."""
        self.call("unlisten", port=port)

    def connect_to(self, targets: Sequence[tuple[str, int]], timeout_s: float = 2.0) -> list[str | None]:
        """Have the host connect to others; gives for each why it could not, None when it could."""
        fields = {"targets": [[host, port] for host, port in targets], "timeout_s": timeout_s}
        reply = loop_thread().run(self._request("connect", fields, b"", timeout_s + 10))
        return list(reply.fields["results"])

    def listens(self, address: str, port: int) -> bool:
        """Tell whether a program of the host listens at a port, which sees nothing of it where the host lists sockets.

        Args:
            address: The host's own, at which it is tried where the host lists none.
            port: Whatever interface it is at.
        """
        return bool(self.call("listens", host=address, port=port).fields["listens"])

    def route(self, addresses: Sequence[str]) -> list[str | None]:
        """Tell from which of its own addresses the host would send to each of these."""
        return list(self.call("route", addresses=list(addresses)).fields["sources"])

    def close(self) -> None:
        """End the relay. Nothing that was started ends, and no call works any more."""
        self._is_closed = True
        if self._loop is loop_thread().loop:
            loop_thread().run(self._close())


def _look_at_error(task: asyncio.Task[RelayLink]) -> None:
    """Take note of a failure: those who wait for it see it, and there may be none any more."""
    if not task.cancelled():
        task.exception()


def call_all(
    hosts: Iterable[Host], function: Callable[[Host], T], *, max_parallel: int = 128
) -> Mapping[str, T | IgniteTfError]:
    """Do something on many hosts at once; gives by name what came of it, or the error.

    An interrupt ends the waiting at once; what is under way is left to end by itself.
    """
    waiting = deque(hosts)
    order = [host.name for host in waiting]
    answers: dict[str, T | IgniteTfError] = {}
    faults: list[BaseException] = []

    def work() -> None:
        while waiting and not faults:
            try:
                host = waiting.popleft()
            except IndexError:  # another thread was faster
                return
            try:
                answers[host.name] = function(host)
            except IgniteTfError as error:
                answers[host.name] = error
            except BaseException as fault:  # noqa: BLE001 - raised below, where somebody waits
                faults.append(fault)

    # Of an executor, the interpreter waits for the threads when it ends.
    threads = [
        threading.Thread(target=work, name="ignite-tf-call", daemon=True)
        for _ in range(min(max_parallel, len(waiting)))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise faults[0]
    return {name: answers[name] for name in order}
