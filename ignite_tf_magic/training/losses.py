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
from ignite_tf_magic.training.hooking import hook, leave_alone, subclasses, when_subclassed
from ignite_tf_magic.training.reductions import behind, tell_of_rounding, warn_once
from ignite_tf_magic.training.step import KERAS_LOGITS, KERAS_MASK, Step, current_step
from ignite_tf_magic.training.trials import Trial, tried

_MEANS = ("sum_over_batch_size", "mean", "auto")
_BIG_BYTES_A_ROW = 1024 * 1024
_ERROR_SHOWN = 200
_IS_ITS_OWN = Trial(compares=False, goes_by_places=False)
_trials: weakref.WeakKeyDictionary[Any, Trial] = weakref.WeakKeyDictionary()


def hook_losses(framework: Framework) -> None:
    """Let all losses of a framework come to what they come to over all rows, in a step.

    Also those of a script's classes that have a `__call__` of their own. A framework's classes have one where they call
    other losses.
    """
    base, own = framework.module.losses.Loss, f"{framework.module.__name__}."
    hook(base, "__call__", _reduced)

    def hook_foreign(kind: type) -> None:
        if not kind.__module__.startswith(own):
            hook(kind, "__call__", _reduced_by_a_call_of_its_own)

    for kind in subclasses(base):
        hook_foreign(kind)
    when_subclassed(base, hook_foreign)


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


def _reduced_by_a_call_of_its_own(
    step: Step, original: Callable[..., Any], loss: Any, *arguments: Any, **options: Any
) -> Any:
    if len(arguments) < 2 or not hasattr(loss, "reduction"):
        return original(*arguments, **options)
    takes_weights = len(arguments) > 2 or "sample_weight" in options

    def call(y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        return original(y_true, y_pred, sample_weight) if takes_weights else original(y_true, y_pred)

    return _reduced(step, call, loss, *arguments, **options)


def _over_all_rows(
    step: Step,
    original: Callable[..., Any],
    loss: Any,
    y_true: Any,
    y_pred: Any,
    sample_weight: Any = None,
) -> Any:
    reduction = loss.reduction
    trial = _IS_ITS_OWN if reduction in (None, "none") else _trial(step, original, loss, y_true, y_pred)
    if trial.compares:
        _tell_of_places(step, loss, trial)
        return _of_everything(step, original, loss, y_true, y_pred, sample_weight)
    with _watched(loss) as values, step.alone():
        plain = original(y_true, y_pred, sample_weight)
    if trial is _IS_ITS_OWN or len(values) != 1 or not isinstance(values[0], tf.Tensor):
        return plain  # whoever called reduces
    (of_rows,) = values
    if trial.compares is None:
        if of_rows.shape.rank == 0 or _is_made_of(of_rows, (y_true, y_pred)):
            _tell_of_places(step, loss, trial)
            return _of_everything(step, original, loss, y_true, y_pred, sample_weight)
        _tell_of_no_trial(step, loss, trial)
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


def _trial(step: Step, original: Callable[..., Any], loss: Any, y_true: Any, y_pred: Any) -> Trial:
    """Return what has been found out about a loss, once for each."""
    if loss not in _trials:
        before = loss.reduction
        loss.reduction = "none"
        try:
            with step.alone():
                _trials[loss] = tf.autograph.experimental.do_not_convert(tried)(original, y_true, y_pred)
        finally:
            loss.reduction = before
    return _trials[loss]


def _is_made_of(of_rows: Any, arguments: Any) -> bool:
    """Return whether losses of rows are made of a loss's arguments and of variables, of nothing else with rows."""
    if tf.executing_eagerly():
        return False
    given = tf.nest.flatten(arguments)
    marks = [getattr(each, KERAS_LOGITS, None) for each in given]
    seen = {id(each) for each in [*given, *marks]}
    return not any(
        each.op.type == "Placeholder" and each.dtype != tf.resource for each in behind([of_rows], seen)
    )


def _tell_of_places(step: Step, loss: Any, trial: Trial) -> None:
    """Warn where the order of rows matters, and is not that of one process."""
    if (trial.goes_by_places or trial.compares is None) and not step.keeps_order():
        unknown = "" if trial.goes_by_places else f" may go by them: {_untried(trial)}. It"
        warn_once(
            step,
            f"the loss {loss.name}{unknown} goes by the places of rows in a batch, as one that takes its halves for "
            "two views of the same rows. It is computed from the rows of all workers, one worker's after another's, "
            "which is another order than that of one process. Let what belongs together be parts of one row, and "
            "take them apart in the model or the loss",
        )


def _tell_of_no_trial(step: Step, loss: Any, trial: Trial) -> None:
    warn_once(
        step,
        f"of the loss {loss.name} nobody knows whether it compares the rows of a batch with each other: "
        f"{_untried(trial)}. It is taken for one that does not. If it does, the training depends on the number of "
        "workers: let it have all rows by ignite_tf_magic.all_rows(...), or be a function of its arguments alone",
    )


def _untried(trial: Trial) -> str:
    return f"tried out with made-up rows it raised {trial.error.partition(chr(10))[0][:_ERROR_SHOWN]}"


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
