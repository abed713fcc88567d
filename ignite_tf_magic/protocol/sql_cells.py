"""Reads the cells of a SQL result column by column.

In an answer, the cells of a row follow one another, each with its type code. `Cells` first finds where they begin, with
the compiled library if it was built, and then extracts each column as one array. A timestamp or java.util.Date becomes
a numpy.datetime64 in UTC (`times.to_datetime64`), a SQL DATE a date, a TIME a time, a CHAR a str, and a number an int
or a float. Other values are as in `read_values`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ignite_tf_magic.errors import RemoteProtocolError
from ignite_tf_magic.protocol.buffer import Reader
from ignite_tf_magic.protocol.lazy_numpy import np
from ignite_tf_magic.protocol.objects import FindType, dtype_of, skip_value
from ignite_tf_magic.protocol.ops import TypeCode
from ignite_tf_magic.protocol.page_series import address_of
from ignite_tf_magic.protocol.read_values import read_value
from ignite_tf_magic.protocol.times import (
    SQL_DATE_BYTES,
    SQL_DATE_HEAD,
    date_of_sql,
    nanos_of_wire,
    time_of_sql,
    to_datetime64,
    wire_dtype,
)
from ignite_tf_magic.protocol.walk_compiled import library

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NUMBERS = frozenset(
    (
        *(TypeCode.BYTE, TypeCode.SHORT, TypeCode.INT, TypeCode.LONG),
        TypeCode.FLOAT,
        TypeCode.DOUBLE,
        TypeCode.BOOL,
    )
)
_INTEGERS = (TypeCode.BYTE, TypeCode.SHORT, TypeCode.INT, TypeCode.LONG)
_MIXED = 0


@dataclass(frozen=True, slots=True)
class CellColumn:
    """The cells of one column.

    Attributes:
        code: Type code of the cells; NULL if all are NULL, 0 if they have several types.
        values: Numbers and booleans in their dtype; timestamps as datetime64[ns] if all fit; else objects. Values of
            NULL cells are meaningless.
        nulls: Mask of the NULL cells.
    """

    code: int
    values: NDArray[Any]
    nulls: NDArray[np.bool_]

    def to_list(self) -> list[Any]:
        """Return the cells as Python values: None for NULL, numpy.datetime64 for timestamps."""
        is_moment = self.values.dtype.kind == "M"
        found = list(self.values) if is_moment else self.values.tolist()
        for row in np.flatnonzero(self.nulls).tolist():
            found[row] = None
        return found

    def first(self, num_rows: int | None) -> CellColumn:
        """Return the first `num_rows` cells; None means all."""
        return CellColumn(self.code, self.values[:num_rows], self.nulls[:num_rows])


class Cells:
    """The cells of some rows.

    Args:
        data: The bytes of the cells; others may follow.
    """

    def __init__(self, data: memoryview, num_rows: int, num_columns: int) -> None:
        self.num_rows, self.num_columns = num_rows, num_columns
        self._data = data
        starts = _starts(data, num_rows * num_columns)
        self.num_bytes = int(starts[-1])
        self._starts = starts[:-1].reshape(num_rows, num_columns)

    def rows(self, find_type: FindType | None = None) -> list[tuple[Any, ...]]:
        """Return the cells row by row."""
        reader = Reader(self._data)
        return [
            tuple(read_cell(reader, find_type) for _ in range(self.num_columns)) for _ in range(self.num_rows)
        ]

    def typed_rows(self, find_type: FindType | None = None) -> list[tuple[Any, ...]]:
        """Return the cells row by row, as values that keep their Java type: a key can be sent back unchanged."""
        reader = Reader(self._data)
        return [
            tuple(read_value(reader, find_type) for _ in range(self.num_columns))
            for _ in range(self.num_rows)
        ]

    def column(self, index: int, find_type: FindType | None = None) -> CellColumn:
        """Return the cells of one column, with the same values as in `rows`."""
        starts = np.ascontiguousarray(self._starts[:, index])
        codes = np.frombuffer(self._data, np.uint8)[starts]
        nulls = codes == TypeCode.NULL
        found = np.unique(codes[~nulls])
        code = int(TypeCode.NULL) if not len(found) else int(found[0]) if len(found) == 1 else _MIXED
        if code in _NUMBERS:
            return CellColumn(code, self._numbers(code, starts, nulls), nulls)
        if code == TypeCode.TIMESTAMP:
            return CellColumn(code, self._moments(starts, nulls), nulls)
        if code == TypeCode.STRING:
            return CellColumn(code, self._texts(starts, nulls), nulls)
        return CellColumn(code, self._objects(starts, nulls, find_type), nulls)

    def _numbers(self, code: int, starts: NDArray[np.int64], nulls: NDArray[np.bool_]) -> NDArray[Any]:
        dtype = dtype_of(code)
        values = np.zeros(len(starts), dtype)
        values[~nulls] = _pieces(self._data, starts[~nulls] + 1, dtype)
        return values

    def _moments(self, starts: NDArray[np.int64], nulls: NDArray[np.bool_]) -> NDArray[Any]:
        instants = _pieces(self._data, starts[~nulls] + 1, wire_dtype())
        nanos = nanos_of_wire(instants)
        if nanos is None:
            return self._objects(starts, nulls, None)
        values = np.full(len(starts), "NaT", "M8[ns]")
        values[~nulls] = nanos
        return values

    def _texts(self, starts: NDArray[np.int64], nulls: NDArray[np.bool_]) -> NDArray[Any]:
        at = starts[~nulls] + 1
        ends = (at + 4 + _pieces(self._data, at, np.dtype("<i4"))).tolist()
        values = np.full(len(starts), None, object)
        try:
            values[~nulls] = [
                str(self._data[a:b], "utf-8") for a, b in zip((at + 4).tolist(), ends, strict=True)
            ]
        except UnicodeDecodeError as error:
            raise RemoteProtocolError(f"corrupted message: a string that is not UTF-8: {error}") from None
        return values

    def _objects(
        self, starts: NDArray[np.int64], nulls: NDArray[np.bool_], find_type: FindType | None
    ) -> NDArray[Any]:
        values = np.full(len(starts), None, object)
        for row in np.flatnonzero(~nulls).tolist():
            values[row] = read_cell(Reader(self._data, int(starts[row])), find_type)
        return values


def join(parts: Sequence[CellColumn]) -> CellColumn:
    """Concatenate the cells of one column from several answers; at least one."""
    codes = {part.code for part in parts} - {TypeCode.NULL}
    if len(codes) > 1 and codes <= {*_INTEGERS}:
        codes = {max(codes)}  # the widest type
    code = codes.pop() if len(codes) == 1 else _MIXED if codes else int(TypeCode.NULL)
    dtype = dtype_of(code) if code in _NUMBERS else np.dtype(object)
    if code == TypeCode.TIMESTAMP and all(
        part.values.dtype.kind == "M" for part in parts if part.code == code
    ):
        dtype = np.dtype("M8[ns]")
    nulls = np.concatenate([part.nulls for part in parts])
    values = np.full(len(nulls), None if dtype.kind == "O" else np.zeros((), dtype), dtype)
    first = 0
    for part in parts:
        rows = slice(first, first := first + len(part.nulls))
        if part.code != TypeCode.NULL:
            is_plain = dtype.kind != "O" or part.values.dtype.kind == "O"
            values[rows] = part.values if is_plain else part.to_list()
    return CellColumn(code, values, nulls)


def read_cell(reader: Reader, find_type: FindType | None = None) -> Any:
    """Read one cell and move the reader past it."""
    code = reader.view[reader.position] if reader.remaining else 0
    if code == TypeCode.TIMESTAMP:
        reader.int8()
        return to_datetime64(reader.int64(), reader.int32())
    if code == TypeCode.DATE:
        reader.int8()
        return to_datetime64(reader.int64(), 0)
    if code == TypeCode.OPTIMIZED:
        reader.int8()
        raw = bytes(reader.take(reader.count()))
        if len(raw) != SQL_DATE_BYTES or not raw.startswith(SQL_DATE_HEAD):
            return raw
        return date_of_sql(int.from_bytes(raw[-8:], "little", signed=True))
    if code == TypeCode.TIME:
        reader.int8()
        return time_of_sql(reader.int64())
    value = read_value(reader, find_type)
    if code == TypeCode.CHAR:
        return chr(value)
    if code in _INTEGERS:
        return int(value)
    return float(value) if code == TypeCode.FLOAT else value


def _starts(data: memoryview, num_values: int) -> NDArray[np.int64]:
    starts = np.zeros(num_values + 1, np.int64)
    compiled = library()
    if compiled is not None and num_values:
        if not compiled.itm_starts(address_of(data), len(data), num_values, starts.ctypes.data):
            return starts
        starts[:] = 0
    reader = Reader(
        data
    )  # also reads what the library cannot, such as references between values, and reports errors
    for index in range(num_values):
        skip_value(reader)
        starts[index + 1] = reader.position
    return starts


def _pieces(data: memoryview, offsets: NDArray[np.int64], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the item of this dtype at each offset."""
    compiled = library()
    if compiled is None:
        at = offsets[:, None] + np.arange(dtype.itemsize)
        pieces: NDArray[Any] = np.frombuffer(data, np.uint8)[at].view(dtype)[:, 0]
        return pieces
    found = np.empty(len(offsets), dtype)
    if len(offsets):
        compiled.itm_gather(
            address_of(data), offsets.ctypes.data, len(offsets), dtype.itemsize, found.ctypes.data
        )
    return found
