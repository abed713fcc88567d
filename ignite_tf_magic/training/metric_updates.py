"""Metrics' updates of a step, made so that the sum over the workers is what one process would have counted.

Most metrics count rows: those of all workers add up. What does not is seen here: a mean of a number that belongs to the
whole batch, as a loss that a `train_step` computes; a function that reduces its batch by itself; metrics of the
script's own, of which nobody knows what they do with a batch. The last two see the rows of all workers, and of the
script's own metrics the first worker's count is the one that stays.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

import tensorflow as tf

from ignite_tf_magic.training.frameworks import Framework
from ignite_tf_magic.training.hooking import hook, when_subclassed
from ignite_tf_magic.training.reductions import Part, number_of_all, parts_of
from ignite_tf_magic.training.step import Step

# Metrics of Keras whose variables are no sums over rows.
_NOT_SUMS = ("PearsonCorrelation", "ConcordanceCorrelation")


class _OneNumber(Exception):
    """A metric's function has given one number for a batch."""


class _Function(Enum):
    """Whose rows the function of a metric has, while it is called."""

    OF_OWN_ROWS = 1
    OF_ALL_ROWS = 2


_functions: dict[int, _Function] = {}


def hook_metrics(framework: Framework) -> None:
    """Let all metrics of a framework count what is to be counted, in a step."""
    metrics = framework.module.metrics
    counting = next(kind for kind in metrics.Mean.__mro__ if "update_state" in vars(kind))
    hook(counting, "update_state", _mean_of_all)
    hook(metrics.Sum, "update_state", _sum_of_all)  # which tf_keras has the same method for
    hook(metrics.MeanMetricWrapper, "update_state", _function_of_all)
    for name in _NOT_SUMS:
        if hasattr(metrics, name):
            hook(getattr(metrics, name), "update_state", _of_everything)
    own = metrics.Metric.__module__.partition(".")[0]

    def subclassed(kind: type) -> None:
        if kind.__module__.partition(".")[0] != own:
            hook(kind, "update_state", _of_everything)

    when_subclassed(metrics.Metric, subclassed)


def _mean_of_all(
    step: Step, original: Callable[..., Any], metric: Any, values: Any, sample_weight: Any = None
) -> Any:
    """Let a number of a whole batch, as Keras' loss is one, weigh by the rows behind it."""
    reduction = getattr(metric, "reduction", None)  # tf_keras has one method for means and sums
    if getattr(reduction, "value", reduction) == "sum":
        return _sum_of_all(step, original, metric, values, sample_weight)
    if getattr(reduction, "value", "weighted_mean") != "weighted_mean" or _is_composite(values):
        return original(values, sample_weight)
    function = _functions.get(id(metric))
    is_number = _is_of_no_rows(values)
    if is_number and function is _Function.OF_OWN_ROWS:
        raise _OneNumber
    if is_number and function is _Function.OF_ALL_ROWS:
        whole = 1.0 if sample_weight is None else tf.cast(sample_weight, tf.float32)
        return original(values, whole * step.weight())
    if is_number and sample_weight is None:
        return original(number_of_all(tf.convert_to_tensor(values), step, _told_of(metric)), step.weight())
    if (
        is_number
        and not parts_of(sample_weight, step) & {Part.COUNT, Part.SUM}
        and not tf.executing_eagerly()
    ):
        return original(values, tf.cast(sample_weight, tf.float32) * step.weight())
    if not is_number and reduction is not None and _is_number_of_rows(sample_weight):
        return original(values, tf.cast(sample_weight, tf.float32) * step.share())
    return original(values, sample_weight)


def _sum_of_all(
    step: Step, original: Callable[..., Any], metric: Any, values: Any, sample_weight: Any = None
) -> Any:
    """Let a number of a whole batch count once, not once for each worker; what is added up over rows adds up."""
    weights = 1.0 if sample_weight is None else sample_weight
    if _is_composite(values) or not _is_of_no_rows(values) or not _is_of_no_rows(weights):
        return original(values, sample_weight)
    number = tf.cast(values, tf.float32) * tf.cast(weights, tf.float32)
    return original(number_of_all(number, step, _told_of(metric)) * step.weight())


def _is_of_no_rows(values: Any) -> bool:
    """Return whether a tensor has no rows: in a graph those of a batch are of unknown number."""
    shape = tf.convert_to_tensor(values).shape
    return shape.rank == 0 or (not tf.executing_eagerly() and shape.is_fully_defined())


def _told_of(metric: Any) -> str:
    return f"what the metric {metric.name} is given"


def _is_composite(values: Any) -> bool:
    return isinstance(values, (tf.RaggedTensor, tf.SparseTensor))


def _is_number_of_rows(weight: Any) -> bool:
    """Return whether a weight is a size, as tf_keras gives it to each row of a batch: then it stands for all rows."""
    return isinstance(weight, tf.Tensor) and weight.shape.rank == 0 and weight.dtype.is_integer


def _function_of_all(
    step: Step, original: Callable[..., Any], metric: Any, *arguments: Any, **options: Any
) -> Any:
    """Let a function that gives one number for a batch have the rows of all workers."""
    try:
        _functions[id(metric)] = _Function.OF_OWN_ROWS
        return original(*arguments, **options)
    except _OneNumber:
        arguments, options = step.gather_all((arguments, options))
        _functions[id(metric)] = _Function.OF_ALL_ROWS
        return original(*arguments, **options)
    finally:
        del _functions[id(metric)]


def _of_everything(
    step: Step, original: Callable[..., Any], metric: Any, *arguments: Any, **options: Any
) -> Any:
    """Let a metric count the rows of all workers, on each of them."""
    step.gathered_metrics[id(metric)] = metric
    arguments, options = step.gather_all((arguments, options))
    with step.alone():
        return original(*arguments, **options)
