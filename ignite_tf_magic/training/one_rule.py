"""Prints which parts of a model see only the rows of their worker, when `fit` runs on several workers.

The rule is in docs/training.md#one-rule. It goes by declarations alone: nothing is executed and no graph is read. All
code that is not Keras' own is named, whatever it does.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from ignite_tf_magic.training.frameworks import Framework, is_of_keras, layers_of
from ignite_tf_magic.training.optimizers import optimizers_of

_NUM_NAMED = 4
_STEPS = ("train_step", "test_step", "compute_loss", "call")


def print_rule(model: Any, framework: Framework) -> None:
    """Print the parts of a model that run on each worker's rows; nothing if all parts are Keras' own."""
    names = list(dict.fromkeys([*_own_code(model, framework), *_own_statistics(model)]))
    if names:
        print_line(
            f"{_listed(names)} {'runs' if len(names) == 1 else 'run'} on each worker's rows; gradients and logs are "
            "averaged by rows (docs/training.md#one-rule)"
        )


def print_line(text: str) -> None:
    """Print a line of this package to the worker's output."""
    sys.stdout.write(f"ignite_tf_magic: {text}\n")
    sys.stdout.flush()


def _own_code(model: Any, framework: Framework) -> Iterator[str]:
    for name in _STEPS:
        if not is_of_keras(getattr(type(model), name)):
            yield f"`{type(model).__name__}.{name}`"
    for layer in layers_of(model):
        if layer is not model and (not is_of_keras(type(layer)) or type(layer).__name__ == "Lambda"):
            yield f"layer `{type(layer).__name__}`"
    for optimizer in optimizers_of(model, framework):
        if not is_of_keras(type(optimizer)):
            yield f"optimizer `{type(optimizer).__name__}`"
    for loss in tf.nest.flatten(getattr(model, "loss", None)):
        what = getattr(loss, "fn", loss)
        if what is not None and not isinstance(what, str) and not is_of_keras(what):
            yield f"loss `{getattr(what, '__name__', type(what).__name__)}`"


def _own_statistics(model: Any) -> Iterator[str]:
    """Yield layers that normalize each worker's rows separately. Keras does not synchronize moments of masked rows."""
    layers = list(layers_of(model))
    makes_masks = any(
        getattr(each, "mask_zero", False) or type(each).__name__ == "Masking" for each in layers
    )
    for layer in layers:
        is_one = any(kind.__name__ == "BatchNormalization" for kind in type(layer).__mro__)
        is_own = makes_masks or not getattr(layer, "synchronized", False)
        if is_one and layer.trainable and is_own:
            yield f"layer `{layer.name}`"


def _listed(names: Sequence[str]) -> str:
    rest = [f"{len(names) - _NUM_NAMED} more"] if len(names) > _NUM_NAMED else []
    *first, last = [*names[:_NUM_NAMED], *rest]
    return f"{', '.join(first)} and {last}" if first else last
