"""Turns a training step into a function that any worker can run, with variables on parameter servers.

The model's own `train_step` is traced unchanged, so all its code takes effect. It uses variables of the chief's
process. In the function for workers, other variables replace them:

- Weights, and all variables not named below, are on the parameter servers.
- Integer counts are copied to the worker, and the step's increments are added on their parameter server.
- Metric variables start anew in each step, on the worker. Their values return to the chief, which adds them up. So a
  step that a killed worker did not report is not counted, and a repeated step is counted once.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from ignite_tf_magic.dataset.batches import num_rows
from ignite_tf_magic.training.frameworks import Framework
from ignite_tf_magic.training.optimizers import optimizers_of
from ignite_tf_magic.training.shared_variables import SharedVariables
from ignite_tf_magic.training.together import is_seed

_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class StepReport:
    """A worker's report of a step.

    Attributes:
        worker: The worker's number.
        rows: The number of rows in the batch.
        metrics: The increment of each metric variable.
        counts: The increment of each integer count.
        others: The values that `train_step` returned, by name; empty if it returned only metrics.
    """

    worker: int
    rows: int
    metrics: list[np.ndarray]
    counts: list[np.ndarray]
    others: Mapping[str, Any]


class RemoteStep:
    """A training step for workers. All variables of the model must exist before it is made.

    Attributes:
        variables: The variables on the parameter servers.
        metrics: The metric variables of this process. Reports contain the increments of them.
        initial: The initial values of these variables, in the same order.

    Args:
        model: The trained model.
        framework: The model's framework.
        element_spec: The spec of the batches.
        ps: Devices of the parameter servers.
    """

    def __init__(self, model: Any, framework: Framework, element_spec: Any, ps: Sequence[str]) -> None:
        self._model = model
        self._framework = framework
        self._spec = element_spec
        self.metrics = [tensorflow_variable(each) for each in framework.metric_variables(model)]
        self.initial = self._initial()
        self._number = next(_numbers)
        self._other_names: list[str] = []
        inner = self._traced()
        known = {id(each.handle): each for each in self._known(inner)}
        counted = {id(each.handle) for each in self.metrics}
        used = [known[id(each)] for each in inner.captured_inputs if id(each) in known]
        shared = [each for each in used if id(each.handle) not in counted]
        self.variables = SharedVariables(shared, ps)
        self._places = {id(each.handle): at for at, each in enumerate(shared)}
        self._function = self._on_worker(inner)

    def __call__(self, worker: int, device: str, batch: Sequence[Any]) -> StepReport:
        """Run a step on a worker, and wait for its report.

        Raises:
            tf.errors.OpError: The step failed, or the worker or a parameter server is gone.
        """
        number = tf.constant(worker, tf.int64)  # made here: on the worker it would take one more request
        with tf.device(device):
            numbers, others = self._function(*batch, number)
        return self._report(worker, numbers.numpy(), [each.numpy() for each in others])

    def _initial(self) -> list[np.ndarray]:
        """Return the initial values of the metric variables, without changing their current values."""
        before = [each.numpy() for each in self.metrics]
        self._model.reset_metrics()
        found = [each.numpy() for each in self.metrics]
        for variable, value in zip(self.metrics, before, strict=True):
            variable.assign(value)
        return found

    def _known(self, inner: Any) -> list[Any]:
        model, framework = self._model, self._framework
        found = [*model.variables, *framework.untracked_variables(model), *self.metrics, *inner.variables]
        for optimizer in optimizers_of(model, framework):
            found += framework.optimizer_variables(optimizer)
        return [tensorflow_variable(each) for each in found]

    def _traced(self) -> Any:
        """Trace `train_step` as a function that returns the number of rows, and all logs if any is not a metric."""
        results = _names(self._model.get_metrics_result())

        def step(*parts: Any) -> Any:
            data = tf.nest.pack_sequence_as(self._spec, parts, expand_composites=True)
            logs = self._model.train_step(data)
            logs = logs if isinstance(logs, Mapping) else {"loss": logs}
            if _names(logs) == results:
                return num_rows(data), []
            self._other_names = list(logs)
            return num_rows(data), [tf.convert_to_tensor(each) for each in logs.values()]

        traced = tf.function(step, autograph=self._framework.converts_steps)
        return traced.get_concrete_function(*tf.nest.flatten(self._spec, expand_composites=True))

    def _on_worker(self, inner: Any) -> Any:
        specs = tf.nest.flatten(self._spec, expand_composites=True)

        def on_worker(*arguments: Any) -> Any:
            *parts, worker = arguments
            held: dict[int, tuple[Any, Any]] = {}
            for at in self.variables.counts:
                own = self.variables.own(at)
                value = self._apart(own, self.variables.shared(at).read_value(), worker)
                held[id(own.handle)] = self._hold(f"count {at}", tf.cast(value, own.dtype)), value
            for at, (metric, initial) in enumerate(zip(self.metrics, self.initial, strict=True)):
                value = tf.constant(initial, metric.dtype)
                held[id(metric.handle)] = self._hold(f"metric {at}", value), value
            places = [self._in_place_of(each, held) for each in inner.captured_inputs]
            found = tf.raw_ops.StatefulPartitionedCall(
                args=[*parts, *places], Tout=[each.dtype for each in inner.outputs], f=inner
            )
            return self._told(found, held)

        return tf.function(on_worker, autograph=False).get_concrete_function(
            *specs, tf.TensorSpec([], tf.int64)
        )

    def _apart(self, own: Any, value: Any, worker: Any) -> Any:
        """Return a seed state that differs between workers; return other counts unchanged."""
        if not is_seed(own):
            return value
        size = own.shape.num_elements()
        return value + tf.reshape(tf.one_hot(size - 1, size, dtype=tf.int64) * worker, own.shape)

    def _hold(self, name: str, value: Any) -> Any:
        """Make a variable on the worker. It exists until the worker's process ends, and each step sets it anew."""
        handle = tf.raw_ops.VarHandleOp(
            dtype=value.dtype, shape=value.shape, shared_name=f"ignite {self._number} {name}"
        )
        tf.raw_ops.AssignVariableOp(resource=handle, value=value)
        return handle

    def _in_place_of(self, captured: Any, held: Mapping[int, tuple[Any, Any]]) -> Any:
        if id(captured) in held:
            return held[id(captured)][0]
        at = self._places.get(id(captured))
        return captured if at is None else self.variables.shared(at).handle

    def _told(self, found: Sequence[Any], held: Mapping[int, tuple[Any, Any]]) -> Any:
        """Add the increments to the counts, and return all numbers as one tensor, and the other outputs.

        One tensor takes one transfer.
        """
        rows, *others = found
        numbers = [tf.cast(tf.reshape(rows, [1]), tf.float64)]
        for metric in self.metrics:
            handle, before = held[id(metric.handle)]
            numbers.append(_flat(_value(handle, metric.dtype)) - _flat(before))
        for at in self.variables.counts:
            own = self.variables.own(at)
            handle, before = held[id(own.handle)]
            added = tf.cast(_value(handle, own.dtype), tf.int64) - before
            self.variables.shared(at).assign_add(added)
            numbers.append(_flat(added))
        return tf.concat(numbers, 0), others

    def _report(self, worker: int, numbers: np.ndarray, others: Sequence[Any]) -> StepReport:
        counts = [self.variables.own(at) for at in self.variables.counts]
        shapes = [tuple(each.shape) for each in (*self.metrics, *counts)]
        ends = np.cumsum([1, *(int(np.prod(shape)) for shape in shapes)])
        pieces = np.split(numbers, ends[:-1])[1:]
        arrays = [piece.reshape(shape) for piece, shape in zip(pieces, shapes, strict=True)]
        size = len(self.metrics)
        whole = [each.astype(np.int64) for each in arrays[size:]]
        others_by_name = dict(zip(self._other_names, others, strict=True))
        return StepReport(worker, int(numbers[0]), arrays[:size], whole, others_by_name)


def tensorflow_variable(variable: Any) -> Any:
    """Return the `tf.Variable` behind a variable of Keras."""
    return variable if isinstance(variable, tf.Variable) else variable.value


def _value(handle: Any, dtype: Any) -> Any:
    return tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)


def _flat(value: Any) -> Any:
    return tf.reshape(tf.cast(value, tf.float64), [-1])


def _names(logs: Any) -> set[str]:
    return set(logs) if isinstance(logs, Mapping) else set()
