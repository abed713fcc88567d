"""Columns as encoded rows, ready for PUT_ALL: the way back from `columns`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ignite_tf_magic.errors import LocalProtocolError
from ignite_tf_magic.protocol.affinity import hashes_of_integers, key_hash
from ignite_tf_magic.protocol.buffer import Writer
from ignite_tf_magic.protocol.objects import (
    ARRAY_CODE_OF_DTYPE,
    CODE_OF_DTYPE,
    HEADER_BYTES,
    BinaryObject,
    BinaryType,
    binary_type_of,
    object_footer,
    object_header,
    write_value,
)
from ignite_tf_magic.protocol.ops import TypeCode
from ignite_tf_magic.protocol.times import instants_of, wire_dtype
from ignite_tf_magic.protocol.walk_compiled import hash_rows

_HASH_AT = 8


class RowEncoder:
    """Encodes rows of one binary type, chosen by index.

    Rows of numbers, number arrays and times are written as one table with NumPy; a column of text, or of times
    some of which are missing, makes it go row by row.

    Args:
        type_name: Name of the value's binary type.
        columns: Field name -> one item per row: one-dimensional for scalars, two-dimensional for
            arrays, `object` for str, bytes and None.
        keys: Integer keys or an object array of keys, one per row.
    """

    def __init__(self, type_name: str, columns: Mapping[str, NDArray[Any]], keys: NDArray[Any]) -> None:
        self.binary_type: BinaryType = binary_type_of(
            type_name, {name: _code(name, column) for name, column in columns.items()}
        )
        self._type_name = type_name
        self._columns = {name: _wire_form(column) for name, column in columns.items()}
        self._keys = _little(keys)
        self._table = None if self._is_variable() else self._template()

    def __len__(self) -> int:
        return len(self._keys)

    def _is_variable(self) -> bool:
        return any(column.dtype.kind in "OM" for column in (*self._columns.values(), self._keys))

    @property
    def has_fixed_rows(self) -> bool:
        """Whether all rows have the same number of bytes."""
        return self._table is not None

    @property
    def row_bytes(self) -> int:
        """Encoded size of a row; of the first rows' mean where it varies."""
        if self._table is not None:
            return len(self._table[0])
        sample = np.arange(min(len(self), 64))
        return max(1, len(self.encode(sample)) // max(len(sample), 1))

    def key_hashes(self) -> NDArray[np.int32]:
        """Hash all keys as the servers do, for `partitions_of_hashes`."""
        if self._keys.dtype.kind in "iu":
            return hashes_of_integers(self._keys)
        return np.fromiter((key_hash(key) for key in self._keys), np.int32, len(self._keys))

    def encode(self, index: NDArray[np.intp]) -> bytes | memoryview:
        """Encode the rows of that index, one after another."""
        return self._encode_rows(index) if self._table is None else self._encode_table(index)

    def _encode_rows(self, index: NDArray[np.intp]) -> bytes:
        writer = Writer()
        for row in index.tolist():
            write_value(writer, self._keys[row])
            fields = {name: column[row] for name, column in self._columns.items()}
            write_value(writer, BinaryObject(self._type_name, fields))
        return bytes(writer.data)

    def _template(self) -> tuple[bytes, list[tuple[int, NDArray[Any]]], int, int]:
        """Return a row with everything but values, where each value goes, and where the object's fields are."""
        key = bytes([CODE_OF_DTYPE[self._keys.dtype.str[1:]]]) + bytes(self._keys.dtype.itemsize)
        start = len(key)
        values = [(1, self._keys)]
        offsets = []
        body = bytearray()
        for column in self._columns.values():
            offsets.append(HEADER_BYTES + len(body))
            body += _head(column)
            values.append((start + HEADER_BYTES + len(body), column))
            body += bytes(column.dtype.itemsize * (column.shape[1] if column.ndim > 1 else 1))
        field_ids = tuple(field_id for _, field_id in self.binary_type.fields.values())
        header = object_header(self._type_name, field_ids, offsets, len(body), 0)
        return key + header + bytes(body) + object_footer(offsets), values, start, len(body)

    def _encode_table(self, index: NDArray[np.intp]) -> memoryview:
        if self._table is None:
            raise LocalProtocolError("these rows have no common length")
        row, values, start, body_bytes = self._table
        table = np.empty((len(index), len(row)), np.uint8)
        table[:] = np.frombuffer(row, np.uint8)
        for at, column in values:
            cells = np.ascontiguousarray(column[index]).view(np.uint8).reshape(len(index), -1)
            table[:, at : at + cells.shape[1]] = cells
        hash_rows(table, start + HEADER_BYTES, body_bytes, start + _HASH_AT)
        return table.data.cast("B")


def _wire_form(column: NDArray[Any]) -> NDArray[Any]:
    """Return a column as its bytes lie in the rows, as far as all its rows have the same number of bytes."""
    if column.dtype.kind == "M" and column.ndim == 1 and not np.isnat(column).any():
        return instants_of(column)
    return _little(column)


def _little(column: NDArray[Any]) -> NDArray[Any]:
    return column if column.dtype.kind in "OM" else column.astype(column.dtype.newbyteorder("<"), copy=False)


def _code(name: str, column: NDArray[Any]) -> int:
    if column.dtype.kind == "M":
        return TypeCode.TIMESTAMP
    if column.dtype.kind == "O":
        first = next((item for item in column if item is not None), "")
        return TypeCode.STRING if isinstance(first, str) else TypeCode.BYTE_ARRAY
    table = ARRAY_CODE_OF_DTYPE if column.ndim == 2 else CODE_OF_DTYPE
    code = table.get(column.dtype.str[1:])
    if code is None or column.ndim > 2:
        raise LocalProtocolError(
            f"column {name!r} of {column.dtype} with {column.ndim} dimensions has no Ignite form"
        )
    return code


def _head(column: NDArray[Any]) -> bytes:
    """Return what stands in front of a column's bytes in each row: the type code, and an array's length."""
    if column.dtype == wire_dtype():
        return bytes([TypeCode.TIMESTAMP])
    if column.ndim == 1:
        return bytes([CODE_OF_DTYPE[column.dtype.str[1:]]])
    return bytes([ARRAY_CODE_OF_DTYPE[column.dtype.str[1:]]]) + int(column.shape[1]).to_bytes(4, "little")
