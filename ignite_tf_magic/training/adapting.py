"""Lets `adapt` of preprocessing layers see the rows of all workers, with the same result on each.

The workers exchange the data batch by batch, and join their parts of one batch in the order of the workers. So a layer
adapts to all rows, even if its result depends on which rows share a batch. Each worker reads as much as one process
would. If a dataset is not marked as a shard, `adapt` works as usual. If the layers differ afterwards, the workers had
different rows, and the layers adapt again to the rows of all workers.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ignite_tf_magic.errors import WorkersDiffer
from ignite_tf_magic.training.consistency import are_same
from ignite_tf_magic.training.frameworks import Framework, adapted_state
from ignite_tf_magic.training.group import WorkerGroup
from ignite_tf_magic.training.shares import is_share

_LAYERS = ("Normalization", "TextVectorization", "StringLookup", "IntegerLookup", "Discretization")
_TEXTS_IN_BATCH = 1024
_TF_KERAS_BATCH = 32  # the default batch size for arrays
_BATCH_BYTES = 1 << 30  # the size of exchanged parts of an array; a message has at most 2 GiB
_WORD_BYTES = 4


def hook_adapt(framework: Framework, group: WorkerGroup, is_alone: Callable[[], bool]) -> None:
    """Let `adapt` of a framework's layers see the rows of all workers.

    Args:
        framework: The framework.
        group: The workers; all of them call `adapt`, in the same order.
        is_alone: Returns whether `adapt` must run on this worker alone, as in `independent()`.
    """
    layers = [getattr(framework.module.layers, name) for name in _LAYERS]
    is_first = framework.module.__name__ == "keras"  # Keras 3 treats each text in an array as a document
    for kind in {base for layer in layers for base in layer.__mro__ if "adapt" in vars(base)}:
        kind.adapt = _adapting(vars(kind)["adapt"], group, is_alone, are_documents=is_first)


def _adapting(
    original: Callable[..., Any], group: WorkerGroup, is_alone: Callable[[], bool], *, are_documents: bool
) -> Callable[..., Any]:
    under_way: list[Any] = []
    signature = inspect.signature(original)

    @functools.wraps(original)
    def adapt(layer: Any, data: Any, *arguments: Any, **options: Any) -> Any:
        if under_way or is_alone():
            return original(layer, data, *arguments, **options)
        under_way.append(layer)
        try:
            is_lookup = are_documents and hasattr(layer, "get_vocabulary")
            given = rows_of_all(data, group, are_documents=is_lookup)
            if given is not data and not isinstance(data, tf.data.Dataset) and not are_documents:
                asked = signature.bind(layer, data, *arguments, **options).arguments
                given = given.unbatch().batch(asked.get("batch_size") or _TF_KERAS_BATCH)
                options, arguments = {"steps": asked.get("steps")}, ()
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
    """Raise WorkersDiffer if a layer's state differs between workers. All workers must call it."""
    if not _is_alike(layer, group):
        raise WorkersDiffer(
            f"the layer {layer.name} has been adapted to different data on each worker, so it is no longer "
            "the same on all of them. Pass `adapt` an array or a dataset, whose rows are collected from "
            "all workers, or the same batches on each worker; if each worker needs its own layer, put "
            "`with ignite_tf_magic.independent():` around it"
        )


def _tell_of_own_rows(layer: Any, group: WorkerGroup) -> None:
    if group.place.is_chief:
        warnings.warn(
            f"{layer.name}: adapt was given different rows on each worker, by a dataset that does not "
            "declare this, so it ran again with the rows of all workers. To run it once, set "
            "options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF. "
            "If all workers should have the same rows, seed whatever chooses or shuffles them",
            stacklevel=3,
        )


def rows_of_all(data: Any, group: WorkerGroup, *, are_documents: bool = False) -> Any:
    """Return data with the rows of all workers, if each has rows of its own. All workers must call it.

    Args:
        data: A dataset of batches or of rows, or arrays.
        group: The workers.
        are_documents: Whether each element of a one-dimensional array is a row.

    Returns:
        The data itself if all workers have the same data, or if that is unknown. Otherwise a dataset, which all workers
        must read to its end.
    """
    if isinstance(data, tf.data.Dataset):
        return joined(data, group.channel()) if is_share(data) else data
    if not hasattr(data, "__array__") and not isinstance(data, (list, tuple)):
        return data
    tensor = tf.convert_to_tensor(data)
    if are_same(tensor, group):
        return data
    rows = tensor[:, None] if are_documents and tensor.shape.rank == 1 else tensor
    slices = tf.data.Dataset.from_tensor_slices(rows)
    return joined(slices.batch(_rows_in_batch(rows, group)), group.channel())


def _rows_in_batch(rows: Any, group: WorkerGroup) -> int:
    """Return the rows per exchanged batch: all of an array, as in one process, unless they are too large."""
    row_bytes = rows.dtype.size * int(np.prod(rows.shape[1:]))
    if rows.dtype == tf.string:
        return _TEXTS_IN_BATCH
    bound: int = _BATCH_BYTES // group.place.size // max(row_bytes, 1)
    return max(min(int(rows.shape[0]), bound), 1)


def joined(dataset: Any, channel: WorkerGroup) -> Any:
    """Return a dataset of the elements of all workers, one of each in turn.

    If the elements are batches, the batches of one turn become one batch.
    """
    spec = dataset.element_spec
    parts = tf.nest.flatten(spec, expand_composites=True)
    are_batches = all(_is_of_batches(part) for part in tf.nest.flatten(spec))

    def elements() -> Iterator[tuple[bytes, ...]]:
        own, place = iter(dataset), channel.place
        while True:
            turn = [
                _passed_on(own if worker == place.index else None, worker, len(parts), channel)
                for worker in range(place.size)
            ]
            found = [texts for texts in turn if texts is not None]
            if not found:
                return
            yield from [_one_batch(found, spec)] if are_batches else found

    signature = tuple(tf.TensorSpec([], tf.string) for _ in parts)
    everything = tf.data.Dataset.from_generator(elements, output_signature=signature)
    everything = everything.map(lambda *texts: _parsed(texts, spec))
    # tf.data must not read ahead: a worker might then start one exchange more than the others, and wait for them.
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    return everything.with_options(options)


def _is_of_batches(part: Any) -> bool:
    return (
        isinstance(part, (tf.TensorSpec, tf.RaggedTensorSpec))
        and bool(part.shape.rank)
        and part.shape[0] is None
    )


def _one_batch(batches: Sequence[tuple[bytes, ...]], spec: Any) -> tuple[bytes, ...]:
    read = [_parsed(texts, spec) for texts in batches]
    return tuple(_texts(tf.nest.map_structure(lambda *parts: tf.concat(parts, 0), *read)))


def _parsed(texts: Sequence[Any], spec: Any) -> Any:
    parts = tf.nest.flatten(spec, expand_composites=True)
    tensors = [
        tf.ensure_shape(tf.io.parse_tensor(text, part.dtype), part.shape)
        for text, part in zip(texts, parts, strict=True)
    ]
    return tf.nest.pack_sequence_as(spec, tensors, expand_composites=True)


def _passed_on(
    own: Iterator[Any] | None, worker: int, num_parts: int, channel: WorkerGroup
) -> tuple[bytes, ...] | None:
    """Return one worker's next element on every worker, as serialized parts, or None at the end."""
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
