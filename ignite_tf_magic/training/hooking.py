"""Puts functions around methods of Keras' classes, which then know of the step that they are called in.

Outside of steps, and where a step is alone, the methods are what they were. `seams` has one model's methods be others.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ignite_tf_magic.training.step import Step, current_step, is_in_step


def hook(
    kind: type, name: str, around: Callable[..., Any], outside: Callable[..., Any] | None = None
) -> None:
    """Put a function around a method, if a class itself defines it; a second time nothing happens.

    Args:
        kind: The class.
        name: The method's.
        around: Called as `around(step, original, thing, *arguments, **options)`, `original` being the bound method.
        outside: Called as `outside(original, thing, *arguments, **options)` outside of steps.
    """
    original = vars(kind).get(name)
    if original is None or hasattr(original, "is_hooked"):
        return

    @functools.wraps(original)
    def method(self: Any, *arguments: Any, **options: Any) -> Any:
        step: Step | None = current_step()
        if step is None:
            if outside is not None and not is_in_step():
                return outside(functools.partial(original, self), self, *arguments, **options)
            return original(self, *arguments, **options)
        return around(step, functools.partial(original, self), self, *arguments, **options)

    method.is_hooked = True  # type: ignore[attr-defined]
    leave_alone(method)
    setattr(kind, name, method)


def leave_alone(function: Callable[..., Any]) -> None:
    """Keep AutoGraph from converting a function; what it calls is converted as ever."""
    function.autograph_info__ = {}  # type: ignore[attr-defined]


def hook_family(
    base: type, name: str, around: Callable[..., Any], outside: Callable[..., Any] | None = None
) -> None:
    """Put a function around a method of a class, wherever it has it from, and of all its subclasses, later ones too."""
    for kind in [*base.__mro__, *subclasses(base)]:
        hook(kind, name, around, outside)
    when_subclassed(base, lambda kind: hook(kind, name, around, outside))


def when_subclassed(base: type, call: Callable[[type], None]) -> None:
    """Call a function with each subclass of a class as soon as it is made."""
    earlier = base.__init_subclass__

    def init_subclass(kind: type[Any], /, **options: Any) -> None:
        getattr(earlier, "__func__", lambda _, **rest: earlier(**rest))(kind, **options)
        call(kind)

    base.__init_subclass__ = classmethod(init_subclass)  # type: ignore[assignment]


def subclasses(base: type[Any]) -> Iterator[type[Any]]:
    """Iterate over the subclasses of a class, and theirs."""
    for kind in base.__subclasses__():
        yield kind
        yield from subclasses(kind)


@contextmanager
def seams(model: Any, methods: dict[str, Callable[..., Any]]) -> Iterator[None]:
    """Have a model's methods be others for as long as it lasts."""
    own = {name: vars(model)[name] for name in methods if name in vars(model)}
    try:
        for name, method in methods.items():
            setattr(model, name, method)
        yield
    finally:
        for name in methods:
            if name in own:
                setattr(model, name, own[name])
            else:
                delattr(model, name)
