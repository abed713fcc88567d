"""Iterators of tf.compat.v1 graphs: the rows of Ignite are read on the device that asks for them, or not at all.

tf.data puts an iterator where its dataset was made, whatever `tf.device` says: measured with both kinds of iterators,
all tasks of an in-graph program then read the rows of the task that runs the session. So a dataset is made again on the
device of its iterator; one of which only tf.data knows how it was made is refused.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from ignite_tf_magic.dataset.tf_private import ITERATOR_MAKERS, mark_operation, variant_of
from ignite_tf_magic.errors import ConfigError

_MARK = "_ignite_rows"
_CHECKED = "_ignite_checked"


def mark(records: Any) -> None:
    """Remember of a dataset in a graph that it reads rows, and look at iterators from now on."""
    mark_operation(variant_of(records).op, _MARK)
    for name in ITERATOR_MAKERS:
        method = getattr(tf.compat.v1.data.Dataset, name)
        if not hasattr(method, _CHECKED):
            setattr(tf.compat.v1.data.Dataset, name, _checked(method))


def _checked(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(dataset: Any, *arguments: Any, **options: Any) -> Any:
        if moves(dataset):
            raise ConfigError(
                f"the iterator is to be on {device_asked_for()}, but tf.data would read all rows where the dataset was "
                "made. Make IgniteDataset(...), and all that follows, in the `with tf.device(...)` of the iterator"
            )
        return original(dataset, *arguments, **options)

    setattr(method, _CHECKED, True)
    return method


def moves(dataset: Any) -> bool:
    """Whether an iterator made here would read rows in another task than the one that it is asked for on."""
    if tf.executing_eagerly():
        return False
    asked = _task_of(device_asked_for())
    made = {_task_of(operation.device) for operation in _readers(dataset)}
    if asked is None or made <= {asked}:
        return False
    return (
        made != {None} or asked != own_task()
    )  # without a device it is the session's task: one's own, most often


def device_asked_for() -> str:
    """Return the device that operations made here are put on; empty where none is asked for."""
    return str(tf.no_op().device)


def own_task() -> tuple[str, int] | None:
    """Return job and number of this process, as TF_CONFIG says."""
    try:
        own = json.loads(os.environ.get("TF_CONFIG") or "{}").get("task", {})
        return str(own["type"]), int(own["index"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def is_for_another_task() -> bool:
    """Whether operations made here are put on a task of a cluster that is not this process."""
    asked = None if tf.executing_eagerly() else _task_of(device_asked_for())
    return asked is not None and asked != own_task()


def _task_of(device: str) -> tuple[str, int] | None:
    spec = tf.DeviceSpec.from_string(device)
    return None if spec.job in (None, "localhost") else (spec.job, spec.task or 0)


def _readers(dataset: Any) -> Iterator[Any]:
    """Yield the operations that read rows for a dataset."""
    waiting, seen = [variant_of(dataset).op], set()
    while waiting:
        operation = waiting.pop()
        if operation in seen:
            continue
        seen.add(operation)
        waiting += [each.op for each in operation.inputs]
        if _MARK in operation.node_def.attr:
            yield operation
