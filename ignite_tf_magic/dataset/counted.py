"""Batches that report their number, which tf.data cannot know, by asking the cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ignite_tf_magic.dataset.tf_private import variant_of


class CountedBatches(tf.data.Dataset):  # type: ignore[misc]
    """Batches that report their number, even after `map`, `prefetch` and `with_options`.

    A pass yields the batches that exist: if rows were added or removed since, their number differs.

    Args:
        batches: The batches.
        count: Asks for their current number; `tf.data.UNKNOWN_CARDINALITY` if it is unknown.
    """

    def __init__(self, batches: tf.data.Dataset, count: Callable[[], int]) -> None:
        self._batches, self._count = batches, count
        super().__init__(variant_of(batches))

    def _inputs(self) -> list[Any]:
        return [self._batches]

    @property
    def element_spec(self) -> Any:
        """Structure, shapes and dtypes of a batch."""
        return self._batches.element_spec

    def cardinality(self) -> tf.Tensor:
        """Return the current number of batches."""
        return tf.constant(self._count(), tf.int64)

    def map(self, *args: Any, **options: Any) -> CountedBatches:
        """Apply a function to each batch."""
        return CountedBatches(self._batches.map(*args, **options), self._count)

    def prefetch(self, *args: Any, **options: Any) -> CountedBatches:
        """Read ahead."""
        return CountedBatches(self._batches.prefetch(*args, **options), self._count)

    def with_options(self, *args: Any, **options: Any) -> CountedBatches:
        """Set tf.data options."""
        return CountedBatches(self._batches.with_options(*args, **options), self._count)
