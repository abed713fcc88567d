"""A link to one relay: sends requests and matches answers, which arrive in any order.

A `Transport` starts the relay. A link belongs to the loop's thread. A broken link stays broken; `Host` opens a new one.
"""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ignite_tf_magic.errors import HostError, HostRefused, HostUnreachable, NoInterpreter
from ignite_tf_magic.launch.agent import agent_digest, agent_source
from ignite_tf_magic.launch.agent.frames import MAGIC, FrameDecoder, encode_frame, loader_arguments
from ignite_tf_magic.launch.jobs import HostFacts, LinkTimeouts
from ignite_tf_magic.launch.lazy_asyncio import asyncio
from ignite_tf_magic.launch.loop import end_task, loop_thread

_NOISE_BYTES = 64 << 10
_READ_BYTES = 256 << 10
_ENDING_S = 2.0


class Pipe(Protocol):
    """The standard input and output of a program that was started on a host."""

    async def read(self, limit: int) -> bytes:
        """Return the next bytes of its output, or b"" at its end.

        Raises:
            HostUnreachable: The connection to the host broke.
        """
        ...

    def write(self, data: bytes) -> None:
        """Send bytes to its input. They are lost if the program has ended."""
        ...

    async def drain(self) -> None:
        """Wait until most of the written bytes have been sent."""
        ...

    async def ending(self) -> tuple[int | None, str]:
        """Return its exit code (None if unknown) and the end of its standard error."""
        ...

    async def close(self) -> None:
        """End the program and release the connection to it."""
        ...


class Transport(Protocol):
    """A way to start a program on one host."""

    async def open(self, argv: Sequence[str], timeouts: LinkTimeouts) -> Pipe:
        """Start a program and return its input and output as a pipe.

        Raises:
            HostError: The host cannot be reached, or rejects the login.
            OSError: This machine cannot start the program.
        """
        ...

    def describe(self) -> str:
        """Return a description of this transport, such as "ssh db1"."""
        ...


@dataclass(frozen=True, slots=True)
class RelayReply:
    """A relay's answer to one request."""

    fields: Mapping[str, Any]
    payload: bytes = field(default=b"", repr=False)


class RelayLink:
    """A connection to a relay on a host."""

    def __init__(self, host: str, pipe: Pipe, first_bytes: bytes) -> None:
        self._host = host
        self._pipe = pipe
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[RelayReply]] = {}
        self._broken: str | None = None
        self._closing: asyncio.Task[None] | None = None
        self._reader = asyncio.get_running_loop().create_task(self._read(first_bytes))
        self.now: float | None = None
        self.heard_at = 0.0
        self.facts = HostFacts("")

    @classmethod
    async def open(
        cls, host: str, transport: Transport, python: str, root: str | None, timeouts: LinkTimeouts
    ) -> RelayLink:
        """Start a relay, send its source if the host does not have it, and read the host's facts."""
        source, digest = loop_thread().shared(__name__, _named_source)
        argv = loader_arguments(digest, len(source), root, python)
        pipe = await _opened(host, transport, argv, timeouts)
        link: RelayLink | None = None
        try:
            word, rest = await asyncio.wait_for(
                _find_magic(host, python, transport, pipe), timeouts.connect_s
            )
            if word == b"NEED":
                pipe.write(source)
            link = cls(host, pipe, rest)
            link.facts = HostFacts.from_wire(
                (await link.request("hello", {}, b"", timeouts.connect_s)).fields
            )
            return link
        except asyncio.TimeoutError:
            await pipe.close()
            raise HostUnreachable(
                host,
                f"{python} was started and printed nothing for {timeouts.connect_s:g} s; {_IN_ITS_PLACE}; "
                f"{_by_hand(transport)}",
            ) from None
        except BaseException:
            await (link or pipe).close()
            raise

    @property
    def is_open(self) -> bool:
        """Whether requests can still be sent."""
        return self._broken is None

    async def request(
        self, op: str, fields: Mapping[str, Any], payload: bytes, timeout_s: float
    ) -> RelayReply:
        """Send a request and wait for its answer.

        Raises:
            HostRefused: The relay refused the request.
            HostUnreachable: The link broke or the answer timed out. The request may or may not have been carried out.
        """
        if self._broken is not None:
            raise HostUnreachable(self._host, self._broken)
        number = next(self._numbers)
        header = {**fields, "id": number, "op": op}
        answer: asyncio.Future[RelayReply] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            self._pipe.write(encode_frame(header, payload))
            await self._pipe.drain()
            await asyncio.wait([answer], timeout=timeout_s)  # `wait_for` may swallow a cancellation
            if not answer.done():
                raise HostUnreachable(self._host, f"no answer to {op!r} within {timeout_s:g} s")
            return _checked(self._host, op, answer.result())
        finally:
            self._waiting.pop(number, None)
            if not answer.cancel():
                answer.exception()  # mark an error as retrieved that arrived together with a cancellation

    async def _read(self, first_bytes: bytes) -> None:
        decoder = FrameDecoder()
        reason = "the relay on it ended"
        try:
            data = first_bytes or await self._pipe.read(_READ_BYTES)
            while data:
                for header, payload in decoder.feed(data):
                    self._deliver(header, payload)
                data = await self._pipe.read(_READ_BYTES)
            self._broken = f"the connection broke: {reason}"  # stop sending before asking why
            code, words = await self._pipe.ending()
            if words or code:
                reason += f" with exit code {code}: {words}"
        except HostError as error:
            reason = error.reason
        except ValueError as error:
            reason = f"its relay sent an invalid answer: {error}"
        finally:
            self.abandon(reason)

    def _deliver(self, header: Mapping[str, Any], payload: bytes) -> None:
        self.heard_at = asyncio.get_running_loop().time()
        self.now = header.get("now", self.now)
        waiting = self._waiting.pop(header.get("id", 0), None)
        if waiting is not None and not waiting.done():
            waiting.set_result(RelayReply(header, payload))

    def abandon(self, reason: str) -> None:
        """Mark the link as broken. All pending requests fail with HostUnreachable."""
        self._broken = f"the connection broke: {reason}"
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(HostUnreachable(self._host, self._broken))

    async def close(self) -> None:
        """End the relay, even if the caller is cancelled meanwhile. Jobs that it started go on."""
        if self._closing is None:
            self.abandon("it was closed here")
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        await end_task(self._reader)
        await self._pipe.close()


