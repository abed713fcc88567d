"""Keeps strategies in custom training loops from dividing batches that a run has already divided.

`MultiWorkerMirroredStrategy.experimental_distribute_dataset` treats a batch as a global one, and divides it by the
number of replicas. `IgniteDataset.batch` returns batches that the run has divided already. A second division would, for
two workers, make twice as many steps with half the rows.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

import tensorflow as tf

from ignite_tf_magic.dataset.batches import part_of
from ignite_tf_magic.dataset.lineage import passes_of
from ignite_tf_magic.training.hooking import leave_alone

_told: set[str] = set()


def hook_strategies() -> None:
    """Make strategies use divided batches unchanged, and warn of means that assume equal parts."""
    distribute, average = tf.distribute.Strategy.experimental_distribute_dataset, tf.nn.compute_average_loss
    if hasattr(distribute, "is_hooked"):
        return

    @functools.wraps(distribute)
    def experimental_distribute_dataset(strategy: Any, dataset: Any, options: Any = None) -> Any:
        if not _is_of_all_workers(strategy) or not is_dealt(dataset):
            return distribute(strategy, dataset, options)
        parts = _of_replicas(dataset, len(strategy.extended.worker_devices))
        return strategy.distribute_datasets_from_function(lambda _: parts, options)

    @functools.wraps(average)
    def compute_average_loss(
        per_example_loss: Any, sample_weight: Any = None, global_batch_size: Any = None
    ) -> Any:
        if global_batch_size is None and _is_of_all_workers(tf.distribute.get_strategy()):
            _tell_of_average()
        return average(per_example_loss, sample_weight, global_batch_size)

    experimental_distribute_dataset.is_hooked = True  # type: ignore[attr-defined]
    leave_alone(compute_average_loss)
    tf.distribute.Strategy.experimental_distribute_dataset = experimental_distribute_dataset
    tf.nn.compute_average_loss = compute_average_loss


def is_dealt(dataset: Any) -> bool:
    """Return whether a dataset's batches are this worker's parts of global batches."""
    if not isinstance(dataset, tf.data.Dataset):
        return False
    return any(passes.share and len(passes.share.rows_by_worker) > 1 for passes in passes_of(dataset))


def _is_of_all_workers(strategy: Any) -> bool:
    return isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)


def _of_replicas(batches: Any, num_replicas: int) -> Any:
    """Divide each batch among the replicas of this worker, which take the parts in turn."""
    if num_replicas == 1:
        return batches

    def parts(*batch: Any) -> Any:
        whole = batch if len(batch) > 1 else batch[0]
        return tf.data.Dataset.range(num_replicas).map(lambda at: part_of(whole, at, num_replicas))

    return batches.flat_map(parts)


def _tell_of_average() -> None:
    if "average" not in _told:
        _told.add("average")
        warnings.warn(
            "compute_average_loss assumes that all workers have as many rows in a step as this one, which "
            "may be wrong: pass it global_batch_size, the number of rows of all workers",
            stacklevel=3,
        )
