"""Measures the wait for data inside the graph that requests it.

Keras requests batches inside its train function, so code outside cannot separate waiting from computing. The iterators
of a `timed` dataset are derived from tf.data's own. For each batch they add up the seconds until it came, and its rows.
That costs about 20 microseconds per batch, much less than another pipeline stage would. XLA is not affected, because it
compiles only the operations after it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ignite_tf_magic.dataset.batches import num_rows
from ignite_tf_magic.dataset.tf_private import OwnedIterator, is_deterministic, variant_of

_counters: list[Any] = []


def timed(dataset: Any) -> Any:
    """Return the dataset with iterators that count the seconds they wait and the rows they return."""
    return _Timed(dataset)


def counted() -> tuple[float, float]:
    """Return the seconds of waiting for data in this process so far, and the number of rows received.

    The seconds are NaN if operations must be deterministic, because graphs then have no clock.
    """
    if not _counters:
        return 0.0, 0.0
    waited_s, rows = _counters[0].numpy()
    return float(waited_s), float(rows)


def count_rows(rows: int) -> None:
    """Count rows that did not come from a `timed` dataset. The wait for them is unknown: the seconds become NaN."""
    _counter().assign_add([math.nan, float(rows)])


def _counter() -> Any:
    if not _counters:
        with tf.init_scope(), tf.device("CPU:0"):
            _counters.append(tf.Variable(tf.zeros([2], tf.float64), trainable=False, name="waited"))
    return _counters[0]


class _Timed(tf.data.Dataset):  # type: ignore[misc]
    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        super().__init__(variant_of(dataset))

    def _inputs(self) -> list[Any]:
        return [self._dataset]

    @property
    def element_spec(self) -> Any:
        return self._dataset.element_spec

    def __iter__(self) -> Any:
        _counter()  # made now, because a tf.function that creates a variable is traced twice
        return _TimedIterator(self)


class _TimedIterator(OwnedIterator):  # type: ignore[misc]
    def _next_internal(self) -> Any:
        return self._timed(super()._next_internal, num_rows)

    def get_next_as_optional(self) -> Any:
        return self._timed(super().get_next_as_optional, _rows_if_any)

    @property
    def _type_spec(self) -> Any:
        return _TimedSpec(self.element_spec)

    def _timed(self, get: Callable[[], Any], rows_of: Callable[[Any], Any]) -> Any:
        now = _nowhen if is_deterministic() else tf.timestamp
        began = now()
        with tf.control_dependencies([began]):
            found = get()
        parts = tf.nest.flatten(found, expand_composites=True)
        with tf.control_dependencies([part for part in parts if isinstance(part, tf.Tensor)]):
            waited_s = now() - began
        with tf.device("CPU:0"):
            _counter().assign_add(tf.stack([waited_s, tf.cast(rows_of(found), tf.float64)]))
        return found


def _nowhen() -> Any:
    return tf.constant(math.nan, tf.float64)


class _TimedSpec(tf.data.IteratorSpec):  # type: ignore[misc]
    """A type spec with which a tf.function gets a timed iterator as its argument."""

    @property
    def value_type(self) -> Any:
        return _TimedIterator

    def _from_components(self, components: Any) -> Any:
        return _TimedIterator(components=components, element_spec=self._element_spec)

    @staticmethod
    def from_value(value: Any) -> Any:
        return _TimedSpec(value.element_spec)


def _rows_if_any(optional: Any) -> Any:
    return tf.cond(optional.has_value(), lambda: num_rows(optional.get_value()), lambda: 0)
