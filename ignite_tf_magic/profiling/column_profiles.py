"""Computes the statistics of a cache's columns from a sample of its rows and from SQL over all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from threading import Timer
from typing import Any

from ignite_tf_magic.client.client import Client
from ignite_tf_magic.client.sql_tables import CacheTable, Query
from ignite_tf_magic.errors import QueryError
from ignite_tf_magic.profiling.column_numbers import (
    OF_COUNTS,
    OF_VALUES,
    ColumnProfile,
    numbers_of,
    numbers_of_items,
)
from ignite_tf_magic.profiling.rows import RowSample
from ignite_tf_magic.profiling.seen_fields import cell_of, stored_types
from ignite_tf_magic.profiling.server_numbers import (
    ServerColumn,
    aggregated,
    counted_distinct,
    grouped,
    kind_of_java_type,
)
from ignite_tf_magic.protocol.field_names import short_name
from ignite_tf_magic.protocol.objects import ARRAYS
from ignite_tf_magic.protocol.ops import TypeCode
from ignite_tf_magic.protocol.row_fields import Path, RowField

Report = Callable[[str], None]
# A column is counted value by value if the sample has at most 64 different values, each at least 4 times on average.
_FEW_VALUES, _OFTEN = 64, 4
# The node that counts different values keeps all of them on its heap.
_MAX_GATHERED_BYTES, _VALUE_BYTES = 16 * 1024 * 1024, 64
_MAX_ITEMS = 4_000_000
_OF_ITEMS = frozenset({"num_nans", "num_infinite"}) | OF_VALUES
_TOLD_AFTER_S = 2.0
_KIND_OF_CODE: dict[int, str] = {
    **dict.fromkeys((TypeCode.BYTE, TypeCode.SHORT, TypeCode.INT, TypeCode.LONG), "integer"),
    **dict.fromkeys((TypeCode.FLOAT, TypeCode.DOUBLE), "float"),
    **dict.fromkeys((TypeCode.CHAR, TypeCode.STRING), "text"),
    **dict.fromkeys((TypeCode.TIMESTAMP, TypeCode.DATE), "timestamp"),
    TypeCode.BOOL: "boolean",
    TypeCode.DECIMAL: "decimal",
    TypeCode.TIME: "time",
    TypeCode.UUID: "uuid",
    TypeCode.OPTIMIZED: "date",
    **dict.fromkeys((TypeCode.ENUM, TypeCode.BINARY_ENUM), "integer"),
}


@contextmanager
def said_if_it_lasts(report: Report, what: str) -> Iterator[None]:
    """Report what is being done if it takes more than two seconds."""
    timer = Timer(_TOLD_AFTER_S, report, [f"{what} ..."])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class Looked:
    """Makes profiles of columns from a sample, and from the cluster's statistics of all rows.

    Attributes:
        notes: Remarks about the columns, for the user.
    """

    def __init__(
        self,
        client: Client,
        query: Query,
        report: Report,
        sample: RowSample,
        table: CacheTable | None,
        num_rows: int,
    ) -> None:
        self._client, self._query, self._report = client, query, report
        self._sample, self._rows = sample, sample.rows
        self._table, self._num_rows = table, num_rows
        self.notes: list[str] = []

    def profiles(self, paths: Sequence[Path]) -> list[ColumnProfile]:
        """Return the profiles of these columns, and add remarks to `notes`."""
        found = {path: self._of_sample(path) for path in paths}
        self.notes += [
            f"column {column.name} holds {column.type}, which cannot be read without its Java class"
            for column in found.values()
            if column.kind == "java"
        ]
        if not self._sample.is_whole:
            everything = OF_COUNTS | OF_VALUES
            found = {path: replace(column, estimated=everything) for path, column in found.items()}
        if self._table is not None:
            self._ask(self._table, found)
        return list(found.values())

    def _of_sample(self, path: Path) -> ColumnProfile:
        types = {row.types for row in self._rows if path in row.fields}
        mine = [row for row in self._rows if row.types in types]
        there = [field for row in mine if (field := row.fields.get(path)) and field.code != TypeCode.NULL]
        kind, num_nulls = _kind_of(there), len(mine) - len(there)
        type_name = stored_types(self._client, there)
        name = short_name(path)
        if kind == "array":
            arrays = [cell for row in mine if (cell := cell_of(row, path)) is not None]
            kept = _as_many_as_fit(arrays)
            column = numbers_of_items(name, type_name, kept, num_nulls, len(mine))
            return column if len(kept) == len(arrays) else replace(column, estimated=_OF_ITEMS)
        if kind in ("null", "object", "java", "mixed"):
            return ColumnProfile(name, type_name, kind, len(mine), num_nulls)
        return numbers_of(name, type_name, kind, Counter(field.value for field in there), num_nulls)

    def _ask(self, table: CacheTable, found: dict[Path, ColumnProfile]) -> None:
        """Replace a sample's statistics by those of the cluster, for columns that SQL can process."""
        server_columns = {
            path: server_column
            for path, column in found.items()
            if (server_column := _server_column(table, path, column))
        }
        asked = dict(server_columns)
        try:
            for path, column in list(asked.items()):
                if not _has_few_values(found[path]):
                    continue
                with said_if_it_lasts(self._report, f"the cluster counts the values of column {column.name}"):
                    groups = grouped(self._query, table.quoted, column)
                if groups is not None:
                    found[path] = groups
                    del asked[path]
            with said_if_it_lasts(self._report, f"the cluster adds up {len(asked)} columns"):
                answers = list(aggregated(self._query, table.quoted, list(asked.values())))
            for (path, column), answer in zip(asked.items(), answers, strict=True):
                found[path] = self._with_sample(table, path, column, answer, found[path])
            self._compare_rows(found[path].num_rows for path in server_columns)
        except QueryError as error:
            self.notes.append(f"SQL returned no statistics for some columns: {error}")

    def _compare_rows(self, counted: Iterable[int]) -> None:
        """Add a note if the table and its cache have different numbers of rows."""
        for num_rows in sorted({*counted} - {self._num_rows}):
            self.notes.append(
                f"SQL counted {num_rows:,} rows, and the cache has {self._num_rows:,}: the others have types that "
                "the table does not have, or were added or removed meanwhile"
            )

    def _with_sample(
        self,
        table: CacheTable,
        path: Path,
        asked: ServerColumn,
        answer: ColumnProfile,
        sampled: ColumnProfile,
    ) -> ColumnProfile:
        """Add the sample's statistics that SQL cannot compute to those of the cluster."""
        num_distinct, estimated = sampled.num_distinct, {"num_distinct", "quantiles", "histogram"}
        if path == ("key",):
            num_distinct = answer.num_rows
            estimated.remove("num_distinct")
        elif answer.num_rows * self._gathered_bytes(path) <= _MAX_GATHERED_BYTES:
            with said_if_it_lasts(
                self._report, f"the cluster counts different values of column {asked.name}"
            ):
                num_distinct = counted_distinct(self._query, table.quoted, asked)
            estimated.remove("num_distinct")
        return replace(
            answer,
            num_distinct=num_distinct,
            quantiles=sampled.quantiles,
            histogram=sampled.histogram,
            estimated=frozenset(estimated),
        )

    def _gathered_bytes(self, path: Path) -> int:
        """Return the estimated bytes that a node keeps per value while it counts different values."""
        texts = [len(value) for row in self._rows if isinstance(value := cell_of(row, path), str)]
        return _VALUE_BYTES + (2 * sum(texts) // len(texts) if texts else 0)


def _has_few_values(sampled: ColumnProfile) -> bool:
    num_distinct, num_values = sampled.num_distinct or 0, sampled.num_rows - sampled.num_nulls
    return num_distinct <= _FEW_VALUES and num_distinct * _OFTEN <= num_values


def _kind_of(fields: Sequence[RowField]) -> str:
    kinds = {
        _kind_of_field(code, is_java)
        for code, is_java in {(f.code, f.java_class_id is not None) for f in fields}
    }
    if not kinds:
        return "null"
    return kinds.pop() if len(kinds) == 1 else "mixed"


def _kind_of_field(code: int, is_java: bool) -> str:
    if is_java:
        return "java"
    return "array" if code in ARRAYS else _KIND_OF_CODE.get(code, "object")


def _as_many_as_fit(arrays: Sequence[Any]) -> Sequence[Any]:
    """Return arrays with about four million items in all, evenly spaced, since the first ones would be biased."""
    num_items = sum(map(len, arrays))
    return arrays[:: max(1, -(-num_items // _MAX_ITEMS))]


def _server_column(table: CacheTable, path: Path, sampled: ColumnProfile) -> ServerColumn | None:
    """Return the SQL column with the same values as a field; None if there is none."""
    column = table.column_of(path)
    kind = kind_of_java_type(column.java_type) if column else None
    if column is None or kind is None or sampled.kind not in (kind, "null"):
        return None
    is_seen = sampled.kind != "null"
    type_name = sampled.type if is_seen else column.java_type.rpartition(".")[2].lower()
    return ServerColumn(sampled.name, type_name, column.name, kind)
