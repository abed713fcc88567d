"""Column statistics that the cluster computes by SQL over all rows of a table.

The statements work around Ignite's SQL. AVG of integers drops the fraction. SUM of BIGINT and of DECIMAL(p, s) fails if
the sum does not fit into the column's own type. NaN is greater than all other numbers and equal to itself. There are
neither standard deviations nor percentiles. So sums are computed of unrestricted DECIMALs and of finite numbers, and a
second statement adds up the squared differences from the mean. MIN and MAX round timestamps to microseconds, so a
further statement looks up the values near them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

import numpy as np

from ignite_tf_magic.client.sql_tables import Query
from ignite_tf_magic.profiling.column_numbers import NUMBERS, TIMES, ColumnProfile, mean_of, numbers_of
from ignite_tf_magic.serialization.sql_text import in_quotes

# A column with more groups than this has many values, and they are not fetched.
MAX_GROUPS = 1000
_COLUMNS_AT_ONCE = 20
_NAN = "CAST('NaN' AS DOUBLE)"
_EXACT_IN_FLOATS = 1 << 53
_DIGITS = Context(prec=34)
_LARGEST = "1.7976931348623157E308"
_KIND_OF_JAVA_TYPE = {
    **dict.fromkeys(("Byte", "Short", "Integer", "Long"), "integer"),
    **dict.fromkeys(("Float", "Double"), "float"),
    "Boolean": "boolean",
    "String": "text",
}
_KIND_OF_CLASS = {
    **{f"java.lang.{name}": kind for name, kind in _KIND_OF_JAVA_TYPE.items()},
    "java.math.BigDecimal": "decimal",
    "java.sql.Timestamp": "timestamp",
    "java.sql.Date": "date",
    "java.sql.Time": "time",
    "java.util.UUID": "uuid",
}


@dataclass(frozen=True, slots=True)
class ServerColumn:
    """A column that the cluster computes statistics of.

    Attributes:
        name: As `ColumnProfile.name`.
        sql_name: Its SQL name, without quotes.
        kind: As `ColumnProfile.kind`.
    """

    name: str
    type: str
    sql_name: str
    kind: str

    @property
    def quoted(self) -> str:
        """Its name in a statement."""
        return in_quotes(self.sql_name)


def kind_of_java_type(java_type: str) -> str | None:
    """Return the kind of a table's column; None if SQL cannot compute statistics of it."""
    return _KIND_OF_CLASS.get(java_type)


def grouped(query: Query, table: str, column: ServerColumn) -> ColumnProfile | None:
    """Count how often each value occurs; None if there are more than a thousand values."""
    rows = query(
        f"SELECT {column.quoted}, COUNT(*) FROM {table} GROUP BY {column.quoted} LIMIT {MAX_GROUPS + 1}",  # noqa: S608
        (),
    ).rows
    if len(rows) > MAX_GROUPS:
        return None
    values: Counter[Any] = Counter()
    num_nulls = 0
    for value, count in rows:
        if value is None:
            num_nulls += count
        else:
            values[value] += count
    return numbers_of(column.name, column.type, column.kind, values, num_nulls)


def counted_distinct(query: Query, table: str, column: ServerColumn) -> int:
    """Return the number of different values of a column, without NaN. One node keeps all of them on its heap."""
    value = f"NULLIF({column.quoted}, {_NAN})" if column.kind == "float" else column.quoted
    return int(query(f"SELECT COUNT(DISTINCT {value}) FROM {table}", ()).rows[0][0])  # noqa: S608


def aggregated(query: Query, table: str, columns: Sequence[ServerColumn]) -> Iterator[ColumnProfile]:
    """Query nulls, minimum, maximum, mean and standard deviation of columns, twenty columns per statement."""
    for first in range(0, len(columns), _COLUMNS_AT_ONCE):
        yield from _aggregated(query, table, columns[first : first + _COLUMNS_AT_ONCE])


def _aggregated(query: Query, table: str, columns: Sequence[ServerColumn]) -> list[ColumnProfile]:
    asked = ["COUNT(*)"]
    for column in columns:
        asked += _aggregates(column)
    answer = iter(query(f"SELECT {', '.join(asked)} FROM {table}", ()).rows[0])  # noqa: S608
    num_rows = next(answer)
    numbers = [_Numbers(*(next(answer) for _ in _aggregates(column))) for column in columns]
    found = [each.profile(column, num_rows) for each, column in zip(numbers, columns, strict=True)]
    found = [
        _with_nanoseconds(query, table, column, each) if column.kind == "timestamp" else each
        for column, each in zip(columns, found, strict=True)
    ]
    return _with_deviations(query, table, columns, found, numbers)


