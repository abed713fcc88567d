"""Changes metrics' updates in a step so that the workers' sum equals the count of a single process.

Most metrics count rows, and the counts of all workers add up. This module handles the others, by kind:

- A `Mean` of one number for the whole batch, such as a loss that a `train_step` computes, is averaged over workers and
  weighted by rows. If the script passes a weight with the number, that weight counts.
- A function that returns one number for a batch sees the rows of all workers.
- The script's own metrics see the rows of all workers, and only the first worker keeps its count.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

import tensorflow as tf

from ignite_tf_magic.training.frameworks import Framework, is_of_keras
from ignite_tf_magic.training.hooking import hook, hook_family, when_subclassed
from ignite_tf_magic.training.step import Step

# Keras' metrics whose variables are not sums over rows.
_NOT_SUMS = ("PearsonCorrelation", "ConcordanceCorrelation")


class _OneNumber(Exception):
    """A metric's function has returned one number for a batch."""


class _Function(Enum):
    """The rows that a metric's function gets during its call."""

    OF_OWN_ROWS = 1
    OF_ALL_ROWS = 2


_functions: dict[int, _Function] = {}


def hook_metrics(framework: Framework) -> None:
    """Make all metrics of a framework count correctly in a step of several workers."""
    metrics = framework.module.metrics
    counting = next(kind for kind in metrics.Mean.__mro__ if "update_state" in vars(kind))
    hook(counting, "update_state", _mean_of_all)
    hook(metrics.MeanMetricWrapper, "update_state", _function_of_all)
    for name in _NOT_SUMS:
        if hasattr(metrics, name):
            hook(getattr(metrics, name), "update_state", _of_everything)

    def subclassed(kind: type) -> None:
        if not is_of_keras(kind):
            hook(kind, "update_state", _of_everything)

    when_subclassed(metrics.Metric, subclassed)
    hook_family(metrics.Metric, "result", _noted)


def _mean_of_all(
    step: Step, original: Callable[..., Any], metric: Any, values: Any, sample_weight: Any = None
) -> Any:
    """Weight a number for a whole batch, such as Keras' loss, by this worker's fraction of the rows."""
    reduction = getattr(metric, "reduction", None)  # tf_keras has one method for means and sums
    if getattr(reduction, "value", "weighted_mean") != "weighted_mean" or _is_composite(values):
        return original(values, sample_weight)
    is_number, function = _is_of_no_rows(values, step), _functions.get(id(metric))
    if not is_number:
        if reduction is not None and _is_number_of_rows(sample_weight):
            sample_weight = tf.cast(sample_weight, tf.float32) * step.share()
        return original(values, sample_weight)
    if function is _Function.OF_OWN_ROWS:
        raise _OneNumber
    if function is _Function.OF_ALL_ROWS:
        whole = 1.0 if sample_weight is None else tf.cast(sample_weight, tf.float32)
        return original(values, whole * step.weight())
    return original(values, step.weight() if sample_weight is None else sample_weight)


def _noted(step: Step, original: Callable[..., Any], metric: Any, *arguments: Any, **options: Any) -> Any:
    """Record the metric of a result. The logs of a custom step then show its result over all rows."""
    found = original(*arguments, **options)
    step.results[id(found)] = found, metric
    step.state.shown_metrics[id(metric)] = metric
    return found


def _is_of_no_rows(values: Any, step: Step) -> bool:
    """Return whether a tensor has no rows: its first dimension is static and is not the batch's number of rows."""
    shape = tf.convert_to_tensor(values).shape
    if shape.rank == 0 or tf.executing_eagerly():
        return bool(shape.rank == 0)
    return shape.rank is not None and shape[0] is not None and shape[0] != step.num_static_rows


def _is_composite(values: Any) -> bool:
    return isinstance(values, (tf.RaggedTensor, tf.SparseTensor))


def _is_number_of_rows(weight: Any) -> bool:
    """Return whether a weight is the batch's number of rows, which tf_keras passes as the weight of each row.

    Such a weight must become the number of rows of all workers.
    """
    return isinstance(weight, tf.Tensor) and weight.shape.rank == 0 and weight.dtype.is_integer


def _function_of_all(
    step: Step, original: Callable[..., Any], metric: Any, *arguments: Any, **options: Any
) -> Any:
    """Call a function that returns one number for a batch with the rows of all workers."""
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
    """Make a metric count the rows of all workers, on each worker."""
    step.state.gathered_metrics[id(metric)] = metric
    arguments, options = step.gather_all((arguments, options))
    with step.alone():
        return original(*arguments, **options)
