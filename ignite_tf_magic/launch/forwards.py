"""Forwards ports of one host to another, through this process and its SSH connections to both.

Hosts need no SSH access to each other, and ports are opened on loopback addresses only. Everything here runs on the
loop's thread, except the public methods of `HostForwards`.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from ignite_tf_magic.closing import Closing
from ignite_tf_magic.errors import HostError, HostRefused, HostUnreachable
from ignite_tf_magic.launch.jobs import LinkTimeouts
from ignite_tf_magic.launch.lazy_asyncio import asyncio
from ignite_tf_magic.launch.link import Transport
from ignite_tf_magic.launch.loop import end_task, loop_thread
from ignite_tf_magic.launch.ssh import SshTransport, borrowed_connection
from ignite_tf_magic.launch.tunnels import READ_BYTES, carry

LOOPBACK = "127.0.0.1"
NO_FORWARDING = "no_forwarding"
_END_S = 1.0

# A reader and a writer of asyncio or asyncssh, which have the same methods.
Stream = tuple[Any, Any]
Accept = Callable[[Any, Any], None]


class End(Protocol):
    """A host at which forwarded connections begin or end."""

    def connected(self, port: int) -> AbstractAsyncContextManager[Stream]:
        """Connect to a port of the host's loopback address while the context lasts.

        Raises:
            OSError: No program listens on the port.
            HostRefused: The host's sshd does not allow forwarding.
            HostError: The host cannot be reached.
        """
        ...

    def listening(self, port: int, accept: Accept) -> AbstractAsyncContextManager[Callable[[], bool]]:
        """Listen on a port of the host's loopback address while the context lasts.

        The context yields a function that returns whether listening has ended, as when the link is lost.

        Raises:
            HostRefused: The host's sshd does not allow forwarding.
            OSError: The port is taken.
            HostError: The host cannot be reached.
        """
        ...


class SshEnd:
    """A host that is reached over SSH."""

    def __init__(self, transport: SshTransport, timeouts: LinkTimeouts) -> None:
        self._hop = transport.hop
        self._timeouts = timeouts

    @contextlib.asynccontextmanager
    async def connected(self, port: int) -> AsyncIterator[Stream]:
        """Connect to a port of the host; see `End`."""
        import asyncssh

        async with borrowed_connection(self._hop, self._timeouts) as connection:
            try:
                asked = connection.open_connection(LOOPBACK, port, encoding=None)
                reader, writer = await asyncio.wait_for(asked, self._timeouts.connect_s)
            except asyncio.TimeoutError as error:
                raise self._silent() from error
            except asyncssh.ChannelOpenError as error:
                if error.code == asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED:
                    raise self._refused(f"connect to {LOOPBACK}:{port}", error.reason) from error
                raise OSError(f"{self._hop.name} does not reach its port {port}: {error.reason}") from error
            except asyncssh.Error as error:
                raise HostUnreachable(self._hop.name, str(error)) from error
            with contextlib.closing(writer):
                yield reader, writer

    @contextlib.asynccontextmanager
    async def listening(self, port: int, accept: Accept) -> AsyncIterator[Callable[[], bool]]:
        """Listen on a port of the host; see `End`."""
        import asyncssh

        async with borrowed_connection(self._hop, self._timeouts) as connection:
            try:
                asked = connection.start_server(lambda *_: accept, LOOPBACK, port, encoding=None)
                listener = await asyncio.wait_for(asked, self._timeouts.connect_s)
            except asyncio.TimeoutError as error:
                raise self._silent() from error
            except (asyncssh.Error, asyncssh.ChannelListenError) as error:
                if connection.is_closed():
                    raise HostUnreachable(self._hop.name, f"the connection broke: {error}") from error
                raise self._refused(f"listen at {LOOPBACK}:{port}", str(error)) from error
            try:
                yield connection.is_closed
            finally:
                if not connection.is_closed():
                    listener.close()
                    with contextlib.suppress(asyncio.TimeoutError):  # the host is lost, and its port with it
                        await asyncio.wait_for(listener.wait_closed(), _END_S)

    def _silent(self) -> HostUnreachable:
        return HostUnreachable(
            self._hop.name, f"its sshd gave no answer within {self._timeouts.connect_s:g} s"
        )

    def _refused(self, what: str, reason: str) -> HostRefused:
        return HostRefused(
            self._hop.name,
            NO_FORWARDING,
            f"its sshd refuses to {what} ({reason}); its sshd_config needs: AllowTcpForwarding yes, and "
            "nothing that forbids it: PermitOpen, PermitListen, DisableForwarding, or restrict before the "
            "key",
        )


class LocalEnd:
    """This machine."""

    @contextlib.asynccontextmanager
    async def connected(self, port: int) -> AsyncIterator[Stream]:
        """Connect to a port of this machine; see `End`."""
        reader, writer = await asyncio.open_connection(LOOPBACK, port, limit=READ_BYTES)
        with contextlib.closing(writer):
            yield reader, writer

    @contextlib.asynccontextmanager
    async def listening(self, port: int, accept: Accept) -> AsyncIterator[Callable[[], bool]]:
        """Listen on a port of this machine; see `End`."""
        server = await asyncio.start_server(accept, LOOPBACK, port, limit=READ_BYTES)
        with contextlib.closing(server):
            yield lambda: not server.is_serving()


def end_of(transport: Transport, timeouts: LinkTimeouts) -> End:
    """Return the `End` for the host that a transport reaches."""
    return SshEnd(transport, timeouts) if isinstance(transport, SshTransport) else LocalEnd()


class HostForwards(Closing):
    """Forwards loopback ports of one host to the same ports of other hosts. Not thread-safe."""

    def __init__(self, at: End) -> None:
        self._at = at
        self._forwards: dict[int, _Forward] = {}

    @property
    def leads(self) -> dict[int, End]:
        """The target host of each open port. Ports of a lost connection are not listed."""
        return {port: each.to for port, each in self._forwards.items() if each.is_open}

    def lead(self, wanted: Mapping[int, End]) -> None:
        """Forward exactly these ports to these targets. Forwards that already exist stay open.

        Raises:
            HostRefused: The host's sshd does not allow forwarding.
            HostError: The host cannot be reached.
            OSError: A port of this machine is taken.
        """
        loop_thread().run(self._lead(dict(wanted)))

    async def _lead(self, wanted: Mapping[int, End]) -> None:
        leads = self.leads
        others = [port for port in self._forwards if port not in leads or leads[port] is not wanted.get(port)]
        await asyncio.gather(*(self._forwards.pop(port).close() for port in others))
        fresh = {port: _Forward(port, to) for port, to in wanted.items() if port not in self._forwards}
        answers = await asyncio.gather(
            *(each.open(self._at) for each in fresh.values()), return_exceptions=True
        )
        for (port, forward), answer in zip(fresh.items(), answers, strict=True):
            if answer is None:
                self._forwards[port] = forward
        for answer in answers:
            if answer is not None:
                raise answer

    def check(self, port: int) -> None:
        """Check that connections to a port of this host can be forwarded. No program needs to listen on it yet.

        Raises:
            HostRefused: The host's sshd does not allow forwarding.
            HostError: The host cannot be reached.
        """
        loop_thread().run(self._check(port))

    async def _check(self, port: int) -> None:
        try:
            async with self._at.connected(port):
                pass
        except HostError:
            raise
        except OSError:  # sshd tried to connect, and no program listens
            return

    def close(self) -> None:
        """Stop listening and end all connections."""
        loop_thread().run(self._lead({}))


class _Forward:
    """One forwarded port and the connections through it."""

    def __init__(self, port: int, to: End) -> None:
        self.to = to
        self._port = port
        self._listening = contextlib.AsyncExitStack()
        self._is_over: Callable[[], bool] = lambda: True
        self._carried: set[asyncio.Task[None]] = set()

    @property
    def is_open(self) -> bool:
        """Whether the port is still open."""
        return not self._is_over()

    async def open(self, at: End) -> None:
        self._is_over = await self._listening.enter_async_context(at.listening(self._port, self._accept))

    async def close(self) -> None:
        await self._listening.aclose()
        for task in list(self._carried):
            await end_task(task)

    def _accept(self, reader: Any, writer: Any) -> None:
        task = asyncio.get_running_loop().create_task(self._carry(reader, writer))
        self._carried.add(task)
        task.add_done_callback(self._carried.discard)

    async def _carry(self, reader: Any, writer: Any) -> None:
        """Forward one connection to its end, which comes at once if no program listens at the target."""
        import asyncssh

        with contextlib.closing(writer), contextlib.suppress(asyncssh.Error, OSError, HostError):
            async with self.to.connected(self._port) as far:
                await _carry_both((reader, writer), far)


async def _carry_both(near: Stream, far: Stream) -> None:
    """Copy bytes both ways until both directions end or one fails. An end of input is passed on."""
    ways = [asyncio.ensure_future(_carry_on(a[0], b[1])) for a, b in ((near, far), (far, near))]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for way in ways:
            await end_task(way)
    # The failed task comes first: the other one was cancelled because of it.
    for way in sorted(ways, key=asyncio.Task.cancelled):
        way.result()
    for _, writer in (near, far):
        writer.close()
        await writer.wait_closed()  # all bytes must be sent before the SSH connection may close


async def _carry_on(reader: Any, writer: Any) -> None:
    await carry(reader, writer)
    writer.write_eof()
