"""Turns the data passed to `fit` and `evaluate` into arguments with this worker's shard, for Keras' methods."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from ignite_tf_magic.dataset.batches import num_rows
from ignite_tf_magic.training import shares
from ignite_tf_magic.training.batch_sources import is_source, of_own_batches
from ignite_tf_magic.training.consistency import FirstBatches, Firsts, are_same
from ignite_tf_magic.training.frameworks import Framework
from ignite_tf_magic.training.group import WorkerGroup

_ALIKE = {
    *("epochs", "initial_epoch", "batch_size", "validation_split", "validation_batch_size", "shuffle"),
    *("steps_per_epoch", "validation_steps", "validation_freq", "class_weight"),
}
_SIZES_DIFFER = ("Dimensions must be equal", "Incompatible shapes", "required broadcastable shapes")


@contextmanager
def end_is_well(given: Mapping[str, Any], *numbers: str) -> Iterator[None]:
    """Suppress Keras' warning about data that ends, unless one of the named arguments sets the number of steps."""
    with warnings.catch_warnings():
        if all(given.get(each) is None for each in numbers):
            warnings.filterwarnings("ignore", "Your input ran out of data", UserWarning)
        yield


@contextmanager
def explained(data: Any, group: WorkerGroup) -> Iterator[None]:
    """Add a note to an exception of Keras if the data may have caused it: Keras' own text is about layers."""
    try:
        yield
    except Exception as error:
        advice = _advice(error, data, group)
        if advice and hasattr(error, "add_note"):
            error.add_note(advice)
        raise


def _advice(error: Exception, data: Any, group: WorkerGroup) -> str | None:
    if isinstance(data, tf.data.Dataset) and (advice := _about_dataset(error, data.element_spec, group)):
        return advice
    if group.place.size > 1 and any(words in str(error) for words in _SIZES_DIFFER):
        return (
            "On several workers a step has a part of each batch. If it creates tensors with a fixed batch "
            "size, take the number of rows from the data: tf.shape(x)[0]"
        )
    return None


def _about_dataset(error: Exception, spec: Any, group: WorkerGroup) -> str | None:
    if isinstance(spec, dict) and spec.keys() == {"key", "val"}:
        fields = ", ".join(map(repr, spec["val"])) if isinstance(spec["val"], dict) else "the value itself"
        return (
            "The dataset gives rows of the cache, and a model is trained with pairs of input and label. Make them with "
            f"map, before batch: dataset.map(lambda row: (row['val'][...], row['val'][...])); fields: {fields}"
        )
    parts = tf.nest.flatten(spec[0] if isinstance(spec, tuple) else spec)
    if any(part.shape.rank == 0 for part in parts):
        return "The dataset gives single numbers, and a model is trained with batches: dataset.batch(64)"
    is_about_none = any(words in str(error) for words in ("NoneType", "None values"))
    if is_about_none and group.place.size > 1 and any(part.shape[:1] == [None] for part in parts):
        return (
            "A worker's batches do not all have the same number of rows, so that number is None in a traced step. Use "
            "tf.shape(x)[0], or let all batches have the same rows: dataset.batch(n, drop_remainder=True), n being "
            "a multiple of the number of workers"
        )
    return None


def training_data(
    given: dict[str, Any], framework: Framework, group: WorkerGroup, order: int
) -> tuple[dict[str, Any], Firsts]:
    """Remove the data from the arguments of `fit`, and return this worker's shard of it.

    Args:
        given: The arguments; the data is removed from them.
        framework: The model's framework.
        group: The workers.
        order: Seed for shuffling arrays, if `fit` shuffles them; the same on all workers.

    Returns:
        Arguments for Keras' `fit`, and the comparisons of the workers' first batches.
    """
    firsts = Firsts()
    x, y, weights = (given.pop(name, None) for name in ("x", "y", "sample_weight"))
    validation, split = given.pop("validation_data", None), given.pop("validation_split", 0.0)
    batch_rows, shuffle = given.pop("batch_size", None), order if given.pop("shuffle", True) else None
    validation_rows = given.pop("validation_batch_size", None) or batch_rows
    if split and validation is None and not is_source(x):
        (x, y, weights), validation = _split(x, y, weights, split)
    part = _share((x, y, weights), batch_rows, shuffle, framework, group, firsts.of_training)
    firsts.is_training_divided = shares.is_divided(part)
    found = {"x": part, "shuffle": False}
    if isinstance(part, tf.data.Dataset):
        found["x"] = shares.in_step(part, group)
    else:
        found |= {"y": y, "sample_weight": weights, "batch_size": batch_rows}
    if validation is not None:
        parts = validation if isinstance(validation, (tuple, list)) else (validation,)
        data = (*parts, None, None)[:3]
        part = _share(data, validation_rows, None, framework, group, firsts.of_validation)
        firsts.is_validation_divided = shares.is_divided(part)
        found["validation_data"] = _to_evaluate(part, group)
    return found, firsts


