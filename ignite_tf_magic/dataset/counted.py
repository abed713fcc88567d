"""Batches whose number tf.data cannot tell, and this process can: by asking the cluster how many rows there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ignite_tf_magic.dataset.tf_private import variant_of


class CountedBatches(tf.data.Dataset):  # type: ignore[misc]
    """Batches that know how many they are, also behind `map`, `prefetch` and `with_options`.

    A pass gives those that there are: where rows have come or gone since, their number is another.

    Args:
        batches: The batches.
        count: Asks how many there are now; `tf.data.UNKNOWN_CARDINALITY` where nobody knows.
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
        """Return how many batches there are now."""
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
