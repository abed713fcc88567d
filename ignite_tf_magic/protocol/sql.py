"""SQL statements and the rows that come back, as requests and answers.

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
    """Rows of a statement's result.

    Attributes:
        cursor: Under which there are more rows, or None.
        names: Of the columns, where the statement asked for them.
        cells: Of the rows.
    """

    cursor: int | None
    names: tuple[str, ...]
    cells: Cells

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        """The rows, of which none holds an object with fields."""
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
    """Run a statement; answer: `parse_result`.

    Args:
        statement: With a `?` for each of `args`.
        args: Values as `objects` writes them. Dates and times of day go as text, which
            means the same in every zone a node may run in.
        page_rows: Rows of an answer.
        with_names: Whether the answer has the columns' names.
        timeout_ms: After which the node ends the statement; 0 is never.
        local: Over the rows of which the node that is asked has the primary copy.
        partitions: Over the rows of these alone; a node without `Feature.QUERY_PARTITIONS` reads all.
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
    """Read on; answer: `parse_rows`. Behind the last rows the node closes the cursor."""
    return Request(Operation.QUERY_SQL_FIELDS_GET_PAGE, bytes(Writer().int64(cursor).data))


def parse_result(payload: memoryview, *, with_names: bool = True) -> SqlPage:
    """Read the answer of `execute`. The page's cells stay where they are: `payload` has to."""
    reader = Reader(payload)
    cursor = reader.int64()
    num_columns = reader.count() if with_names else reader.int32()
    names = tuple(str(read_value(reader)) for _ in range(num_columns)) if with_names else ()
    return _page(reader, cursor, names, num_columns)


def parse_first_page(payload: memoryview, num_columns: int) -> Page:
    """Read the answer of `execute` without names as a page of rows of so many cells, which stay encoded.

    Pages behind it are those of a scan (`messages.parse_next_page`).
    """
    try:
        cursor, found, num_rows = _FIRST_PAGE.unpack_from(payload)
    except struct.error:
        raise RemoteProtocolError(f"truncated page of {len(payload)} bytes") from None
    if found != num_columns or not 0 <= num_columns * num_rows <= len(payload) - _FIRST_PAGE.size - 1:
        raise RemoteProtocolError(f"corrupted page: {num_rows} rows of {found} cells in {len(payload)} bytes")
    return Page(cursor, num_rows, payload[_FIRST_PAGE.size : -1], payload[-1] != 0)


def parse_rows(payload: memoryview, page: SqlPage) -> SqlPage:
    """Read the answer of `next_rows`; `page` is the one before."""
    return _page(Reader(payload), page.cursor, page.names, page.cells.num_columns)


def _page(reader: Reader, cursor: int | None, names: tuple[str, ...], num_columns: int) -> SqlPage:
    num_rows = reader.count(max(num_columns, 1))
    cells = Cells(reader.view[reader.position :], num_rows, num_columns)
    reader.take(cells.num_bytes)
    return SqlPage(cursor if reader.bool() else None, names, cells)


def _write_argument(writer: Writer, value: Any) -> None:
    if isinstance(value, dt.time):
        millis_of_time(value)  # a node would cut off what its TIME has not, and say nothing
    if isinstance(value, dt.time) or (isinstance(value, dt.date) and not isinstance(value, dt.datetime)):
        write_value(writer, value.isoformat())
    else:
        write_value(writer, value)
