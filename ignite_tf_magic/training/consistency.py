"""What is to be the same on all workers, and whether it is: data that each is given whole, and weights."""

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
_NUM_PARTS = 3  # of a version


def are_same(arrays: Any, group: WorkerGroup) -> bool:
    """Return whether a structure of arrays is the same on all workers; all of them call."""
    flat = tf.nest.flatten(arrays, expand_composites=True)
    total = 0
    for each in flat:
        total = _checksum(as_array(each), total)
    return bool(group.are_equal(np.array([len(flat), total], np.int64)).all())


def _checksum(array: np.ndarray, start: int = 0) -> int:
    """Return a checksum of an array's shape, dtype and bytes, going on from another one."""
    head = f"{array.dtype.str} {array.shape}".encode()
    if array.dtype.hasobject:
        return zlib.crc32(b"\0".join(map(_bytes_of, array.ravel())), zlib.crc32(head, start))
    # As bytes: there are dtypes, as bfloat16, that no buffer knows.
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, zlib.crc32(head, start))


def _bytes_of(thing: Any) -> bytes:
    return thing if isinstance(thing, bytes) else str(thing).encode()


class FirstBatches:
    """Compares the first batches of passes over data of which all workers should have the same.

    What is compared is labels, where there are any: inputs may have been changed at random. Where labels tell little,
    as those of one class do, all of the batch is compared.

    Args:
        has_own_sources: Whether workers are known to read other rows each.
    """

    def __init__(self, *, has_own_sources: bool = False) -> None:
        self._has_own_sources = has_own_sources
        self._seen: list[tuple[int, int]] = []
        self._num_checked = 0
        self._has_warned = False

    def noted(self, number: Any, element: Any) -> Any:
        """Return an element, whose number in its pass is given, in a tf.data function; the first one is noted."""
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
        """Warn, once, if the next pass began with other rows on another worker. All workers call."""
        at = self._num_checked
        own = self._seen[at] if at < len(self._seen) else (-1, -1)
        self._num_checked += 1
        is_same = bool(group.are_equal(np.array(own, np.int64)).all()) and not self._has_own_sources
        if not is_same and not self._has_warned and group.place.is_chief:
            warnings.warn(
                "the workers do not have the same batches, and each takes every n-th row of them: rows may be trained "
                "twice or left out. If it is shuffled, give shuffle a seed; if each worker has rows of its own, say so "
                "with options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF. "
                "Where only random changes of the same rows differ, all is well",
                stacklevel=2,
            )
        self._has_warned = self._has_warned or not is_same


def tell_rows_apart(labels: Sequence[np.ndarray]) -> bool:
    """Return whether other rows would hardly have the labels that these have, one after the other.

    Those of one class, or of few that are sorted or come in turns, are the same for other rows. So may be rare ones:
    the chance that two rows have the same label, for all of them together, is to be small.
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
    """Number rows by what their labels are: the same number for the same labels."""
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
    """What compares the data of a training, and that of its validation; whether all workers have it, and divide it."""

    of_training: list[FirstBatches] = field(default_factory=list)
    of_validation: list[FirstBatches] = field(default_factory=list)
    is_training_divided: bool = False
    is_validation_divided: bool = False


def _can_be_read(part: Any) -> bool:
    return isinstance(part, tf.Tensor) and part.dtype not in (tf.variant, tf.resource)


def check_weights(variables: Iterable[tuple[str, Any]], group: WorkerGroup, when: str) -> None:
    """Compare variables of all workers, which are to be equal to the bit; all of them call.

    Args:
        variables: Names, for people, and values that NumPy reads.
        group: The workers.
        when: For people: "after epoch 3".

    Raises:
        WorkersDiffer: Some differ; they are named.
    """
    if group.place.size == 1:
        return
    # Small ones first, single numbers above all: where a learning rate differs, all else does because of it.
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
            f"{when} the workers have different values of {shown}{more}, so they no longer train one model. What "
            "changes a variable must do the same on each: a callback that goes by time, by random numbers or by this "
            "worker's own rows does not, nor does a step that changes variables without an optimizer. Let it go by "
            "`logs`, which are those of all workers, or by `tf.distribute.get_replica_context().all_reduce`"
        )


def check_versions(versions: Mapping[str, str], group: WorkerGroup) -> None:
    """Make sure that all workers compute with the same libraries; all of them call.

    Raises:
        WorkersDiffer: They do not; each worker's version is named.
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
                f"workers that train one model compute with different versions of {name}: {told}. --requirements FILE "
                "builds the same environment on every host, --python names another interpreter, and ignite-tf doctor "
                "says what each host has"
            )


def _numbers(version: str) -> list[int]:
    found = [int(digits) for digits in re.findall(r"\d+", version)[:_NUM_PARTS]]
    return found + [0] * (_NUM_PARTS - len(found))


def check_models(descriptions: Iterable[tuple[str, str]], group: WorkerGroup) -> None:
    """Make sure that all workers train the same model in the same way; all of them call.

    Args:
        descriptions: Of each thing that is to be the same, what it is, and a text that tells it from others.
        group: The workers.

    Raises:
        WorkersDiffer: They do not; what differs is named.
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
            f"the workers were to train one model, and each calls `fit` with another: they differ in {told}. Where "
            "each worker is to try something else, as in a search, put `with ignite_tf_magic.independent():` around "
            "it; else seed what chooses"
        )
