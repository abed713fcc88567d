"""Adds the methods that datasets had in TensorFlow 1."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def add_methods_of_version_1() -> None:
    """Add to all datasets of this process the methods of `tf.compat.v1.data.Dataset` that `tf.data.Dataset` lacks.

    All datasets get them, because scripts call them on the results of `map`, `shuffle` and `batch`.
    """
    for name, method in _METHODS.items():
        if not hasattr(tf.data.Dataset, name):
            setattr(tf.data.Dataset, name, method)


def _make_one_shot_iterator(dataset: Any) -> Any:
    return tf.compat.v1.data.make_one_shot_iterator(dataset)


def _make_initializable_iterator(dataset: Any, shared_name: str | None = None) -> Any:
    return tf.compat.v1.data.make_initializable_iterator(dataset, shared_name)


def _map_with_legacy_function(dataset: Any, *arguments: Any, **options: Any) -> Any:
    return dataset.map(*arguments, **options)


def _filter_with_legacy_function(dataset: Any, predicate: Any) -> Any:
    return dataset.filter(predicate)


_METHODS: dict[str, Any] = {
    "make_one_shot_iterator": _make_one_shot_iterator,
    "make_initializable_iterator": _make_initializable_iterator,
    "map_with_legacy_function": _map_with_legacy_function,
    "filter_with_legacy_function": _filter_with_legacy_function,
    "output_types": property(tf.compat.v1.data.get_output_types),
    "output_shapes": property(tf.compat.v1.data.get_output_shapes),
    "output_classes": property(tf.compat.v1.data.get_output_classes),
}
