"""A byte stream to one node: TCP, with TLS if configured. Raises this package's errors only."""

from __future__ import annotations

import math
import selectors
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from ignite_tf_magic.errors import ConfigError, ConnectionFailed, ConnectionLost
from ignite_tf_magic.settings.options import Dial, Endpoint, TlsOptions

# A blocking call waits at most this long at a time, however long the timeout. Python handles Ctrl-C only after a call
# returns. The signal does not end the main thread's call if a thread that is just starting receives it, or if the
# kernel restarts a recv without a timeout (SA_RESTART, which the SIGINT handler of polars sets).
_TURN_S = 0.25
_RECEIVE_BUFFER_BYTES = 4 * 1024 * 1024


class ByteStream(Protocol):
    """The byte stream that a channel needs. Blocking; one sender and one receiver thread at a time."""

    @property
    def local_port(self) -> int:
        """The local port; 0 if there is none."""

    def send(self, data: bytes | memoryview) -> None:
        """Send all the bytes."""

    def receive_into(self, space: memoryview) -> int:
        """Wait for bytes and put some into `space`. Return their number, at least 1."""

    def is_quiet(self, for_s: float = 0.0) -> bool:
        """Wait up to `for_s` seconds for data. Return whether nothing came, not even the end of the stream."""

    def set_timeout(self, timeout_s: float | None) -> None:
        """Limit how long each later send or receive waits for progress, in seconds; None waits forever."""

    def close(self) -> None:
        """Close at once. A thread that waits in `receive_into` wakes with ConnectionLost."""


def tls_context(options: TlsOptions) -> ssl.SSLContext:
    """Build the client's TLS context. It verifies peers and requires TLS 1.2 or later.

    Configured authorities replace those of the system, each of which may sign for any host.

    Raises:
        ConfigError: A file is missing or unreadable, the key's password is wrong, or any certificate would be accepted.
    """
    try:
        context = ssl.create_default_context(
            ssl.Purpose.SERVER_AUTH, cafile=options.cafile or options.certfile or None
        )
        is_named = bool(options.cafile) or context.cert_store_stats()["x509_ca"] > 0
        if not is_named:  # the file has a client certificate only
            context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        if options.certfile:
            context.load_cert_chain(options.certfile, options.keyfile, options.key_password or "")
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"the TLS files are unusable (certfile={options.certfile!r}, keyfile={options.keyfile!r}, "
            f"cafile={options.cafile!r}): {error}. They must be PEM files; a certfile may also hold the key"
        ) from error
    if not (options.check_hostname or is_named):
        raise ConfigError(
            "check_hostname = false would accept any certificate that this system trusts, and send the password to its "
            "holder; name the authority of the nodes' certificates as cafile"
        )
    context.check_hostname = options.check_hostname
    return context


class SocketTransport:
    """A TCP or TLS stream. `open_transport` opens it and its caller closes it."""

    def __init__(self, stream: socket.socket, endpoint: Endpoint, timeout_s: float) -> None:
        self._stream = stream
        self._endpoint = endpoint
        self.set_timeout(timeout_s)

    @property
    def local_port(self) -> int:
        """See `ByteStream.local_port`."""
        name = self._stream.getsockname()
        return int(name[1]) if isinstance(name, tuple) else 0

    def send(self, data: bytes | memoryview) -> None:
        """See `ByteStream.send`."""
        left = memoryview(data)
        while left:
            left = left[self._in_turns(self._stream.send, left) :]

    def receive_into(self, space: memoryview) -> int:
        """See `ByteStream.receive_into`."""
        num_bytes = self._in_turns(self._stream.recv_into, space)
        if not num_bytes:
            raise ConnectionLost(str(self._endpoint), "the node closed it")
        return num_bytes

    def is_quiet(self, for_s: float = 0.0) -> bool:
        """See `ByteStream.is_quiet`."""
        if isinstance(self._stream, ssl.SSLSocket) and self._stream.pending():
            return False
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(self._stream, selectors.EVENT_READ)
                return not selector.select(for_s)
        except (OSError, ValueError):  # it was closed; the next receive reports that
            return False

    def set_timeout(self, timeout_s: float | None) -> None:
        """See `ByteStream.set_timeout`."""
        self._timeout_s = math.inf if timeout_s is None else timeout_s
        self._stream.settimeout(min(self._timeout_s, _TURN_S))

    def close(self) -> None:
        """See `ByteStream.close`."""
        with suppress(OSError):  # no longer connected: nothing to shut down
            self._stream.shutdown(socket.SHUT_RDWR)
        self._stream.close()

    def _in_turns(self, call: Callable[[memoryview], int], data: memoryview) -> int:
        ends_s = None
        while True:
            try:
                return call(data)
            except (OSError, ValueError) as error:  # ValueError: another thread closed the TLS stream
                if not isinstance(error, TimeoutError) or error.errno is not None:
                    raise ConnectionLost(str(self._endpoint), str(error) or type(error).__name__) from error
                now_s = time.monotonic()
                ends_s = now_s + self._timeout_s - _TURN_S if ends_s is None else ends_s
                if now_s >= ends_s:
                    words = f"no answer within {self._timeout_s:g} s"
                    raise ConnectionLost(str(self._endpoint), words) from error


def open_transport(
    endpoint: Endpoint, tls: ssl.SSLContext | None, timeout_s: float, dial: Dial | None = None
) -> SocketTransport:
    """Connect to a node, through `dial` if this machine cannot connect directly.

    Raises:
        ConnectionFailed: Nothing listens there, the name is unknown, or TLS failed.
        HostError: The host that `dial` goes through refuses the login.
    """
    try:
        stream = (dial or _dial)(endpoint.host, endpoint.port, timeout_s)
    except OSError as error:
        raise ConnectionFailed(f"{endpoint}: {_reason(error)}") from error
    if tls is None:
        return SocketTransport(stream, endpoint, timeout_s)
    try:
        return SocketTransport(tls.wrap_socket(stream, server_hostname=endpoint.host), endpoint, timeout_s)
    except (OSError, ssl.SSLError) as error:
        stream.close()
        raise ConnectionFailed(f"{endpoint}: {_tls_reason(error)}") from error


def _dial(host: str, port: int, timeout_s: float) -> socket.socket:
    stream = socket.create_connection((host, port), timeout_s)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
    return stream


def _reason(error: OSError) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "connection refused: nothing listens on that port"
    if isinstance(error, socket.gaierror):
        return f"unknown host name ({error.strerror})"
    return "no answer" if isinstance(error, TimeoutError) else str(error)


def _tls_reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"the node's certificate is not trusted ({error.verify_message}); give the authority that "
            "signed it as cafile, or put it into certfile"
        )
    if (
        isinstance(error, TimeoutError | ConnectionError)
        or "WRONG_VERSION" in str(error)
        or "EOF" in str(error)
    ):
        return f"the node does not answer in TLS ({error}); if it does not use TLS, give no certfile"
    return f"TLS failed: {error}"
