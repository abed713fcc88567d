"""What a person is told before a training on several workers begins."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any


def warn_of_own_statistics(model: Any) -> None:
    """Warn of layers that would normalise each worker's rows by themselves."""
    names = [layer.name for layer in _layers(model) if _normalises_alone(layer)]
    if names:
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        warnings.warn(
            f"{shown}: BatchNormalization normalises each worker's rows by themselves, so the training depends on the "
            "number of workers. BatchNormalization(synchronized=True) normalises by the rows of all of them",
            stacklevel=2,
        )


def _normalises_alone(layer: Any) -> bool:
    is_one = any(kind.__name__ == "BatchNormalization" for kind in type(layer).__mro__)
    return is_one and bool(layer.trainable) and not getattr(layer, "synchronized", False)


def _layers(model: Any) -> Iterator[Any]:
    """Give all layers, those of models and of wrappers within, too."""
    waiting, seen = [model], set()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        waiting += reversed(getattr(one, "layers", []))
        waiting += [each for each in (getattr(one, "layer", None),) if each is not None]
