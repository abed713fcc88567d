"""Functions on batches as elements of datasets: row counts, parts, and empty batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def num_rows(element: Any) -> Any:
    """Return the number of rows of a batch's first part that has rows; 1 for scalars only."""
    for part in tf.nest.flatten(element):
        if isinstance(part, tf.RaggedTensor):
            return part.nrows(tf.int32)
        if isinstance(part, tf.SparseTensor):
            return tf.cast(part.dense_shape[0], tf.int32)
        shape = tf.TensorShape(getattr(part, "shape", ()))  # a dataset within a dataset has none
        sizes = [None] if shape.rank is None else shape.as_list()
        if sizes and sizes[0] is None:
            return tf.shape(part)[0]
        if sizes:
            return tf.constant(sizes[0])
    return tf.constant(1)


def or_one_row(element: Any, rows: Any) -> Any:
    """Return a batch unchanged, or, if it has no rows, a batch with one row of zeros."""
    known = tf.get_static_value(rows)
    if known is not None and known > 0:
        return element

    def fill(part: Any) -> Any:
        if isinstance(part, tf.RaggedTensor):
            return tf.cond(rows > 0, lambda: part, lambda: _one_empty_row(part))
        if isinstance(part, tf.SparseTensor):
            size = tf.where(rows > 0, part.dense_shape[0], 1)
            return tf.SparseTensor(part.indices, part.values, tf.concat([[size], part.dense_shape[1:]], 0))
        if not isinstance(part, tf.Tensor) or not part.shape.rank:
            return part
        # A batch without rows has size 0 in dimensions of unknown size, but a layer may need 1: LSTM needs a time step.
        shape = tf.concat([[1], tf.maximum(tf.shape(part)[1:], 1)], 0)
        filled = tf.cond(rows > 0, lambda: part, lambda: tf.zeros(shape, part.dtype))
        return tf.ensure_shape(filled, [None, *part.shape[1:]])

    return tf.nest.map_structure(fill, element)


def _one_empty_row(ragged: Any) -> Any:
    splits = tf.zeros([2], ragged.row_splits.dtype)
    return tf.RaggedTensor.from_row_splits(ragged.values, splits, validate=False)


def part_of(element: Any, worker: int, num_workers: int) -> Any:
    """Return every n-th row of a batch, starting at the worker's number; scalars stay unchanged.

    Raises:
        ValueError: The parts have different numbers of rows, as in a batch of merged graphs. If these numbers are not
            known yet, reading the batch raises InvalidArgumentError.
    """
    element = _of_equal_rows(element)

    def cut(part: Any) -> Any:
        if isinstance(part, tf.SparseTensor):
            return _sparse_part(part, worker, num_workers)
        return part if part.shape.rank == 0 else part[worker::num_workers]

    return tf.nest.map_structure(cut, element)


def _of_equal_rows(element: Any) -> Any:
    """Return a batch unchanged, after checking that all of its parts with rows have equally many."""
    flat = tf.nest.flatten(element)
    sizes = [num_rows(part) for part in flat if part.shape.rank != 0]
    known = {int(size) for size in map(tf.get_static_value, sizes) if size is not None}
    words = "a batch cannot be divided among workers, because its parts have different numbers of rows"
    advice = "merge rows in the model, not in the dataset, or use one worker"
    if len(known) > 1:
        raise ValueError(f"{words} ({sorted(known)}): {advice}")
    if len(sizes) < 2 or all(tf.get_static_value(size) is not None for size in sizes):
        return element
    checks = [tf.debugging.assert_equal(size, sizes[0], f"{words}: {advice}") for size in sizes[1:]]
    with tf.control_dependencies([each for each in checks if each is not None]):
        return tf.nest.pack_sequence_as(element, [_same(part) for part in flat])


def _same(part: Any) -> Any:
    """Return a tensor that waits for the checks around it."""
    if isinstance(part, tf.RaggedTensor):
        return part.with_flat_values(tf.identity(part.flat_values))
    if isinstance(part, tf.SparseTensor):
        return tf.SparseTensor(part.indices, tf.identity(part.values), part.dense_shape)
    return tf.identity(part)


def _sparse_part(sparse: Any, worker: int, num_workers: int) -> Any:
    found = tf.sparse.retain(sparse, sparse.indices[:, 0] % num_workers == worker)
    rows = (found.indices[:, :1] - worker) // num_workers
    num_rows = (sparse.dense_shape[:1] - worker + num_workers - 1) // num_workers
    indices = tf.concat([rows, found.indices[:, 1:]], 1)
    return tf.SparseTensor(indices, found.values, tf.concat([num_rows, sparse.dense_shape[1:]], 0))


def empty_like(spec: Any) -> Any:
    """Return a batch without rows for an element spec; scalars are 0.

    Raises:
        TypeError: A part has no known rank.
    """

    def empty(one: Any) -> Any:
        kinds = (tf.TensorSpec, tf.RaggedTensorSpec, tf.SparseTensorSpec)
        if not isinstance(one, kinds) or one.shape.rank is None:
            raise TypeError(f"batches without rows can only be made of tensors of known rank; found {one}")
        shape = [0 if at == 0 or size is None else size for at, size in enumerate(one.shape.as_list())]
        if isinstance(one, tf.SparseTensorSpec):
            return tf.SparseTensor(tf.zeros([0, len(shape)], tf.int64), tf.zeros([0], one.dtype), shape)
        if isinstance(one, tf.RaggedTensorSpec):
            dense = tf.zeros(shape, one.dtype)
            splits = one.row_splits_dtype
            return tf.RaggedTensor.from_tensor(dense, ragged_rank=one.ragged_rank, row_splits_dtype=splits)
        return tf.zeros(shape, one.dtype)

    return tf.nest.map_structure(empty, spec)


def num_batches(data: Any) -> int | None:
    """Return the number of batches; None if unknown or infinite, or if `data` is not a dataset."""
    found = int(data.cardinality()) if isinstance(data, tf.data.Dataset) else 0
    return found if found > 0 else None


def can_be_empty(spec: Any) -> bool:
    """Return whether a batch without rows can be made for an element spec."""
    try:
        empty_like(spec)
    except TypeError:
        return False
    return True


def anew_each_pass(
    draw: Callable[[], Any], make: Callable[[Any], Any], *, num_drawn: int | None = None
) -> Any:
    """Return a dataset that is rebuilt for each pass, from int64 numbers that Python draws.

    Args:
        draw: Draws one number, or `num_drawn` as an array, when a pass starts.
        make: Makes the dataset from the tensor of drawn numbers.
        num_drawn: How many numbers; None for a scalar.
    """
    shape = [] if num_drawn is None else [num_drawn]

    def of_pass(_: Any) -> Any:
        return make(tf.ensure_shape(tf.numpy_function(draw, [], tf.int64), shape))

    return tf.data.Dataset.from_tensors(0).flat_map(of_pass)
