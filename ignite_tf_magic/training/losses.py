"""Losses over all rows of a batch, whatever they make of a worker's own.

Most losses are means over rows: a worker's own, weighted by its rows, is what goes round. Where the denominator is
another (masks, sums, weights, sequences as long as the longest), the workers add up numerators and denominators. Where
a loss does with a batch what no sum over rows can tell (it reduces by itself, or compares rows with each other), it is
computed from the rows of all workers, on each of them.

Keras' own seams serve for that: `Loss.__call__` with another `call` and another `reduction` tells both parts.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from ignite_tf_magic.dataset import tf_private
from ignite_tf_magic.training.frameworks import Framework, layers_of
from ignite_tf_magic.training.group import as_array
from ignite_tf_magic.training.hooking import hook, leave_alone
from ignite_tf_magic.training.reductions import tell_of_rounding
from ignite_tf_magic.training.step import KERAS_MASK, Step, current_step

_MEANS = ("sum_over_batch_size", "mean", "auto")
_PROBE_ROWS = 5
_BIG_BYTES_A_ROW = 1024 * 1024
# What a loss may raise for numbers that mean nothing to it.
_UNTRIED = (
    *(ValueError, TypeError, ArithmeticError, LookupError, AttributeError, RuntimeError, AssertionError),
    tf.errors.OpError,
)
_coupling: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()


def hook_losses(framework: Framework) -> None:
    """Let all losses of a framework come to what they come to over all rows, in a step."""
    hook(framework.module.losses.Loss, "__call__", _reduced)


@contextmanager
def whole_activities(model: Any, framework: Framework) -> Iterator[None]:
    """Let what regularises activities weigh as over all rows, where a framework adds up over the rows of a batch."""
    layers = [each for each in layers_of(model) if getattr(each, "activity_regularizer", None) is not None]
    if not layers or not framework.adds_up_activities():
        yield
        return
    before = [layer.activity_regularizer for layer in layers]

    def whole(regularizer: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def regularize(activity: Any) -> Any:
            step = current_step()
            loss = regularizer(activity)
            return loss if step is None else step.note_reduced(loss * tf.cast(step.share(), loss.dtype))

        return regularize

    try:
        for layer, regularizer in zip(layers, before, strict=True):
            layer.activity_regularizer = whole(regularizer)
        yield
    finally:
        for layer, regularizer in zip(layers, before, strict=True):
            layer.activity_regularizer = regularizer


def _reduced(
    step: Step,
    original: Callable[..., Any],
    loss: Any,
    y_true: Any,
    y_pred: Any,
    *arguments: Any,
    **options: Any,
) -> Any:
    step.outputs += [each for each in tf.nest.flatten(y_pred) if isinstance(each, tf.Tensor)]
    reduced = _over_all_rows(step, original, loss, y_true, y_pred, *arguments, **options)
    tell_of_rounding(step, reduced)
    return step.note_reduced(reduced)


def _over_all_rows(
    step: Step,
    original: Callable[..., Any],
    loss: Any,
    y_true: Any,
    y_pred: Any,
    sample_weight: Any = None,
) -> Any:
    reduction = loss.reduction
    with _watched(loss) as values, step.alone():
        plain = original(y_true, y_pred, sample_weight)
    if reduction in (None, "none") or len(values) != 1 or not isinstance(values[0], tf.Tensor):
        return plain  # whoever called reduces
    (of_rows,) = values
    if of_rows.shape.rank == 0 or _couples_rows(loss, y_true, y_pred):
        return _of_everything(step, original, loss, y_true, y_pred, sample_weight)
    has_mask = any(
        getattr(each, KERAS_MASK, None) is not None for each in (of_rows, *tf.nest.flatten(y_pred))
    )
    has_sizes = of_rows.shape.rank is None or None not in of_rows.shape[1:]
    if reduction in _MEANS and has_sizes and not has_mask:
        return plain
    numerator, denominator = _parts(step, original, loss, of_rows, (y_true, y_pred, sample_weight))
    if denominator is not None:
        (total,) = step.totals([step.or_zero(tf.stop_gradient(denominator))])
        numerator = tf.math.divide_no_nan(numerator, total)
    return numerator * tf.cast(step.share(), numerator.dtype)


def _parts(
    step: Step, original: Callable[..., Any], loss: Any, of_rows: Any, arguments: tuple[Any, Any, Any]
) -> tuple[Any, Any | None]:
    """Return what a loss adds up, and by what it divides that; None where it does not divide."""
    y_true, y_pred, sample_weight = arguments
    ones = tf.ones_like(of_rows)
    mask = getattr(of_rows, KERAS_MASK, None)
    if mask is not None:
        setattr(ones, KERAS_MASK, mask)
    with step.alone():
        with _giving(loss, of_rows, "sum"):
            numerator = original(y_true, y_pred, sample_weight)
        if loss.reduction == "sum":
            return numerator, None
        weights = sample_weight if loss.reduction == "mean_with_sample_weight" else None
        with _giving(loss, ones, "sum"):
            count = original(y_true, y_pred, weights)
        if weights is None:
            return numerator, count
        with _giving(loss, ones, loss.reduction):
            mean = original(y_true, y_pred, weights)
        return numerator, tf.math.divide_no_nan(count, mean)


def _of_everything(
    step: Step, original: Callable[..., Any], loss: Any, y_true: Any, y_pred: Any, sample_weight: Any
) -> Any:
    """Compute a loss from the rows of all workers."""
    _tell_of_bytes(loss, tf.nest.flatten((y_true, y_pred)))
    y_true, y_pred, sample_weight = step.gather_all((y_true, y_pred, sample_weight))
    with step.alone():
        return original(y_true, y_pred, sample_weight)


@contextmanager
def _watched(loss: Any) -> Iterator[list[Any]]:
    """Note what a loss's `call` returns."""
    values: list[Any] = []
    inner = tf_private.converted(loss.call)

    def call(*arguments: Any, **options: Any) -> Any:
        values.append(inner(*arguments, **options))
        return values[-1]

    with _with_call(loss, call):
        yield values


