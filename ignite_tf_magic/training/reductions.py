"""Reductions over a batch's rows in a step of the script's own, read from its graph.

Each worker has a part of a batch. The mean of the workers' numbers, weighted by their rows, is that of one process
where a number is a mean over rows, and where it has nothing to do with them. A sum over rows is added up. Of anything
else the workers' own numbers tell nothing. Eager steps leave no graph: nothing is found in them.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import Any, TypeVar, cast

import numpy as np
import tensorflow as tf

from ignite_tf_magic.training.frameworks import layers_of
from ignite_tf_magic.training.step import Step

Function = TypeVar("Function", bound=Callable[..., Any])
_told: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()


def _as_it_is(function: Function) -> Function:
    """Keep AutoGraph from converting a function and all that it calls: it is no part of the graph that it reads."""
    return cast(Function, tf.autograph.experimental.do_not_convert(function))


class Part(Enum):
    """What a term of a number has to do with the rows of a batch."""

    FREE = "not of rows"
    MEAN = "a mean over the rows of a batch"
    SUM = "a sum over the rows of a batch"
    COUNT = "the number of rows"
    SHARE = "one by the number of rows"
    QUOTIENT = "a quotient of sums over the rows of a batch, as a mean of what a mask leaves"
    MIXTURE = "something else than a mean or a sum over the rows of a batch"


Parts = frozenset[Part]
_NOTHING: Parts = frozenset()
_IS_FREE: Parts = frozenset({Part.FREE})
_IS_OTHER: Parts = frozenset({Part.QUOTIENT, Part.MIXTURE})

_OF_ROWS = {"Sum": Part.SUM, "L2Loss": Part.SUM, "Size": Part.COUNT, "Mean": Part.MEAN}
# Of which nobody can tell what they do: functions, branches and loops.
_CLOSED = {
    *("PartitionedCall", "StatefulPartitionedCall", "If", "StatelessIf", "While", "StatelessWhile"),
    *("PyFunc", "EagerPyFunc", "PyFuncStateless", "CollectiveReduceV2", "CollectiveGatherV2"),
}
# What comes of a sum of terms is the sum of what comes of each.
_LINEAR = {
    *("Add", "AddV2", "AddN", "Sub", "Neg", "BiasAdd", "Sum", "Mean", "Cumsum"),
    *("Identity", "IdentityN", "StopGradient", "PreventGradient", "CheckNumerics", "Cast", "Snapshot"),
    *("Reshape", "Squeeze", "ExpandDims", "Transpose", "StridedSlice", "Slice", "Pack", "Unpack"),
    *("ConcatV2", "Concat", "Split", "SplitV", "GatherV2", "Tile", "BroadcastTo", "Fill", "Pad", "PadV2"),
}
_ASSIGNMENTS = {"AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"}
_DIVISIONS = {"RealDiv", "DivNoNan", "Div"}


@_as_it_is
def parts_of(tensor: Any, step: Step) -> Parts:
    """Return what the terms of a number, or of a tensor of known shape, have to do with the rows of a batch.

    Nothing where the script itself has taken the rows of all workers, and in eager steps.
    """
    if tf.executing_eagerly() or step.has_all_rows or not isinstance(tensor, tf.Tensor):
        return _NOTHING
    if not tensor.shape.is_fully_defined():
        return frozenset({Part.MIXTURE})
    found: dict[int, Parts] = {}
    waiting = [tensor]
    while waiting:
        one = waiting[-1]
        own = _known(one, step)
        terms = [] if own is not None else _terms(one)
        missing = [each for each in terms if id(each) not in found]
        if missing:
            waiting += missing
            continue
        waiting.pop()
        found[id(one)] = (
            own if own is not None else _combined(one.op.type, [found[id(each)] for each in terms])
        )
    return found[id(tensor)]


@_as_it_is
def number_of_all(value: Any, step: Step, what: str) -> Any:
    """Return a number of this worker's rows such that the mean by rows over the workers is that of all rows.

    Args:
        value: A number, or a tensor of known shape.
        step: The step.
        what: What the number is, for people, where a warning has to say that it cannot be had.
    """
    parts = parts_of(value, step)
    if parts in ({Part.SUM}, {Part.COUNT}):
        return tf.convert_to_tensor(value) * tf.cast(step.share(), value.dtype)
    tell(step, what, parts)
    return value


@_as_it_is
def tell(step: Step, what: str, parts: Parts) -> None:
    """Warn of a number that is not that of one process, if it is none."""
    strange = parts & _IS_OTHER or (parts & {Part.SUM, Part.COUNT, Part.SHARE})
    if strange:
        kinds = " and ".join(sorted(each.value for each in strange))
        warn_once(
            step,
            f"{what} is {kinds}, and each worker has a part of them: several workers come to the mean of what each "
            "makes of its own, which is another number. Make it of the rows of all workers: "
            "ignite_tf_magic.all_rows(...) gives them",
        )


@_as_it_is
def tell_of_rounding(step: Step, loss: Any) -> None:
    """Warn of a loss of so few bits that the way of adding it up shows."""
    if step.has_all_rows or not isinstance(loss, tf.Tensor) or loss.dtype not in (tf.float16, tf.bfloat16):
        return
    warn_once(
        step,
        f"the loss is computed in {loss.dtype.name}: each worker rounds its own, so what is shown, and gradients, "
        "differ from those of one process in the last digits of that. Let the last layer have dtype='float32', as "
        "Keras advises",
    )


@_as_it_is
def tell_of_changes(step: Step) -> None:
    """Warn of variables that a step sets, but not to a mean over rows, which is what workers agree on.

    Of BatchNormalization others tell.
    """
    if tf.executing_eagerly() or step.has_all_rows:
        return
    normalized = {
        id(variable)
        for layer in layers_of(step.model)
        if hasattr(layer, "moving_mean")
        for variable in layer.variables
    }
    for variable, before in step.statistics:
        if id(variable) not in normalized:
            name = getattr(variable, "path", variable.name)
            for value in _assigned(before):
                tell(step, f"what a step sets the variable {name} to", parts_of(value, step))


def _assigned(read: Any) -> Iterator[Any]:
    """Iterate over what a variable is set to in a graph, or changed by, given a value of it that was read there."""
    while read.op.type != "ReadVariableOp":
        if not read.op.inputs:
            return
        read = read.op.inputs[0]
    for operation in read.op.inputs[0].consumers():
        if operation.type in _ASSIGNMENTS:
            yield operation.inputs[1]
        elif operation.type.startswith("ResourceScatter"):
            yield operation.inputs[2]


def warn_once(step: Step, words: str) -> None:
    """Warn on the chief, with the same words only once for a model."""
    told = _told.setdefault(step.model, set())
    if words not in told and step.group.place.is_chief:
        warnings.warn(words, stacklevel=5)
    told.add(words)


def behind(targets: Sequence[Any], seen: set[int]) -> Iterator[Any]:
    """Iterate over tensors and what they have been made of, in their graph; not beyond those in `seen`."""
    waiting = list(targets)
    while waiting:
        tensor = waiting.pop()
        if id(tensor) not in seen:
            seen.add(id(tensor))
            yield tensor
            waiting += tensor.op.inputs


def are_defined(tensors: Sequence[Any]) -> bool:
    """Return whether the shapes of all tensors are known, so that none of their dimensions is rows."""
    return all(each.shape.is_fully_defined() for each in tensors)


def _known(tensor: Any, step: Step) -> Parts | None:
    """Return the parts of what is made of rows at once, or of nothing; None where they follow from those of others."""
    operation = tensor.op
    if id(tensor) in step.reduced:
        return frozenset({Part.MEAN})
    if (dimension := _dimension(tensor)) is not None:
        return frozenset({dimension})
    terms = _terms(tensor)
    if not are_defined(terms):
        is_closed = operation.type in _CLOSED
        return _IS_FREE if is_closed else frozenset({_OF_ROWS.get(operation.type, Part.MIXTURE)})
    if operation.type == "Const":
        return _NOTHING
    return None if terms else _IS_FREE


def _dimension(tensor: Any) -> Part | None:
    """Return what one dimension of a shape is, or the product of some; None of what is neither."""
    operation = tensor.op
    if operation.type == "Prod" and _has_rows(operation.inputs[0]):
        return Part.COUNT
    if tensor.shape.rank == 0 and operation.inputs and operation.inputs[0].op.type == "Shape":
        if operation.type == "Unpack":
            return Part.FREE if tensor.value_index else Part.COUNT
        if operation.type in ("StridedSlice", "GatherV2"):
            at = tf.get_static_value(operation.inputs[1])
            return Part.FREE if at is None or np.ravel(at)[0] else Part.COUNT
    return None


def _has_rows(shape: Any) -> bool:
    """Return whether a tensor is a shape, or its beginning: where rows are, they come first."""
    operation = shape.op
    if operation.type == "StridedSlice":
        at = tf.get_static_value(operation.inputs[1])
        return at is not None and not np.ravel(at)[0] and _has_rows(operation.inputs[0])
    return bool(operation.type == "Shape")


def _terms(tensor: Any) -> list[Any]:
    """Return what a tensor is made of, but for what only says how, as an axis does."""
    operation = tensor.op
    has_numbers = tensor.dtype.is_floating and operation.type != "Cast"
    return [
        each
        for each in operation.inputs
        if each.dtype.is_floating or (not has_numbers and (each.dtype.is_integer or each.dtype == tf.bool))
    ]


def _combined(kind: str, parts: Sequence[Parts]) -> Parts:
    if kind in _LINEAR:
        return _NOTHING.union(*parts)
    if all(each <= _IS_FREE for each in parts):
        return _IS_FREE
    if kind == "Mul":
        return _product(*parts)
    if kind in _DIVISIONS:
        return _quotient(*parts)
    return frozenset({Part.MIXTURE}) if kind not in _CLOSED else _IS_FREE


def _product(one: Parts, other: Parts) -> Parts:
    for factor, rest in ((one, other), (other, one)):
        if factor <= _IS_FREE:
            return rest
        if factor == {Part.COUNT} and rest == {Part.MEAN}:
            return frozenset({Part.SUM})
        if factor == {Part.SHARE} and rest <= {Part.SUM, Part.COUNT}:
            return frozenset({Part.MEAN})
    return frozenset({Part.MIXTURE})


def _quotient(numerator: Parts, denominator: Parts) -> Parts:
    if denominator <= _IS_FREE:
        return numerator
    if denominator == {Part.COUNT}:
        return (
            frozenset({Part.SHARE}) if numerator <= _IS_FREE else _product(frozenset({Part.SHARE}), numerator)
        )
    return frozenset({Part.QUOTIENT})