def _checked(host: str, op: str, reply: RelayReply) -> RelayReply:
    fields = dict(reply.fields)
    if fields.get("ok"):
        return reply
    kind, message = str(fields.get("kind", "error")), str(fields.get("message", "no reason given"))
    raise HostRefused(host, kind, f"it refused {op!r} ({kind}): {message}", fields)


async def _opened(host: str, transport: Transport, argv: Sequence[str], timeouts: LinkTimeouts) -> Pipe:
    try:
        return await transport.open(argv, timeouts)
    except HostError:
        raise
    except (FileNotFoundError, PermissionError) as error:
        raise NoInterpreter(host, f"it has no {argv[0]!r} ({error}); {_name_another(host)}") from error
    except OSError as error:
        raise HostUnreachable(
            host, f"{argv[0]!r} does not start on {transport.describe()}: {error}"
        ) from error


def _named_source() -> tuple[bytes, str]:
    source = agent_source()
    return source, agent_digest(source)


async def _find_magic(host: str, python: str, transport: Transport, pipe: Pipe) -> tuple[bytes, bytes]:
    """Skip what a login shell prints; return the loader's status word and the bytes after its line."""
    seen = b""
    while len(seen) < _NOISE_BYTES:
        data = await pipe.read(_READ_BYTES)
        if not data:
            code, words = await asyncio.wait_for(pipe.ending(), _ENDING_S)
            raise _no_relay(host, python, transport, code, words or seen[-2000:].decode(errors="replace"))
        seen += data
        _, magic, after = seen.partition(MAGIC.encode())
        line, newline, rest = after.partition(b"\n")
        if magic and newline:
            word, _, version = line.strip().partition(b" ")
            if word == b"OLD":
                old = (
                    f"{python} is Python {version.decode(errors='replace')} there, and 3.8 or newer is needed"
                )
                raise NoInterpreter(host, f"{old}; {_name_another(host)}")
            if word == b"HOST":
                raise HostUnreachable(host, _of_another_host(version.decode(errors="replace")))
            if word == b"OPEN":
                raise HostUnreachable(host, _open_to_others(version.decode(errors="replace")))
            return word, rest
    quiet = "make its start-up files print nothing when there is no terminal"
    raise HostUnreachable(host, f"its login shell prints without end: {seen[:200]!r}...; {quiet}")


def _of_another_host(said: str) -> str:
    other, _, directory = said.partition(" ")
    return (
        f"{directory!r} belongs to host {other!r}, and two hosts cannot share it; name a directory for each host: "
        f"[hosts.NAME] root, here IGNITE_TF_HOME. If {other!r} was renamed: rm {shlex.quote(f'{directory}/host')}"
    )


def _open_to_others(path: str) -> str:
    return (
        f"other users can write to {path!r}, or own it, and your programs start from there. Check whether "
        "they left any files, and remove it (agents, parcels and venvs are made again); then make it "
        f"private: chmod go-w {shlex.quote(path)}. Or name another directory: [hosts.NAME] root, here "
        "IGNITE_TF_HOME"
    )


def _no_relay(host: str, python: str, transport: Transport, code: int | None, words: str) -> HostError:
    words = words.strip()
    missing = ("not found", "No such file", "cannot find", "not recognized")
    if code in (126, 127) or any(sign in words for sign in missing):
        return NoInterpreter(
            host, f"it has no {python!r} ({words or f'exit code {code}'}); {_name_another(host)}"
        )
    came = f"exit code {code}, {words!r}" if words else f"exit code {code} and nothing said"
    return HostUnreachable(
        host, f"{python} ended before its first output: {came}; {_IN_ITS_PLACE}; {_by_hand(transport)}"
    )


_IN_ITS_PLACE = (
    "something else may have run in its place: a ForceCommand of sshd_config, a command= of the key in "
    "authorized_keys, or a start-up file of the login shell (.bashrc, .profile, .cshrc, config.fish) that "
    "ends the shell or waits for a terminal"
)


def _name_another(host: str) -> str:
    return f'name one in ignite-tf.toml: [hosts."{host}"] python = "/path/to/python3"'


def _by_hand(transport: Transport) -> str:
    return f"try it by hand: {transport.describe()}"
