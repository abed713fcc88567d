"""CRC-32C (Castagnoli), the checksum of TensorFlow's record files: in C, or in Python without a compiler."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ignite_tf_magic.protocol.page_series import address_of
from ignite_tf_magic.protocol.walk_compiled import library

_POLYNOMIAL = 0x82F63B78  # bits reversed


def crc32c(data: memoryview, crc: int = 0) -> int:
    """Checksum contiguous bytes, going on from the checksum of those before them. The GIL is released."""
    compiled = library()
    if compiled is None:
        return crc32c_python(data, crc)
    return int(compiled.itm_crc32c(crc, address_of(data), len(data), tables().ctypes.data, 0))


def crc32c_python(data: memoryview, crc: int = 0) -> int:
    """Do the same byte by byte, some thousand times slower."""
    table = tables()[0].tolist()
    crc ^= 0xFFFFFFFF
    for byte in bytes(data):
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


@cache
def tables() -> NDArray[Any]:
    """Make what eight bytes at once need: table k is that of a byte with k zero bytes behind it."""
    tables = np.empty((8, 256), np.uint32)
    crc = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        crc = np.where(crc & 1, crc >> 1 ^ np.uint32(_POLYNOMIAL), crc >> 1)
    tables[0] = crc
    for number in range(1, 8):
        tables[number] = tables[number - 1] >> 8 ^ tables[0][tables[number - 1] & 0xFF]
    return tables
