"""The result of a SQL statement: typed columns, available as Python values, pandas, polars or Arrow."""

from __future__ import annotations

import datetime as dt
import decimal
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ignite_tf_magic.errors import ConfigError
from ignite_tf_magic.protocol.odbc import DeclaredColumn
from ignite_tf_magic.protocol.ops import TypeCode
from ignite_tf_magic.protocol.sql_cells import CellColumn

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa
    from numpy.typing import NDArray

_KIND_OF_CODE: dict[int, str] = {
    **dict.fromkeys((TypeCode.BYTE, TypeCode.SHORT, TypeCode.INT, TypeCode.LONG), "integer"),
    TypeCode.FLOAT: "float",
    TypeCode.DOUBLE: "float",
    TypeCode.BOOL: "boolean",
    TypeCode.CHAR: "text",
    TypeCode.STRING: "text",
    TypeCode.DECIMAL: "decimal",
    TypeCode.UUID: "uuid",
    TypeCode.BYTE_ARRAY: "binary",
    TypeCode.TIME: "time",
    TypeCode.TIMESTAMP: "timestamp",
    TypeCode.DATE: "date",
    TypeCode.NULL: "null",
}
_KIND_OF_TYPE: dict[type, str] = {
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
_MOST_DIGITS = 76  # the limit of Arrow's decimals


@dataclass(frozen=True, slots=True)
class Column:
    """The name and kind of one column of a result.

    Attributes:
        kind: boolean, integer, float, decimal, text, date, time, timestamp, uuid, binary, object, or null
            for a column without values whose type the cluster does not know.
        declared: The column as the cluster declares it, if the cluster was asked.
    """

    name: str
    kind: str
    declared: DeclaredColumn | None = field(default=None, compare=False, repr=False)


class QueryResult:
    """The rows of one statement. A statement that changes data has one row with the column UPDATED.

    Attributes:
        columns: The names and kinds of the columns.
        truncated: Whether more rows exist than the limit allowed.
    """

    def __init__(self, columns: Sequence[Column], cells: Sequence[CellColumn], *, truncated: bool) -> None:
        self.columns = tuple(columns)
        self.truncated = truncated
        self._cells = tuple(cells)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._cells[0].nulls) if self._cells else 0

    @cached_property
    def rows(self) -> tuple[tuple[Any, ...], ...]:
        """The rows. NULL is None; a timestamp is a numpy.datetime64 in UTC.

        Timestamps have nanoseconds from 1678 to 2261, else microseconds. The other kinds are Python's own types.
        """
        return tuple(zip(*(cells.to_list() for cells in self._cells), strict=True))

    def to_pandas(self) -> pd.DataFrame:
        """Return a DataFrame. Its dtypes follow from the columns, not from the rows.

        Integers and booleans that may be NULL have pandas' nullable dtypes. Timestamps are datetime64[ns, UTC], or
        datetime64[us, UTC] if a timestamp of the column is before 1678 or after 2261.
        """
        import pandas as pd

        arrays = [_pandas_array(*each) for each in zip(self.columns, self._cells, strict=True)]
        frame: pd.DataFrame = pd.DataFrame(dict(enumerate(arrays)))
        frame.columns = pd.Index([column.name for column in self.columns])
        return frame

    def to_arrow(self) -> pa.Table:
        """Return an Arrow table. Numbers keep their width, decimals their digits; timestamps are in UTC.

        Raises:
            ConfigError: pyarrow is not installed.
        """
        try:
            import pyarrow as pa
        except ImportError:
            raise ConfigError("Arrow tables need pyarrow: pip install pyarrow") from None
        arrays = [_arrow(column, cells) for column, cells in zip(self.columns, self._cells, strict=True)]
        return pa.Table.from_arrays(arrays, names=[column.name for column in self.columns])

    def to_polars(self) -> pl.DataFrame:
        """Return a polars DataFrame with the types of `to_arrow`. Columns with equal names are numbered.

        Decimals of more than 38 digits become text, because polars cannot represent them.

        Raises:
            ConfigError: polars or pyarrow is not installed.
        """
        try:
            import polars as pl
        except ImportError:
            raise ConfigError("polars is not installed: pip install polars") from None
        table = self.to_arrow()
        arrays = [_for_polars(column) for column in table.columns]
        named = dict(zip(_unique(table.column_names), arrays, strict=True))
        return pl.DataFrame({name: pl.from_arrow(array) for name, array in named.items()})


def kind_of(cells: CellColumn, declared: DeclaredColumn | None) -> str:
    """Return the kind of a column, from its cells if it has values, else from what the cluster declares."""
    if cells.code == TypeCode.NULL:
        return _KIND_OF_CODE.get(declared.code, "object") if declared else "null"
    if cells.values.dtype.kind != "O":
        return "timestamp" if cells.values.dtype.kind == "M" else _KIND_OF_CODE[cells.code]
    found = {_kind_of_value(value) for value in cells.values[~cells.nulls]}
    return found.pop() if len(found) == 1 else "object"


