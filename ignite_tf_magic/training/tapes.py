"""Gradients of what is added up over the rows of a batch, in a step.

A tape adds up the gradients of a loss for each row, and Keras 3 adds up what a layer adds as one. A worker's sum is of
its own rows: it is multiplied by the share, as its gradients count by its rows later. Of what a script itself reduces
to one number the graph tells whether it is a sum or a mean; a warning says so where it is neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from ignite_tf_magic.training.frameworks import Framework, layers_of
from ignite_tf_magic.training.hooking import hook
from ignite_tf_magic.training.reductions import (
    Part,
    are_defined,
    behind,
    parts_of,
    tell,
    tell_of_rounding,
    warn_once,
)
from ignite_tf_magic.training.step import Step, depends_on_rows

_PRODUCTS = ("MatMul", "Einsum")

_PARTS = "and each worker has a part of them: several workers come to"
_A_SUM = (
    f"the loss is a sum over the rows of a batch, and of other terms, {_PARTS} the mean of their sums, not to the sum, "
    "so gradients and loss depend on the number of workers. Take the mean over rows, or give the losses of rows as "
    "they are to the tape or to add_loss: they are added up over all workers"
)
_A_QUOTIENT = (
    f"the loss is a quotient of sums over the rows of a batch, as a mean of what a mask leaves, {_PARTS} the "
    "mean of their quotients, which is another number where the denominators differ. Make it of the rows of all "
    "workers: a keras.losses.Loss has them, and ignite_tf_magic.all_rows(...) gives them"
)
_A_COMPARISON = (
    f"the loss compares the rows of a batch with each other, as contrastive ones do, {_PARTS} the mean of what "
    "each makes of its own, so the training depends on the number of workers. Make it of the rows of all workers: a "
    "keras.losses.Loss has them, and ignite_tf_magic.all_rows(...) gives them"
)
_A_MIXTURE = (
    "the model makes something of all rows of a batch together, by {}, and each worker has a part of them: the "
    "training depends on the number of workers. Where each row is meant to have its own, reduce the other "
    "dimensions only"
)


def hook_tapes(framework: Framework) -> None:
    """Let what is added up over the rows of a batch weigh as over those of all workers, in a step."""
    hook(tf.GradientTape, "gradient", _gradient)
    hook(framework.module.layers.Layer, "add_loss", _add_loss)
    if framework.aggregate_name:
        kind = next(each for each in framework.module.Model.__mro__ if framework.aggregate_name in vars(each))
        hook(kind, framework.aggregate_name, _aggregate)


def _gradient(
    step: Step,
    original: Callable[..., Any],
    tape: Any,
    target: Any,
    sources: Any,
    output_gradients: Any = None,
    *arguments: Any,
    **options: Any,
) -> Any:
    """Differentiate; where the sources are variables, an optimizer is to take what comes of it."""
    del tape
    targets = tf.nest.flatten(target)
    is_last = output_gradients is None and all(hasattr(each, "assign") for each in tf.nest.flatten(sources))
    if is_last and all(isinstance(each, tf.Tensor) and each.dtype.is_floating for each in targets):
        if any(_adds_up(step, each) for each in targets):
            output_gradients = [_upstream(step, each) for each in targets]
        for each in targets:
            tell_of_rounding(step, each)
            _tell_of_rows(step, each)
    found = original(target, sources, output_gradients, *arguments, **options)
    if is_last:
        # Of a mean over rows they are means over rows, wherever a script puts them.
        for gradient in tf.nest.flatten(found):
            if isinstance(gradient, tf.Tensor):
                step.note_reduced(gradient)
    return found


def _add_loss(step: Step, original: Callable[..., Any], layer: Any, *arguments: Any, **options: Any) -> Any:
    """Let a sum over rows that a layer adds weigh as one over all rows; what is not reduced comes later."""
    del layer

    def whole(loss: Any) -> Any:
        is_number = isinstance(loss, tf.Tensor) and loss.shape.rank == 0
        is_sum = is_number and parts_of(loss, step) == {Part.SUM}
        return step.note_reduced(_shared(step, loss)) if is_sum else loss

    return original(*map(whole, arguments), **{name: whole(each) for name, each in options.items()})


def _aggregate(step: Step, original: Callable[..., Any], model: Any, loss: Any) -> Any:
    """Let the losses of rows that a layer adds weigh as a sum over all rows."""
    del model
    if not _is_of_rows(step, loss):
        return original(loss)
    return step.note_reduced(_shared(step, original(loss)))


def _shared(step: Step, total: Any) -> Any:
    return total * tf.cast(step.share(), total.dtype)


def _upstream(step: Step, target: Any) -> Any:
    ones = tf.ones_like(target)
    return _shared(step, ones) if _adds_up(step, target) else ones


def _adds_up(step: Step, target: Any) -> bool:
    """Return whether a loss is losses of rows, which the tape adds up, or their sum already."""
    return _is_of_rows(step, target) or (
        target.shape.is_fully_defined() and parts_of(target, step) == {Part.SUM}
    )


def _is_of_rows(step: Step, tensor: Any) -> bool:
    """Return whether a tensor's first dimension is rows of the batch; in a graph nobody knows how many these are."""
    if tensor.shape.rank == 0:
        return False
    if tensor.shape.rank is None or tensor.shape[0] is None:
        return True
    rows = tf.get_static_value(step.rows)
    return rows is not None and tensor.shape[0] % max(int(rows), 1) == 0


