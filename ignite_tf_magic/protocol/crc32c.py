"""CRC-32C (Castagnoli), the checksum of TensorFlow's record files: in C, or in Python if nothing was compiled."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ignite_tf_magic.protocol.page_series import address_of
from ignite_tf_magic.protocol.walk_compiled import library

_POLYNOMIAL = 0x82F63B78  # bits reversed


def crc32c(data: memoryview, crc: int = 0) -> int:
    """Return the checksum of contiguous bytes, continuing from `crc`, that of the bytes before them.

    The compiled code releases the GIL.
    """
    compiled = library()
    if compiled is None:
        return crc32c_python(data, crc)
    return int(compiled.itm_crc32c(crc, address_of(data), len(data), tables().ctypes.data, 0))


def crc32c_python(data: memoryview, crc: int = 0) -> int:
    """Return the same as `crc32c`, byte by byte and about a thousand times slower."""
    table = tables()[0].tolist()
    crc ^= 0xFFFFFFFF
    for byte in bytes(data):
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


@cache
def tables() -> NDArray[Any]:
    """Return the tables for processing eight bytes at once, uint32 (8, 256).

    In table k, the entry of a byte is the checksum of this byte followed by k zero bytes.
    """
    tables = np.empty((8, 256), np.uint32)
    crc = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        crc = np.where(crc & 1, crc >> 1 ^ np.uint32(_POLYNOMIAL), crc >> 1)
    tables[0] = crc
    for number in range(1, 8):
        tables[number] = tables[number - 1] >> 8 ^ tables[0][tables[number - 1] & 0xFF]
    return tables
