"""Wraps methods of Keras' classes in functions that know the current step.

Outside of steps, and while a step is `alone`, the methods work as before. `seams` replaces methods of one model.
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
    """Wrap a method if the class itself defines it. A second call for the same method does nothing.

    Args:
        kind: The class.
        name: The method's name.
        around: Called in steps, as `around(step, original, thing, *arguments, **options)`, where `original` is the
            bound method.
        outside: Called outside of steps, as `outside(original, thing, *arguments, **options)`.
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
    """Keep AutoGraph from converting a function. The functions that it calls are converted as usual."""
    function.autograph_info__ = {}  # type: ignore[attr-defined]


def hook_family(
    base: type, name: str, around: Callable[..., Any], outside: Callable[..., Any] | None = None
) -> None:
    """Wrap a method of a class, of its base classes and of all its subclasses, also of later ones."""
    for kind in [*base.__mro__, *subclasses(base)]:
        hook(kind, name, around, outside)
    when_subclassed(base, lambda kind: hook(kind, name, around, outside))


def when_subclassed(base: type, call: Callable[[type], None]) -> None:
    """Call a function with each new subclass of a class when it is created."""
    earlier = base.__init_subclass__

    def init_subclass(kind: type[Any], /, **options: Any) -> None:
        getattr(earlier, "__func__", lambda _, **rest: earlier(**rest))(kind, **options)
        call(kind)

    base.__init_subclass__ = classmethod(init_subclass)  # type: ignore[assignment]


def subclasses(base: type[Any]) -> Iterator[type[Any]]:
    """Yield all direct and indirect subclasses of a class."""
    for kind in base.__subclasses__():
        yield kind
        yield from subclasses(kind)


@contextmanager
def seams(model: Any, methods: dict[str, Callable[..., Any]]) -> Iterator[None]:
    """Replace methods of one model in a block, and restore them afterwards."""
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
