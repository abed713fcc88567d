"""Computes the losses passed to `compile` over the rows of all workers.

Most losses are means over rows, for which each worker's own mean, weighted by its rows, is enough. If the denominator
is another one (masks, sums, weights, sequences padded to the longest), the workers add up numerators and denominators.
The case follows from a loss's `reduction` and the shape that its `call` returns. A loss of Keras that returns one
number, or that compares rows with each other, is computed on each worker from the rows of all workers. A custom loss
that returns one number sees the rows of its worker.

Numerator and denominator come from Keras' own `Loss.__call__`, with `call` and `reduction` replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from ignite_tf_magic.dataset import tf_private
from ignite_tf_magic.training.frameworks import Framework, is_of_keras, layers_of
from ignite_tf_magic.training.hooking import hook, leave_alone, subclasses, when_subclassed
from ignite_tf_magic.training.step import KERAS_MASK, Step, current_step

_MEANS = ("sum_over_batch_size", "mean", "auto")
# Keras' losses that return a value for each row although they compare rows with each other.
_COMPARE_ROWS = ("Circle",)


def hook_losses(framework: Framework) -> None:
    """Make losses passed to `compile` cover the rows of all workers in a step.

    This includes the script's loss classes with a `__call__` of their own. The framework's classes with their own
    `__call__` are left alone, because they call other losses.
    """
    module = framework.module
    owner = next(kind for kind in module.Model.__mro__ if "compute_loss" in vars(kind))
    hook(owner, "compute_loss", _in_compiled_loss)
    base = module.losses.Loss
    hook(base, "__call__", _reduced)

    def hook_foreign(kind: type) -> None:
        if not is_of_keras(kind):
            hook(kind, "__call__", _reduced_by_a_call_of_its_own)

    for kind in subclasses(base):
        hook_foreign(kind)
    when_subclassed(base, hook_foreign)


def hook_compiled_loss(model: Any, framework: Framework) -> None:
    """Treat tf_keras' `model.compiled_loss` as a loss of `compile`, wherever a step calls it."""
    container = framework.compiled_loss(model)
    if container is not None:
        hook(type(container), "__call__", _in_compiled_loss)


def _in_compiled_loss(
    step: Step, original: Callable[..., Any], thing: Any, *arguments: Any, **options: Any
) -> Any:
    del thing
    with step.in_compiled_loss():
        return original(*arguments, **options)


@contextmanager
def whole_activities(model: Any, framework: Framework) -> Iterator[None]:
    """Scale activity regularization to all rows, if the framework adds it up over the rows of a batch."""
    layers = [each for each in layers_of(model) if getattr(each, "activity_regularizer", None) is not None]
    if not layers or not framework.adds_up_activities():
        yield
        return
    before = [layer.activity_regularizer for layer in layers]

    def whole(regularizer: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def regularize(activity: Any) -> Any:
            step = current_step()
            loss = regularizer(activity)
            return loss if step is None else loss * tf.cast(step.share(), loss.dtype)

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
    sample_weight: Any = None,
) -> Any:
    if not step.is_in_compiled_loss and not any(loss is each for each in tf.nest.flatten(step.model.loss)):
        return original(y_true, y_pred, sample_weight)
    is_of_framework = is_of_keras(getattr(loss, "fn", loss))
    if is_of_framework and type(loss).__name__ in _COMPARE_ROWS:
        return _of_everything(step, original, y_true, y_pred, sample_weight)
    with _watched(loss) as values, step.alone():
        plain = original(y_true, y_pred, sample_weight)
    if len(values) != 1 or not isinstance(values[0], tf.Tensor):
        return plain
    (of_rows,) = values
    if of_rows.shape.rank == 0 and is_of_framework:
        return _of_everything(step, original, y_true, y_pred, sample_weight)
    if of_rows.shape.rank == 0:
        return plain
    if loss.reduction in (None, "none"):
        # Keras' own step uses the gradient of the sum of such a loss.
        return _with_gradient_of_all(step, plain) if is_of_keras(type(step.model).train_step) else plain
    has_mask = any(
        getattr(each, KERAS_MASK, None) is not None for each in (of_rows, *tf.nest.flatten(y_pred))
    )
    has_sizes = of_rows.shape.rank is None or None not in of_rows.shape[1:]
    if loss.reduction in _MEANS and has_sizes and not has_mask:
        return plain
    numerator, denominator = _parts(step, original, loss, of_rows, (y_true, y_pred, sample_weight))
    if denominator is not None:
        (total,) = step.totals([step.or_zero(tf.stop_gradient(denominator))])
        numerator = tf.math.divide_no_nan(numerator, total)
    return numerator * tf.cast(step.share(), numerator.dtype)


def _reduced_by_a_call_of_its_own(
    step: Step, original: Callable[..., Any], loss: Any, *arguments: Any, **options: Any
) -> Any:
    if len(arguments) < 2 or not hasattr(loss, "reduction"):
        return original(*arguments, **options)
    takes_weights = len(arguments) > 2 or "sample_weight" in options

    def call(y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        return original(y_true, y_pred, sample_weight) if takes_weights else original(y_true, y_pred)

    return _reduced(step, call, loss, *arguments, **options)


def _parts(
    step: Step, original: Callable[..., Any], loss: Any, of_rows: Any, arguments: tuple[Any, Any, Any]
) -> tuple[Any, Any | None]:
    """Return a loss's numerator and denominator; the denominator is None if the loss does not divide."""
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
    step: Step, original: Callable[..., Any], y_true: Any, y_pred: Any, sample_weight: Any
) -> Any:
    """Compute a loss from the rows of all workers."""
    y_true, y_pred, sample_weight = step.gather_all((y_true, y_pred, sample_weight))
    with step.alone():
        return original(y_true, y_pred, sample_weight)


@contextmanager
def _watched(loss: Any) -> Iterator[list[Any]]:
    """Record the values that a loss's `call` returns."""
    values: list[Any] = []
    inner = tf_private.converted(loss.call)

    def call(*arguments: Any, **options: Any) -> Any:
        values.append(inner(*arguments, **options))
        return values[-1]

    with _with_call(loss, call):
        yield values


@contextmanager
def _giving(loss: Any, values: Any, reduction: str) -> Iterator[None]:
    """Make a loss's `call` return the given values, with the given reduction."""
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


def _with_gradient_of_all(step: Step, losses: Any) -> Any:
    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def link(own: Any) -> Any:
        return tf.identity(own), lambda upstream: upstream * tf.cast(step.share(), upstream.dtype)

    return link(losses)
