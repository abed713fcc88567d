"""Encodes rows with keys that are copied from other rows byte for byte, and values from columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ignite_tf_magic.protocol.buffer import Reader
from ignite_tf_magic.protocol.encode import RowEncoder
from ignite_tf_magic.protocol.messages import Page
from ignite_tf_magic.protocol.objects import read_header, skip_value
from ignite_tf_magic.protocol.ops import TypeCode

_PLACEHOLDER_BYTES = 2  # size of an encoded key of type byte


class KeyedRows(RowEncoder):
    """Encodes rows under the keys of other rows, and sends them to the partitions of those rows.

    So keys of all types are identical to those in the other cache, including keys that Python cannot represent, and
    a custom affinity of that cache is respected.

    Args:
        type_name: Name of the values' binary type.
        columns: As for `RowEncoder`.
        keys: Encoded keys.
        partitions: Partition of each row.
    """

    def __init__(
        self,
        type_name: str,
        columns: Mapping[str, NDArray[Any]],
        keys: Sequence[bytes],
        partitions: NDArray[np.int32],
    ) -> None:
        super().__init__(type_name, columns, np.zeros(len(keys), np.int8))
        self._encoded_keys = keys
        self._partitions = partitions

    @property
    def row_bytes(self) -> int:
        """Mean encoded size of a row in bytes, from the first 64 rows."""
        sample = np.arange(min(len(self), 64))
        return max(1, len(self.encode(sample)) // max(len(sample), 1))

    def key_hashes(self) -> NDArray[np.int32]:
        """Return partition numbers in place of hashes. A number below 2^16 maps to the partition of that number."""
        return self._partitions

    def encode(self, index: NDArray[np.intp]) -> bytes:
        """Encode the rows with these indexes, one after another."""
        rows = memoryview(super().encode(index))
        reader = Reader(rows)
        parts: list[bytes | memoryview] = []
        for row in index.tolist():
            start = reader.position + _PLACEHOLDER_BYTES
            reader.position = start + read_header(reader, start).length
            parts += (self._encoded_keys[row], rows[start : reader.position])
        return b"".join(parts)


def keys_of(page: Page, row_starts: NDArray[np.int64]) -> list[bytes]:
    """Copy the encoded keys out of a page.

    Args:
        page: Rows, each a key and a value.
        row_starts: Start offset of each row.
    """
    reader, keys = Reader(page.rows), []
    for start in row_starts[: page.num_rows].tolist():
        reader.position = start
        skip_value(reader)
        keys.append(_unwrapped(page.rows[start : reader.position]))
    return keys


def _unwrapped(key: memoryview) -> bytes:
    """Return the bytes of a key, without the wrapper that a server may have put around an object."""
    if key[0] != TypeCode.WRAPPED_OBJECT:
        return bytes(key)
    reader = Reader(key, 1)
    data = reader.take(reader.count())
    start = reader.int32()
    return bytes(data[start : start + read_header(Reader(data), start).length])
