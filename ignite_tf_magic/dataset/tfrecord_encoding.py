"""Encodes chunks of rows as TFRecord records, which stock operations of TensorFlow decode into columns.

A record has TensorFlow's frame: length (8 bytes), checksum of the length, payload, checksum of the payload. The payload
holds int64 numbers (the number of rows, then start and bytes of each buffer), followed by the buffers. Each buffer
starts at a multiple of 64 bytes, so that slices of the decoded payload need not be copied.

A column is one buffer: its array, or a TensorProto if it holds strings, because protobuf is the only format with
strings that stock operations decode. A ragged column is two: its values and the length of each row.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ignite_tf_magic.protocol.columns import ALIGNMENT_BYTES, Column, ColumnChunk, RaggedColumn
from ignite_tf_magic.protocol.crc32c import crc32c
from ignite_tf_magic.protocol.layout import Leaf

Bytes = NDArray[np.uint8]

_MASK_DELTA = 0xA282EAD8
_DT_STRING = 7


def num_buffers(leaf: Leaf) -> int:
    """Return the number of buffers of a column."""
    return 1 + leaf.ragged_levels


def num_header_items(leaves: Sequence[Leaf]) -> int:
    """Return how many numbers a payload starts with."""
    return 1 + 2 * sum(num_buffers(leaf) for leaf in leaves)


class FramedRecord:
    """A framed record, as pieces of memory that are copied on request."""

    def __init__(self, payload: Sequence[Bytes]) -> None:
        size = sum(piece.nbytes for piece in payload)
        crc = 0
        for piece in payload:
            crc = crc32c(piece.data, crc)
        length = struct.pack("<Q", size)
        head = length + struct.pack("<I", masked(crc32c(memoryview(length))))
        self._pieces = [_as_bytes(head), *payload, _as_bytes(struct.pack("<I", masked(crc)))]
        self.num_bytes = size + 16

    def copy_to(self, space: Bytes, start: int) -> int:
        """Copy bytes from `start` on until the record or `space` ends; return the number of bytes."""
        copied = 0
        for piece in self._pieces:
            if start < piece.nbytes and copied < space.nbytes:
                count = min(piece.nbytes - start, space.nbytes - copied)
                np.copyto(space[copied : copied + count], piece[start : start + count])
                copied += count
                start += count
            start -= piece.nbytes
        return copied


def page_record(chunk: ColumnChunk) -> FramedRecord:
    """Make the record of a chunk. It shares the chunk's memory."""
    start = _padded(8 * num_header_items(chunk.leaves))
    numbers = [chunk.num_rows]
    pieces: list[Bytes] = []
    for buffer in [buffer for column in chunk.columns() for buffer in _buffers(column)]:
        numbers += (start, buffer.nbytes)
        pieces += (buffer, _filling(buffer.nbytes))
        start += _padded(buffer.nbytes)
    header = np.array(numbers, "<i8").view(np.uint8)
    return FramedRecord([piece for piece in (header, _filling(header.nbytes), *pieces) if piece.nbytes])


def masked(crc: int) -> int:
    """Turn a checksum into the form that TFRecord stores."""
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def _buffers(column: Column) -> list[Bytes]:
    if isinstance(column, RaggedColumn):
        return [_items(column.values), *map(_flat, column.lengths)]
    return [_items(column)]


def _items(array: NDArray[Any]) -> Bytes:
    return _as_bytes(strings_proto(array)) if array.dtype == object else _flat(array)


def strings_proto(items: Sequence[bytes] | NDArray[Any]) -> bytes:
    """Encode strings as a TensorProto: dtype, tensor_shape and string_val, fields 1, 2 and 8."""
    dimension = b"\x08" + _varint(len(items))
    shape = b"\x12" + _varint(len(dimension)) + dimension
    head = bytes((0x08, _DT_STRING, 0x12)) + _varint(len(shape)) + shape
    tags = _Tags()
    return b"".join([head, *[part for item in items for part in (tags[len(item)], item)]])


class _Tags(dict[int, bytes]):
    """The tag and length that precede a string of a given number of bytes."""

    def __missing__(self, num_bytes: int) -> bytes:
        tag = self[num_bytes] = b"\x42" + _varint(num_bytes)
        return tag


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _flat(array: NDArray[Any]) -> Bytes:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _as_bytes(data: bytes) -> Bytes:
    return np.frombuffer(data, np.uint8)


def _padded(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _filling(num_bytes: int) -> Bytes:
    return np.zeros(_padded(num_bytes) - num_bytes, np.uint8)
