"""Finds the datasets of this package that a tf.data dataset was made from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ignite_tf_magic.dataset.passes import EpochTracker
from ignite_tf_magic.dataset.tf_private import ONE_FOR_ONE, inputs_of, keeps_order


def passes_of(dataset: Any) -> dict[EpochTracker, bool]:
    """Find the sources that a tf.data dataset reads anew in each pass.

    Returns:
        For each source, whether the n-th batch of the dataset is made from the n-th batch of the source.
    """
    found: dict[EpochTracker, bool] = {}
    waiting, seen = [(dataset, dataset.options().deterministic is not False)], set()
    while waiting:
        one, is_aligned = waiting.pop()
        kind = type(one).__name__
        if id(one) in seen or kind == "CacheDataset":  # a cached dataset repeats its first pass
            continue
        seen.add(id(one))
        passes = getattr(one, "passes", None)
        if isinstance(passes, EpochTracker):
            found[passes] = is_aligned
            continue
        is_aligned = is_aligned and kind in ONE_FOR_ONE and keeps_order(one)
        waiting += [(each, is_aligned) for each in inputs_of(one)]
    return found


def has_rows_of_a_share(dataset: Any) -> bool:
    """Return whether tf.data itself batched a worker's rows, without the global batch plan."""
    return any(getattr(one, "is_shared", False) for one in _made_of(dataset, _deals_batches))


def is_read_where_it_lives(dataset: Any) -> bool:
    """Return whether a dataset reads Ignite by stock operations, in whatever process it lives."""
    return any(getattr(one, "reads_ignite", False) for one in _made_of(dataset))


def _deals_batches(dataset: Any) -> bool:
    return isinstance(getattr(dataset, "passes", None), EpochTracker)


def _made_of(dataset: Any, is_left_out: Callable[[Any], bool] = lambda _: False) -> Iterator[Any]:
    """Yield a dataset and all its inputs, without those that `is_left_out` and their inputs."""
    waiting, seen = [dataset], set()
    while waiting:
        one = waiting.pop()
        if id(one) in seen or is_left_out(one):
            continue
        yield one
        seen.add(id(one))
        waiting += inputs_of(one)
