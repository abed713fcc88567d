"""Optimizers of a training, wherever they live: each takes the gradients of all workers, once."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

from ignite_tf_magic.training.frameworks import Framework
from ignite_tf_magic.training.hooking import hook_family
from ignite_tf_magic.training.step import Step

# Those that a model's steps have used, beside those that it has: of closures, say. In the order of their first use.
_used: weakref.WeakKeyDictionary[Any, dict[int, Any]] = weakref.WeakKeyDictionary()


def hook_optimizers(framework: Framework, outside: Callable[[], None]) -> None:
    """Let all optimizers of a framework take the gradients of all workers in a step.

    The outermost call counts: one optimizer may pass gradients on to another, as a loss scale's does.

    Args:
        framework: The framework.
        outside: Called where an optimizer is used and there is no step.
    """

    def apply(
        step: Step, original: Callable[..., Any], optimizer: Any, *arguments: Any, **options: Any
    ) -> Any:
        _used.setdefault(step.model, {})[id(optimizer)] = optimizer
        gradients, put = framework.gradients_of(arguments, options)
        means = step.meet(gradients)
        with step.alone():
            arguments, options = put(means)
            return original(*arguments, **options)

    for base in framework.optimizer_classes:
        hook_family(base, framework.apply_name, apply, outside)


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
