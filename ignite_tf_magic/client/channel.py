"""One open connection to one node: drives `protocol.Connection` over a transport.

A channel is used in one of these ways, never in several at once:
- `call` for control requests, from any thread, one at a time;
- `submit` with `next_answer` or `next_answers`, by one thread that keeps several requests pending;
- after a `call` that subscribed to something, `submit` with `next_event`, by one thread.
"""

from __future__ import annotations

import ssl
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn, TypeVar

from ignite_tf_magic.client.transport import ByteStream, open_transport, tls_context
from ignite_tf_magic.closing import Closing
from ignite_tf_magic.errors import (
    AuthenticationError,
    ConnectionFailed,
    ConnectionLost,
    HandshakeError,
    RemoteProtocolError,
    ServerError,
)
from ignite_tf_magic.protocol.affinity import TopologyVersion
from ignite_tf_magic.protocol.connection import Connection, Fault, Handshaken, Notification, Response
from ignite_tf_magic.protocol.messages import Request
from ignite_tf_magic.protocol.ops import Operation
from ignite_tf_magic.settings.options import ConnectOptions, Endpoint

HANDSHAKE_TIMEOUT_S = 10.0
T = TypeVar("T")


class Channel(Closing):
    """An open connection after its handshake. Close it, or use it as a context manager."""

    def __init__(
        self, transport: ByteStream, endpoint: Endpoint, connection: Connection, node: Handshaken
    ) -> None:
        self.endpoint = endpoint
        self.node_id: uuid.UUID = node.node_id
        self.features = node.features
        self.topology: TopologyVersion | None = None
        self._transport = transport
        self._connection = connection
        self._unsent: list[bytes] = []
        self._buffer = bytearray()
        self._lock = threading.Lock()

    @property
    def local_port(self) -> int:
        """The local port, by which the node identifies the connection."""
        return self._transport.local_port

    def close(self) -> None:
        """Close the connection. A thread that waits on it is woken."""
        self._transport.close()

    def is_fresh(self) -> bool:
        """Return whether the node has neither closed the idle connection nor sent anything on it."""
        return self._transport.is_quiet()

    def set_timeout(self, timeout_s: float | None) -> None:
        """Limit the wait for each part of an answer; None waits forever."""
        self._transport.set_timeout(timeout_s)

    def call(self, request: Request, parse: Callable[[memoryview], T]) -> T:
        """Send a request, wait for its answer, and parse it. Safe from any thread.

        Raises:
            ServerError: The node refused the request.
            ConnectionLost: The connection broke. The request may or may not have been carried out.
        """
        with self._lock:
            request_id = self.submit(request)
            answer = self.next_answer()
            while answer.request_id != request_id:
                answer = self.next_answer()
            # Copied, because parsing may request a binary type over this same channel.
            payload = bytes(payload_of(answer, request))
        return parse(memoryview(payload))

    def submit(self, request: Request) -> int:
        """Queue a request and return the id of its answer. It is sent when `next_answer` has to wait.

        So requests that are queued while answers are available are sent together. Each send wakes a thread of the node.
        """
        request_id, data = self._connection.send(request)
        self._unsent.append(data)
        return request_id

    def flush(self, more: bytes | memoryview = b"") -> None:
        """Send the queued requests, then `more`."""
        parts = [*self._unsent, more] if more else self._unsent
        if parts:
            data = parts[0] if len(parts) == 1 else b"".join(parts)
            self._unsent = []
            self._transport.send(data)

    def next_answer(self) -> Response | Fault:
        """Wait for the next answer to any request.

        Its payload is valid until the next call.
        """
        while (answer := self._answer_at_hand()) is None:
            self._receive()
        return answer

    def next_answers(self) -> list[Response | Fault]:
        """Wait for at least one answer. Return all that have arrived, to any requests.

        Their payloads are valid until the next call.
        """
        answers = [self.next_answer()]
        while (answer := self._answer_at_hand()) is not None:
            answers.append(answer)
        return answers

    def next_event(self, within_s: float) -> Response | Fault | Notification | None:
        """Wait for the next answer or notification; return None if nothing comes within `within_s` seconds.

        Its payload is valid until the next call.
        """
        while (event := self._event_at_hand()) is None:
            self.flush()
            if self._transport.is_quiet(within_s):
                return None
            self._receive()
        return event

    def reserve_ids(self, number: int) -> int:
        """Reserve request ids for a sweep. It uses `flush` and `receive_into`, and nothing else uses the channel."""
        return self._connection.reserve_ids(number)

    def receive_into(self, space: memoryview) -> int:
        """Wait for bytes and put some into `space`. Return their number."""
        return self._transport.receive_into(space)

    def buffer(self, num_bytes: int) -> bytearray:
        """Return memory to receive into; the same memory until a larger size is requested."""
        if len(self._buffer) < num_bytes:
            self._buffer = bytearray(num_bytes)
        return self._buffer

    def _receive(self) -> None:
        self.flush()
        space = self._connection.get_buffer()
        self._connection.received(self._transport.receive_into(space))

    def _answer_at_hand(self) -> Response | Fault | None:
        while isinstance(event := self._event_at_hand(), Notification):
            pass
        return event

    def _event_at_hand(self) -> Response | Fault | Notification | None:
        while (event := self._connection.next_event()) is not None:
            if isinstance(event, Response | Fault) and event.topology is not None:
                self.topology = event.topology
            if not isinstance(event, Handshaken):
                return event
        return None


