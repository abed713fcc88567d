"""Permutes rows of chunks within blocks on their way to pages: one copy, into reused memory.

TensorFlow operations would make two copies into fresh memory, which took as long as all the rest of a pass.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ignite_tf_magic.dataset.pool import BufferPool
from ignite_tf_magic.protocol.columns import ColumnChunk
from ignite_tf_magic.protocol.layout import RowLayout
from ignite_tf_magic.protocol.walk_compiled import scatter_rows

Columns = list[NDArray[Any]]

# Batches of a power of two then lie within a block, and tf.data passes them on without copying.
_MULTIPLE_ROWS = 1024
_LEAST_ROUNDED_ROWS = 4 * _MULTIPLE_ROWS


def can_permute(layout: RowLayout | None) -> bool:
    """Return whether each column of a layout has one item for each row."""
    return layout is not None and not any(leaf.is_ragged for leaf in layout.leaves())


def rows_of_block(shuffled_rows: int) -> int:
    """Return the number of rows to permute together for a requested number: at least that many."""
    if shuffled_rows < _LEAST_ROUNDED_ROWS:
        return shuffled_rows
    return -(-shuffled_rows // _MULTIPLE_ROWS) * _MULTIPLE_ROWS


def permuted(
    chunks: Iterable[ColumnChunk], block_rows: int, random: np.random.Generator, pool: BufferPool
) -> Iterator[Columns]:
    """Yield the columns of successive blocks of rows, each block permuted; the last may be shorter.

    Args:
        chunks: Chunks of a layout that `can_permute`.
        block_rows: Rows of a block.
        random: Draws the permutations: the same ones for the same state, whatever the sizes of chunks.
        pool: Allocates memory for the blocks.
    """
    parts: list[Columns] = []
    num_rows = 0
    for chunk in chunks:
        columns = [np.asarray(column) for column in chunk.columns()]
        first = 0
        while first < chunk.num_rows:
            last = min(chunk.num_rows, first + block_rows - num_rows)
            parts.append([column[first:last] for column in columns])
            num_rows, first = num_rows + last - first, last
            if num_rows == block_rows:
                yield _block(parts, random.permutation(num_rows), pool)
                parts, num_rows = [], 0
    if parts:
        yield _block(parts, random.permutation(num_rows), pool)


def _block(parts: list[Columns], places: NDArray[np.int64], pool: BufferPool) -> Columns:
    ends = itertools.accumulate(len(part[0]) for part in parts)
    places_of_parts = np.split(places, list(ends)[:-1])
    return [_column(column, places_of_parts, len(places), pool) for column in zip(*parts, strict=True)]


def _column(
    parts: tuple[NDArray[Any], ...], places: list[NDArray[np.int64]], num_rows: int, pool: BufferPool
) -> NDArray[Any]:
    dtype, shape = parts[0].dtype, (num_rows, *parts[0].shape[1:])
    out = np.empty(shape, dtype) if dtype.hasobject else pool.allocate(shape, dtype)
    for part, own in zip(parts, places, strict=True):
        if dtype.hasobject:
            out[own] = part
        else:
            scatter_rows(part, own, out)
    return out
