"""Optimizers of a training, wherever they live: each takes the gradients of all workers, once."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from ignite_tf_magic.training.frameworks import Framework
from ignite_tf_magic.training.hooking import hook_family, leave_alone
from ignite_tf_magic.training.step import Step

# By which an optimizer of Keras 3 adds rows to a variable; those of tf_keras have each row once by then.
_ADDING = {"assign_add", "assign_sub"}
# Those that a model's steps have used, beside those that it has: of closures, say. In the order of their first use.
_used: weakref.WeakKeyDictionary[Any, dict[int, Any]] = weakref.WeakKeyDictionary()


def hook_optimizers(framework: Framework, outside: Callable[..., Any]) -> None:
    """Let all optimizers of a framework take the gradients of all workers in a step.

    The outermost call counts: one optimizer may pass gradients on to another, as a loss scale's does.

    Args:
        framework: The framework.
        outside: Called in place of an optimizer's method where there is no step; see `hook`.
    """

    def apply(
        step: Step, original: Callable[..., Any], optimizer: Any, *arguments: Any, **options: Any
    ) -> Any:
        _used.setdefault(step.model, {})[id(optimizer)] = optimizer
        gradients, put = framework.gradients_of(arguments, options)
        arguments, options = put(step.means(gradients, framework.variables_of(optimizer, *put(gradients))))

        def update() -> None:
            original(*arguments, **options)

        # Where no worker has rows the step changes nothing; not even by an optimizer's momentum.
        with step.alone():
            if getattr(optimizer, "built", True):
                tf.cond(step.total_rows() > 0, update, lambda: None)
            else:  # makes its variables, which a branch cannot
                update()

    for base in framework.optimizer_classes:
        hook_family(base, framework.apply_name, apply, outside)
        for kind in base.__mro__:
            for name in _ADDING & vars(kind).keys():
                setattr(kind, name, _adding_alike(getattr(kind, name)))


def _adding_alike(original: Callable[..., Any]) -> Callable[..., Any]:
    """Let an optimizer add rows to a variable, some of them several times, in one order.

    TensorFlow's scatter operations do so in threads (1,024 rows or more, TensorFlow 2.21), in another order each time:
    weights of workers would come apart by their last bits.
    """

    @functools.wraps(original)
    def method(optimizer: Any, variable: Any, value: Any) -> Any:
        return original(
            optimizer, variable, _each_once(value) if isinstance(value, tf.IndexedSlices) else value
        )

    leave_alone(method)
    return method


def _each_once(rows: Any) -> Any:
    """Add up rows of the same index, in their order."""
    indices, places = tf.unique(rows.indices)
    order = tf.argsort(places, stable=True)
    sums = tf.math.segment_sum(tf.gather(rows.values, order), tf.gather(places, order))
    return tf.IndexedSlices(sums, indices, rows.dense_shape)


def optimizers_of(model: Any, framework: Framework) -> list[Any]:
    """Return all optimizers of a model's training, each once: those it has, then others that its steps have used."""
    found = {id(each): each for each in _held(model, framework, set())}
    return list({**found, **_used.get(model, {})}.values())


def _held(thing: Any, framework: Framework, seen: set[int]) -> Iterator[Any]:
    """Find optimizers in attributes, containers and models within."""
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
