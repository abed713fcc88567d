"""Advice for a person before a training begins."""

from __future__ import annotations

import warnings
from typing import Any

import tensorflow as tf

from ignite_tf_magic.errors import ConfigError
from ignite_tf_magic.training.frameworks import layers_of


def warn_of_own_statistics(model: Any) -> None:
    """Warn of layers that would normalise each worker's rows by themselves."""
    names = [layer.name for layer in layers_of(model) if _normalises_alone(layer)]
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


def check_elements(model: Any, data: Any) -> None:
    """Refuse data of which a model can make nothing, with what to do: Keras' own errors are about layers.

    Raises:
        ConfigError: The elements are rows of a cache, or no batches, or of other shapes than the model's input.
    """
    if not isinstance(data, tf.data.Dataset):
        return
    spec = data.element_spec
    if isinstance(spec, dict) and spec.keys() == {"key", "val"}:
        fields = ", ".join(map(repr, spec["val"])) if isinstance(spec["val"], dict) else "the value itself"
        raise ConfigError(
            "the dataset gives rows of the cache, and a model is trained with pairs of input and label. Make them with "
            f"map, before batch: dataset.map(lambda row: (row['val'][...], row['val'][...])); fields: {fields}"
        )
    parts = tf.nest.flatten(spec[0] if isinstance(spec, tuple) else spec)
    if any(isinstance(part, tf.TensorSpec) and part.shape.rank == 0 for part in parts):
        raise ConfigError(
            "the dataset gives single numbers, and a model is trained with batches: dataset.batch(64)"
        )
    inputs = tf.nest.flatten(getattr(model, "inputs", None) or [])
    if len(parts) == len(inputs) == 1 and not _fits(tf.TensorShape(inputs[0].shape), parts[0].shape):
        raise ConfigError(
            f"the model takes inputs of shape {tuple(inputs[0].shape)}, and the dataset gives {tuple(parts[0].shape)}; "
            "change the model's Input, or reshape in map"
        )


def _fits(own: tf.TensorShape, given: tf.TensorShape) -> bool:
    """Whether an input takes what is given; Keras adds and takes away a last dimension of 1."""
    if own.rank is not None and given.rank is not None:
        if own.rank == given.rank + 1 and own[-1] == 1:
            own = own[:-1]
        elif given.rank == own.rank + 1 and given[-1] == 1:
            given = given[:-1]
    return bool(own.is_compatible_with(given))
