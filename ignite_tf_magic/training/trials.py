"""Losses tried out with made-up rows: whether they compare rows with each other, and whether places matter to them.

Nothing else tells it of a function. A loss is called as Keras calls it, with the same rows together, in another order
and in parts; with several numbers of rows, as some losses take pairs, triplets or halves of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from ignite_tf_magic.training.group import as_array

_NUMBERS_OF_ROWS = (8, 6, 5, 9, 10, 7)
# What a loss may raise for numbers that mean nothing to it.
_UNTRIED = (
    *(ValueError, TypeError, ArithmeticError, LookupError, AttributeError, RuntimeError, AssertionError),
    NotImplementedError,
    tf.errors.OpError,
)


@dataclass(frozen=True)
class Trial:
    """What has been found out about a loss.

    Attributes:
        compares: Whether what it makes of a row depends on the others, or is no value for each row; None where nobody
            knows.
        goes_by_places: Whether the order of rows matters to it.
        error: Why nobody knows.
    """

    compares: bool | None
    goes_by_places: bool
    error: str = ""


def tried(loss: Callable[[Any, Any], Any], y_true: Any, y_pred: Any) -> Trial:
    """Try out a loss that is not reduced.

    Args:
        loss: Of labels and outputs.
        y_true: What it is given, of which the shapes and dtypes count.
        y_pred: Likewise.
    """
    random, error = np.random.default_rng(0), ""
    with tf.init_scope():
        for number in _NUMBERS_OF_ROWS:
            try:
                made = _made((y_true, y_pred), number, random)
                whole = _called(loss, made, slice(None))
            except _UNTRIED as failure:
                error = error or f"{type(failure).__name__}: {failure}"
                continue
            return Trial(
                _compares(loss, made, whole, number), _goes_by_places(loss, made, whole, number, random)
            )
    return Trial(None, goes_by_places=False, error=error)


def _compares(loss: Callable[[Any, Any], Any], made: Any, whole: np.ndarray, number: int) -> bool:
    """Return whether parts of the rows, of different sizes, come to something else than all rows."""
    if whole.ndim == 0 or len(whole) != number:
        return True
    end = (number - 1) // 2
    try:
        parts = [_called(loss, made, rows) for rows in (slice(end), slice(end, None))]
    except _UNTRIED:
        return True
    return any(part.ndim != whole.ndim for part in parts) or not _are_close(whole, np.concatenate(parts))


def _goes_by_places(
    loss: Callable[[Any, Any], Any], made: Any, whole: np.ndarray, number: int, random: np.random.Generator
) -> bool:
    """Return whether the same rows in another order come to other values, in whatever order those are."""
    try:
        moved = _called(loss, made, random.permutation(number))
    except _UNTRIED:
        return True
    return not _are_close(np.sort(whole, axis=None), np.sort(moved, axis=None))


def _are_close(one: np.ndarray, other: np.ndarray) -> bool:
    return one.shape == other.shape and np.allclose(one, other, rtol=1e-3, atol=1e-5, equal_nan=True)


def _called(loss: Callable[[Any, Any], Any], made: Any, rows: slice | np.ndarray) -> np.ndarray:
    return as_array(loss(*tf.nest.map_structure(lambda each: tf.constant(each[rows]), made)))


def _made(given: Sequence[Any], number: int, random: np.random.Generator) -> Any:
    """Make rows of random numbers of tensors' shapes and dtypes: from 0 to 1, or 0 and 1."""

    def of_random(tensor: Any) -> np.ndarray:
        tensor = tf.convert_to_tensor(tensor)
        shape = [number, *(3 if size is None else size for size in tensor.shape[1:])]
        dtype = tensor.dtype.as_numpy_dtype
        if tensor.dtype.is_floating:
            return random.uniform(0.05, 0.95, shape).astype(dtype)
        return random.integers(0, 2, shape).astype(dtype)

    return tf.nest.map_structure(of_random, tuple(given))
