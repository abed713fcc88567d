"""Gradients of what is added up over the rows of a batch, in a step.

A tape adds up the gradients of a loss for each row, and Keras 3 adds up what a layer adds as one. A worker's sum is of
its own rows: it is multiplied by the share, as its gradients count by its rows later. What a script itself reduces to
one number cannot be told apart by its value, a sum from a mean: the graph is looked through, and a warning says so.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from ignite_tf_magic.training.frameworks import Framework, layers_of
from ignite_tf_magic.training.hooking import hook
from ignite_tf_magic.training.step import Step

_DIVISIONS = ("RealDiv", "DivNoNan", "Div")
_SUMS = ("Sum", "L2Loss")
_SIZES = ("Shape", "Size")
_PRODUCTS = ("MatMul", "Einsum")

_PARTS = "and each worker has a part of them: several workers come to"
_A_SUM = (
    f"the loss is a sum over the rows of a batch, {_PARTS} the mean of their sums, not to the sum, so gradients "
    "and loss depend on the number of workers. Take the mean over rows, or give the losses of rows as they are "
    "to the tape or to add_loss: they are added up over all workers"
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
_told: set[str] = set()


def hook_tapes(framework: Framework) -> None:
    """Let what is added up over the rows of a batch weigh as over those of all workers, in a step."""
    hook(tf.GradientTape, "gradient", _gradient)
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
        if any(_is_of_rows(step, each) for each in targets):
            output_gradients = [_upstream(step, each) for each in targets]
        for each in targets:
            _tell_of_rows(step, each)
    return original(target, sources, output_gradients, *arguments, **options)


def _aggregate(step: Step, original: Callable[..., Any], model: Any, loss: Any) -> Any:
    """Let the losses of rows that a layer adds weigh as a sum over all rows."""
    del model
    if not _is_of_rows(step, loss):
        return original(loss)
    total = original(loss)
    return step.note_reduced(total * tf.cast(step.share(), total.dtype))


def _upstream(step: Step, target: Any) -> Any:
    ones = tf.ones_like(target)
    return ones * tf.cast(step.share(), target.dtype) if _is_of_rows(step, target) else ones


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
    found = [*_sums(target, step, set()), *_comparisons(target, step), *_mixtures(step)]
    for words in found:
        if words not in _told and step.group.place.is_chief:
            warnings.warn(words, stacklevel=4)
        _told.add(words)


def _sums(tensor: Any, step: Step, seen: set[int]) -> Iterator[str]:
    """Find sums over rows that a tensor of known shape has been made of; not those that losses of Keras have made."""
    if id(tensor) in seen or id(tensor) in step.reduced or not tensor.shape.is_fully_defined():
        return
    seen.add(id(tensor))
    operation = tensor.op
    if operation.type in _SUMS and not _are_defined(operation.inputs):
        yield _A_SUM
    elif operation.type in _DIVISIONS:
        numerator, denominator = operation.inputs
        if any(_sums(numerator, step, seen)) and not _is_size(denominator, set()):
            yield _A_QUOTIENT if any(_sums(denominator, step, set())) else _A_SUM
    elif not (operation.type == "Mul" and any(_is_size(each, set()) for each in operation.inputs)):
        for each in operation.inputs:
            yield from _sums(each, step, seen)


def _is_size(tensor: Any, seen: set[int]) -> bool:
    """Return whether a number comes from how many rows there are."""
    if id(tensor) in seen:
        return False
    seen.add(id(tensor))
    if tensor.op.type in _SIZES:
        return True
    return tensor.shape.rank in (0, 1) and any(_is_size(each, seen) for each in tensor.op.inputs)


def _comparisons(target: Any, step: Step) -> Iterator[str]:
    """Find products of rows by rows behind a loss; not behind losses of Keras, which have the rows of all workers."""
    for tensor in _behind([target], set(step.reduced)):
        if tensor.op.type in _PRODUCTS and tensor.shape.rank == 2 and tuple(tensor.shape) == (None, None):
            yield _A_COMPARISON
            return


def _mixtures(step: Step) -> Iterator[str]:
    """Find numbers that a model makes of all rows; of BatchNormalization others tell."""
    if any(hasattr(layer, "moving_mean") for layer in layers_of(step.model)):
        return
    for tensor in _behind(step.outputs, set()):
        is_whole = tensor.shape.is_fully_defined() and tensor.dtype.is_floating
        if is_whole and not _are_defined([each for each in tensor.op.inputs if each.dtype.is_floating]):
            yield _A_MIXTURE.format(tensor.op.name)
            return


def _behind(targets: Sequence[Any], seen: set[int]) -> Iterator[Any]:
    """Iterate over tensors and what they have been made of, in their graph; not beyond those in `seen`."""
    waiting = list(targets)
    while waiting:
        tensor = waiting.pop()
        if id(tensor) not in seen:
            seen.add(id(tensor))
            yield tensor
            waiting += tensor.op.inputs


def _are_defined(tensors: Sequence[Any]) -> bool:
    return all(each.shape.is_fully_defined() for each in tensors)
