"""Reads from a node the ODBC types of a statement's columns, and the spelling of their names in rows."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from ignite_tf_magic.client.channel import HANDSHAKE_TIMEOUT_S
from ignite_tf_magic.client.transport import ByteStream, open_transport, tls_context
from ignite_tf_magic.errors import ConnectionFailed, ConnectionLost, RemoteProtocolError, ServerError
from ignite_tf_magic.protocol import messages, odbc, sql
from ignite_tf_magic.settings.options import ConnectOptions, Endpoint

T = TypeVar("T")
_LENGTH = struct.Struct("<i")
_MAX_ANSWER_BYTES = 16 * 1024 * 1024
_VIEWS = "SYS"
CACHE_OF_TABLE = "SELECT CACHE_NAME FROM SYS.TABLES WHERE SCHEMA_NAME = ? AND TABLE_NAME = ?"


class Ask(Protocol):
    """A function that sends a request to a node and parses the answer."""

    def __call__(self, request: messages.Request, parse: Callable[[memoryview], T], /) -> T:
        """Return the result of `parse`."""


def declared_columns(
    endpoint: Endpoint, options: ConnectOptions, statement: str
) -> tuple[odbc.DeclaredColumn, ...] | None:
    """Ask for the columns of a statement without running it.

    Returns:
        The columns; empty for a statement without rows; None if the node does not report them, for example because it
        does not accept ODBC.
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


def spelled(ask: Ask, declared: Sequence[odbc.DeclaredColumn]) -> list[str]:
    """Return the names of a result's columns. A column of a table is spelled like the field that it holds.

    Args:
        ask: Sends a request to a node and parses the answer.
        declared: The columns, as SQL names them.
    """
    spellings: dict[tuple[str, str], dict[str, str]] = {}
    for each in declared:
        if each.table and each.schema != _VIEWS and (each.schema, each.table) not in spellings:
            spellings[each.schema, each.table] = _spellings(ask, each.schema, each.table)
    return [spellings.get((each.schema, each.table), {}).get(each.name, each.name) for each in declared]


def _spellings(ask: Ask, schema: str, table: str) -> dict[str, str]:
    """Map columns of a table to their fields, where the two names differ at most in case."""
    bare = schema[1:-1] if schema.startswith('"') else schema
    try:
        found = ask(sql.execute(CACHE_OF_TABLE, [bare, table], 1), sql.parse_result).rows
        if not found:
            return {}
        config = ask(
            messages.cache_configuration(messages.cache_id(found[0][0])), messages.parse_configuration
        )
    except ServerError:  # a user without permission, or a table that was dropped meanwhile
        return {}
    names = {
        field.column: field.name.rpartition(".")[2]
        for entity in config.query_entities
        if entity.table == table
        for field in entity.fields
    }
    return {column: name for column, name in names.items() if name.upper() == column.upper()}


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
