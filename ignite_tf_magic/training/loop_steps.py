"""Averages gradients over the workers in custom training loops, weighted by rows.

A custom loop does not mark its steps. So a step's rows are those of the last batch that the loop took from a tf.data
dataset. Without a dataset, all workers count equally. All workers start from the chief's weights.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ignite_tf_magic.dataset.batches import num_rows
from ignite_tf_magic.dataset.tf_private import OwnedIterator
from ignite_tf_magic.training.frameworks import Framework
from ignite_tf_magic.training.group import WorkerGroup
from ignite_tf_magic.training.one_rule import print_line
from ignite_tf_magic.training.step import RowExchange


class LoopExchange(RowExchange):
    """The exchange between workers in a loop's steps. A process has one."""

    def __init__(self, group: WorkerGroup) -> None:
        super().__init__(group)
        self._variable: Any = None
        self._begun: weakref.WeakSet[Any] = weakref.WeakSet()

    @property
    def rows(self) -> Any:
        """The number of rows of the last batch that this worker took, float32."""
        return self._rows.read_value()

    @property
    def _rows(self) -> Any:
        # Made late, because a script may still make a strategy, which must come before the first variable.
        if self._variable is None:
            with tf.init_scope():
                self._variable = tf.Variable(1.0, trainable=False, name="rows")
        return self._variable

    def note_batch(self, batch: Any) -> None:
        """Note the number of rows of the batch that the loop has taken."""
        self._rows.assign(tf.cast(num_rows(batch), tf.float32))

    def begin(self, optimizer: Any, variables: list[Any]) -> None:
        """Copy the chief's variables to all workers before an optimizer's first step."""
        if optimizer in self._begun or not all(map(_has_value, variables)):
            return  # without values, this trace creates the variables; the next trace has them
        if not self._begun and self.group.place.is_chief:
            print_line(
                "the script's training loop runs on each worker's rows; gradients are averaged by the rows of the "
                "batch that each worker took last from a tf.data dataset (docs/training.md#one-rule)"
            )
        self._begun.add(optimizer)
        with tf.init_scope():
            values = self.group.from_chief([tf.convert_to_tensor(each) for each in variables])
            for variable, value in zip(variables, values, strict=True):
                variable.assign(value)


def _has_value(variable: Any) -> bool:
    inner = variable if isinstance(variable, tf.Variable) else variable.value
    with tf.init_scope():
        handle = getattr(inner, "handle", None)
        return handle is None or bool(tf.raw_ops.VarIsInitializedOp(resource=handle))


def average_in_loops(
    framework: Framework, exchange: LoopExchange, is_independent: Callable[[], bool]
) -> Callable[..., Any]:
    """Return the update method of optimizers outside of `fit`, which uses the gradients of all workers."""

    def apply(original: Callable[..., Any], optimizer: Any, *arguments: Any, **options: Any) -> Any:
        if exchange.is_alone or is_independent() or tf.distribute.has_strategy():
            return original(*arguments, **options)
        gradients, put = framework.gradients_of(arguments, options)
        variables = framework.variables_of(optimizer, *put(gradients))
        exchange.begin(optimizer, variables)
        arguments, options = put(exchange.means(gradients, variables))
        with exchange.alone():
            return original(*arguments, **options)

    return apply


_exchanges: list[LoopExchange] = []


def loop_exchange(group: WorkerGroup) -> LoopExchange:
    """Return this process's exchange, which notes each batch that Python code takes from a tf.data dataset."""
    if not _exchanges:
        _exchanges.append(LoopExchange(group))
        _watch_batches(_exchanges[0])
    return _exchanges[0]


def _watch_batches(exchange: LoopExchange) -> None:
    original = OwnedIterator.__next__

    def take(iterator: Any) -> Any:
        batch = original(iterator)
        if tf.executing_eagerly():
            exchange.note_batch(batch)
        return batch

    OwnedIterator.__next__ = take
