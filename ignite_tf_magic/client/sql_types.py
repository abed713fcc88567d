"""The declared types of a statement's columns, asked of a node in ODBC's words on a connection of its own."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TypeVar

from ignite_tf_magic.client.channel import HANDSHAKE_TIMEOUT_S
from ignite_tf_magic.client.transport import ByteStream, open_transport, tls_context
from ignite_tf_magic.errors import ConnectionFailed, ConnectionLost, RemoteProtocolError
from ignite_tf_magic.protocol import odbc
from ignite_tf_magic.settings.options import ConnectOptions, Endpoint

T = TypeVar("T")
_LENGTH = struct.Struct("<i")
_MAX_ANSWER_BYTES = 16 * 1024 * 1024


def declared_columns(
    endpoint: Endpoint, options: ConnectOptions, statement: str
) -> tuple[odbc.DeclaredColumn, ...] | None:
    """Ask for the columns of a statement, which is not carried out.

    Returns:
        Them; none for a statement without rows; None where the node does not tell, as one that lets no ODBC in.
    """
    try:
        tls = tls_context(options.tls) if options.tls else None
        stream = open_transport(endpoint, tls, min(options.timeout_s, HANDSHAKE_TIMEOUT_S), options.dial)
        try:
            if not _ask(stream, odbc.hello(options.username, options.password), odbc.is_greeted):
                return None
            return _ask(stream, odbc.describe(statement), odbc.parse_columns)
        finally:
            stream.close()
    except (ConnectionFailed, ConnectionLost, RemoteProtocolError):
        return None


def _ask(stream: ByteStream, question: bytes, parse: Callable[[memoryview], T]) -> T:
    stream.send(question)
    (length,) = _LENGTH.unpack(_receive(stream, _LENGTH.size))
    if not 0 < length <= _MAX_ANSWER_BYTES:
        raise RemoteProtocolError(f"corrupted answer: {length} bytes announced")
    return parse(memoryview(_receive(stream, length)))


def _receive(stream: ByteStream, num_bytes: int) -> bytearray:
    data = bytearray(num_bytes)
    view, done = memoryview(data), 0
    while done < num_bytes:
        done += stream.receive_into(view[done:])
    return data
