"""Checks that workers agree where they must: on common data, weights, models and library versions."""

from __future__ import annotations

import re
import warnings
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from ignite_tf_magic.errors import WorkersDiffer
from ignite_tf_magic.training.group import WorkerGroup, as_array

_NUM_NAMED = 5
_COINCIDENCE = 1e-4
_TEXT_SHOWN = 300
_NUM_PARTS = 3  # the compared parts of a version number


def are_same(arrays: Any, group: WorkerGroup) -> bool:
    """Return whether a structure of arrays is the same on all workers. All workers must call it."""
    flat = tf.nest.flatten(arrays, expand_composites=True)
    total = 0
    for each in flat:
        total = _checksum(as_array(each), total)
    return bool(group.are_equal(np.array([len(flat), total], np.int64)).all())


def _checksum(array: np.ndarray, start: int = 0) -> int:
    """Return a checksum of an array's shape, dtype and bytes, continued from another checksum."""
    head = f"{array.dtype.str} {array.shape}".encode()
    if array.dtype.hasobject:
        return zlib.crc32(b"\0".join(map(_bytes_of, array.ravel())), zlib.crc32(head, start))
    # Viewed as bytes, because some dtypes, such as bfloat16, have no buffer format.
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, zlib.crc32(head, start))


def _bytes_of(thing: Any) -> bytes:
    return thing if isinstance(thing, bytes) else str(thing).encode()


class FirstBatches:
    """Compares the first batch of each pass over data that should be the same on all workers.

    It compares labels, if there are any, because inputs may have been changed at random. If the labels do not identify
    the rows, for example because all have one class, it compares the whole batch.

    Args:
        has_own_sources: Whether the workers are known to read different rows.
    """

    def __init__(self, *, has_own_sources: bool = False) -> None:
        self._has_own_sources = has_own_sources
        self._seen: list[tuple[int, int]] = []
        self._num_checked = 0
        self._has_warned = False

    def noted(self, number: Any, element: Any) -> Any:
        """Return an element unchanged, and record the first one of a pass; for use in a tf.data function.

        `number` is the element's number in its pass, from 0.
        """
        has_labels = isinstance(element, tuple) and len(element) > 1
        labels, parts = _parts(element[1]) if has_labels else [], _parts(element)

        def note() -> Any:
            return tf.numpy_function(self._note, [_digest(labels), _digest(parts), *labels], tf.int64)

        with tf.control_dependencies([tf.cond(number == 0, note, lambda: tf.constant(0, tf.int64))]):
            return tf.nest.map_structure(tf.identity, element, expand_composites=True)

    def _note(self, of_labels: Any, of_all: Any, *labels: np.ndarray) -> Any:
        self._seen.append((int(of_labels), 0 if tell_rows_apart(labels) else int(of_all)))
        return of_labels

    def check(self, group: WorkerGroup) -> None:
        """Warn once if the next pass began with different rows on the workers. All workers must call it."""
        at = self._num_checked
        own = self._seen[at] if at < len(self._seen) else (-1, -1)
        self._num_checked += 1
        is_same = bool(group.are_equal(np.array(own, np.int64)).all()) and not self._has_own_sources
        if not is_same and not self._has_warned and group.place.is_chief:
            warnings.warn(
                "the workers do not have the same batches, and each takes every n-th row of them: rows may "
                "be trained twice or left out. If the dataset is shuffled, pass shuffle a seed; if each "
                "worker has rows of its own, set options.experimental_distribute.auto_shard_policy = "
                "tf.data.experimental.AutoShardPolicy.OFF. If only random changes of the same rows differ, "
                "ignore this",
                stacklevel=2,
            )
        self._has_warned = self._has_warned or not is_same


