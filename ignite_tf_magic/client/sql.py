"""SQL through pyignite, with typed results and errors in this package's words.

pyignite encodes and decodes; the bytes travel over a channel of ours, so that TLS, credentials and
errors are those of every other connection. Also ours is what pyignite leaves open: SQL DATE is read,
decimals keep all their digits, and a limit of rows holds. Each statement has its own connection.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime as dt
import decimal
import os
import re
import struct
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from ignite_tf_magic.client.channel import Channel, open_channel
from ignite_tf_magic.client.transport import tls_context
from ignite_tf_magic.config import ConnectOptions
from ignite_tf_magic.errors import ConnectionFailed, QueryError, ServerError
from ignite_tf_magic.protocol.messages import Request
from ignite_tf_magic.protocol.ops import PROTOCOL_VERSION, Operation

if TYPE_CHECKING:
    import pandas as pd

_PAGE_ROWS = 1024
_REQUEST_HEAD = struct.Struct("<ihq")
_ANSWER_HEAD = struct.Struct("<iqh")
_EXACT = decimal.Context(prec=10_000)
_EPOCH = dt.date(1970, 1, 1)
_JAVA_SQL_DATE = 1087757882  # hash of "java.sql.Date"
_DAY_MS = 86_400_000


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
        rows: NULL is None; a timestamp is a numpy.datetime64 with nanoseconds, the other kinds are
            Python's own types.
        truncated: More rows exist than the limit let through.
    """

    columns: tuple[Column, ...]
    rows: tuple[tuple[Any, ...], ...]
    truncated: bool

    def to_pandas(self) -> pd.DataFrame:
        """Build a DataFrame whose dtypes follow the columns; integers and booleans keep their NULLs."""
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
            args: Bound to the `?` on the server, never spliced into the text.
            limit: At most this many rows leave the cluster (and one more, which tells `truncated`).

        Raises:
            QueryError: The statement or an argument was refused.
            ConnectionFailed: No node could be reached.
            ConnectionLost: The node went away before the last row.
        """
        bound = [_argument(value) for value in args]
        with _connected(self._options) as channel:
            return _fetch(_pyignite_client(channel), statement, bound, limit)


def _fetch(client: Any, statement: str, args: list[Any], limit: int | None) -> QueryResult:
    from pyignite.exceptions import ParseError

    page_rows = _PAGE_ROWS if limit is None else min(_PAGE_ROWS, limit + 1)
    try:
        with (
            decimal.localcontext(_EXACT),
            client.sql(
                statement, page_size=page_rows, query_args=args, lazy=True, include_field_names=True
            ) as cursor,
        ):
            names = next(cursor)
            rows = [tuple(map(_value, row)) for row in islice(cursor, None if limit is None else limit + 1)]
    except ServerError as error:
        raise QueryError(_refusal(error.server_message, statement)) from error
    except ParseError as error:
        raise QueryError(
            f"a column holds a value that cannot be read here ({error}); name the columns you need instead "
            f"of *, or CAST that one to VARCHAR, in\n{_indented(statement)}"
        ) from error
    truncated = limit is not None and len(rows) > limit
    kept = tuple(rows[:limit])
    columns = zip(names, zip(*kept, strict=True) if kept else [()] * len(names), strict=True)
    return QueryResult(tuple(Column(name, _kind(cells)) for name, cells in columns), kept, truncated)


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
    """Bring one argument to a form that pyignite sends without losing any of it."""
    from pyignite.datatypes import TimestampObject

    if isinstance(value, np.generic) and not isinstance(value, np.datetime64):
        value = value.item()
    if isinstance(value, np.datetime64):
        nanos = int(value.astype("datetime64[ns]").astype(np.int64))
        moment = dt.datetime(1970, 1, 1) + dt.timedelta(milliseconds=nanos // 1_000_000)
        return (moment, nanos % 1_000_000), TimestampObject
    if isinstance(value, dt.datetime):
        whole = value.microsecond // 1000 * 1000
        return (value.replace(microsecond=whole), (value.microsecond - whole) * 1000), TimestampObject
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise QueryError(f"the argument {value} does not fit into a 64-bit integer; give it as a Decimal")
    if value is None or isinstance(
        value, bool | int | float | str | bytes | decimal.Decimal | uuid.UUID | dt.date
    ):
        return value
    raise QueryError(
        f"an argument of type {type(value).__name__} has no SQL form; give a number, str, bytes, Decimal, "
        "UUID, date, datetime or None"
    )


def _value(value: Any) -> Any:
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], dt.datetime):
        return np.datetime64(value[0], "ns") + np.timedelta64(value[1], "ns")
    if isinstance(value, dt.datetime):
        return np.datetime64(value, "ns")
    if isinstance(value, dt.timedelta):
        return (dt.datetime.min + value % dt.timedelta(days=1)).time()
    return bytes(value) if isinstance(value, bytearray) else value


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
    dtype = {
        "integer": "Int64" if holes else "int64",
        "boolean": "boolean" if holes else "bool",
        "float": "float64",
        "timestamp": "datetime64[ns]",
        "date": "datetime64[s]",
        "text": "string",
    }.get(kind, "object")
    series: pd.Series[Any] = pd.Series(list(cells), dtype=dtype)
    return series


@contextlib.contextmanager
def _connected(options: ConnectOptions) -> Iterator[Channel]:
    """A connection to the first endpoint that answers. Answers may take as long as the statement needs."""
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


class _Wire:
    """What pyignite needs of a connection, made of a channel: its frames in, frames back."""

    alive = True

    def __init__(self, client: Any, channel: Channel) -> None:
        self.client = client
        self.protocol_context = client.protocol_context
        self._channel = channel

    def request(self, frame: bytes | bytearray) -> bytes:
        _, operation, query_id = _REQUEST_HEAD.unpack_from(frame)
        request = Request(Operation(operation), bytes(frame[_REQUEST_HEAD.size :]))
        payload = self._channel.call(request, bytes)
        return _ANSWER_HEAD.pack(_ANSWER_HEAD.size - 4 + len(payload), query_id, 0) + payload


def _pyignite_client(channel: Channel) -> Any:
    import pyignite
    from pyignite.connection.bitmask_feature import BitmaskFeature
    from pyignite.connection.protocol_context import ProtocolContext

    _teach_pyignite_sql_dates()
    client = pyignite.Client(partition_aware=False)
    client.protocol_context = ProtocolContext(PROTOCOL_VERSION, BitmaskFeature(0))
    client._nodes.append(_Wire(client, channel))
    return client


def _teach_pyignite_sql_dates() -> None:
    """Add to pyignite's table of types the one in which nodes send a SQL DATE. Harmless when repeated."""
    from pyignite.datatypes import internal
    from pyignite.datatypes.base import IgniteDataType
    from pyignite.exceptions import ParseError

    class Layout(ctypes.LittleEndianStructure):
        _pack_ = 1
        _fields_ = (
            ("type_code", ctypes.c_ubyte),
            ("length", ctypes.c_int),
            ("kind", ctypes.c_byte),
            ("java_type", ctypes.c_int),
            ("checksum", ctypes.c_short),
            ("millis", ctypes.c_longlong),
        )

    class SqlDate(IgniteDataType):  # type: ignore[misc]
        @classmethod
        def parse(cls, stream: Any) -> type[Layout]:
            value = Layout.from_buffer_copy(stream.slice(stream.tell(), ctypes.sizeof(Layout)))
            if value.java_type != _JAVA_SQL_DATE:
                raise ParseError("a Java object that is no SQL date")
            stream.seek(ctypes.sizeof(Layout), os.SEEK_CUR)
            return Layout

        @classmethod
        def to_python(cls, value: Layout, **_: Any) -> dt.date:
            # Midnight in the node's time zone, which is not told: right for zones from UTC-10 to UTC+13.
            return _EPOCH + dt.timedelta(days=(value.millis + 13 * 3_600_000) // _DAY_MS)

    internal.tc_map(b"\x65")
    internal._tc_map.setdefault(b"\xfe", SqlDate)
