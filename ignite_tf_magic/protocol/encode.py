"""Encodes columns as rows ready for PUT_ALL; the reverse of `columns`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ignite_tf_magic.errors import LocalProtocolError
from ignite_tf_magic.protocol.affinity import hashes_of_integers, key_hash
from ignite_tf_magic.protocol.objects import (
    ARRAY_CODE_OF_DTYPE,
    CODE_OF_DTYPE,
    HEADER_BYTES,
    BinaryType,
    binary_type_of,
    name_id,
    object_footer,
    object_header,
)
from ignite_tf_magic.protocol.ops import TypeCode
from ignite_tf_magic.protocol.row_blocks import cells_of, encode_block, head_of
from ignite_tf_magic.protocol.times import instants_of, wire_dtype
from ignite_tf_magic.protocol.walk_compiled import hash_rows
from ignite_tf_magic.protocol.write_values import code_of

_HASH_AT = 8


class RowEncoder:
    """Encodes rows of one binary type, chosen by index.

    NumPy writes rows of numbers, number arrays and times as one table. A column of text or other objects, or one with
    missing values, makes rows vary in length; `row_blocks` encodes these.

    Args:
        type_name: Name of the value's binary type.
        columns: Field name -> one item per row: one-dimensional for scalars, two-dimensional for arrays, dtype `object`
            for None and other values that `write_value` accepts.
        keys: Integer keys or an object array of keys, one per row.
        nulls: Field name -> mask of the rows without a value; the column's items in these rows are ignored.
        codes: Field name -> type code of an `object` column; by default its first item that is not None decides.
        key_type: Binary type of keys that are objects, to register in the cluster together with that of the values.
    """

    def __init__(
        self,
        type_name: str,
        columns: Mapping[str, NDArray[Any]],
        keys: NDArray[Any],
        *,
        nulls: Mapping[str, NDArray[np.bool_]] | None = None,
        codes: Mapping[str, int] | None = None,
        key_type: BinaryType | None = None,
    ) -> None:
        given = codes or {}
        self.binary_type: BinaryType = binary_type_of(
            type_name, {name: wire_code(name, column, given.get(name)) for name, column in columns.items()}
        )
        self.key_type = key_type
        self._type_name = type_name
        self._columns = {name: _wire_form(column) for name, column in columns.items()}
        self._nulls = dict(nulls or {})
        self._keys = _little(keys)
        self._table = None if self._is_variable() else self._template()

    @property
    def key_code(self) -> int:
        """The type code that all keys have."""
        return wire_code(
            "key", self._keys, code_of(self._keys[0]) if self._keys.dtype.kind == "O" and len(self) else None
        )

    def __len__(self) -> int:
        return len(self._keys)

    def _is_variable(self) -> bool:
        return bool(self._nulls) or any(
            column.dtype.kind in "OM" for column in (*self._columns.values(), self._keys)
        )

    @property
    def has_fixed_rows(self) -> bool:
        """Whether all rows have the same number of bytes."""
        return self._table is not None

    @property
    def row_bytes(self) -> int:
        """Encoded size of a row in bytes; if rows vary in length, the mean of the first 64."""
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
        """Encode the rows with these indices, one after another."""
        return self._encode_rows(index) if self._table is None else self._encode_table(index)

    def _encode_rows(self, index: NDArray[np.intp]) -> memoryview:
        fields = [
            cells_of(column[index], self._nulls[name][index] if name in self._nulls else None)
            for name, column in self._columns.items()
        ]
        block = encode_block(self._type_name, list(self._columns), cells_of(self._keys[index]), fields)
        return block.data.cast("B")

    def _template(self) -> tuple[bytes, list[tuple[int, NDArray[Any]]], int, int]:
        """Return a row without values, each value's offset and column, the object's start, and its fields' size."""
        key = bytes([CODE_OF_DTYPE[self._keys.dtype.str[1:]]]) + bytes(self._keys.dtype.itemsize)
        start = len(key)
        values = [(1, self._keys)]
        offsets = []
        body = bytearray()
        for column in self._columns.values():
            offsets.append(HEADER_BYTES + len(body))
            body += head_of(column)
            values.append((start + HEADER_BYTES + len(body), column))
            body += bytes(column.dtype.itemsize * (column.shape[1] if column.ndim > 1 else 1))
        field_ids = tuple(field_id for _, field_id in self.binary_type.fields.values())
        header = object_header(name_id(self._type_name), field_ids, offsets, len(body), 0)
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
    """Return a column in wire format. Objects, and times with NaT, stay as they are."""
    if column.dtype.kind == "M" and column.ndim == 1 and not np.isnat(column).any():
        return instants_of(column)
    return _little(column)


def _little(column: NDArray[Any]) -> NDArray[Any]:
    return column if column.dtype.kind in "OM" else column.astype(column.dtype.newbyteorder("<"), copy=False)


def wire_code(name: str, column: NDArray[Any], code: int | None = None) -> int:
    """Return the type code of a column's items.

    Args:
        name: Name of the column, for the error message.
        column: The column's items.
        code: The type code of an `object` column if it is known. By default the first item that is not None decides
            between text and bytes.

    Raises:
        LocalProtocolError: The items have no Ignite form.
    """
    if code is not None:
        return code
    if column.dtype.kind == "M" or column.dtype == wire_dtype():
        return TypeCode.TIMESTAMP
    if column.dtype.kind == "O":
        first = next((item for item in column if item is not None), "")
        return TypeCode.STRING if isinstance(first, str) else TypeCode.BYTE_ARRAY
    table = ARRAY_CODE_OF_DTYPE if column.ndim == 2 else CODE_OF_DTYPE
    code = table.get(column.dtype.str[1:])
    if code is None or column.ndim > 2:
        raise LocalProtocolError(
            f"column {name!r} of {column.dtype} with {column.ndim} dimensions cannot be stored in Ignite"
        )
    return code
