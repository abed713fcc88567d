"""Metrics' updates in a step, made so that the sum over the workers is what one process would have counted.

Most metrics count rows: those of all workers add up. Others are handled here, by their kind:

- `Mean` of a number of the whole batch, as a loss that a `train_step` computes: averaged over workers by rows. Where
  the script passes a weight with the number, that counts.
- A function that returns one number for a batch sees the rows of all workers.
- Metrics of the script's own see the rows of all workers; the first worker's count is the one that stays.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

import tensorflow as tf

from ignite_tf_magic.training.frameworks import Framework, is_of_keras
from ignite_tf_magic.training.hooking import hook, hook_family, when_subclassed
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

    def subclassed(kind: type) -> None:
        if not is_of_keras(kind):
            hook(kind, "update_state", _of_everything)

    when_subclassed(metrics.Metric, subclassed)
    hook_family(metrics.Metric, "result", _noted)


def _mean_of_all(
    step: Step, original: Callable[..., Any], metric: Any, values: Any, sample_weight: Any = None
) -> Any:
    """Let a number of a whole batch, such as Keras' loss, weigh by the rows behind it."""
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
    """Note which metric a result is of: in the logs of a step of the script's own it is to be that of all rows."""
    found = original(*arguments, **options)
    step.results[id(found)] = found, metric
    step.state.shown_metrics[id(metric)] = metric
    return found


def _is_of_no_rows(values: Any, step: Step) -> bool:
    """Return whether a tensor has no rows: its first dimension is known, and is not the number of rows of the batch."""
    shape = tf.convert_to_tensor(values).shape
    if shape.rank == 0 or tf.executing_eagerly():
        return bool(shape.rank == 0)
    return shape.rank is not None and shape[0] is not None and shape[0] != step.num_static_rows


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
    step.state.gathered_metrics[id(metric)] = metric
    arguments, options = step.gather_all((arguments, options))
    with step.alone():
        return original(*arguments, **options)
