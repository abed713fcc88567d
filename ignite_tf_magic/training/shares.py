"""Makes this worker's shard of the data that `fit` and `evaluate` get.

- A dataset over the partitions that the run has assigned to this worker is already its shard.
- Any other dataset, and arrays, are complete on all workers. Their batches are global: each worker takes every n-th row
  of each batch, so the workers together see exactly the batches that one process would.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ignite_tf_magic.dataset.batches import anew_each_pass, empty_like, num_batches, num_rows, part_of
from ignite_tf_magic.dataset.deal import GlobalBatchPlan
from ignite_tf_magic.dataset.lineage import has_rows_of_a_share, passes_of
from ignite_tf_magic.dataset.passes import EpochTracker, PassSeed
from ignite_tf_magic.dataset.tf_private import source_tensors
from ignite_tf_magic.errors import ConfigError
from ignite_tf_magic.training.consistency import FirstBatches, are_same
from ignite_tf_magic.training.group import WorkerGroup

_KERAS_BATCH_ROWS = 32
_MAX_AHEAD, _AHEAD_BYTES, _USUAL_ROWS = 8, 64 * 1024 * 1024, 256


def share_of(dataset: Any, group: WorkerGroup, firsts: list[FirstBatches]) -> Any:
    """Return this worker's shard of a dataset of batches.

    Args:
        dataset: The dataset.
        group: The workers.
        firsts: If the dataset is complete on all workers, a comparison of their batches is appended.
    """
    if group.place.size == 1:
        return dataset
    if is_share(dataset):
        if group.place.is_chief and has_rows_of_a_share(dataset):
            _tell_of_own_batches(group)
        return dataset
    place = group.place
    first = FirstBatches(has_own_sources=not are_same(_sources(dataset), group))
    firsts.append(first)
    part = dataset.enumerate().map(
        lambda number, element: part_of(first.noted(number, element), place.index, place.size),
        tf.data.AUTOTUNE,
    )
    part.is_divided = True
    return part


def _tell_of_own_batches(group: WorkerGroup) -> None:
    warnings.warn(
        "each worker has put rows of its own into batches, as `batch` does after `filter` or `take` of an "
        f"IgniteDataset, and `padded_batch`: a step has the rows of {group.place.size} such batches, and "
        "an epoch has fewer steps than with one process. Call `batch` first, or divide the rows of a batch "
        "by ignite_tf_magic.task().num_workers",
        stacklevel=2,
    )


def _sources(dataset: Any) -> list[Any]:
    found = source_tensors(dataset)
    return [
        each for each in found if isinstance(each, tf.Tensor) and each.dtype not in (tf.variant, tf.resource)
    ]


def is_divided(part: Any) -> bool:
    """Return whether a shard made here consists of every n-th row of batches common to all workers."""
    return bool(getattr(part, "is_divided", False))


def is_share(dataset: Any) -> bool:
    """Return whether a dataset is already a shard. IgniteDataset marks the rows that a run has assigned."""
    policy = dataset.options().experimental_distribute.auto_shard_policy
    return bool(policy == tf.data.experimental.AutoShardPolicy.OFF)


def of_arrays(arrays: Any, batch_rows: int | None, *, order: int | None) -> Any:
    """Return the global batches of tensors as Keras makes them, shuffled the same on all workers.

    Args:
        arrays: The tensors.
        batch_rows: Rows of a global batch; None means Keras' default.
        order: Seed from which each pass gets another order. None keeps the order of the rows.
    """
    batch_rows = batch_rows or _KERAS_BATCH_ROWS
    total = int(num_rows(arrays))
    sizes = np.full(-(-total // batch_rows), batch_rows, np.int64)
    sizes[-1:] += total - sizes.sum()
    # The batch size is static where it is in Keras, because kernels for static and dynamic shapes round differently.
    is_known = total % batch_rows == 0
    return _of_sizes(arrays, sizes, order, shape=[batch_rows if is_known else None])


def of_own_arrays(
    arrays: Any, rows_by_worker: tuple[int, ...], batch_rows: int | None, *, order: int | None, worker: int
) -> Any:
    """Return a worker's parts of global batches if each worker has arrays of its own.

    Raises:
        ConfigError: No worker has any rows.
    """
    if not sum(rows_by_worker):
        raise ConfigError("the arrays have no rows on any worker")
    deal = GlobalBatchPlan(rows_by_worker, batch_rows or _KERAS_BATCH_ROWS)
    dataset = _of_sizes(arrays, deal.sizes(worker), order)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    shared = dataset.with_options(options)
    shared.passes = dataset.passes
    return shared


def _of_sizes(
    arrays: Any, sizes: np.ndarray, order: int | None, shape: Sequence[int | None] = (None,)
) -> Any:
    """Return batches with the given numbers of rows, in another order in each pass if `order` is not None."""
    total = int(sizes.sum())
    passes = EpochTracker()
    draw = PassSeed(order or 0, passes, "order")

    def in_order(seed: Any) -> Any:
        numbers = tf.range(total, dtype=tf.int64)
        if order is not None:
            numbers = tf.random.experimental.stateless_shuffle(numbers, tf.stack([seed, 0]))
        rows = tf.RaggedTensor.from_row_lengths(numbers, sizes)
        return tf.data.Dataset.from_tensor_slices(rows)

    def batch(numbers: Any) -> Any:
        numbers = tf.ensure_shape(numbers, shape)
        return tf.nest.map_structure(lambda tensor: tf.gather(tensor, numbers), arrays)

    batches = anew_each_pass(draw, in_order).map(batch, tf.data.AUTOTUNE)
    batches = batches.apply(tf.data.experimental.assert_cardinality(len(sizes)))
    batches.passes = passes
    return batches


def in_step(dataset: Any, group: WorkerGroup) -> Any:
    """Make a dataset end in the same step on all workers, wherever its own rows end.

    If all workers have the same known number of batches, the dataset is returned unchanged. Otherwise, before each step
    the workers check whether any of them has a batch. A worker without further batches continues with empty ones.
    """
    if group.place.size == 1:
        return dataset
    cardinalities = set(group.side_by_side(int(dataset.cardinality())))
    if len(cardinalities) == 1 and cardinalities != {tf.data.UNKNOWN_CARDINALITY}:
        return dataset  # the same number of batches on all workers, or all are infinite
    return _agreed(dataset, group.channel())


def planned_rows(dataset: Any) -> int | None:
    """Return the planned number of rows of all workers in an epoch, or None without a plan."""
    num_steps = num_batches(dataset)
    plans = [passes.plan for passes in passes_of(dataset)] if num_steps else []
    if not num_steps or len(plans) != 1 or plans[0] is None or num_steps % plans[0].num_steps:
        return None
    return plans[0].num_rows * (num_steps // plans[0].num_steps)


def read_ahead(dataset: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Start reading the next pass over Ignite rows during the current one, because its start takes about 0.1 s.

    Args:
        dataset: The dataset of one epoch.
        given: The arguments of `fit`.

    Returns:
        Arguments that replace others, or none: the dataset of all epochs, and the number of steps in one epoch.
    """
    num_epochs = given.get("epochs", 1) - given.get("initial_epoch", 0)
    num_steps = num_batches(dataset)
    if num_steps is None or given.get("steps_per_epoch") or num_epochs < 2:
        return {}
    if not any(passes.share for passes in passes_of(dataset)):
        return {}
    ahead = dataset.repeat(num_epochs).prefetch(_num_ahead(dataset.element_spec))
    return {"x": ahead, "steps_per_epoch": num_steps}


