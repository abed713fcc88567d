"""Encodes rows of varying length as one block: encodes the cells column by column, then places them with NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ignite_tf_magic.protocol.buffer import Writer
from ignite_tf_magic.protocol.objects import (
    ARRAY_CODE_OF_DTYPE,
    CODE_OF_DTYPE,
    HEADER_BYTES,
    name_id,
    schema_id,
)
from ignite_tf_magic.protocol.ops import ObjectFlag, TypeCode
from ignite_tf_magic.protocol.times import instants_of, wire_dtype
from ignite_tf_magic.protocol.write_values import write_value

_HEADER = np.dtype(
    [
        ("code", "i1"),
        ("version", "i1"),
        ("flags", "<i2"),
        ("type", "<i4"),
        ("hash", "<i4"),
        ("length", "<i4"),
        ("schema", "<i4"),
        ("footer", "<i4"),
    ]
)
_WIDTHS = {1: ObjectFlag.OFFSET_ONE_BYTE, 2: ObjectFlag.OFFSET_TWO_BYTES, 4: ObjectFlag(0)}
_FLAGS = ObjectFlag.USER_TYPE | ObjectFlag.COMPACT_FOOTER | ObjectFlag.HAS_SCHEMA


@dataclass(frozen=True, slots=True)
class EncodedCells:
    """The encoded items of a column in order, and the size of each in bytes."""

    data: NDArray[np.uint8]
    lengths: NDArray[np.int64]


def cells_of(column: NDArray[np.generic], nulls: NDArray[np.bool_] | None = None) -> EncodedCells:
    """Encode the items of a column.

    Args:
        column: A column as in `RowEncoder`.
        nulls: Mask of the items that are null; the column's items there are ignored.

    Raises:
        LocalProtocolError: An item has no Ignite form.
    """
    if column.dtype.kind == "O":
        return _objects(column, nulls)
    if column.dtype.kind == "M":
        gone = np.isnat(column)
        moments = np.zeros(len(column), wire_dtype())
        moments[~gone] = instants_of(column[~gone])
        column, nulls = moments, gone if nulls is None else gone | nulls
    head = head_of(column)
    table = np.empty(
        (len(column), len(head) + column.dtype.itemsize * (column.shape[1] if column.ndim > 1 else 1)),
        np.uint8,
    )
    table[:, : len(head)] = np.frombuffer(head, np.uint8)
    if table.shape[1] > len(head):
        table[:, len(head) :] = np.ascontiguousarray(column).view(np.uint8).reshape(len(column), -1)
    lengths = np.full(len(column), table.shape[1], np.int64)
    if nulls is None or not nulls.any():
        return EncodedCells(table.reshape(-1), lengths)
    table[nulls, 0] = TypeCode.NULL
    lengths[nulls] = 1
    kept = np.ones(table.shape, np.bool_)
    kept[nulls, 1:] = False
    return EncodedCells(table[kept], lengths)


def head_of(column: NDArray[np.generic]) -> bytes:
    """Return the bytes before a column's value in each row: the type code and, for an array, its length."""
    if column.dtype == wire_dtype():
        return bytes([TypeCode.TIMESTAMP])
    if column.ndim == 1:
        return bytes([CODE_OF_DTYPE[column.dtype.str[1:]]])
    return bytes([ARRAY_CODE_OF_DTYPE[column.dtype.str[1:]]]) + int(column.shape[1]).to_bytes(4, "little")


def _objects(column: NDArray[np.generic], nulls: NDArray[np.bool_] | None) -> EncodedCells:
    writer = Writer()
    ends = np.empty(len(column), np.int64)
    for row, item in enumerate(column):
        write_value(writer, None if nulls is not None and nulls[row] else item)
        ends[row] = len(writer.data)
    return EncodedCells(np.frombuffer(writer.data, np.uint8), np.diff(ends, prepend=0))


def encode_block(
    type_name: str, field_names: Sequence[str], keys: EncodedCells, fields: Sequence[EncodedCells]
) -> NDArray[np.uint8]:
    """Return rows as key, object, key, object, ...: each object as `write_value` writes it.

    Args:
        type_name: Type name of the objects.
        field_names: Names of the fields; at least one.
        keys: Encoded keys of the rows.
        fields: Encoded items of each field, in the order of the names.
    """
    offsets = HEADER_BYTES + np.cumsum(
        [np.zeros(len(keys.lengths), np.int64), *(each.lengths for each in fields)], 0
    )
    ends, offsets = offsets[-1], offsets[:-1]
    widths = np.where(offsets[-1] < 1 << 8, 1, np.where(offsets[-1] < 1 << 16, 2, 4))
    lengths = ends + len(fields) * widths
    row_ends = np.cumsum(keys.lengths + lengths)
    objects = row_ends - lengths
    block = np.empty(int(row_ends[-1]) if len(row_ends) else 0, np.uint8)
    _put(block, objects - keys.lengths, keys)
    for offset, cells in zip(offsets, fields, strict=True):
        _put(block, objects + offset, cells)
    header = np.zeros(len(lengths), _HEADER)
    header["code"], header["version"], header["type"] = TypeCode.BINARY_OBJECT, 1, name_id(type_name)
    header["schema"] = schema_id(tuple(map(name_id, field_names)))
    header["length"], header["footer"] = lengths, ends
    header["hash"] = _hashes(block, objects + HEADER_BYTES, ends - HEADER_BYTES)
    for width, flag in _WIDTHS.items():
        rows = np.flatnonzero(widths == width)
        header["flags"][rows] = _FLAGS | flag
        footer = offsets[:, rows].T.astype(f"<u{width}")
        _put_table(block, objects[rows] + ends[rows], footer)
    _put_table(block, objects, header.reshape(-1, 1))
    return block


def _put(block: NDArray[np.uint8], starts: NDArray[np.int64], cells: EncodedCells) -> None:
    block[_places(starts, cells.lengths)] = cells.data


def _places(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the index of every byte of pieces with these starts and lengths."""
    before = np.cumsum(lengths) - lengths
    places: NDArray[np.int64] = np.repeat(starts - before, lengths) + np.arange(int(lengths.sum()))
    return places


def _put_table(block: NDArray[np.uint8], starts: NDArray[np.int64], table: NDArray[np.generic]) -> None:
    if len(starts):
        raw = np.ascontiguousarray(table).view(np.uint8).reshape(len(starts), -1)
        block[starts[:, None] + np.arange(raw.shape[1])] = raw


def _hashes(
    block: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> NDArray[np.int32]:
    """Hash pieces of at least one byte as `array_hash` does."""
    if not len(starts):
        return np.empty(0, np.int32)
    powers = np.full(int(lengths.max()) + 1, 31, np.uint32)
    powers[0] = 1
    powers = np.cumprod(powers, dtype=np.uint32)
    signed = block[_places(starts, lengths)].view(np.int8).astype(np.uint32)
    ends = np.cumsum(lengths)
    signed *= powers[np.repeat(ends, lengths) - 1 - np.arange(len(signed))]
    sums = np.add.reduceat(signed, ends - lengths, dtype=np.uint32) + powers[lengths]
    return sums.view(np.int32)