def _aggregates(column: ServerColumn) -> list[str]:
    """Return the SQL aggregates of a column: values, minimum, maximum, number and sum of finite values, non-NaNs."""
    name, kind = column.quoted, column.kind
    if kind == "float":
        finite = f"CASE WHEN {_is_finite(name)} THEN {name} END"
        number = f"NULLIF({name}, {_NAN})"
        return [
            f"COUNT({name})",
            f"MIN({number})",
            f"MAX({number})",
            f"COUNT({finite})",
            f"SUM({finite})",
            f"COUNT({number})",
        ]
    bounds = ("MIN", "MAX") if kind in NUMBERS | TIMES | {"text"} else ()
    least_and_greatest = [f"{bound}({name})" for bound in bounds] or ["NULL", "NULL"]
    total = f"SUM(CAST({name} AS DECIMAL))" if kind in NUMBERS else "NULL"
    return [f"COUNT({name})", *least_and_greatest, f"COUNT({name})", total, f"COUNT({name})"]


def _is_finite(name: str) -> str:
    return f"{name} BETWEEN -{_LARGEST} AND {_LARGEST}"


@dataclass(frozen=True, slots=True)
class _Numbers:
    """The answer for one column, in the order of `_aggregates`."""

    num_values: int
    least: Any
    greatest: Any
    num_finite: int
    total: Any
    num_without_nan: int

    def profile(self, column: ServerColumn, num_rows: int) -> ColumnProfile:
        num_infinite = self.num_without_nan - self.num_finite
        mean = None
        if self.total is not None and not num_infinite:
            total = int(self.total) if column.kind == "integer" else self.total
            mean = mean_of(total, self.num_finite)
        return ColumnProfile(
            column.name,
            column.type,
            column.kind,
            num_rows,
            num_rows - self.num_values,
            self.num_values - self.num_without_nan,
            num_infinite,
            None,
            self.least,
            self.greatest,
            mean,
        )


def _with_nanoseconds(query: Query, table: str, column: ServerColumn, found: ColumnProfile) -> ColumnProfile:
    """Look up the first and last timestamp, because MIN and MAX round to microseconds."""
    if found.least is None:
        return found
    rounding = np.timedelta64(1, "us")
    rows = query(
        f"SELECT DISTINCT {column.quoted} FROM {table} WHERE {column.quoted} <= ? OR {column.quoted} >= ?",  # noqa: S608
        [found.least + rounding, found.greatest - rounding],
    ).rows
    moments = sorted(moment for (moment,) in rows)
    return replace(found, least=moments[0], greatest=moments[-1])


def _with_deviations(
    query: Query,
    table: str,
    columns: Sequence[ServerColumn],
    found: Sequence[ColumnProfile],
    numbers: Sequence[_Numbers],
) -> list[ColumnProfile]:
    """Add standard deviations, computed from squared differences from a number near the mean."""
    wanted = [at for at, each in enumerate(found) if each.mean is not None and math.isfinite(each.mean)]
    if not wanted:
        return list(found)
    centres = {at: _centre(found[at], numbers[at]) for at in wanted}
    squares = [_squares(columns[at], centres[at]) for at in wanted]
    arguments = [centres[at] for at in wanted for _ in range(2)]
    sums = query(f"SELECT {', '.join(squares)} FROM {table}", arguments).rows[0]  # noqa: S608
    with_deviations = list(found)
    for at, total in zip(wanted, sums, strict=True):
        num_values = numbers[at].num_finite
        if num_values > 1:
            # Sum of the differences from the centre, which is not exactly the mean.
            rest = Fraction(numbers[at].total) - num_values * Fraction(centres[at])
            squared = max(total - float(rest * rest / num_values), 0.0)
            with_deviations[at] = replace(found[at], std=math.sqrt(squared / (num_values - 1)))
    return with_deviations


def _centre(column: ColumnProfile, numbers: _Numbers) -> float | Decimal:
    """Choose a number near the mean. It is a Decimal if floats would lose digits of the values."""
    if column.kind == "float":
        return float(column.mean)
    if column.kind == "integer" and max(abs(column.least), abs(column.greatest)) < _EXACT_IN_FLOATS:
        return float(column.mean)
    return _DIGITS.divide(numbers.total, numbers.num_finite)


def _squares(column: ServerColumn, centre: float | Decimal) -> str:
    """Return the SQL sum of squared differences from the centre, which the statement takes twice as an argument."""
    name, kind = column.quoted, "DOUBLE" if isinstance(centre, float) else "DECIMAL"
    difference = f"CAST(CAST({name} AS {kind}) - CAST(? AS {kind}) AS DOUBLE)"
    squared = f"{difference} * {difference}"
    return (
        f"SUM(CASE WHEN {_is_finite(name)} THEN {squared} END)"
        if column.kind == "float"
        else f"SUM({squared})"
    )
