"""Checks rows against the columns of a SQL table, and converts them to the arguments of statements."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ignite_tf_magic.client.load import java_type
from ignite_tf_magic.client.sql_tables import CacheTable, TableColumn
from ignite_tf_magic.client.table_statements import SQL_TYPES
from ignite_tf_magic.data.checked_rows import CheckedRows
from ignite_tf_magic.data.columns import Columns
from ignite_tf_magic.errors import SourceError
from ignite_tf_magic.protocol.ops import TypeCode

_SHOWN = 5
_BITS = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64}
_INTEGERS = frozenset((TypeCode.BYTE, TypeCode.SHORT, TypeCode.INT, TypeCode.LONG))
_REALS = frozenset((TypeCode.FLOAT, TypeCode.DOUBLE))
# SQL type of a column -> type codes of the values that it accepts.
_ACCEPTS: Mapping[str, frozenset[int]] = {
    **dict.fromkeys(_BITS, _INTEGERS),
    **dict.fromkeys(("REAL", "DOUBLE"), _INTEGERS | _REALS),
    "DECIMAL": _INTEGERS | {TypeCode.DECIMAL},
    "BOOLEAN": frozenset({TypeCode.BOOL}),
    "VARCHAR": frozenset({TypeCode.STRING}),
    "UUID": frozenset({TypeCode.UUID}),
    "DATE": frozenset({TypeCode.BINARY_OBJECT}),
    "TIME": frozenset({TypeCode.TIME}),
    "TIMESTAMP": frozenset({TypeCode.TIMESTAMP}),
    "BINARY": frozenset({TypeCode.BYTE_ARRAY}),
}
_MOST_REAL = float(np.finfo(np.float32).max)

Reason = Callable[[Any], str | None]


@dataclass(frozen=True, slots=True)
class _FittedColumn:
    """A column of the table, and the type code of its values. If `is_empty`, no row has a value and any type fits."""

    column: TableColumn
    code: int
    is_empty: bool = False

    def accepts(self) -> bool:
        """Return whether the column accepts values of the type code."""
        if self.is_empty:
            return True
        kind = SQL_TYPES.get(self.column.java_type)
        return self.code in _ACCEPTS[kind] if kind else java_type(self.code) == self.column.java_type

    def arguments(self, values: Sequence[Any]) -> list[Any]:
        """Convert values to arguments of a statement."""
        if self.is_empty:
            return [None] * len(values)
        kind = SQL_TYPES.get(self.column.java_type)
        if kind in ("REAL", "DOUBLE") and self.code in _INTEGERS:
            return [None if each is None else float(each) for each in values]
        if kind == "DECIMAL" and self.code in _INTEGERS:
            return [None if each is None else decimal.Decimal(each) for each in values]
        if kind in ("DATE", "TIME"):  # as text, which means the same in every time zone
            return [None if each is None else each.isoformat() for each in values]
        return list(values)

    def problems(self, values: Sequence[Any]) -> Iterator[tuple[int, str]]:
        """Yield the row of each value that the column does not accept, and the reason."""
        reason, is_needed = self._reason(), not (self.column.is_nullable or self.column.is_key)
        if reason is None and not is_needed:
            return
        for row, value in enumerate(values):
            if value is not None and reason is not None and (why := reason(value)) is not None:
                yield row, why
            elif value is None and is_needed:
                yield row, "no value, and the column is NOT NULL"

    def _reason(self) -> Reason | None:
        """Return a function that explains why the column refuses a value; None if it accepts all."""
        column, kind = self.column, SQL_TYPES.get(self.column.java_type)
        if kind in _BITS:
            return _integer_reason(_BITS[kind])
        if kind in ("REAL", "DOUBLE"):
            return _real_reason(kind, is_integer=self.code in _INTEGERS)
        if kind == "DECIMAL" and (column.precision >= 0 or column.scale >= 0):
            return _decimal_reason(column)
        if kind in ("VARCHAR", "BINARY") and column.precision >= 0:
            return _length_reason(column.precision)
        return _milli_reason if column.java_type == "java.util.Date" else None


class TableFit:
    """Matches the columns of a source with those of a table, by name.

    Args:
        table: The table.
        rows: The rows to write.
        whole_rows: Whether the source must have every column, even one that has a default.

    Attributes:
        keys: The key columns of the table, in the order of the source.
        columns: The key columns, then the other columns.

    Raises:
        SourceError: A column is missing, unknown, or of a type that the table does not accept.
    """

    def __init__(self, table: CacheTable, rows: CheckedRows, *, whole_rows: bool) -> None:
        self._table, self._rows = table, rows
        known = key_columns(table)
        values = [each for each in table.named if each not in known]
        self._keys = self._numbered() if not rows.key_codes else self._fitted(rows.key_codes, known)
        self._values = self._fitted(rows.codes, values)
        self.keys = tuple(fitted.column for fitted in self._keys.values())
        self.columns = (*self.keys, *(fitted.column for fitted in self._values.values()))
        needed = [*known, *(each for each in values if whole_rows or not each.has_default)]
        self._refuse_misfits([each.name for each in needed if each not in self.columns])

    def _numbered(self) -> dict[str, _FittedColumn]:
        """Return the key column that receives row numbers.

        Raises:
            SourceError: The table cannot number rows, or the source has the key column.
        """
        known = key_columns(self._table)
        names = {each.name.upper() for each in known}
        is_numbered = len(known) == 1 and SQL_TYPES.get(known[0].java_type) in _BITS
        if not is_numbered or names & set(map(str.upper, self._rows.codes)):
            listed = ", ".join(each.name for each in known)
            options = " ".join(f"--key {each.name}" for each in known)
            raise SourceError(
                f"the key of table {self._table.name} is {listed}; name these columns of {self._rows.name}: "
                f"{options}"
            )
        return {known[0].name: _FittedColumn(known[0], TypeCode.LONG)}

    def _fitted(self, codes: Mapping[str, int], known: Sequence[TableColumn]) -> dict[str, _FittedColumn]:
        if [each.name for each in known] == ["_KEY"] and len(codes) == 1:  # SQL has no other name for the key
            return {name: _FittedColumn(known[0], code) for name, code in codes.items()}
        exact, folded = {each.name: each for each in known}, {each.name.upper(): each for each in known}
        found = {name: exact.get(name, folded.get(name.upper())) for name in codes}
        empty = self._rows.empty
        return {
            name: _FittedColumn(column, codes[name], name in empty)
            for name, column in found.items()
            if column
        }

    def _refuse_misfits(self, missing: Sequence[str]) -> None:
        fitted = {**self._keys, **self._values}
        wrong_keys = [name for name in self._rows.key_codes if name not in fitted]
        wrong_values = [name for name in self._rows.codes if name not in fitted]
        problems = [
            *([f"its key has no column {', '.join(wrong_keys)}"] if wrong_keys else []),
            *([f"it has no column {', '.join(wrong_values)}"] if wrong_values else []),
            *([f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing"] if missing else []),
            *(
                f"{name} is {_type_name(java_type(each.code))} and has to be {_type_name(each.column.java_type)}"
                for name, each in fitted.items()
                if not each.accepts()
            ),
        ]
        if problems:
            raise SourceError(
                f"the columns of {self._rows.name} do not fit table {self._table.name}, and nothing was written: "
                f"{'; '.join(problems)}. Rename or convert them (files of text: --dtype NAME=TYPE), or name other keys "
                "(--key)"
            )

    def check(self, first_key: int) -> None:
        """Check all rows against the table.

        Args:
            first_key: Number of the first row, if the rows have no keys.

        Raises:
            SourceError: The table does not accept a value.
        """
        problems = self._problems(first_key)
        shown = list(islice(problems, _SHOWN))
        more = sum(1 for _ in problems)
        if shown:
            raise SourceError(
                f"table {self._table.name} does not accept {len(shown) + more:,} values of {self._rows.name}, and "
                f"nothing was written: {'; '.join(shown)}{f'; and {more:,} more' if more else ''}. Change them, or "
                "the table"
            )

    def _problems(self, first_key: int) -> Iterator[str]:
        first = 0
        for chunk in self._rows.chunks():
            fitted = {**self._keys, **self._values}
            for (name, each), values in zip(fitted.items(), self._raw(chunk, first_key + first), strict=True):
                for row, why in each.problems(values):
                    yield f"row {first + row}, column {name!r}: {why}"
            first += len(chunk)

    def arguments(self, chunk: Columns, first_key: int) -> list[list[Any]]:
        """Return one list of arguments for each of `columns`; rows without keys are numbered."""
        fitted = (*self._keys.values(), *self._values.values())
        return [
            each.arguments(values) for each, values in zip(fitted, self._raw(chunk, first_key), strict=True)
        ]

    def key_arguments(self, chunk: Columns, first_key: int) -> list[list[Any]]:
        """Return one list of arguments for each of `keys`."""
        raw = self._raw_keys(chunk, first_key)
        return [each.arguments(values) for each, values in zip(self._keys.values(), raw, strict=True)]

    def _raw(self, chunk: Columns, first_key: int) -> list[list[Any]]:
        values = [_listed_values(chunk.values[name], chunk.nulls.get(name)) for name in self._values]
        return [*self._raw_keys(chunk, first_key), *values]

    def _raw_keys(self, chunk: Columns, first_key: int) -> list[list[Any]]:
        if chunk.keys is None:
            return [list(range(first_key, first_key + len(chunk)))]
        if len(chunk) and isinstance(chunk.keys[0], tuple):
            return [[_plain(each) for each in column] for column in zip(*chunk.keys, strict=True)]
        return [_listed_values(chunk.keys, None)]


def key_columns(table: CacheTable) -> tuple[TableColumn, ...]:
    """Return the key columns of a table; `_KEY` if SQL has no other name for the key."""
    named = tuple(each for each in table.named if each.is_key)
    return named or tuple(each for each in table.columns if each.name == "_KEY")


def _type_name(java: str) -> str:
    return SQL_TYPES.get(java, java)


def _listed_values(array: NDArray[Any], nulls: NDArray[np.bool_] | None) -> list[Any]:
    """Return the items of a column as Python values, NumPy arrays and moments, or None."""
    if array.ndim > 1:
        found = list(array)
    elif array.dtype.kind == "M":
        found = [None if gone else each for each, gone in zip(array, np.isnat(array), strict=True)]
    else:
        found = array.tolist()
    if nulls is not None:
        for row in np.flatnonzero(nulls).tolist():
            found[row] = None
    return found


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) and not isinstance(value, np.datetime64) else value


def _integer_reason(bits: int) -> Reason | None:
    most = 1 << bits - 1
    return (
        None
        if bits == 64
        else lambda value: None if -most <= value < most else f"{value} does not fit into {bits} bits"
    )


def _real_reason(kind: str, *, is_integer: bool) -> Reason | None:
    def reason(value: Any) -> str | None:
        if is_integer and kind == "DOUBLE" and int(float(value)) != value:
            return f"{value} has more digits than DOUBLE"
        if kind == "REAL" and abs(value) > _MOST_REAL and abs(value) != float("inf"):
            return f"{value} is too large for REAL"
        return None

    return reason if is_integer or kind == "REAL" else None


def _decimal_reason(column: TableColumn) -> Reason:
    def reason(value: Any) -> str | None:
        _, digits, exponent = decimal.Decimal(value).as_tuple()
        behind = -int(exponent)
        if column.precision >= 0 and len(digits) > column.precision:
            return f"{value} has {len(digits)} digits, and the column accepts {column.precision}"
        if column.scale >= 0 and behind > column.scale:
            return f"{value} has {behind} digits behind the point, and the column accepts {column.scale}"
        return None

    return reason


def _length_reason(most: int) -> Reason:
    def reason(value: Any) -> str | None:
        length, what = len(value), "bytes"
        if isinstance(value, str):  # length as Java counts it
            length, what = len(value.encode("utf-16-le")) // 2, "characters"
        return f"it has {length} {what}, and the column accepts {most}" if length > most else None

    return reason


def _milli_reason(value: np.datetime64 | dt.datetime) -> str | None:
    is_whole = np.datetime64(value).astype("M8[ms]") == np.datetime64(value)
    return None if is_whole else f"{value} has parts of a millisecond, which java.util.Date cannot hold"