def payload_of(answer: Response | Fault, request: Request) -> memoryview:
    """Return an answer's payload.

    Raises:
        ServerError: The answer is a fault.
    """
    if isinstance(answer, Response):
        return answer.payload
    raise server_error(answer, request.operation)


def server_error(fault: Fault, operation: int) -> ServerError:
    """Turn a fault into an exception."""
    words = fault.message.partition("\n")[0]
    known = {each.value: each.name.lower() for each in Operation}
    return ServerError(fault.status, known.get(operation, f"operation {operation}"), words)


def open_channel(endpoint: Endpoint, options: ConnectOptions, tls: ssl.SSLContext | None) -> Channel:
    """Connect to a node and perform the handshake.

    Raises:
        ConnectionFailed: No Ignite node answers there, or it is still starting.
        HandshakeError: The node refused the handshake.
        AuthenticationError: The node refused the user name or password.
    """
    timeout_s = min(options.timeout_s, HANDSHAKE_TIMEOUT_S)
    transport = open_transport(endpoint, tls, timeout_s, options.dial)
    connection = Connection()
    try:
        transport.send(connection.hello(options.username, options.password))
        while (event := connection.next_event()) is None:
            connection.received(transport.receive_into(connection.get_buffer()))
    except AuthenticationError as error:
        transport.close()
        raise AuthenticationError(f"{endpoint}: {error}", error.server_version) from None
    except (ConnectionLost, RemoteProtocolError, HandshakeError, ConnectionFailed) as error:
        transport.close()
        _explain_failed_greeting(endpoint, error, tls is not None)
    if not isinstance(event, Handshaken):
        transport.close()
        raise ConnectionFailed(f"{endpoint}: an answer came before the handshake's")
    transport.set_timeout(options.timeout_s)
    return Channel(transport, endpoint, connection, event)


@contextmanager
def open_any_channel(options: ConnectOptions) -> Iterator[Channel]:
    """Connect to the first endpoint that answers. The block's end closes the channel. Answers have no timeout.

    Raises:
        ConnectionFailed: No endpoint answers.
    """
    tls = tls_context(options.tls) if options.tls else None
    refused: list[str] = []
    for endpoint in options.endpoints:
        try:
            channel = open_channel(endpoint, options, tls)
        except ConnectionFailed as error:
            refused.append(str(error))
            continue
        with channel:
            channel.set_timeout(None)
            yield channel
        return
    raise ConnectionFailed(f"no node answered: {'; '.join(refused) or 'no endpoint was given'}")


def _explain_failed_greeting(endpoint: Endpoint, error: Exception, with_tls: bool) -> NoReturn:
    if isinstance(error, HandshakeError):
        raise HandshakeError(f"{endpoint}: {error}", error.server_version) from None
    if isinstance(error, ConnectionFailed):
        raise ConnectionFailed(f"{endpoint}: {error}") from None
    if isinstance(error, RemoteProtocolError):
        raise ConnectionFailed(
            f"{endpoint}: something listens there, but it is not an Ignite node's client port ({error}). "
            "The client port is 10800 unless configured otherwise"
        ) from error
    hint = "" if with_tls else "; if the node uses TLS, give a certfile or cafile"
    raise ConnectionFailed(
        f"{endpoint}: something listens there, but does not answer an Ignite handshake ({error}){hint}"
    ) from error
