"""Makes iterators of tf.compat.v1 graphs read Ignite's rows on the requested device, or raise.

tf.data puts an iterator where its dataset was made and ignores the iterator's `tf.device`. Measured with both kinds of
iterators: all tasks of an in-graph program then read the rows of the task that runs the session. This module therefore
makes a dataset again on the device of its iterator; if only tf.data knows how the dataset was made, it raises.
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
    """Mark a dataset in a graph as a reader of rows, and check iterators from now on."""
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
    """Return whether an iterator made here would read rows in another task than the requested one."""
    if tf.executing_eagerly():
        return False
    asked = _task_of(device_asked_for())
    made = {_task_of(operation.device) for operation in _readers(dataset)}
    if asked is None or made <= {asked}:
        return False
    return made != {None} or asked != own_task()  # no device means the session's task, usually this process


def device_asked_for() -> str:
    """Return the device that operations made here are put on; empty if none is requested."""
    return str(tf.no_op().device)


def own_task() -> tuple[str, int] | None:
    """Return job and number of this process from TF_CONFIG; None without them."""
    try:
        own = json.loads(os.environ.get("TF_CONFIG") or "{}").get("task", {})
        return str(own["type"]), int(own["index"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def is_for_another_task() -> bool:
    """Return whether operations made here are put on a cluster task other than this process."""
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
