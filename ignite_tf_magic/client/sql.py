"""SQL statements with typed results, and errors in this package's words. Each statement has its own connection."""

from __future__ import annotations

import datetime as dt
import decimal
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ignite_tf_magic.client.channel import Channel, open_any_channel
from ignite_tf_magic.config.options import ConnectOptions
from ignite_tf_magic.errors import (
    LocalProtocolError,
    QueryError,
    RemoteProtocolError,
    ServerError,
)
from ignite_tf_magic.protocol import messages, sql
from ignite_tf_magic.protocol.objects import BinaryType, FindType

if TYPE_CHECKING:
    import pandas as pd

_PAGE_ROWS = 1024


@dataclass(frozen=True, slots=True)
class Column:
    """Name and kind of one column of a result.

    Attributes:
        kind: boolean, integer, float, decimal, text, date, time, timestamp, uuid, binary, object, or null
            for a column without any value: the protocol tells the type with each value only.
    """

    name: str
    kind: str


@dataclass(frozen=True, slots=True)
class QueryResult:
    """Rows of one statement. A statement that changes data has one row with the column UPDATED.

    Attributes:
        rows: NULL is None; a timestamp is a numpy.datetime64 in UTC, with nanoseconds where they reach (1678 to
            2261) and else with microseconds; the other kinds are Python's own types.
        truncated: More rows exist than the limit let through.
    """

    columns: tuple[Column, ...]
    rows: tuple[tuple[Any, ...], ...]
    truncated: bool

    def to_pandas(self) -> pd.DataFrame:
        """Build a DataFrame whose dtypes follow the columns; integers and booleans keep their NULLs.

        Timestamps are datetime64[ns] in UTC, or datetime64[us] where one of the column is before 1678 or after 2261.
        """
        import pandas as pd

        cells: list[tuple[Any, ...]] = list(zip(*self.rows, strict=True)) or [()] * len(self.columns)
        series = [_series(column.kind, values) for column, values in zip(self.columns, cells, strict=True)]
        frame = pd.concat(series, axis=1) if series else pd.DataFrame()
        frame.columns = pd.Index([column.name for column in self.columns])
        return frame


class SqlClient:
    """Runs SQL statements on a cluster. Holds no connection between two statements; thread-safe."""

    def __init__(self, options: ConnectOptions) -> None:
        self._options = options

    def query(self, statement: str, args: Sequence[Any] = (), limit: int | None = None) -> QueryResult:
        """Run one statement and fetch its rows.

        Args:
            statement: One SQL statement with a `?` for each of `args`.
            args: Bound to the `?` on the server, never spliced into the text. Times with a zone are turned to UTC,
                those without are taken for UTC.
            limit: At most this many rows leave the cluster (and one more, which tells `truncated`).

        Raises:
            QueryError: The statement or an argument was refused.
            ConnectionFailed: No node could be reached.
            ConnectionLost: The node went away before the last row.
        """
        bound = [_argument(value) for value in args]
        page_rows = _PAGE_ROWS if limit is None else min(_PAGE_ROWS, limit + 1)
        try:
            request = sql.execute(statement, bound, page_rows)
        except LocalProtocolError as error:
            raise QueryError(f"an argument cannot be sent: {error}") from error
        with open_any_channel(self._options) as channel:
            return _fetch(channel, request, statement, limit)


def _fetch(channel: Channel, request: messages.Request, statement: str, limit: int | None) -> QueryResult:
    find_type = _type_finder(channel)
    try:
        payload = channel.call(request, bytes)  # kept, as finding a type asks on the same connection
        page = sql.parse_result(memoryview(payload), find_type)
        rows = page.rows
        while page.cursor is not None and (limit is None or len(rows) <= limit):
            payload = channel.call(sql.next_rows(page.cursor), bytes)
            page = sql.parse_rows(memoryview(payload), page, find_type)
            rows += page.rows
    except ServerError as error:
        raise QueryError(_refusal(error.server_message, statement)) from error
    except RemoteProtocolError as error:
        raise QueryError(
            f"a column holds a value that cannot be read here ({error}); name the columns you need instead "
            f"of *, or CAST that one to VARCHAR, in\n{_indented(statement)}"
        ) from error
    truncated = limit is not None and len(rows) > limit
    kept = tuple(rows[:limit])
    columns = zip(page.names, zip(*kept, strict=True) if kept else [()] * len(page.names), strict=True)
    return QueryResult(tuple(Column(name, _kind(cells)) for name, cells in columns), kept, truncated)


def _type_finder(channel: Channel) -> FindType:
    @cache
    def find_type(type_id: int) -> BinaryType | None:
        return channel.call(messages.get_binary_type(type_id), messages.parse_binary_type)

    return find_type


def _refusal(message: str, statement: str) -> str:
    """Ignite's message without its echo of the statement, and a hint where a cache's schema is missing."""
    words = re.sub(r";? SQL statement:.*?(?= \[\d+-\d+\]|$)", "", message, flags=re.DOTALL)
    words = re.sub(r"^[0-9A-Z]{5}: | \[\d+-\d+\]$", "", words).strip()
    hint = ""
    if "not found" in words and re.search(r"(?i)\btable\b", words):
        hint = "\nSYS.TABLES lists the tables; a name with small letters is written in double quotes."
    return f"the cluster refused the statement: {words}\n{_indented(statement)}{hint}"


def _indented(statement: str) -> str:
    return "\n".join(f"    {line}" for line in statement.strip().splitlines())


def _argument(value: Any) -> Any:
    """Bring one argument to a form that is sent without losing any of it."""
    if isinstance(value, np.generic) and not isinstance(value, np.datetime64):
        value = value.item()
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise QueryError(f"the argument {value} does not fit into a 64-bit integer; give it as a Decimal")
    if value is None or isinstance(
        value,
        bool | int | float | str | bytes | decimal.Decimal | uuid.UUID | dt.date | dt.time | np.datetime64,
    ):
        return value
    raise QueryError(
        f"an argument of type {type(value).__name__} has no SQL form; give a number, str, bytes, Decimal, "
        "UUID, date, time, datetime or None"
    )


_KINDS: dict[type, str] = {
    bool: "boolean",
    int: "integer",
    float: "float",
    decimal.Decimal: "decimal",
    str: "text",
    dt.date: "date",
    dt.time: "time",
    np.datetime64: "timestamp",
    uuid.UUID: "uuid",
    bytes: "binary",
}


def _kind(cells: Sequence[Any]) -> str:
    found = {_KINDS.get(type(cell), "object") for cell in cells if cell is not None}
    return "null" if not found else found.pop() if len(found) == 1 else "object"


def _series(kind: str, cells: Sequence[Any]) -> pd.Series[Any]:
    import pandas as pd

    holes = any(cell is None for cell in cells)
    is_coarse = any(isinstance(cell, np.datetime64) and cell.dtype == "M8[us]" for cell in cells)
    dtype = {
        "integer": "Int64" if holes else "int64",
        "boolean": "boolean" if holes else "bool",
        "float": "float64",
        "timestamp": "datetime64[us]" if is_coarse else "datetime64[ns]",
        "date": "datetime64[s]",
        "text": "string",
    }.get(kind, "object")
    given = np.array(cells, "M8[us]") if is_coarse and kind == "timestamp" else list(cells)
    series: pd.Series[Any] = pd.Series(given, dtype=dtype)
    return series
