"""Starts relays over SSH. All users of the same `Hop` share one connection, on the loop's thread.

Host keys are always checked, and nothing ever prompts on a terminal. Connections follow the configuration that
`ssh -G` prints, including jump hosts, agents, keys and certificates.
"""

from __future__ import annotations

import contextlib
import random
import shlex
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

from ignite_tf_magic.errors import HostError, HostUnreachable
from ignite_tf_magic.launch.jobs import LinkTimeouts
from ignite_tf_magic.launch.lazy_asyncio import asyncio
from ignite_tf_magic.launch.loop import loop_thread
from ignite_tf_magic.launch.ssh_errors import OfferedKey, explain, key_watcher
from ignite_tf_magic.launch.ssh_settings import (
    NO_KEYS,
    Hop,
    Settings,
    SshOptions,
    connect_arguments,
    known_keys,
    load_keys,
    read_known_hosts,
    read_settings,
    stamp,
)

if TYPE_CHECKING:
    import asyncssh

__all__ = ["SshOptions", "SshTransport"]

MAX_PARALLEL_LOGINS = 10
_RETRY_S = 10.0
_WORDS_BYTES = 4096
_END_S = 1.0


class SshTransport:
    """Reaches one host by its SSH name: an alias from ~/.ssh/config, a host name or an address."""

    def __init__(self, name: str, options: SshOptions | None = None) -> None:
        self.hop = Hop(name, options or SshOptions())

    def describe(self) -> str:
        """Return the `ssh` command that takes the same route."""
        return self.hop.command()

    async def open(self, argv: Sequence[str], timeouts: LinkTimeouts) -> SshPipe:
        """Start a program on the host, over the shared connection."""
        import asyncssh

        shared = shared_connection(self.hop)
        connection = await shared.take(timeouts)
        try:
            opening = connection.create_process(command_line(argv), encoding=None, request_pty=False)
            process = await asyncio.wait_for(opening, timeouts.connect_s)
        except (asyncssh.Error, OSError, asyncio.TimeoutError) as error:
            shared.give_back()
            reason = f"the login succeeds, but it starts no program: {error or type(error).__name__}"
            raise HostUnreachable(self.hop.name, f"{reason}; try: {self.describe()} true") from error
        except BaseException:
            shared.give_back()
            raise
        return SshPipe(self.hop, process, shared)


def command_line(argv: Sequence[str]) -> str:
    """Quote a command for a login shell: sh, csh or fish. The shell expands a leading "~/"."""
    home, program = ("~/", argv[0][2:]) if argv[0].startswith("~/") else ("", argv[0])
    return f"exec {home}{shlex.join([program, *argv[1:]])}"


class SharedConnection:
    """A connection to a host that opens for its first user and closes after its last."""

    def __init__(self, hop: Hop) -> None:
        self._hop = hop
        self._lock = asyncio.Lock()
        self._connection: asyncssh.SSHClientConnection | None = None
        self._num_users = 0

    async def take(
        self, timeouts: LinkTimeouts, behind: tuple[str, ...] = ()
    ) -> asyncssh.SSHClientConnection:
        """Return the open connection. `behind` lists the hosts that are reached through this one."""
        if self._hop.name in behind:
            circle = " -> ".join((*behind, self._hop.name))
            raise HostUnreachable(
                self._hop.name, f"the jump hosts of the ssh configuration form a circle: {circle}"
            )
        async with self._lock:
            if self._connection is None or self._connection.is_closed():
                self._connection = await self._connect(timeouts, behind)
            self._num_users += 1
            return self._connection

    def give_back(self) -> None:
        """Release one use of the connection. The last release closes it."""
        self._num_users -= 1
        if self._num_users == 0 and self._connection is not None:
            self._connection.close()
            self._connection = None

    async def _connect(self, timeouts: LinkTimeouts, behind: tuple[str, ...]) -> asyncssh.SSHClientConnection:
        loop = asyncio.get_running_loop()
        settings = await loop.run_in_executor(None, read_settings, self._hop)
        if settings.jump is None:
            return await _log_in(self._hop, settings, timeouts, None)
        jump = shared_connection(settings.jump)
        try:
            tunnel = await jump.take(timeouts, (*behind, self._hop.name))
        except HostError as error:
            by = f"its jump host {settings.jump.name!r} failed: {error.reason}"
            raise type(error)(self._hop.name, by) from error
        try:
            connection = await _log_in(self._hop, settings, timeouts, tunnel)
        except BaseException:
            jump.give_back()
            raise
        loop_thread().keep(_give_back_after(connection, jump))
        return connection


async def _give_back_after(connection: asyncssh.SSHClientConnection, jump: SharedConnection) -> None:
    await connection.wait_closed()
    jump.give_back()


def shared_connection(hop: Hop) -> SharedConnection:
    """Return the connection that all users of this hop share. Call it only on the loop's thread."""
    return loop_thread().shared(hop, lambda: SharedConnection(hop))