@contextmanager
def _giving(loss: Any, values: Any, reduction: str) -> Iterator[None]:
    """Let a loss's `call` return certain values, reduced in a certain way."""
    before = loss.reduction

    def call(*_: Any, **__: Any) -> Any:
        return values

    with _with_call(loss, call):
        loss.reduction = reduction
        try:
            yield
        finally:
            loss.reduction = before


@contextmanager
def _with_call(loss: Any, call: Callable[..., Any]) -> Iterator[None]:
    before = vars(loss).get("call")
    leave_alone(call)
    loss.call = call
    try:
        yield
    finally:
        if before is None:
            del loss.call
        else:
            loss.call = before


def _couples_rows(loss: Any, y_true: Any, y_pred: Any) -> bool:
    if loss not in _coupling:
        _coupling[loss] = couples_rows(loss, y_true, y_pred)
    return _coupling[loss]


def couples_rows(loss: Any, y_true: Any, y_pred: Any) -> bool:
    """Return whether a loss of rows depends on which other rows are in the batch, as contrastive ones do.

    It is tried out with some rows of random numbers, together and one by one. A loss that cannot be tried out so is
    taken for one that does not.
    """
    random = np.random.default_rng(0)
    with tf.init_scope():
        try:
            made = [[_probe(each, random) for each in tf.nest.flatten(given)] for given in (y_true, y_pred)]
            together = _called(loss, (y_true, y_pred), made, slice(None))
            apart = [_called(loss, (y_true, y_pred), made, slice(row, row + 1)) for row in range(_PROBE_ROWS)]
            return not np.allclose(together, np.concatenate(apart), rtol=1e-3, atol=1e-5, equal_nan=True)
        except _UNTRIED:
            return False


def _called(loss: Any, given: tuple[Any, Any], made: list[list[Any]], rows: slice) -> np.ndarray:
    arguments = [
        tf.nest.pack_sequence_as(structure, [tf.constant(each[rows]) for each in parts])
        for structure, parts in zip(given, made, strict=True)
    ]
    return as_array(loss.call(*arguments))


def _probe(tensor: Any, random: np.random.Generator) -> np.ndarray:
    """Make rows of random numbers of a tensor's shape and dtype: from 0 to 1, or 0 and 1."""
    tensor = tf.convert_to_tensor(tensor)
    shape = [_PROBE_ROWS, *(3 if size is None else size for size in tensor.shape[1:])]
    dtype = tensor.dtype.as_numpy_dtype
    if tensor.dtype.is_floating:
        return random.uniform(0.05, 0.95, shape).astype(dtype)
    return random.integers(0, 2, shape).astype(dtype)


def _tell_of_bytes(loss: Any, parts: list[Any]) -> None:
    """Warn where the rows of all workers are large, as they go round in each step."""
    tensors = [tf.convert_to_tensor(each) for each in parts]
    bytes_a_row = sum(
        each.dtype.size * int(np.prod([size or 1 for size in each.shape[1:]])) for each in tensors
    )
    if bytes_a_row > _BIG_BYTES_A_ROW:
        warnings.warn(
            f"the loss {loss.name} reduces a batch by itself, so all workers compute it from the outputs for all rows, "
            f"{bytes_a_row / 2**20:.0f} MiB a row, which go round in each step. A loss that returns a value for each "
            "row (or step of a sequence) needs none of that",
            stacklevel=2,
        )
