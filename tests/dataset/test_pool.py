"""Memory for columns is reused once free, bounded, and released."""

from __future__ import annotations

import numpy as np
import pytest

from ignite_tf_magic.dataset.pool import BufferPool
from ignite_tf_magic.protocol.columns import ALIGNMENT_BYTES

BYTES = np.dtype(np.uint8)


def address(array):
    return array.ctypes.data


def test_memory_is_used_again_when_nothing_refers_to_it():
    pool = BufferPool()
    first = pool.allocate((4, 100), BYTES)
    place = address(first)
    assert address(pool.allocate((4, 100), BYTES)) != place
    part = first[2:, 10:20]
    del first
    assert address(pool.allocate((4, 100), BYTES)) != place, "a slice of it is still in use"
    del part
    assert address(pool.allocate((100,), np.dtype(np.float32))) == place, "the same size, another shape"


def test_a_size_that_is_not_asked_for_any_more_makes_room():
    pool = BufferPool(max_bytes=3 * (1000 + ALIGNMENT_BYTES))
    old = [pool.allocate((1000,), BYTES) for _ in range(3)]
    kept = address(old[0])
    del old[1:]
    place = address(pool.allocate((1500,), BYTES))
    assert address(pool.allocate((1500,), BYTES)) == place, "it took the place of the two that were free"
    del old
    assert address(pool.allocate((1000,), BYTES)) == kept, "the one that was in use stayed"


@pytest.mark.parametrize("size", [1, 1000])
def test_what_is_beyond_the_limit_is_given_and_not_kept(size):
    pool = BufferPool(max_bytes=size + ALIGNMENT_BYTES - 1)
    arrays = [pool.allocate((size,), BYTES) for _ in range(3)]
    assert len({address(array) for array in arrays}) == 3
    assert not pool.kept_bytes


def test_after_clearing_what_is_in_use_stays_valid():
    pool = BufferPool()
    array = pool.allocate((1000,), BYTES)
    array[:] = 7
    pool.clear()
    assert not pool.kept_bytes
    assert address(pool.allocate((1000,), BYTES)) != address(array)
    assert (array == 7).all()
