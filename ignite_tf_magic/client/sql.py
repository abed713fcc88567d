"""Runs SQL statements with typed results and this package's errors. Each statement uses its own connection."""

from __future__ import annotations

import datetime as dt
import decimal
import re
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np

from ignite_tf_magic.client.channel import Channel, open_any_channel
from ignite_tf_magic.client.sql_hints import near_names
from ignite_tf_magic.client.sql_result import Column, QueryResult, kind_of
from ignite_tf_magic.client.sql_types import declared_columns, spelled
from ignite_tf_magic.errors import (
    ConnectionFailed,
    ConnectionLost,
    LocalProtocolError,
    QueryError,
    RemoteProtocolError,
    ServerError,
)
from ignite_tf_magic.protocol import messages, sql
from ignite_tf_magic.protocol.objects import BUILT_IN_TYPES, BinaryType, FindType
from ignite_tf_magic.protocol.odbc import DeclaredColumn
from ignite_tf_magic.protocol.sql_cells import CellColumn, join
from ignite_tf_magic.serialization.sql_text import gives_rows, split_statements
from ignite_tf_magic.settings.options import ConnectOptions

# Called with the number of rows of a statement fetched so far.
QueryProgress = Callable[[int], None]
_PAGE_ROWS = 1024


class SqlClient:
    """Runs SQL statements on a cluster. Keeps no connection open between statements. Thread-safe."""

    def __init__(self, options: ConnectOptions) -> None:
        self._options = options

    def query(
        self,
        statement: str,
        args: Sequence[Any] = (),
        limit: int | None = None,
        progress: QueryProgress | None = None,
    ) -> QueryResult:
        """Run one statement and fetch its rows. An interrupt (Ctrl-C) also ends the statement on the cluster.

        Args:
            statement: One SQL statement with a `?` for each of `args`.
            args: Values for each `?`. The server binds them; they are never spliced into the text. Times with a zone
                are converted to UTC, times without a zone are taken as UTC.
            limit: Maximum number of rows to fetch. One more row is fetched to set `truncated`.
            progress: Called with the number of rows fetched so far, after each page.

        Raises:
            QueryError: The statement or an argument was refused.
            ConnectionFailed: No node could be reached.
            ConnectionLost: The node went away before the last row.
        """
        if not split_statements(statement):  # Ignite 2.14 answers it with nothing
            raise QueryError(f"there is no SQL statement in {statement!r}; write one")
        bound = [as_argument(value) for value in args]
        page_rows = _PAGE_ROWS if limit is None else min(_PAGE_ROWS, limit + 1)
        try:
            request = sql.execute(statement, bound, page_rows)
        except LocalProtocolError as error:
            raise QueryError(f"an argument cannot be sent: {error}") from error
        with open_any_channel(self._options) as channel:
            try:
                names, cells = _fetch(channel, request, statement, limit, progress or _untold)
            except (KeyboardInterrupt, SystemExit):
                _kill(replace(self._options, endpoints=(channel.endpoint,)), channel.local_port, statement)
                raise
            asked = gives_rows(statement)
            declared = declared_columns(channel.endpoint, self._options, statement) if asked else None
            if declared and len(declared) == len(names):
                names = tuple(spelled(channel.call, declared))
        return _result(names, cells, declared, limit)


def _untold(num_rows: int) -> None:
    del num_rows


def _fetch(
    channel: Channel, request: messages.Request, statement: str, limit: int | None, progress: QueryProgress
) -> tuple[tuple[str, ...], list[CellColumn]]:
    find_type = _type_finder(channel)
    try:
        page = channel.call(request, sql.parse_result)
        parts = [_columns(page, find_type)]
        num_rows = page.cells.num_rows
        progress(num_rows)
        while page.cursor is not None and (limit is None or num_rows <= limit):
            page = channel.call(sql.next_rows(page.cursor), partial(sql.parse_rows, page=page))
            parts.append(_columns(page, find_type))
            num_rows += page.cells.num_rows
            progress(num_rows)
    except ServerError as error:
        near = near_names(channel, error.server_message, statement)
        raise QueryError(_refusal(error.server_message, statement, near)) from error
    except RemoteProtocolError as error:
        raise QueryError(
            f"a column holds a value that cannot be read here ({error}); name the columns you need instead "
            f"of *, or CAST that one to VARCHAR, in\n{_indented(statement)}"
        ) from error
    return page.names, [join(of_one) for of_one in zip(*parts, strict=True)]


def _columns(page: sql.SqlPage, find_type: FindType) -> list[CellColumn]:
    return [page.cells.column(index, find_type) for index in range(page.cells.num_columns)]


def _result(
    names: Sequence[str],
    cells: Sequence[CellColumn],
    declared: Sequence[DeclaredColumn] | None,
    limit: int | None,
) -> QueryResult:
    truncated = limit is not None and bool(cells) and len(cells[0].nulls) > limit
    kept = [each.first(limit) for each in cells]
    known = declared if declared and len(declared) == len(names) else [None] * len(names)
    columns = [
        Column(name, kind_of(each, of_it), of_it)
        for name, each, of_it in zip(names, kept, known, strict=True)
    ]
    return QueryResult(columns, kept, truncated=truncated)


def _kill(options: ConnectOptions, local_port: int, statement: str) -> None:
    """End the statement of a connection. It is found by the connection's port, else by its text if that is unique."""
    find = sql.execute(
        "SELECT QUERY_ID, INITIATOR_ID FROM SYS.SQL_QUERIES WHERE SQL = ?", [statement], _PAGE_ROWS
    )
    with suppress(ConnectionFailed, ConnectionLost, ServerError), open_any_channel(options) as channel:
        found = channel.call(find, sql.parse_result).rows
        ours = [query_id for query_id, who in found if re.search(rf":{local_port}(@|$)", who or "")]
        if not ours and len(found) == 1:
            ours = [found[0][0]]
        for query_id in ours:
            channel.call(sql.execute(f"KILL QUERY '{query_id}'", (), 1), sql.parse_result)


def _type_finder(channel: Channel) -> FindType:
    @cache
    def find_type(type_id: int) -> BinaryType | None:
        if type_id in BUILT_IN_TYPES:
            return BUILT_IN_TYPES[type_id]
        return channel.call(messages.get_binary_type(type_id), messages.parse_binary_type)

    return find_type


def _refusal(message: str, statement: str, near: str) -> str:
    """Return Ignite's message without its echo of the statement, plus a hint."""
    words = re.sub(r";? SQL statement:.*?(?= \[\d+-\d+\]|$)", "", message, flags=re.DOTALL)
    words = re.sub(r"^[0-9A-Z]{5}: | \[\d+-\d+\]$", "", words).strip()
    hint = near
    if not near and "not found" in words and re.search(r"(?i)\btable\b", words):
        hint = "\nSYS.TABLES lists the tables; a name with small letters is written in double quotes."
    if "Query engines not configured" in words:
        hint = "\nThe nodes have one SQL engine: leave --engine out (or the hint QUERY_ENGINE)."
    return f"the cluster refused the statement: {words}\n{_indented(statement)}{hint}"


def _indented(statement: str) -> str:
    return "\n".join(f"    {line}" for line in statement.strip().splitlines())


def as_argument(value: Any) -> Any:
    """Convert one argument to a form that can be sent without loss.

    Raises:
        QueryError: There is no such form.
    """
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
        f"an argument of type {type(value).__name__} cannot be sent to SQL; pass a number, str, bytes, Decimal, "
        "UUID, date, time, datetime or None"
    )
