"""Connects through an SSH host to ports that only that host reaches. Opens no port on this machine."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

from ignite_tf_magic.errors import HostError
from ignite_tf_magic.launch.jobs import LinkTimeouts
from ignite_tf_magic.launch.lazy_asyncio import asyncio
from ignite_tf_magic.launch.loop import loop_thread
from ignite_tf_magic.launch.ssh import SshOptions, borrowed_connection
from ignite_tf_magic.launch.ssh_settings import Hop, jump_hop

if TYPE_CHECKING:
    import asyncssh

READ_BYTES = 256 << 10


class Tunnel:
    """Connects through one SSH host. The SSH connection lasts as long as the connections through it.

    Args:
        way: The SSH host, as for `ssh -J`: a name, "user@host:port", or several of them separated by commas.
        options: Options of the `ssh` command line.
        timeouts: Time limits for reaching the SSH host.
    """

    def __init__(
        self, way: str, options: SshOptions | None = None, timeouts: LinkTimeouts | None = None
    ) -> None:
        self._hop: Hop = jump_hop(options or SshOptions(), way)
        self._timeouts = timeouts or LinkTimeouts()

    def connect(self, host: str, port: int, timeout_s: float) -> socket.socket:
        """Connect to a port of a host, by the name that the SSH host uses. The caller closes the socket.

        Raises:
            HostError: The SSH host cannot be used, or does not allow forwarding.
            OSError: The SSH host does not reach the target.
        """
        return loop_thread().run(self._open(host, port, timeout_s))

    async def _open(self, host: str, port: int, timeout_s: float) -> socket.socket:
        import asyncssh

        async with contextlib.AsyncExitStack() as stack:
            borrowed = borrowed_connection(self._hop, self._timeouts)
            connection = await stack.enter_async_context(borrowed)
            try:
                opening = connection.open_connection(host, port, encoding=None)
                far = await asyncio.wait_for(opening, timeout_s)
            except asyncio.TimeoutError:
                raise OSError(f"no answer within {timeout_s:g} s through {self._hop.name}") from None
            except asyncssh.ChannelOpenError as error:
                if error.code == asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED:
                    reason = (
                        f"it does not forward connections ({error.reason}); its sshd_config needs: "
                        "AllowTcpForwarding yes"
                    )
                    raise HostError(self._hop.name, reason) from error
                raise OSError(f"{self._hop.name} cannot reach it: {error.reason}") from error
            held = stack.pop_all()
        ours, given = socket.socketpair()
        loop_thread().keep(_carry_both(ours, *far, held))
        given.settimeout(timeout_s)
        return given


async def _carry_both(
    ours: socket.socket,
    far_reader: asyncssh.SSHReader[bytes],
    far_writer: asyncssh.SSHWriter[bytes],
    held: contextlib.AsyncExitStack,
) -> None:
    """Copy bytes both ways until either side has ended or the link is lost."""
    import asyncssh

    async with held:
        near_reader, near_writer = await asyncio.open_connection(sock=ours)
        with contextlib.closing(near_writer), contextlib.closing(far_writer):
            ways = [carry(near_reader, far_writer), carry(far_reader, near_writer)]
            tasks = [asyncio.ensure_future(way) for way in ways]
            done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in rest:
                task.cancel()
            for task in done:
                with contextlib.suppress(OSError, asyncssh.Error):
                    task.result()


async def carry(
    reader: asyncio.StreamReader | asyncssh.SSHReader[bytes],
    writer: asyncio.StreamWriter | asyncssh.SSHWriter[bytes],
) -> None:
    """Copy bytes until the reader ends, no faster than the writer accepts them."""
    while data := await reader.read(READ_BYTES):
        writer.write(data)
        await writer.drain()
