"""Batches as elements of datasets: how many rows they have, parts of them, and one row for none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def num_rows(element: Any) -> Any:
    """Count the rows of a batch, by its first part."""
    first = tf.nest.flatten(element)[0]
    if isinstance(first, tf.RaggedTensor):
        return first.nrows(tf.int32)
    if isinstance(first, tf.SparseTensor):
        return tf.cast(first.dense_shape[0], tf.int32)
    return tf.shape(first)[0]


def or_one_row(element: Any, rows: Any) -> Any:
    """Return a batch as it is, or in place of one without rows one with a row of zeros."""

    def fill(part: Any) -> Any:
        if not isinstance(part, tf.Tensor) or part.shape.rank is None:
            return part
        # Of sizes that nobody knows there is none in a batch without rows; a layer may need one, as LSTM a step.
        shape = tf.concat([[1], tf.maximum(tf.shape(part)[1:], 1)], 0)
        filled = tf.cond(rows > 0, lambda: part, lambda: tf.zeros(shape, part.dtype))
        return tf.ensure_shape(filled, [None, *part.shape[1:]])

    return tf.nest.map_structure(fill, element)


def part_of(element: Any, worker: int, num_workers: int) -> Any:
    """Return every n-th row of a batch, beginning with the worker's number."""
    return tf.nest.map_structure(lambda part: part[worker::num_workers], element)


def empty_like(spec: Any) -> Any:
    """Return a batch without rows for an element spec.

    Raises:
        TypeError: A part has no known rank.
    """

    def empty(one: Any) -> Any:
        if not isinstance(one, (tf.TensorSpec, tf.RaggedTensorSpec)) or one.shape.rank is None:
            raise TypeError(f"batches without rows can only be made of tensors of known rank; found {one}")
        shape = [0, *(0 if size is None else size for size in one.shape[1:])]
        if isinstance(one, tf.RaggedTensorSpec):
            dense = tf.zeros(shape, one.dtype)
            splits = one.row_splits_dtype
            return tf.RaggedTensor.from_tensor(dense, ragged_rank=one.ragged_rank, row_splits_dtype=splits)
        return tf.zeros(shape, one.dtype)

    return tf.nest.map_structure(empty, spec)


def num_batches(data: Any) -> int | None:
    """Tell how many batches a dataset has; None when nobody knows, when there is no end, and of what is no dataset."""
    found = int(data.cardinality()) if isinstance(data, tf.data.Dataset) else 0
    return found if found > 0 else None


def can_be_empty(spec: Any) -> bool:
    """Whether a batch without rows can be made for an element spec."""
    try:
        empty_like(spec)
    except TypeError:
        return False
    return True


def anew_each_pass(
    draw: Callable[[], Any], make: Callable[[Any], Any], *, num_drawn: int | None = None
) -> Any:
    """Return a dataset that is made anew for each pass, from int64 that Python draws when the pass begins.

    Args:
        draw: Draws one number, or `num_drawn` as an array.
        make: Makes the dataset of the tensor of what was drawn.
        num_drawn: How many; None for one that is no array.
    """
    shape = [] if num_drawn is None else [num_drawn]

    def of_pass(_: Any) -> Any:
        return make(tf.ensure_shape(tf.numpy_function(draw, [], tf.int64), shape))

    return tf.data.Dataset.from_tensors(0).flat_map(of_pass)