def _kind_of_value(value: Any) -> str:
    return next((_KIND_OF_TYPE[kind] for kind in type(value).__mro__ if kind in _KIND_OF_TYPE), "object")


def _unique(names: Sequence[str]) -> list[str]:
    found: dict[str, None] = {}
    for name in names:
        number, free = 2, name
        while free in found:
            number, free = number + 1, f"{name}_{number}"
        found[free] = None
    return list(found)


def _pandas_array(column: Column, cells: CellColumn) -> Any:
    """Return a column as a pandas array."""
    import pandas as pd

    nulls = cells.nulls
    if column.kind in ("integer", "boolean"):
        is_nullable = column.declared is None or column.declared.is_nullable
        if column.kind == "boolean":
            truths = _numbers(cells, np.bool_)
            return pd.arrays.BooleanArray(truths, nulls.copy()) if is_nullable else truths
        integers = _numbers(cells, np.int64)
        return pd.arrays.IntegerArray(integers, nulls.copy()) if is_nullable else integers
    if column.kind == "float":
        return np.where(nulls, np.nan, _numbers(cells, np.float64))
    if column.kind == "timestamp":
        instants = cells.values
        if cells.code == TypeCode.NULL:
            instants = np.full(len(nulls), "NaT", "M8[ns]")
        elif instants.dtype.kind == "O":
            instants = np.array(["NaT" if each is None else each for each in instants], "M8[us]")
        return pd.DatetimeIndex(instants).tz_localize("UTC").array
    dtype = {"date": "datetime64[s]", "text": "string"}.get(column.kind, "object")
    return pd.array(cells.to_list(), dtype)  # type: ignore[call-overload]


def _numbers(cells: CellColumn, dtype: type) -> NDArray[Any]:
    """Return numbers, with 0 for each NULL."""
    return np.where(cells.nulls, 0, 0 if cells.code == TypeCode.NULL else cells.values).astype(dtype)


def _for_polars(array: pa.ChunkedArray) -> pa.ChunkedArray:
    import pyarrow as pa

    if not pa.types.is_decimal256(array.type):
        return array
    texts = [None if value is None else str(value) for value in array.to_pylist()]
    return pa.chunked_array([pa.array(texts, pa.string())])


def _arrow(column: Column, cells: CellColumn) -> pa.Array:
    import pyarrow as pa

    kind, values = _arrow_type(column, cells), cells.values
    if cells.code == TypeCode.NULL:
        return pa.nulls(len(cells.nulls), kind or pa.null())
    if values.dtype.kind == "O":
        return pa.array(_for_arrow(column.kind, cells.to_list()), kind)
    return pa.array(values, kind, mask=cells.nulls)


def _for_arrow(kind: str, values: list[Any]) -> list[Any]:
    if kind in ("uuid", "object"):
        return [None if value is None else str(value) for value in values]
    if kind == "timestamp":
        return [None if value is None else value.astype("M8[us]") for value in values]
    return values


def _arrow_type(column: Column, cells: CellColumn) -> pa.DataType | None:
    """Return the Arrow type of a column; None if Arrow infers it from the values."""
    import pyarrow as pa

    declared = column.declared
    code = cells.code if cells.code not in (TypeCode.NULL, 0) else declared.code if declared else 0
    if column.kind == "decimal":
        if declared and 0 < declared.precision <= _MOST_DIGITS and 0 <= declared.scale <= declared.precision:
            wide = pa.decimal128 if declared.precision <= 38 else pa.decimal256
            return wide(declared.precision, declared.scale)
        return pa.decimal128(38, 0) if cells.code == TypeCode.NULL else None
    if column.kind == "timestamp":
        is_far = cells.values.dtype.kind == "O" and cells.code != TypeCode.NULL
        return pa.timestamp("us" if is_far else "ns", "UTC")
    if column.kind == "integer":
        widths: dict[int, pa.DataType] = {
            TypeCode.BYTE: pa.int8(),
            TypeCode.SHORT: pa.int16(),
            TypeCode.INT: pa.int32(),
        }
        return widths.get(code, pa.int64())
    found: dict[str, pa.DataType] = {
        "float": pa.float32() if code == TypeCode.FLOAT else pa.float64(),
        "boolean": pa.bool_(),
        "date": pa.date32(),
        "time": pa.time64("us"),
        "binary": pa.binary(),
        **dict.fromkeys(("text", "uuid", "object"), pa.string()),
    }
    return found.get(column.kind)