def tell_rows_apart(labels: Sequence[np.ndarray]) -> bool:
    """Return whether other rows are unlikely to have the same labels in the same order.

    Labels of one class, or of a few classes that are sorted or alternate, would be the same for other rows. Labels may
    also coincide by chance, so the probability that two random batches have the same labels must be small.
    """
    ids = _row_numbers(labels)
    rows, counts = len(ids), np.bincount(ids)
    if rows == 0 or float(np.square(counts / rows).sum()) ** rows > _COINCIDENCE:
        return False
    num_runs = 1 + np.count_nonzero(np.diff(ids))
    is_sorted = num_runs == len(counts) < rows
    is_in_turns = any(np.array_equal(ids[turn:], ids[:-turn]) for turn in range(1, rows // 2 + 1))
    return not is_sorted and not is_in_turns


def _row_numbers(labels: Sequence[np.ndarray]) -> np.ndarray:
    """Return a number for each row: the same number for the same labels."""
    rows = len(labels[0]) if labels and labels[0].ndim else 0
    of_rows = [part for part in labels if part.ndim and len(part) == rows]
    numbers: dict[tuple[bytes, ...], int] = {}
    found = [
        numbers.setdefault(tuple(_row_bytes(part[row]) for part in of_rows), len(numbers))
        for row in range(rows)
    ]
    return np.array(found, np.int64)


def _row_bytes(row: Any) -> bytes:
    array = np.asarray(row)
    return str(array.tolist()).encode() if array.dtype.hasobject else array.tobytes()


def _parts(structure: Any) -> list[Any]:
    return [each for each in tf.nest.flatten(structure, expand_composites=True) if _can_be_read(each)]


def _digest(parts: Sequence[Any]) -> Any:
    texts = tf.stack([tf.io.serialize_tensor(each) for each in parts]) if parts else tf.constant([""])
    return tf.strings.to_hash_bucket_fast(tf.strings.reduce_join(texts), 2**62)


@dataclass
class Firsts:
    """The comparisons of training and validation data that the workers divide, and whether they do divide them."""

    of_training: list[FirstBatches] = field(default_factory=list)
    of_validation: list[FirstBatches] = field(default_factory=list)
    is_training_divided: bool = False
    is_validation_divided: bool = False


def _can_be_read(part: Any) -> bool:
    return isinstance(part, tf.Tensor) and part.dtype not in (tf.variant, tf.resource)


def check_weights(variables: Iterable[tuple[str, Any]], group: WorkerGroup, when: str) -> None:
    """Check that variables are the same bit for bit on all workers. All workers must call it.

    Args:
        variables: Names for the error message, and values that `as_array` accepts.
        group: The workers.
        when: The moment, for the error message: "after epoch 3".

    Raises:
        WorkersDiffer: Some variables differ. The message names them.
    """
    if group.place.size == 1:
        return
    # Name small variables first: if a learning rate differs, it is the reason why the large ones differ.
    arrays = sorted(
        ((name, as_array(value)) for name, value in variables),
        key=lambda each: (each[1].size, each[1].ndim),
    )
    are_equal = group.are_equal(np.array([_checksum(array) for _, array in arrays], np.int64))
    different = [name for (name, _), is_equal in zip(arrays, are_equal, strict=True) if not is_equal]
    if different:
        shown = ", ".join(different[:_NUM_NAMED])
        more = f" and {len(different) - _NUM_NAMED} more" if len(different) > _NUM_NAMED else ""
        raise WorkersDiffer(
            f"{when} the workers have different values of {shown}{more}, so they no longer train one "
            "model. Code that changes a variable must do the same on each worker: a callback that depends "
            "on time, random numbers or this worker's own rows does not, nor does a step that changes "
            "variables without an optimizer. Use `logs`, which are those of all workers, or "
            "`tf.distribute.get_replica_context().all_reduce`"
        )


def check_versions(versions: Mapping[str, str], group: WorkerGroup) -> None:
    """Check that all workers use the same versions of libraries. All workers must call it.

    Raises:
        WorkersDiffer: The versions differ. The message names each worker's version.
    """
    if group.place.size == 1:
        return
    table = np.zeros([group.place.size, len(versions), _NUM_PARTS], np.int64)
    table[group.place.index] = [_numbers(version) for version in versions.values()]
    (table,) = group.sum_arrays([table])
    for at, name in enumerate(versions):
        by_worker = [".".join(map(str, row)) for row in table[:, at]]
        if len(set(by_worker)) > 1:
            told = ", ".join(f"{version} on worker {worker}" for worker, version in enumerate(by_worker))
            raise WorkersDiffer(
                f"workers that train one model use different versions of {name}: {told}. --requirements "
                "FILE builds the same environment on every host, --python selects another interpreter, and "
                "ignite-tf doctor lists what each host has"
            )


def _numbers(version: str) -> list[int]:
    found = [int(digits) for digits in re.findall(r"\d+", version)[:_NUM_PARTS]]
    return found + [0] * (_NUM_PARTS - len(found))


def check_models(descriptions: Iterable[tuple[str, str]], group: WorkerGroup) -> None:
    """Check that all workers train the same model in the same way. All workers must call it.

    Args:
        descriptions: For each property that must be equal, its name and a text with its value.
        group: The workers.

    Raises:
        WorkersDiffer: Some properties differ. The message names them.
    """
    if group.place.size == 1:
        return
    listed = list(descriptions)
    are_equal = group.are_equal(np.array([zlib.crc32(text.encode()) for _, text in listed], np.int64))
    different = [
        (what, text) for (what, text), is_equal in zip(listed, are_equal, strict=True) if not is_equal
    ]
    if different:
        told = "; ".join(f"{what}, here {text[:_TEXT_SHOWN]}" for what, text in different)
        raise WorkersDiffer(
            f"the workers should train one model, but their calls of `fit` differ in {told}. If each "
            "worker is to try something else, as in a search, put `with ignite_tf_magic.independent():` "
            "around it; else seed whatever chooses"
        )
