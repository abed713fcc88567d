"""SQL statements as requests, and their rows as answers.

Source: Ignite documentation, "Binary Client Protocol", SQL and scan queries.
"""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ignite_tf_magic.errors import RemoteProtocolError
from ignite_tf_magic.protocol.buffer import Reader, Writer
from ignite_tf_magic.protocol.messages import Page, Request
from ignite_tf_magic.protocol.ops import Feature, Operation, TypeCode
from ignite_tf_magic.protocol.read_values import read_value
from ignite_tf_magic.protocol.sql_cells import Cells
from ignite_tf_magic.protocol.times import millis_of_time
from ignite_tf_magic.protocol.write_values import write_value

_ANY_STATEMENT = 0
_FIRST_PAGE = struct.Struct("<qii")
_UPDATE_BATCH_ROWS = 1  # Ignite's default


@dataclass(frozen=True, slots=True)
class SqlPage:
    """A page of rows of a statement's result.

    Attributes:
        cursor: Id of the cursor for more rows, or None if there are none.
        names: Names of the columns, if the request asked for them.
        cells: The cells of the rows.
    """

    cursor: int | None
    names: tuple[str, ...]
    cells: Cells

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        """The rows as tuples. Their cells must not be objects with fields."""
        return self.cells.rows()


def execute(
    statement: str,
    args: Sequence[Any],
    page_rows: int,
    *,
    with_names: bool = True,
    timeout_ms: int = 0,
    local: bool = False,
    partitions: Sequence[int] | None = None,
) -> Request:
    """Build a request that runs a statement; `parse_result` reads the answer.

    Args:
        statement: The statement, with a `?` for each of `args`.
        args: Values that `write_value` accepts. Dates and times of day are sent as text, which means the same in
            every time zone of a node.
        page_rows: Number of rows per answer.
        with_names: Whether the answer has the names of the columns.
        timeout_ms: Milliseconds after which the node ends the statement; 0 means never.
        local: Whether to read only rows whose primary copy is on the node that gets the request.
        partitions: Read only these partitions. A node without `Feature.QUERY_PARTITIONS` reads all.
    """
    writer = Writer().int32(0).int8(0).int8(TypeCode.NULL).int32(page_rows).int32(-1)
    write_value(writer, statement)
    writer.int32(len(args))
    for value in args:
        _write_argument(writer, value)
    writer.int8(_ANY_STATEMENT)
    writer.bool(False).bool(local)  # the first: distributed joins
    for _ in ("replicated only", "join order", "collocated"):
        writer.bool(False)
    writer.bool(True)  # lazy: the node does not gather all rows before the first page
    writer.int64(timeout_ms).bool(with_names)
    tail = Writer().int32(-1 if partitions is None else len(partitions))
    for partition in partitions or ():
        tail.int32(partition)
    tail.int32(_UPDATE_BATCH_ROWS)
    return Request(
        Operation.QUERY_SQL_FIELDS,
        bytes(writer.data),
        tail=bytes(tail.data),
        feature=Feature.QUERY_PARTITIONS,
    )


def next_rows(cursor: int) -> Request:
    """Build a request for the next rows; `parse_rows` reads the answer.

    The node closes the cursor after the last rows.
    """
    return Request(Operation.QUERY_SQL_FIELDS_GET_PAGE, bytes(Writer().int64(cursor).data))


def parse_result(payload: memoryview, *, with_names: bool = True) -> SqlPage:
    """Read the answer of `execute`. The page's cells refer to `payload`, which must not change."""
    reader = Reader(payload)
    cursor = reader.int64()
    num_columns = reader.count() if with_names else reader.int32()
    names = tuple(str(read_value(reader)) for _ in range(num_columns)) if with_names else ()
    return _page(reader, cursor, names, num_columns)


def parse_first_page(payload: memoryview, num_columns: int) -> Page:
    """Read the answer of `execute` without names as a page of encoded rows with `num_columns` cells each.

    `messages.parse_next_page` reads the pages after it.
    """
    try:
        cursor, found, num_rows = _FIRST_PAGE.unpack_from(payload)
    except struct.error:
        raise RemoteProtocolError(f"truncated page of {len(payload)} bytes") from None
    if found != num_columns or not 0 <= num_columns * num_rows <= len(payload) - _FIRST_PAGE.size - 1:
        raise RemoteProtocolError(f"corrupted page: {num_rows} rows of {found} cells in {len(payload)} bytes")
    return Page(cursor, num_rows, payload[_FIRST_PAGE.size : -1], payload[-1] != 0)


def parse_rows(payload: memoryview, page: SqlPage) -> SqlPage:
    """Read the answer of `next_rows`; `page` is the page before it."""
    return _page(Reader(payload), page.cursor, page.names, page.cells.num_columns)


def _page(reader: Reader, cursor: int | None, names: tuple[str, ...], num_columns: int) -> SqlPage:
    num_rows = reader.count(max(num_columns, 1))
    cells = Cells(reader.view[reader.position :], num_rows, num_columns)
    reader.take(cells.num_bytes)
    return SqlPage(cursor if reader.bool() else None, names, cells)


def _write_argument(writer: Writer, value: Any) -> None:
    if isinstance(value, dt.time):
        millis_of_time(value)  # raises for what TIME cannot hold: a node would silently cut it off
    if isinstance(value, dt.time) or (isinstance(value, dt.date) and not isinstance(value, dt.datetime)):
        write_value(writer, value.isoformat())
    else:
        write_value(writer, value)