def evaluation_data(
    given: dict[str, Any], framework: Framework, group: WorkerGroup
) -> tuple[dict[str, Any], Firsts]:
    """Remove the data from the arguments of `evaluate`, and return this worker's shard, as `training_data` does."""
    firsts = Firsts()
    x, y, weights = (given.pop(name, None) for name in ("x", "y", "sample_weight"))
    batch_rows = given.pop("batch_size", None)
    whole = {"x": x, "y": y, "sample_weight": weights, "batch_size": batch_rows}
    if given.get("_use_cached_eval_dataset"):
        return whole, firsts
    part = _share((x, y, weights), batch_rows, None, framework, group, firsts.of_validation)
    firsts.is_validation_divided = shares.is_divided(part)
    if not isinstance(part, tf.data.Dataset):
        return {**whole, "x": part}, firsts
    return {"x": _to_evaluate(part, group)}, firsts


def _to_evaluate(part: Any, group: WorkerGroup) -> Any:
    """Return data with the same number of batches on all workers, whose steps may compute over all rows."""
    is_for_all = isinstance(part, tf.data.Dataset) and group.place.size > 1
    return shares.in_step(shares.with_a_batch(part), group) if is_for_all else part


def _share(
    data: tuple[Any, Any, Any],
    batch_rows: int | None,
    order: int | None,
    framework: Framework,
    group: WorkerGroup,
    firsts: list[FirstBatches],
) -> Any:
    """Return this worker's shard of x, y and weights as one argument for Keras."""
    x = data[0]
    if isinstance(x, tf.data.Dataset):
        return shares.share_of(x, group, firsts)
    if is_source(x):
        return of_own_batches(x, framework, group)
    parts = framework.module.utils.pack_x_y_sample_weight(*map(_without_lists, data))
    tensors = tf.nest.map_structure(framework.as_input, parts)
    if group.place.size > 1 and not are_same(tensors, group):
        rows_by_worker = group.side_by_side(int(num_rows(tensors)))
        if group.place.is_chief:
            _tell_of_own_rows(rows_by_worker)
        return shares.of_own_arrays(
            tensors, rows_by_worker, batch_rows, order=order, worker=group.place.index
        )
    return shares.share_of(shares.of_arrays(tensors, batch_rows, order=order), group, [])


def _tell_of_own_rows(by_worker: Sequence[int]) -> None:
    warnings.warn(
        f"the arrays are not the same on all workers ({', '.join(map(str, by_worker))} rows), so each is "
        f"treated as its worker's own part of {sum(by_worker)} rows in total. If each worker should have "
        "all rows, seed whatever chooses or shuffles them, or read them with "
        "IgniteDataset(...).arrays(assigned=False)",
        stacklevel=2,
    )


def _without_lists(arrays: Any) -> Any:
    """Turn lists into tuples, because datasets interpret lists as tensors."""
    if isinstance(arrays, (list, tuple)):
        return tuple(map(_without_lists, arrays))
    return (
        {name: _without_lists(each) for name, each in arrays.items()} if isinstance(arrays, dict) else arrays
    )


def described(given: dict[str, Any]) -> str:
    """Describe the arguments of `fit` that must be equal on all workers. Otherwise workers could wait forever."""
    found = [f"x is {_kind(given.get('x'))}", f"validation_data is {_kind(given.get('validation_data'))}"]
    found += [
        f"{name}={_shown(given[name])}" for name in sorted(_ALIKE & given.keys()) if given[name] is not None
    ]
    return ", ".join(found)


def _kind(data: Any) -> str:
    if isinstance(data, tf.data.Dataset):
        return "a dataset"
    if data is None:
        return "nothing"
    return "a generator or PyDataset" if is_source(data) else "arrays or more"


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return str({str(name): float(each) for name, each in sorted(value.items())})
    return str(np.asarray(value).tolist())


def _split(x: Any, y: Any, weights: Any, share: float) -> tuple[tuple[Any, Any, Any], tuple[Any, ...]]:
    """Split off the last rows for validation, as Keras does."""
    arrays = (x, y, weights)
    total = len(tf.nest.flatten(x)[0])
    at = int(np.floor(total * (1.0 - share)))

    def cut(part: slice) -> tuple[Any, ...]:
        return tuple(
            None if each is None else tf.nest.map_structure(lambda a: a[part], each) for each in arrays
        )

    x, y, weights = cut(slice(None, at))
    return (x, y, weights), cut(slice(at, None))
