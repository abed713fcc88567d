"""What metrics count in a step, so that the sum over the workers is what one process would have counted.

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
    if getattr(reduction, "value", "weighted_mean") != "weighted_mean" or _is_composite(values):
        return original(values, sample_weight)
    rank = tf.convert_to_tensor(values).shape.rank
    function = _functions.get(id(metric))
    if rank == 0 and function is _Function.OF_OWN_ROWS:
        raise _OneNumber
    if rank == 0 and (sample_weight is None or function is _Function.OF_ALL_ROWS):
        whole = 1.0 if sample_weight is None else tf.cast(sample_weight, tf.float32)
        return original(values, whole * step.weight())
    if rank and reduction is not None and _is_number_of_rows(sample_weight):
        return original(values, tf.cast(sample_weight, tf.float32) * step.share())
    return original(values, sample_weight)


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
