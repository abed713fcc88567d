"""Calls a host's relay: blocking functions for any thread, over connections on one loop thread."""

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
from ignite_tf_magic.launch.loop import TURN_S, loop_thread

__all__ = ["Host", "Pipe", "RelayReply", "Transport", "call_all"]

T = TypeVar("T")

MAX_PAYLOAD_BYTES = 1 << 20
UNPACKED_LIMIT_BYTES = 4 << 30
_FRESH_TOKEN_S = 0.5
_SLOW_S = 60.0


class SendableTree(Protocol):
    """A directory tree to send, identified by the hash of its archive; see `launch.parcels.Parcel`."""

    @property
    def digest(self) -> str:
        """SHA-256 of the archive, in hex."""
        ...

    @property
    def path(self) -> Path:
        """The path of the archive."""
        ...


class Host(Closing):
    """A host. The first call connects; so does the first call after the link was lost.

    Safe to use from any thread. A call that raises `HostUnreachable` may or may not have been carried out. All
    operations can be repeated.
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
        """Create a host without connecting to it.

        Args:
            name: The host's name for users and in records.
            transport: Starts the relay on the host.
            python: The relay's interpreter on the host, 3.8 or newer. A leading "~/" is the home directory there.
            root: Directory of this package's files on the host. None means the user's state directory there.
            timeouts: Time limits for connections and answers.
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
        """What the host reported about itself when the last link opened; None before the first."""
        link = self._link
        return link.facts if link is not None else None

    # The core, on the loop's thread.

    async def link(self) -> RelayLink:
        """Return the open link, or open one. Concurrent callers wait for the same one."""
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
        """Request an operation from the host's relay and wait for its answer.

        Args:
            op: Name of the operation.
            payload: Bytes to send along, at most 1 MiB.
            timeout_s: Limit for the answer in seconds, once connected. Connecting has its own limits.
            fields: The fields of the operation.

        Raises:
            HostRefused: The relay refused the operation; `kind` says why.
            HostError: The host could not be used; the subclass says why.
        """
        return loop_thread().run(self.acall(op, payload, timeout_s=timeout_s, **fields))

    def hello(self) -> HostFacts:
        """Return the host's facts, read anew."""
        return HostFacts.from_wire(self.call("hello").fields)

    def start(self, job: Job, *, token: float | None = None, timeout_s: float = 20.0) -> JobStatus:
        """Start a job and return its status once its process runs. Can be repeated after a lost answer.

        Args:
            job: The job to start.
            token: The reading of the host's clock at which the job's lease begins. None takes a current one.
            timeout_s: Limit for the answer, in seconds.
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
        """Start a job's early program in advance, for later jobs like it; return how many processes are parked.

        Parked processes end with the link to this host, or after `age_s`.

        Args:
            job: The job, whose environment the parked processes get.
            gpus: The GPUs that such a job gets.
            count: The number of parked processes wanted. There may be fewer, for example when memory is short.
            age_s: How long they wait for a job, in seconds.
            memory_bytes: A process starts only if twice this memory is free, and ends if less than this is free.
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
        """Return a reading of the host's clock that arrived at most half a second ago."""
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
        """Ask jobs to end, and kill them after `grace_s`. Does not wait for their end.

        Args:
            run: The run of the jobs.
            names: The jobs; None means all that were started without `keep`.
            generation: End only jobs up to this generation. None means any.
            grace_s: How many seconds they may take; 0 kills them at once.
            reason: The reason that their status will show.
        """
        chosen = None if names is None else list(names)
        self.call("end", run=run, names=chosen, generation=generation, grace_s=grace_s, reason=reason)

    def fence(self, run: str, generation: int) -> int:
        """End and refuse all older generations; return the highest that the host has seen."""
        return int(self.call("fence", run=run, generation=generation).fields["fence"])

    def request_stop(self, run: str) -> None:
        """Leave a request on this host that the run's owner stop the run."""
        self.call("stop", run=run)

    def take_back_stop(self, run: str) -> None:
        """Withdraw the request of `request_stop`."""
        self.call("unstop", run=run)

    def set_lease(self, run: str, generation: int, lease_s: float) -> None:
        """Set the lease of a generation's jobs to end in `lease_s` seconds, sooner or later than before.

        Only the run's owner may call this, because an owner's renewals would otherwise extend the lease again.
        """
        self.call("lease", run=run, generation=generation, lease_s=lease_s)

    def read(self, run: str, path: str, offset: int = 0, max_bytes: int = MAX_PAYLOAD_BYTES) -> bytes | None:
        """Return at most 1 MiB of a run's file, or None if there is no such file."""
        reply = self.call("read", run=run, path=path, offset=offset, max_bytes=max_bytes)
        return reply.payload if reply.fields.get("exists") else None

    def write(self, run: str, path: str, data: bytes, mode: int = 0o600) -> None:
        """Write a file of a run, by default readable by its owner only. Up to 1 MiB is written atomically."""
        loop_thread().run(self._awrite(run, path, data, mode))

    async def _awrite(self, run: str, path: str, data: bytes, mode: int = 0o600) -> None:
        for start in range(0, max(len(data), 1), MAX_PAYLOAD_BYTES):
            part = data[start : start + MAX_PAYLOAD_BYTES]
            await self.acall("write", part, run=run, path=path, mode=mode, append=start > 0)

    def remove(self, run: str) -> None:
        """Remove a run's files. Raises HostRefused (`alive`) while one of its jobs runs."""
        self.call("remove", run=run, timeout_s=_SLOW_S)

    def tidy(self, unused_s: float) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Remove what the host has not used for `unused_s`; return what was removed and what could not be."""
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
        """Return the jobs of one run, or None if the host does not know the run."""
        found = self.call("list", runs=[run]).fields["runs"]
        return RunOnHost.from_wire(found[0]).jobs if found else None

    def has_parcels(self, digests: Iterable[str]) -> set[str]:
        """Return the digests of those bundles that the host has."""
        return set(self.call("has", digests=list(digests)).fields["have"])

    def put_parcel(self, parcel: SendableTree, *, max_bytes: int = UNPACKED_LIMIT_BYTES) -> None:
        """Send a bundle, which the host unpacks under its digest. `max_bytes` limits its unpacked size."""
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
        """Return what an interpreter on the host offers, and what the host itself has."""
        return ProbeFacts.from_wire(
            self.call("probe", interpreter=python, modules=list(modules), timeout_s=timeout_s).fields
        )

    def devices(
        self, *, with_gpus: bool, port_range: tuple[int, int] | None = None, num_ports: int = 0
    ) -> DeviceFacts:
        """Return the host's GPUs, free ports and memory, and what its jobs hold of them.

        Args:
            with_gpus: Whether to list the GPUs, which may take some seconds.
            port_range: First and last port of the range in which to count free ports. None counts none.
            num_ports: The number of free ports at which counting stops.
        """
        wanted = None if port_range is None else list(port_range)
        return DeviceFacts.from_wire(
            self.call(
                "devices", with_gpus=with_gpus, range=wanted, wanted=num_ports, timeout_s=_SLOW_S
            ).fields
        )

    def reserve_ports(self, count: int, port_range: tuple[int, int] | None = None) -> tuple[int, ...]:
        """Reserve free ports until `unreserve_ports`, or until the link is gone.

        Args:
            count: The number of ports.
            port_range: First and last port allowed. None lets the system choose.
        """
        wanted = None if port_range is None else list(port_range)
        return tuple(self.call("reserve", count=count, range=wanted).fields["ports"])

    def unreserve_ports(self, ports: Iterable[int]) -> None:
        """Release reserved ports."""
        self.call("unreserve", ports=list(ports))

    def listen(self) -> int:
        """Make the host listen on a free port, by which others can test whether they reach it; return the port."""
        return int(self.call("listen").fields["port"])

    def unlisten(self, port: int) -> None:
        """Stop listening on a port that `listen` returned."""
        self.call("unlisten", port=port)

    def connect_to(self, targets: Sequence[tuple[str, int]], timeout_s: float = 2.0) -> list[str | None]:
        """Make the host connect to each target; return for each the error, or None if it succeeded."""
        fields = {"targets": [[host, port] for host, port in targets], "timeout_s": timeout_s}
        reply = loop_thread().run(self._request("connect", fields, b"", timeout_s + 10))
        return list(reply.fields["results"])

    def listens(self, address: str, port: int) -> bool:
        """Return whether a program on the host listens on a port.

        Where the host lists its sockets, nothing connects to the program. Elsewhere the host tries to connect.

        Args:
            address: The host's own address, used to connect where it does not list its sockets.
            port: The port. Where the host lists its sockets, any interface counts.
        """
        return bool(self.call("listens", host=address, port=port).fields["listens"])

    def route(self, addresses: Sequence[str]) -> list[str | None]:
        """Return, for each target address, the host's own address that it would send from, or None."""
        return list(self.call("route", addresses=list(addresses)).fields["sources"])

    def close(self) -> None:
        """End the relay. Jobs that it started go on, and all later calls fail."""
        self._is_closed = True
        if self._loop is loop_thread().loop:
            loop_thread().run(self._close())


def _look_at_error(task: asyncio.Task[RelayLink]) -> None:
    """Mark a task's error as retrieved, because there may be no caller left to wait for it."""
    if not task.cancelled():
        task.exception()


def call_all(
    hosts: Iterable[Host], function: Callable[[Host], T], *, max_parallel: int = 128
) -> Mapping[str, T | IgniteTfError]:
    """Call a function for many hosts in parallel; return its results or errors by host name.

    An interrupt ends the wait at once. Calls in progress end by themselves.
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
            except BaseException as fault:  # noqa: BLE001 - raised below, in the calling thread
                faults.append(fault)

    # No executor: the interpreter would wait for its threads at exit.
    threads = [
        threading.Thread(target=work, name="ignite-tf-call", daemon=True)
        for _ in range(min(max_parallel, len(waiting)))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(TURN_S)
    if faults:
        raise faults[0]
    return {name: answers[name] for name in order}
