"""Reuses memory for columns once no tensor refers to it."""

from __future__ import annotations

import sys
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ignite_tf_magic.protocol.columns import ALIGNMENT_BYTES, aligned, num_bytes


class BufferPool:
    """Allocates memory for chunks. Thread-safe.

    Fresh memory costs a page fault per 4 KiB: measured, four times as much as copying rows into it. TensorFlow refers
    to an aligned array as long as a tensor of it lives, slices included, so the array's reference count shows when its
    memory is free.

    Args:
        max_bytes: How much memory to keep; Python frees what is allocated beyond that.

    Attributes:
        kept_bytes: How much memory is kept now.
    """

    def __init__(self, max_bytes: int = 256 * 1024 * 1024) -> None:
        self._max_bytes = max_bytes
        self.kept_bytes = 0
        self._buffers: dict[int, list[NDArray[np.uint8]]] = {}
        self._lock = threading.Lock()

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return an array with any content, whose data starts at a multiple of 64 bytes."""
        with self._lock:
            return aligned(self._take(num_bytes(shape, dtype) + ALIGNMENT_BYTES), shape, dtype)

    def clear(self) -> None:
        """Release all memory; memory that tensors refer to is freed with them."""
        with self._lock:
            self._buffers.clear()
            self.kept_bytes = 0

    def _take(self, wanted_bytes: int) -> NDArray[np.uint8]:
        buffers = self._buffers.setdefault(wanted_bytes, [])
        for number in range(len(buffers)):
            if _is_free(buffers, number):
                return buffers[number]
        raw = np.empty(wanted_bytes, np.uint8)
        if self.kept_bytes + wanted_bytes > self._max_bytes:
            self._drop_free()
        if self.kept_bytes + wanted_bytes <= self._max_bytes:
            buffers.append(raw)
            self.kept_bytes += wanted_bytes
        return raw

    def _drop_free(self) -> None:
        """Release free buffers, all of which have another size than the requested one."""
        for buffer_bytes, buffers in self._buffers.items():
            free = [number for number in range(len(buffers)) if _is_free(buffers, number)]
            for number in reversed(free):
                del buffers[number]
            self.kept_bytes -= buffer_bytes * len(free)


def _is_free(buffers: list[NDArray[np.uint8]], number: int) -> bool:
    return sys.getrefcount(buffers[number]) == 2  # one reference by the list, one by the call itself


# One pool for all datasets of a process: the next dataset reuses the memory of the last, which TensorFlow never
# releases.
SHARED = BufferPool()