# What a script's own loss does with rows


def _tell_of_rows(step: Step, target: Any) -> None:
    """Warn, once, of what a script's own loss does with the rows of a batch as a whole; only graphs tell."""
    if tf.executing_eagerly() or step.has_all_rows:
        return
    parts = parts_of(target, step) if target.shape.is_fully_defined() else frozenset()
    if parts & {Part.SUM, Part.COUNT} and parts != {Part.SUM}:
        warn_once(step, _A_SUM)
    if Part.QUOTIENT in parts:
        warn_once(step, _A_QUOTIENT)
    tell(step, "the loss", parts & {Part.MIXTURE, Part.SHARE})
    if _compares_rows(target, step):
        warn_once(step, _A_COMPARISON)
    for name in _mixing(step):
        warn_once(step, _A_MIXTURE.format(name))


def _compares_rows(target: Any, step: Step) -> bool:
    """Find what each row makes with each other one; not behind losses of Keras, which have the rows of all workers."""
    return any(_is_of_pairs(tensor) for tensor in behind([target], set(step.reduced)))


def _is_of_pairs(tensor: Any) -> bool:
    """Return whether a tensor is a product of rows by rows, or numbers for each pair of rows by broadcasting."""
    if tensor.op.type in _PRODUCTS:
        return bool(tensor.shape.rank == 2 and tuple(tensor.shape) == (None, None))
    inputs = [each for each in tensor.op.inputs if each.shape.rank is not None and each.shape.rank > 1]
    if len(inputs) != 2 or inputs[0].shape.rank != inputs[1].shape.rank:
        return False
    one, other = (tuple(each.shape) for each in inputs)
    return (
        any(_are_crossed(one, other, at) or _are_crossed(other, one, at) for at in range(1, len(one)))
        and depends_on_rows(inputs[0])
        and depends_on_rows(inputs[1])
    )


def _are_crossed(one: tuple[int | None, ...], other: tuple[int | None, ...], at: int) -> bool:
    """Return whether one has rows first where the other has one, and the other has rows where it has one."""
    return (one[0], one[at], other[0], other[at]) == (None, 1, 1, None)


def _mixing(step: Step) -> Iterator[str]:
    """Name an operation by which a model makes numbers of all rows; of BatchNormalization others tell."""
    if any(hasattr(layer, "moving_mean") for layer in layers_of(step.model)):
        return
    for tensor in behind(step.outputs, set()):
        is_whole = tensor.shape.is_fully_defined() and tensor.dtype.is_floating
        if is_whole and not are_defined([each for each in tensor.op.inputs if each.dtype.is_floating]):
            yield tensor.op.name
            return
