"""Keeps workers in step whose own generators or PyDatasets yield different numbers of batches.

A worker without further batches continues with empty ones, so all rows are trained once, and no worker waits forever. A
generator does not know its number of batches. So the workers check before each step whether any of them has one, as for
any dataset of unknown length.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from ignite_tf_magic.dataset.batches import can_be_empty
from ignite_tf_magic.errors import ConfigError
from ignite_tf_magic.training.frameworks import Framework
from ignite_tf_magic.training.group import WorkerGroup

_NUM_LOOKED_AT = 2  # Keras uses the same number to find the dimensions that change from batch to batch
_ENDLESS = -1


def is_source(x: Any) -> bool:
    """Return whether an object yields batches itself: a dataset, a generator or a PyDataset, but not arrays."""
    return isinstance(x, tf.data.Dataset) or hasattr(x, "__next__") or hasattr(x, "on_epoch_end")


def of_own_batches(x: Any, framework: Framework, group: WorkerGroup) -> Any:
    """Return this worker's batches as data that ends in the same step on all workers.

    All workers must call it. For a generator, the caller must still apply `shares.in_step` to a returned dataset.

    Args:
        x: The generator or PyDataset with this worker's own batches.
        framework: The model's framework.
        group: The workers.

    Raises:
        ConfigError: A worker has no batch at all, or has endless batches while others do not.
    """
    if group.place.size == 1 and hasattr(x, "on_epoch_end"):
        return x
    return _padded(x, framework, group) if hasattr(x, "on_epoch_end") else _as_dataset(x, group)


def _as_dataset(batches: Iterator[Any], group: WorkerGroup) -> Any:
    """Return a generator as a dataset of this worker's own batches, of unknown length."""
    first = [standard(each) for each in itertools.islice(batches, _NUM_LOOKED_AT)]
    _check_numbers(group.side_by_side(len(first)))
    everything = itertools.chain(first, map(standard, batches))
    spec = tf.nest.map_structure(_spec, *first) if len(first) > 1 else tf.nest.map_structure(_spec, first[0])
    if not can_be_empty(spec):
        _tell_of_equal_numbers(group)
        return everything
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return tf.data.Dataset.from_generator(lambda: everything, output_signature=spec).with_options(options)


def standard(batch: Any) -> Any:
    """Return a generator's batch as tensors or arrays in tuples and dictionaries, without trailing None."""
    if isinstance(batch, (list, tuple)):
        parts = list(batch)
        while len(parts) > 1 and parts[-1] is None:
            parts.pop()
        return tuple(map(standard, parts))
    if isinstance(batch, dict):
        return {name: standard(each) for name, each in batch.items()}
    return batch if isinstance(batch, (tf.Tensor, tf.RaggedTensor, tf.SparseTensor)) else np.asarray(batch)


def _spec(one: Any, other: Any = None) -> Any:
    """Return the spec of batches with any number of rows. A dimension that differs between two becomes None, too."""
    other = one if other is None else other
    shape = [
        size if size == of_other else None for size, of_other in zip(one.shape, other.shape, strict=True)
    ]
    shape[:1] = [None] * len(shape[:1])
    if isinstance(one, tf.SparseTensor):
        return tf.SparseTensorSpec(shape, one.dtype)
    if isinstance(one, tf.RaggedTensor):
        return tf.RaggedTensorSpec(shape, one.dtype, one.ragged_rank, one.row_splits.dtype)
    dtype = one.dtype if isinstance(one, tf.Tensor) else tf.as_dtype(one.dtype)
    return tf.TensorSpec(shape, dtype)


def _padded(batches: Any, framework: Framework, group: WorkerGroup) -> Any:
    """Return a PyDataset with as many batches as the largest of all workers, padded with empty ones."""
    own = _number_of(batches)
    numbers = group.side_by_side(own)
    if len(set(numbers)) == 1:
        return batches
    _check_numbers(numbers)
    utils = framework.module.utils
    nothing = tf.nest.map_structure(lambda part: part[:0], batches[0])

    class Padded(getattr(utils, "PyDataset", utils.Sequence)):  # type: ignore[misc]
        def __len__(self) -> int:
            return max(numbers)

        def __getitem__(self, at: int) -> Any:
            return batches[at] if at < own else nothing

        def on_epoch_begin(self) -> None:
            getattr(batches, "on_epoch_begin", lambda: None)()

        def on_epoch_end(self) -> None:
            batches.on_epoch_end()

    names = ("workers", "use_multiprocessing", "max_queue_size")
    return Padded(**{name: getattr(batches, name) for name in names if hasattr(batches, name)})


def _number_of(batches: Any) -> int:
    number = batches.num_batches if hasattr(batches, "num_batches") else len(batches)
    return _ENDLESS if number is None else int(number)


def _check_numbers(numbers: tuple[int, ...]) -> None:
    """Raise ConfigError if only some workers have batches, or only some have endless batches."""
    told = ", ".join("without end" if each == _ENDLESS else str(each) for each in numbers)
    if 0 in numbers:
        raise ConfigError(
            f"a worker's generator or PyDataset yields no batch (batches of all workers: {told}, of which "
            f"at most {_NUM_LOOKED_AT} of a generator were requested), so the shape of a batch is unknown. "
            "Let it yield a batch without rows"
        )
    if _ENDLESS in numbers:
        raise ConfigError(
            f"the PyDatasets of the workers have incompatible numbers of batches: {told}. Let each have an "
            "end, or none of them and pass steps_per_epoch"
        )


def _tell_of_equal_numbers(group: WorkerGroup) -> None:
    if group.place.is_chief:
        warnings.warn(
            "the generator yields sparse tensors, or tensors of unknown rank, for which batches without "
            "rows cannot be made: let it yield equally many batches on all workers, else those that have "
            "more wait forever",
            stacklevel=2,
        )