@contextlib.asynccontextmanager
async def borrowed_connection(
    hop: Hop, timeouts: LinkTimeouts
) -> AsyncIterator[asyncssh.SSHClientConnection]:
    """Hold the shared connection while the context lasts. Raises HostError if it cannot be opened."""
    shared = shared_connection(hop)
    connection = await shared.take(timeouts)
    try:
        yield connection
    finally:
        shared.give_back()


async def _log_in(
    hop: Hop, settings: Settings, timeouts: LinkTimeouts, tunnel: asyncssh.SSHClientConnection | None
) -> asyncssh.SSHClientConnection:
    """Connect with the keys from files and from the SSH agent."""
    import asyncssh

    async with contextlib.AsyncExitStack() as stack:
        agent = None
        if settings.agent:
            with contextlib.suppress(
                OSError, asyncssh.Error
            ):  # a stale socket: go on without the agent, like `ssh`
                agent = await stack.enter_async_context(await asyncssh.connect_agent(settings.agent))
        try:
            keys = await load_keys(settings, agent)
        except (asyncssh.KeyImportError, OSError) as error:
            raise explain(error, hop, settings, OfferedKey(), timeouts.connect_s) from error
        return await _connect(hop, settings, timeouts, tunnel, keys)


async def _connect(
    hop: Hop,
    settings: Settings,
    timeouts: LinkTimeouts,
    tunnel: asyncssh.SSHClientConnection | None,
    keys: Sequence[asyncssh.SSHKeyPair] | None,
) -> asyncssh.SSHClientConnection:
    """Connect, and try again if sshd drops the login because it has too many (MaxStartups).

    At most MAX_PARALLEL_LOGINS logins run at once to one sshd or through one jump host.
    """
    import asyncssh

    loop = asyncio.get_running_loop()
    paths = settings.known_hosts
    known = loop_thread().shared(("known hosts", stamp(paths)), lambda: read_known_hosts(paths))
    trusted = known_keys(known, settings)
    arguments = {**connect_arguments(settings, timeouts), "client_keys": keys, "known_hosts": trusted}
    gate = loop_thread().shared(
        ("logins", settings.jump or settings.host), lambda: asyncio.Semaphore(MAX_PARALLEL_LOGINS)
    )
    last_try_at = loop.time() + _RETRY_S
    pause_s = 0.1
    while True:
        offered = OfferedKey()
        try:
            async with gate:
                return await asyncssh.connect(
                    settings.host,
                    tunnel=tunnel,  # None also overrides a tunnel in the configuration
                    client_factory=key_watcher(offered),
                    **arguments,
                )
        except (asyncssh.Error, OSError, ValueError, asyncio.TimeoutError) as error:
            was_dropped = isinstance(error, asyncssh.ConnectionLost | ConnectionResetError | BrokenPipeError)
            if was_dropped and not offered.was_greeted and loop.time() < last_try_at:
                await asyncio.sleep(random.uniform(pause_s, 2 * pause_s))  # noqa: S311
                pause_s = min(2 * pause_s, 1.0)
            elif not was_dropped or not offered.was_greeted or "server_host_key_algs" in arguments:
                raise explain(error, hop, settings, offered, timeouts.connect_s) from error
            else:  # sshd may have no key of an allowed type: let it show any key, and trust none
                arguments |= {"server_host_key_algs": "default", "known_hosts": NO_KEYS}


class SshPipe:
    """A program on another host; see `launch.link.Pipe`."""

    def __init__(self, hop: Hop, process: asyncssh.SSHClientProcess[bytes], shared: SharedConnection) -> None:
        self._hop = hop
        self._process = process
        self._shared = shared
        self._is_open = True
        self._words = b""
        self._listener = asyncio.get_running_loop().create_task(self._listen())

    async def _listen(self) -> None:
        import asyncssh

        with contextlib.suppress(asyncssh.Error, OSError):
            while data := await self._process.stderr.read(_WORDS_BYTES):
                self._words = (self._words + data)[-_WORDS_BYTES:]

    async def read(self, limit: int) -> bytes:
        """Return the next bytes of its output."""
        import asyncssh

        try:
            return await self._process.stdout.read(limit)
        except (asyncssh.Error, OSError) as error:
            raise HostUnreachable(self._hop.name, f"{self._hop.command()}: {error}") from error

    def write(self, data: bytes) -> None:
        """Send bytes to its input."""
        with contextlib.suppress(OSError):  # `read` reports the lost connection
            self._process.stdin.write(data)

    async def drain(self) -> None:
        """Wait until most of the written bytes have been sent."""
        import asyncssh

        with contextlib.suppress(asyncssh.Error, OSError):
            await self._process.stdin.drain()

    async def ending(self) -> tuple[int | None, str]:
        """Return its exit code and the end of its standard error."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._process.wait_closed(), _END_S)
            await asyncio.wait_for(asyncio.shield(self._listener), _END_S)
        return self._process.exit_status, self._words.decode(errors="replace").strip()

    async def close(self) -> None:
        """Close the program's channel, which ends a relay, and release the connection."""
        if not self._is_open:
            return
        self._is_open = False
        self._process.close()
        self._listener.cancel()
        self._shared.give_back()