def _num_ahead(spec: Any) -> int:
    """Return how many batches may be read ahead: fewer of large rows.

    The spec does not contain the number of rows of a batch, so a usual number is assumed.
    """
    parts = [part for part in tf.nest.flatten(spec) if isinstance(part, tf.TensorSpec)]
    sizes = [
        part.dtype.size * math.prod(size or 1 for size in part.shape[1:]) for part in parts if part.shape.rank
    ]
    fitting = _AHEAD_BYTES // (_USUAL_ROWS * max(int(sum(sizes)), 1))
    return max(1, min(_MAX_AHEAD, fitting))


def _agreed(dataset: Any, channel: WorkerGroup) -> Any:
    empty = tf.data.Dataset.from_tensors(empty_like(_any_rows(dataset.element_spec))).repeat()
    flagged = _flagged(dataset, 1).concatenate(_flagged(empty, 0))

    def ask(mine: Any) -> Any:
        return channel.sum([mine])[0]

    def anyone_has(mine: Any, *parts: Any) -> Any:
        del parts
        return tf.py_function(ask, [mine], tf.int64) > 0

    def unflagged(_: Any, *parts: Any) -> Any:
        return tf.data.Dataset.from_tensors(parts if len(parts) > 1 else parts[0])

    # tf.data must not read ahead, as it does for a `map` and at the end of a pipeline. It would call `sum` once more
    # than on other workers, and the workers' calls would no longer match.
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    return flagged.take_while(anyone_has).flat_map(unflagged).with_options(options)


def _flagged(dataset: Any, flag: int) -> Any:
    return dataset.map(lambda *parts: (tf.constant(flag, tf.int64), *parts))


def _any_rows(spec: Any) -> Any:
    """Return the spec of batches with any number of rows."""

    def relax(one: Any) -> Any:
        if not isinstance(one, (tf.TensorSpec, tf.SparseTensorSpec)) or not one.shape.rank:
            return one
        return type(one)([None, *one.shape[1:]], one.dtype)

    return tf.nest.map_structure(relax, spec)


def with_a_batch(dataset: Any) -> Any:
    """Return a dataset with at least one batch, perhaps an empty one. Keras' `evaluate` fails without batches."""
    if num_batches(dataset):
        return dataset
    return dataset.concatenate(tf.data.Dataset.from_tensors(empty_like(_any_rows(dataset.element_spec))))
