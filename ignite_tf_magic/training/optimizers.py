"""Finds the optimizers of a training, and makes each of them apply the gradients of all workers, once."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from ignite_tf_magic.training.frameworks import Framework
from ignite_tf_magic.training.hooking import hook_family, leave_alone
from ignite_tf_magic.training.step import Step

# The methods by which an optimizer of Keras 3 adds rows to a variable. Optimizers of tf_keras pass each row only once.
_ADDING = {"assign_add", "assign_sub"}
# The optimizers that each model's steps have used, for example from closures, in the order of their first use.
_used: weakref.WeakKeyDictionary[Any, dict[int, Any]] = weakref.WeakKeyDictionary()


def hook_optimizers(framework: Framework, outside: Callable[..., Any]) -> None:
    """Make all optimizers of a framework apply the gradients of all workers in a step.

    Only the outermost call exchanges gradients, because one optimizer may pass them on to another, as a
    `LossScaleOptimizer` does.

    Args:
        framework: The framework.
        outside: Called instead of an optimizer's method outside of steps; see `hook`.
    """

    def apply(
        step: Step, original: Callable[..., Any], optimizer: Any, *arguments: Any, **options: Any
    ) -> Any:
        _used.setdefault(step.model, {})[id(optimizer)] = optimizer
        gradients, put = framework.gradients_of(arguments, options)
        arguments, options = put(step.means(gradients, framework.variables_of(optimizer, *put(gradients))))

        def update() -> None:
            original(*arguments, **options)

        # If no worker has rows, the step changes nothing, not even by an optimizer's momentum.
        with step.alone():
            if getattr(optimizer, "built", True):
                tf.cond(step.total_rows() > 0, update, lambda: None)
            else:  # the update creates variables, which it cannot do in a branch
                update()

    for base in framework.optimizer_classes:
        hook_family(base, framework.apply_name, apply, outside)
        for kind in base.__mro__:
            for name in _ADDING & vars(kind).keys():
                setattr(kind, name, _adding_alike(getattr(kind, name)))


def _adding_alike(original: Callable[..., Any]) -> Callable[..., Any]:
    """Make an optimizer's method add repeated rows to a variable in a fixed order.

    TensorFlow's scatter operations add 1,024 rows or more in threads, in a random order (TensorFlow 2.21). The workers'
    weights would then differ in their last bits.
    """

    @functools.wraps(original)
    def method(optimizer: Any, variable: Any, value: Any) -> Any:
        return original(
            optimizer, variable, _each_once(value) if isinstance(value, tf.IndexedSlices) else value
        )

    leave_alone(method)
    return method


def _each_once(rows: Any) -> Any:
    """Return sparse rows with each index once: rows of the same index are added up in their order."""
    indices, places = tf.unique(rows.indices)
    order = tf.argsort(places, stable=True)
    sums = tf.math.segment_sum(tf.gather(rows.values, order), tf.gather(places, order))
    return tf.IndexedSlices(sums, indices, rows.dense_shape)


def optimizers_of(model: Any, framework: Framework) -> list[Any]:
    """Return all optimizers of a model, each once: its own, then others that its steps have used."""
    found = {id(each): each for each in _held(model, framework, set())}
    return list({**found, **_used.get(model, {})}.values())


def _held(thing: Any, framework: Framework, seen: set[int]) -> Iterator[Any]:
    """Yield the optimizers in an object: in attributes of models and in containers, at any depth."""
    if id(thing) in seen:
        return
    seen.add(id(thing))
    if framework.is_optimizer(thing):
        yield thing
    elif isinstance(thing, framework.module.Model):
        for each in [getattr(thing, "optimizer", None), *vars(thing).values()]:
            yield from _held(each, framework, seen)
    elif isinstance(thing, dict):
        for each in thing.values():
            yield from _held(each, framework, seen)
    elif isinstance(thing, (list, tuple, set)):
        for each in thing:
            yield from _held(each, framework, seen)
