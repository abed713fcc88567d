"""Asks for the column types of a SQL result before there is any row.

The thin client protocol cannot report them, but Ignite's ODBC protocol can, on the same port. This module has only its
handshake and this request.
Source: OdbcMessageParser, OdbcConnectionContext and OdbcColumnMeta in Ignite's sources.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from ignite_tf_magic.errors import RemoteProtocolError
from ignite_tf_magic.protocol.buffer import Reader, Writer
from ignite_tf_magic.protocol.read_values import read_value
from ignite_tf_magic.protocol.write_values import write_text

_HANDSHAKE, _DESCRIBE = 1, 11
_VERSION = (2, 8, 0)  # the first that reports which columns may be NULL
_ODBC_CLIENT = 0
_NO_NESTED_TRANSACTIONS = 3
_SETTINGS = ("distributed joins", "join order", "replicated only", "collocated", "lazy", "skip reducer")
_LENGTH = struct.Struct("<i")
_NEVER_NULL = 0


@dataclass(frozen=True, slots=True)
class DeclaredColumn:
    """A column of a statement's result, as the node that parsed the statement describes it.

    Attributes:
        schema: Schema of the column's table, as written in statements; empty if it is not a table's column.
        code: Type code; NULL or BINARY_OBJECT if the node does not know the type.
        precision: Number of digits of a decimal.
        scale: Number of digits of a decimal after the point.
        is_nullable: False if the column never has a NULL.
    """

    schema: str
    table: str
    name: str
    code: int
    precision: int
    scale: int
    is_nullable: bool


def hello(username: str | None, password: str | None) -> bytes:
    """Build the handshake; `is_greeted` reads the answer."""
    writer = Writer().int8(_HANDSHAKE)
    for number in _VERSION:
        writer.int16(number)
    writer.int8(_ODBC_CLIENT)
    for _ in _SETTINGS:
        writer.bool(False)
    write_text(writer, username)
    write_text(writer, password)
    return _framed(writer.int8(_NO_NESTED_TRANSACTIONS))


def describe(statement: str) -> bytes:
    """Build a request for the columns of a statement, which the node parses but does not run.

    `parse_columns` reads the answer.
    """
    writer = Writer().int8(_DESCRIBE)
    write_text(writer, "PUBLIC")
    write_text(writer, statement)
    return _framed(writer)


def _framed(writer: Writer) -> bytes:
    return _LENGTH.pack(len(writer.data)) + bytes(writer.data)


def is_greeted(answer: memoryview) -> bool:
    """Return whether the node accepted the handshake."""
    return Reader(answer).bool()


def parse_columns(answer: memoryview) -> tuple[DeclaredColumn, ...] | None:
    """Return the columns: an empty tuple if the statement has no rows, None if the node could not parse it."""
    reader = Reader(answer)
    if reader.int32():
        return None
    return tuple(_column(reader) for _ in range(reader.count()))


def _column(reader: Reader) -> DeclaredColumn:
    schema, table, name = (read_value(reader) for _ in ("schema", "table", "name"))
    if not isinstance(name, str):
        raise RemoteProtocolError("corrupted answer: a column without a name")
    code, precision, scale = reader.int8() & 0xFF, reader.int32(), reader.int32()
    is_nullable = reader.int8() != _NEVER_NULL
    return DeclaredColumn(str(schema or ""), str(table or ""), name, code, precision, scale, is_nullable)
