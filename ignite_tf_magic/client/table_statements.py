"""Writes and finds rows of one SQL table by statements with bound values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ignite_tf_magic.client.client import Client
from ignite_tf_magic.client.regions import RegionWatch
from ignite_tf_magic.client.router import wait_for
from ignite_tf_magic.client.sql_tables import CacheTable, TableColumn
from ignite_tf_magic.errors import ConnectionFailed, ConnectionLost, IgniteTfError
from ignite_tf_magic.protocol import sql
from ignite_tf_magic.protocol.messages import Request
from ignite_tf_magic.protocol.times import instant_of
from ignite_tf_magic.serialization.sql_text import in_quotes

# Java type of a column -> its name in SQL.
SQL_TYPES: Mapping[str, str] = {
    **dict.fromkeys(("java.lang.Byte", "byte"), "TINYINT"),
    **dict.fromkeys(("java.lang.Short", "short"), "SMALLINT"),
    **dict.fromkeys(("java.lang.Integer", "int"), "INT"),
    **dict.fromkeys(("java.lang.Long", "long"), "BIGINT"),
    **dict.fromkeys(("java.lang.Float", "float"), "REAL"),
    **dict.fromkeys(("java.lang.Double", "double"), "DOUBLE"),
    **dict.fromkeys(("java.lang.Boolean", "boolean"), "BOOLEAN"),
    "java.lang.String": "VARCHAR",
    "java.math.BigDecimal": "DECIMAL",
    "java.util.UUID": "UUID",
    "java.sql.Date": "DATE",
    "java.sql.Time": "TIME",
    "java.sql.Timestamp": "TIMESTAMP",
    "java.util.Date": "TIMESTAMP",
    "[B": "BINARY",
}
_STATEMENT_VALUES = 4096
_STATEMENT_BYTES = 1 << 20
_KEYS_AT_ONCE = 4096
_PATIENCE_S = 40.0


class TableStatements:
    """Runs statements on one table."""

    def __init__(self, client: Client, table: CacheTable) -> None:
        self._client, self._table = client, table

    def merge(
        self, columns: Sequence[TableColumn], values: Sequence[Sequence[Any]], watch: RegionWatch
    ) -> Iterator[int]:
        """Write rows, replacing rows with the same keys; yield the number of rows of each statement.

        Args:
            columns: The columns to write; the others get their default, or NULL.
            values: One list for each column, of values that Ignite converts to the column's type.
            watch: Checks before each statement that the nodes have room.

        Raises:
            ServerError: The cluster refused a row; some rows may be written.
            RegionFull: A node has no room for more; some rows are written.
        """
        names = ", ".join(in_quotes(each.name) for each in columns)
        marks = f"({', '.join('?' * len(columns))})"
        for rows in _blocks(list(zip(*values, strict=True)), max(1, _STATEMENT_VALUES // len(columns))):
            statement = f"MERGE INTO {self._table.quoted} ({names}) VALUES {', '.join([marks] * len(rows))}"
            request = sql.execute(statement, [value for row in rows for value in row], 1)
            watch.claim(len(request.payload))
            self._ask(request)
            yield len(rows)

    def find(
        self, keys: Sequence[TableColumn], values: Sequence[Sequence[Any]]
    ) -> Iterator[list[tuple[int, Any]]]:
        """Look up keys, some thousands at a time.

        Args:
            keys: The key columns.
            values: One list for each of them; the values at one index make a key.

        Yields:
            The index of each key that exists, and the key as the cache stores it.
        """
        for first in range(0, len(values[0]), _KEYS_AT_ONCE):
            part = [list(each[first : first + _KEYS_AT_ONCE]) for each in values]
            yield [(first + index, key) for index, key in self._found(keys, part)]

    def _found(self, keys: Sequence[TableColumn], values: list[list[Any]]) -> list[tuple[int, Any]]:
        # H2 rounds timestamps in arrays to microseconds. So search from microsecond to microsecond, and compare here.
        sought, conditions, bound = ["N INT = ?"], [], [list(range(len(values[0])))]
        moments: list[list[Any]] = []
        chosen = ["x.N", "t._KEY"]
        for number, (key, column) in enumerate(zip(keys, values, strict=True)):
            kind, name = SQL_TYPES[key.java_type], f"t.{in_quotes(key.name)}"
            sought.append(f"K{number} {kind} = ?")
            if kind != "TIMESTAMP":
                conditions.append(f"{name} = x.K{number}")
                bound.append(column)
                continue
            sought.append(f"L{number} {kind} = ?")
            conditions.append(f"{name} BETWEEN x.K{number} AND x.L{number}")
            bound += map(list, zip(*map(_micros_around, column), strict=True))
            chosen.append(name)
            moments.append(column)
        statement = (
            f"SELECT {', '.join(chosen)} FROM TABLE({', '.join(sought)}) x JOIN {self._table.quoted} t "  # noqa: S608
            f"ON {' AND '.join(conditions)}"
        )
        rows = self._ask(sql.execute(statement, bound, _KEYS_AT_ONCE + 1))
        return [
            (index, key)
            for index, key, *times in rows
            if all(
                instant_of(time) == instant_of(column[index])
                for time, column in zip(times, moments, strict=True)
            )
        ]

    def largest(self, column: TableColumn) -> int | None:
        """Return the largest value of a column of whole numbers; None if the table is empty."""
        statement = f"SELECT MAX({in_quotes(column.name)}) FROM {self._table.quoted}"  # noqa: S608  in quotes
        ((found,),) = self._ask(sql.execute(statement, (), 1))
        return None if found is None else int(found)

    def _ask(self, request: Request) -> list[tuple[Any, ...]]:
        """Run a statement that may run twice, on any node, until a node answers."""
        failure: IgniteTfError | None = None
        find_type = self._client.types.find

        def attempt() -> list[tuple[Any, ...]] | None:
            nonlocal failure
            try:
                page = self._client.router.call(request, sql.parse_result)
                return page.cells.typed_rows(find_type)
            except (ConnectionLost, ConnectionFailed) as error:
                failure = error
                return None

        rows = wait_for(attempt, _PATIENCE_S)
        if rows is None:
            raise IgniteTfError(
                f"no node has run a statement on table {self._table.name} for {_PATIENCE_S:g} s; the last failure: "
                f"{failure}"
            )
        return rows


def _blocks(rows: list[tuple[Any, ...]], most: int) -> Iterator[list[tuple[Any, ...]]]:
    """Divide rows into blocks, one for each statement."""
    block: list[tuple[Any, ...]] = []
    num_bytes = 0
    for row in rows:
        row_bytes = sum(map(_least_bytes, row))
        if block and (len(block) == most or num_bytes + row_bytes > _STATEMENT_BYTES):
            yield block
            block, num_bytes = [], 0
        block.append(row)
        num_bytes += row_bytes
    if block:
        yield block


def _least_bytes(value: Any) -> int:
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, np.ndarray) and value.dtype != object:
        return value.nbytes
    return sum(map(_least_bytes, value)) if isinstance(value, list | np.ndarray) else 9


def _micros_around(value: Any) -> tuple[np.datetime64, np.datetime64]:
    """Return the last microsecond before or at a moment, and the first one at or after it."""
    millis, nanos = instant_of(value) or (0, 0)
    micros = np.datetime64(millis, "ms").astype("M8[us]") + nanos // 1000
    return micros, micros + bool(nanos % 1000)
