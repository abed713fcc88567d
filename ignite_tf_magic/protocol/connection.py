"""A thin client connection without a socket: turns requests into bytes and bytes into events.

    connection = Connection()
    transport.send(connection.hello(username, password))
    connection.receive(data)          # pieces of the stream, of any size
    while (event := connection.next_event()) is not None: ...

`next_event` returns None if more bytes are needed; it never blocks. The handshake comes first, exactly once. Then
requests and answers follow in any order, matched by request id.
Source: Ignite documentation, "Binary Client Protocol", handshake and request/response headers.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from ignite_tf_magic.errors import (
    AuthenticationError,
    ConnectionFailed,
    HandshakeError,
    LocalProtocolError,
    RemoteProtocolError,
)
from ignite_tf_magic.protocol.affinity import TopologyVersion
from ignite_tf_magic.protocol.buffer import Reader, Writer
from ignite_tf_magic.protocol.messages import Request
from ignite_tf_magic.protocol.ops import (
    CLIENT_CODE,
    HANDSHAKE_CODE,
    PROTOCOL_VERSION,
    Feature,
    ResponseFlag,
    Status,
    TypeCode,
)
from ignite_tf_magic.protocol.read_values import read_value
from ignite_tf_magic.protocol.write_values import write_text

MAX_MESSAGE_BYTES = 2**31 - 1
MAX_HANDSHAKE_BYTES = 64 * 1024
_BUFFER_BYTES = 256 * 1024
_MIN_READ_BYTES = 64 * 1024
_LENGTH = struct.Struct("<i")
_REQUEST_HEAD = struct.Struct("<ihq")
_ANSWER_HEAD = struct.Struct("<qh")
_OFFERED = tuple(Feature)


class State(Enum):
    """The state of a connection."""

    NEW = "new"
    GREETING = "greeting"
    OPEN = "open"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Handshaken:
    """The event that the server accepted the handshake."""

    node_id: uuid.UUID
    features: frozenset[int]


class Response(NamedTuple):
    """A successful answer. A tuple, because one is made for each page.

    Attributes:
        payload: A view into the received bytes; valid until the next `get_buffer` or `receive`.
        topology: The new topology version if the server reports a change, else None.
    """

    request_id: int
    payload: memoryview
    topology: TopologyVersion | None = None


@dataclass(frozen=True, slots=True)
class Fault:
    """An answer to a request that failed."""

    request_id: int
    status: int
    message: str
    topology: TopologyVersion | None = None


class Notification(NamedTuple):
    """A message that a node sends unasked about a resource opened before, such as a continuous query.

    Attributes:
        resource: Id of the resource, from the answer to the request that opened it.
        operation: Operation code, which determines the format of the payload.
        payload: As `Response.payload`; empty if the node reports a failure.
        status: Status of a failure; 0 if there is none.
        message: The node's error message.
    """

    resource: int
    operation: int
    payload: memoryview
    status: int = 0
    message: str = ""


Event = Handshaken | Response | Fault | Notification


def parse_frame(frame: memoryview) -> Response | Fault | Notification:
    """Parse one answer or notification, passed without its length prefix.

    Raises:
        RemoteProtocolError: The frame is truncated or corrupted.
    """
    try:
        request_id, flags = _ANSWER_HEAD.unpack_from(frame)
    except struct.error:
        raise RemoteProtocolError(f"truncated answer of {len(frame)} bytes") from None
    if not flags:
        return Response(request_id, frame[_ANSWER_HEAD.size :])
    reader = Reader(frame, _ANSWER_HEAD.size)
    topology = None
    if flags & ResponseFlag.TOPOLOGY_CHANGED:
        topology = TopologyVersion(reader.int64(), reader.int32())
    if flags & ResponseFlag.NOTIFICATION:
        return _notification(request_id, reader, has_failed=bool(flags & ResponseFlag.ERROR))
    if flags & ResponseFlag.ERROR:
        status = reader.int32()
        return Fault(request_id, status, str(read_value(reader)), topology)
    return Response(request_id, frame[reader.position :], topology)


def _notification(resource: int, reader: Reader, *, has_failed: bool) -> Notification:
    operation = reader.int16()
    if has_failed:
        status = reader.int32()
        return Notification(resource, operation, memoryview(b""), status, str(read_value(reader)))
    return Notification(resource, operation, reader.view[reader.position :])


def encode_request(request_id: int, request: Request, features: Collection[int] = ()) -> bytes:
    """Encode a request for a node with these features: length, operation, request id, payload."""
    payload = request.for_node(features)
    return _REQUEST_HEAD.pack(10 + len(payload), request.operation, request_id) + payload


class Connection:
    """The state of one connection; see the module's docstring for its use."""

    def __init__(self) -> None:
        self.state = State.NEW
        self._buffer = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._limit_bytes = MAX_HANDSHAKE_BYTES
        self._start = 0
        self._end = 0
        self._next_id = 0
        self._username: str | None = None
        self._features: frozenset[int] = frozenset()

    def hello(self, username: str | None = None, password: str | None = None) -> bytes:
        """Return the bytes that open a connection.

        Raises:
            LocalProtocolError: The method was called before.
        """
        if self.state is not State.NEW:
            raise LocalProtocolError(
                f"the handshake goes first and once; this connection is {self.state.value}"
            )
        self.state = State.GREETING
        self._username = username
        body = Writer().int8(HANDSHAKE_CODE)
        for number in PROTOCOL_VERSION:
            body.int16(number)
        mask = sum(1 << feature for feature in _OFFERED).to_bytes(3, "little")
        body.int8(CLIENT_CODE).int8(TypeCode.BYTE_ARRAY).int32(len(mask)).raw(mask)
        if username:
            write_text(body, username)
            write_text(body, password or "")
        return bytes(Writer().int32(len(body.data)).raw(body.data).data)

    def send(self, request: Request) -> tuple[int, bytes]:
        """Assign an id to a request and return the id and the bytes to send.

        Raises:
            LocalProtocolError: The handshake has not been answered, or the connection broke.
        """
        if self.state is not State.OPEN:
            raise LocalProtocolError(f"a request needs an open connection; this one is {self.state.value}")
        self._next_id += 1
        return self._next_id, encode_request(self._next_id, request, self._features)

    def reserve_ids(self, number: int) -> int:
        """Reserve consecutive ids for requests that are encoded elsewhere, and return the first id.

        Raises:
            LocalProtocolError: The connection is not open, or holds received bytes that its other reader would miss.
        """
        if self.state is not State.OPEN or self._start != self._end:
            raise LocalProtocolError(f"this connection is {self.state.value} and not idle")
        self._next_id += number
        return self._next_id - number + 1

    def get_buffer(self) -> memoryview:
        """Return free space to receive into; call `received` afterwards.

        Invalidates the payloads of earlier events. The space fits at least the rest of the message being received.
        A large page thus arrives in a few large reads, with little of the next message, which would have to be moved.
        """
        waiting = self._end - self._start
        wanted = max(self._message_bytes(), waiting + _MIN_READ_BYTES)
        if wanted > len(self._buffer):
            grown = bytearray(wanted)
            grown[:waiting] = self._view[self._start : self._end]
            self._buffer, self._view = grown, memoryview(grown)
            self._start, self._end = 0, waiting
        elif not waiting or self._start + wanted > len(self._buffer):
            self._buffer[:waiting] = self._view[self._start : self._end]
            self._start, self._end = 0, waiting
        return self._view[self._end :]

    def received(self, num_bytes: int) -> None:
        """Record the number of bytes that were written into the space from `get_buffer`."""
        self._end += num_bytes

    def receive(self, data: bytes | bytearray | memoryview) -> None:
        """Copy bytes received from the peer into the buffer."""
        rest = memoryview(data)
        while rest:
            space = self.get_buffer()
            part = min(len(space), len(rest))
            space[:part] = rest[:part]
            self.received(part)
            rest = rest[part:]

    def _message_bytes(self) -> int:
        if self._end - self._start < 4:
            return 0
        (length,) = _LENGTH.unpack_from(self._buffer, self._start)
        return 4 + length if 0 < length <= self._limit_bytes else 0

    def next_event(self) -> Event | None:
        """Return the next event, or None when more bytes are needed. Each of the errors breaks the connection.

        Raises:
            RemoteProtocolError: The peer does not speak this protocol.
            HandshakeError: The server refused the handshake; AuthenticationError if it refused user and password.
            ConnectionFailed: The server is still starting; a later handshake can succeed.
        """
        try:
            frame = self._frame()
            if frame is None:
                return None
            return self._greeted(frame) if self.state is State.GREETING else parse_frame(frame)
        except (RemoteProtocolError, HandshakeError, ConnectionFailed):
            self.state = State.BROKEN
            raise

    def _frame(self) -> memoryview | None:
        available = self._end - self._start
        if available < 4:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer, self._start)
        if not 0 < length <= self._limit_bytes:
            first = bytes(self._buffer[self._start : min(self._end, self._start + 16)])
            raise RemoteProtocolError(
                "the peer does not speak Ignite's thin client protocol: it announces a message of "
                f"{length & 0xFFFFFFFF} bytes (first bytes: {first!r})"
            )
        if available < 4 + length:
            return None
        start = self._start + 4
        self._start = start + length
        return self._view[start : self._start]

    def _greeted(self, frame: memoryview) -> Handshaken:
        reader = Reader(frame)
        if reader.bool():
            mask = read_value(reader)
            node_id = read_value(reader)
            if not isinstance(mask, bytes) or not isinstance(node_id, uuid.UUID):
                raise RemoteProtocolError("corrupted answer to the handshake")
            self.state, self._limit_bytes = State.OPEN, MAX_MESSAGE_BYTES
            bits = int.from_bytes(mask, "little")
            self._features = frozenset(bit for bit in range(len(mask) * 8) if bits >> bit & 1)
            return Handshaken(node_id, self._features)
        raise self._refusal(reader)

    def _refusal(self, reader: Reader) -> HandshakeError | ConnectionFailed:
        version = (reader.int16(), reader.int16(), reader.int16())
        message = str(read_value(reader))
        status = reader.int32() if reader.remaining >= 4 else Status.FAILED
        if status == Status.AUTH_FAILED:
            who = f"user {self._username!r} was refused" if self._username else "no user name was given"
            return AuthenticationError(
                f"the Ignite node requires a valid user name and password; {who} ({message})", version
            )
        if status == Status.NODE_IN_RECOVERY_MODE:  # a node listens before it has joined the cluster
            return ConnectionFailed(f"the Ignite node is starting, and accepts no clients yet ({message})")
        if version >= PROTOCOL_VERSION:
            return HandshakeError(f"the Ignite node accepts no thin clients ({message})", version)
        offered = ".".join(map(str, version))
        ours = ".".join(map(str, PROTOCOL_VERSION))
        return HandshakeError(
            f"the Ignite node refused thin client protocol {ours}; it offers {offered} ({message}). "
            "Ignite 2.9 or later is needed",
            version,
        )
