"""`adapt` of preprocessing layers sees the rows of all workers, in the workers' order, and comes to the same on each.

What it is given goes round batch by batch: whatever a layer makes of rows, it makes of all of them. So each worker
reads as much as one process would. Data that all workers have whole is adapted to as ever; where layers then differ,
they had other rows each, and adapt again to those of all.
"""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from ignite_tf_magic.errors import WorkersDiffer
from ignite_tf_magic.training.consistency import are_same
from ignite_tf_magic.training.frameworks import Framework, adapted_state
from ignite_tf_magic.training.group import WorkerGroup
from ignite_tf_magic.training.shares import is_share

_LAYERS = ("Normalization", "TextVectorization", "StringLookup", "IntegerLookup", "Discretization")
_BATCH_ROWS = 1024
_WORD_BYTES = 4


def hook_adapt(framework: Framework, group: WorkerGroup, is_alone: Callable[[], bool]) -> None:
    """Let `adapt` of a framework's layers see the rows of all workers.

    Args:
        framework: The framework.
        group: The workers; all of them call `adapt`, in the same order.
        is_alone: Whether a call is to be what it is in one process: within another one, or in `independent()`.
    """
    layers = [getattr(framework.module.layers, name) for name in _LAYERS]
    is_first = framework.module.__name__ == "keras"  # in which a text of an array is a document
    for kind in {base for layer in layers for base in layer.__mro__ if "adapt" in vars(base)}:
        kind.adapt = _adapting(vars(kind)["adapt"], group, is_alone, are_documents=is_first)


def _adapting(
    original: Callable[..., Any], group: WorkerGroup, is_alone: Callable[[], bool], *, are_documents: bool
) -> Callable[..., Any]:
    under_way: list[Any] = []

    @functools.wraps(original)
    def adapt(layer: Any, data: Any, *arguments: Any, **options: Any) -> Any:
        if under_way or is_alone():
            return original(layer, data, *arguments, **options)
        under_way.append(layer)
        try:
            is_lookup = are_documents and hasattr(layer, "get_vocabulary")
            given = rows_of_all(data, group, are_documents=is_lookup)
            found = original(layer, given, *arguments, **options)
            if given is data and isinstance(data, tf.data.Dataset) and not _is_alike(layer, group):
                _tell_of_own_rows(layer, group)
                found = original(layer, joined(data, group.channel()), *arguments, **options)
            _check_alike(layer, group)
            return found
        finally:
            under_way.remove(layer)

    return adapt


def _is_alike(layer: Any, group: WorkerGroup) -> bool:
    return are_same(adapted_state(layer), group)


def _check_alike(layer: Any, group: WorkerGroup) -> None:
    """Make sure that a layer is the same on all workers; all of them call."""
    if not _is_alike(layer, group):
        raise WorkersDiffer(
            f"the layer {layer.name} has been adapted to other data on each worker, and is no longer the same on all "
            "of them. Give `adapt` an array or a dataset, of which the rows of all workers are seen, or the same "
            "batches on each worker; where each is to have a layer of its own, put "
            "`with ignite_tf_magic.independent():` around it"
        )


def _tell_of_own_rows(layer: Any, group: WorkerGroup) -> None:
    if group.place.is_chief:
        warnings.warn(
            f"{layer.name}: adapt was given other rows on each worker, by a dataset that does not say so, and has been "
            "done again with the rows of all of them. To have it done once, say so with "
            "options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF. Where each "
            "worker is meant to have the same rows, seed what chooses or shuffles them",
            stacklevel=3,
        )


def rows_of_all(data: Any, group: WorkerGroup, *, are_documents: bool = False) -> Any:
    """Return data with the rows of all workers, where each has rows of its own; all of them call.

    Args:
        data: A dataset of batches or of rows, or arrays.
        group: The workers.
        are_documents: Whether each text or number of an array without other dimensions is a row.

    Returns:
        The data itself where all workers have it whole, or nobody can tell; else a dataset of batches, which all of
        them read to its end.
    """
    if isinstance(data, tf.data.Dataset):
        return joined(data, group.channel()) if is_share(data) else data
    if not hasattr(data, "__array__") and not isinstance(data, (list, tuple)):
        return data
    tensor = tf.convert_to_tensor(data)
    if are_same(tensor, group):
        return data
    rows = tensor[:, None] if are_documents and tensor.shape.rank == 1 else tensor
    return joined(tf.data.Dataset.from_tensor_slices(rows).batch(_BATCH_ROWS), group.channel())


def joined(dataset: Any, channel: WorkerGroup) -> Any:
    """Return a dataset of the elements of all workers', those of the first worker first."""
    spec = dataset.element_spec
    parts = tf.nest.flatten(spec, expand_composites=True)

    def elements() -> Iterator[tuple[Any, ...]]:
        for worker in range(channel.place.size):
            own = iter(dataset) if worker == channel.place.index else None
            while (texts := _passed_on(own, worker, len(parts), channel)) is not None:
                yield texts

    def parsed(*texts: Any) -> Any:
        tensors = [
            tf.ensure_shape(tf.io.parse_tensor(text, part.dtype), part.shape)
            for text, part in zip(texts, parts, strict=True)
        ]
        return tf.nest.pack_sequence_as(spec, tensors, expand_composites=True)

    signature = tuple(tf.TensorSpec([], tf.string) for _ in parts)
    everything = tf.data.Dataset.from_generator(elements, output_signature=signature).map(parsed)
    # Read ahead of what is asked for, a worker might ask once more than others, which would wait for it.
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    return everything.with_options(options)


def _passed_on(
    own: Iterator[Any] | None, worker: int, num_parts: int, channel: WorkerGroup
) -> tuple[bytes, ...] | None:
    """Return the next element of one worker on every worker, as texts of its parts; None at the end."""
    element = next(own, None) if own is not None else None
    texts = _texts(element) if element is not None else [b""] * num_parts
    sizes = np.array([int(element is not None), *map(len, texts)], np.int64)
    (told,) = channel.from_worker(worker, [sizes])
    has_more, *lengths = (int(size) for size in told.numpy())
    if not has_more:
        return None
    ends = np.cumsum([0, *lengths])
    words = np.zeros(-(-int(ends[-1]) // _WORD_BYTES), np.int32)
    if element is not None:
        words.view(np.uint8)[: ends[-1]] = np.frombuffer(b"".join(texts), np.uint8)
    (received,) = channel.from_worker(worker, [words])
    content = received.numpy().tobytes()
    return tuple(content[start:end] for start, end in itertools.pairwise(ends))


def _texts(element: Any) -> list[bytes]:
    parts = tf.nest.flatten(element, expand_composites=True)
    return [tf.io.serialize_tensor(part).numpy() for part in parts]
