"""Memory for columns, used again once no tensor refers to it."""

from __future__ import annotations

import sys
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ignite_tf_magic.protocol.columns import ALIGNMENT_BYTES, aligned, num_bytes


class BufferPool:
    """Gives memory for chunks. Thread-safe.

    Fresh memory costs a page fault per 4 KiB: measured, four times the copying of rows into it. TensorFlow
    refers to an aligned array as long as a tensor of it lives, slices included, so the array's reference
    count tells when its memory is free.

    Args:
        max_buffers: How many buffers are kept; more are given, and left to Python.
    """

    def __init__(self, max_buffers: int = 64) -> None:
        self._max_buffers = max_buffers
        self._buffers: list[NDArray[np.uint8]] = []
        self._lock = threading.Lock()

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return an array with any content, whose data starts at a multiple of 64 bytes."""
        with self._lock:
            return aligned(self._free(num_bytes(shape, dtype) + ALIGNMENT_BYTES), shape, dtype)

    def clear(self) -> None:
        """Keep no memory; what tensors refer to goes with them."""
        with self._lock:
            self._buffers.clear()

    def _free(self, wanted_bytes: int) -> NDArray[np.uint8]:
        for number in range(len(self._buffers)):
            # Two references: the list's, and that of the call itself.
            is_free = sys.getrefcount(self._buffers[number]) == 2
            if is_free and self._buffers[number].nbytes == wanted_bytes:
                return self._buffers[number]
        raw = np.empty(wanted_bytes, np.uint8)
        if len(self._buffers) < self._max_buffers:
            self._buffers.append(raw)
        return raw
