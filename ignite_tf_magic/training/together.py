"""One Keras model, trained on all workers as if they were one process.

Every worker runs Keras' own `fit` on its own rows, with variables that are its own. What makes them one is done at
three public seams of the model, for as long as a `with` lasts:

- its optimizers' last step takes the gradients of all workers, weighted by the rows behind each: the gradient of the
  mean loss over the whole batch. Clipping and loss scaling come behind it, as in one process.
- `train_step` and `test_step` cope with a batch without rows, which counts for nothing.
- `get_metrics_result` adds up over all workers what metrics have counted.

So all workers make the same update from the same weights, and stay equal to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from ignite_tf_magic.batches import num_rows, or_one_row
from ignite_tf_magic.training.frameworks import Framework, optimizers_of
from ignite_tf_magic.training.group import WorkerGroup

_FITTING = ("train_step", "test_step", "get_metrics_result", "reset_metrics")
# Places in what the workers agree on in each step.
ROWS, STOP, SAVE, REPORT = range(4)
_NUM_FLAGS = 4


class Together:
    """Trains one model together with the other workers. Used in one thread."""

    def __init__(self, model: Any, framework: Framework, group: WorkerGroup) -> None:
        self._model = model
        self._framework = framework
        self._group = group
        self._step: _Step | None = None
        self._shadows: dict[int, Any] = {}
        self._functions: dict[str, Any] = {}
        self._compiled: tuple[int, ...] = ()
        self._wishes = tf.Variable(tf.zeros([_NUM_FLAGS]), trainable=False, name="wishes")
        self._agreed = tf.Variable(tf.zeros([_NUM_FLAGS]), trainable=False, name="agreed")

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Take the model's seams, and give them back; one worker alone needs none of them."""
        if self._group.place.size == 1:
            yield
            return
        model = self._model
        compiled = tuple(map(id, [model.optimizer, *model.metrics]))
        if compiled != self._compiled:
            self._functions, self._shadows, self._compiled = {}, {}, compiled
        before = {name: getattr(model, name) for name in ("train_function", "test_function", "jit_compile")}
        optimizers = list(optimizers_of(model, self._framework))
        hooks = [(optimizer, self._framework.apply_name, self._apply(optimizer)) for optimizer in optimizers]
        hooks += [(model, name, getattr(self, f"_{name}")(getattr(model, name))) for name in _FITTING]
        try:
            for owner, name, hook in hooks:
                setattr(owner, name, hook)
            model.jit_compile = False  # XLA compiles no operation between processes
            model.train_function = self._functions.get("train_function")
            model.test_function = self._functions.get("test_function")
            yield
        finally:
            self._functions = {name: getattr(model, name) for name in ("train_function", "test_function")}
            for owner, name, _ in hooks:
                delattr(owner, name)
            for name, value in before.items():
                setattr(model, name, value)

    def start(self) -> None:
        """Give every worker the chief's variables; the model and its optimizers are built by then."""
        self._wishes.assign(tf.zeros([_NUM_FLAGS]))
        self._agreed.assign(tf.zeros([_NUM_FLAGS]))
        if self._group.place.size == 1:
            return
        variables = list(self._model.variables)
        for optimizer in optimizers_of(self._model, self._framework):
            variables += self._framework.optimizer_variables(optimizer)
        numbers = [each for each in variables if tf.as_dtype(each.dtype) not in (tf.string, tf.variant)]
        unique = list({id(variable): variable for variable in numbers}.values())
        values = self._group.from_chief([self._framework.tensor(variable) for variable in unique])
        for variable, value in zip(unique, values, strict=True):
            variable.assign(value)
        self._spread_seeds()

    def wish(self, what: int, *, wanted: bool = True) -> None:
        """Ask all workers to do something with the next step, or not any more."""
        self._wishes.scatter_nd_update([[what]], [float(wanted)])

    def agreed(self) -> np.ndarray:
        """Give what the workers agreed on in the last step; more than 0 where any of them asked for it."""
        return np.zeros(_NUM_FLAGS) if self._group.place.size == 1 else self._agreed.numpy()

    def wishes_for(self, what: int) -> bool:
        """Whether this worker has asked for that."""
        return bool(self._wishes[what] > 0)

    def _spread_seeds(self) -> None:
        """Let each worker drop out other units: equal seeds would drop the same ones everywhere."""
        for variable in self._model.non_trainable_variables:
            if "seed_generator_state" in variable.name or "seed_generator_state" in getattr(
                variable, "path", ""
            ):
                value = tf.cast(self._framework.tensor(variable), tf.int64)
                index = tf.constant(
                    [0] * (math.prod(variable.shape) - 1) + [self._group.place.index], tf.int64
                )
                variable.assign(tf.cast(value + tf.reshape(index, tf.shape(value)), variable.dtype))

    # The seams

    def _train_step(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def train_step(data: Any) -> Any:
            logs = self._careful(original, data, is_training=True)
            return self._spread(logs) if self._is_own(logs) else logs

        return train_step

    def _test_step(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda data: self._careful(original, data, is_training=False)

    def _careful(self, original: Callable[[Any], Any], data: Any, *, is_training: bool) -> Any:
        """Do a step; without rows, do it with one of zeros, and let it count for nothing."""
        x, _, _ = self._framework.unpack(data)
        rows = num_rows(x)
        self._step = step = _Step(self, tf.cast(rows, tf.float32))
        try:
            with _Context(step):
                logs = original(or_one_row(data, rows))
            if is_training and not step.has_met:
                step.meet([])
            self._forget_metrics_unless(rows > 0)
            return logs
        finally:
            self._last_rows, self._step = step.rows, None

    def _forget_metrics_unless(self, has_rows: Any) -> None:
        """Undo what metrics have counted.

        Their values are kept beside them from step to step: when the first step begins, they may not have been made.
        """
        for variable in self._framework.metric_variables(self._model):
            shadow = self._shadow(variable)
            value = tf.where(has_rows, self._framework.tensor(variable), shadow)
            variable.assign(value)
            shadow.assign(value)

    def _shadow(self, variable: Any) -> Any:
        if id(variable) not in self._shadows:
            with tf.init_scope():
                zeros = tf.zeros(variable.shape, variable.dtype)
                self._shadows[id(variable)] = tf.Variable(zeros, trainable=False)
        return self._shadows[id(variable)]

    def keep_metrics(self) -> None:
        """Take what metrics have counted now for what they had before the next step."""
        for variable in self._framework.metric_variables(self._model):
            self._shadow(variable).assign(self._framework.tensor(variable))

    def _reset_metrics(self, original: Callable[[], None]) -> Callable[[], None]:
        def reset_metrics() -> None:
            original()
            self.keep_metrics()

        return reset_metrics

    def _get_metrics_result(self, original: Callable[[], Any]) -> Callable[[], Any]:
        def get_metrics_result() -> Any:
            if self._step is not None:
                return original()  # within a step: this worker's, for the progress bar
            return self._of_all(original)

        return get_metrics_result

    def _of_all(self, result: Callable[[], Any]) -> Any:
        variables = self._framework.metric_variables(self._model)
        sums = self._group.sum([self._framework.tensor(variable) for variable in variables])
        return self._framework.with_values(zip(variables, sums, strict=True), result)

    def _is_own(self, logs: Any) -> bool:
        """Whether a `train_step` of the script's own gives other things than metrics; Keras then shows the last."""
        return isinstance(logs, dict) and set(logs) != set(type(self._model).get_metrics_result(self._model))

    def _spread(self, logs: dict[str, Any]) -> dict[str, Any]:
        """Make the results of a step those of all workers: metrics of all rows, other values weighted by the rows."""
        exact = self._of_all(lambda: type(self._model).get_metrics_result(self._model))
        others = [name for name in logs if name not in exact]
        values = [tf.cast(logs[name], tf.float32) for name in others]
        rows = self._last_rows
        *sums, total = self._group.sum([tf.where(rows > 0, value * rows, 0.0) for value in values] + [rows])
        means = {name: value / total for name, value in zip(others, sums, strict=True)}
        return {name: exact.get(name, means.get(name)) for name in logs}

    def _apply(self, optimizer: Any) -> Callable[..., Any]:
        original = getattr(optimizer, self._framework.apply_name)

        def apply(*arguments: Any, **options: Any) -> Any:
            if self._step is None:
                return original(*arguments, **options)
            gradients, put = self._framework.gradients_of(arguments)
            means = self._step.meet(gradients)
            with self._step.alone():
                return original(*put(means), **options)

        return apply


class _Step:
    """One step while TensorFlow traces it, or runs it eagerly."""

    def __init__(self, together: Together, rows: Any) -> None:
        self.together = together
        self.rows = rows
        self.has_met = False
        self.is_alone = False
        framework = together._framework
        self._kept = [
            each for each in framework.other_variables(together._model) if tf.as_dtype(each.dtype).is_floating
        ]
        self._before = [tf.identity(framework.tensor(each)) for each in self._kept]

    def meet(self, gradients: Sequence[Any]) -> list[Any]:
        """Give the mean of gradients over the rows of all workers. The first time in a step, all else goes along."""
        there = [at for at, gradient in enumerate(gradients) if gradient is not None]
        sent = [self._weighted(tf.convert_to_tensor(gradients[at])) for at in there]
        if self.has_met:
            *sums, total = self.together._group.sum([*sent, self.rows])
        else:
            sums, total = self._meet_first(sent)
        self.has_met = True
        found = list(gradients)
        for at, value in zip(there, sums, strict=True):
            found[at] = value / tf.cast(total, value.dtype)
        return found

    def _meet_first(self, sent: list[Any]) -> tuple[list[Any], Any]:
        """Also agree on wishes, and on what the step has made of statistics such as those of BatchNormalization."""
        together = self.together
        framework = together._framework
        changes = [
            self._weighted(framework.tensor(variable) - before)
            for variable, before in zip(self._kept, self._before, strict=True)
        ]
        seen = tf.tensor_scatter_nd_update(together._wishes, [[ROWS]], [self.rows])
        sums = together._group.sum([*sent, *changes, seen])
        agreed = sums[-1]
        together._agreed.assign(agreed)
        for variable, before, change in zip(self._kept, self._before, sums[len(sent) : -1], strict=True):
            variable.assign(before + change / tf.cast(agreed[0], change.dtype))
        return sums[: len(sent)], agreed[0]

    def _weighted(self, value: Any) -> Any:
        return tf.where(self.rows > 0, value * tf.cast(self.rows, value.dtype), tf.zeros_like(value))

    @contextmanager
    def alone(self) -> Iterator[None]:
        """What adds up over replicas has been added up: optimizers do so by themselves, too."""
        self.is_alone = True
        yield
        self.is_alone = False

    def sum_of_layers(self, values: Sequence[Any]) -> list[Any]:
        """Add up what layers ask to be added up, as synchronised BatchNormalization does; with its gradient."""
        group, rows = self.together._group, self.rows

        @tf.custom_gradient  # type: ignore[untyped-decorator]
        def add_up(*own: Any) -> Any:
            def gradient(*upstream: Any) -> list[Any]:
                # Later each worker's gradient is weighted by its rows, and so must be what others pass on here.
                sums = group.sum([self._weighted(each) for each in upstream])
                return [tf.math.divide_no_nan(each, tf.cast(rows, each.dtype)) for each in sums]

            return group.sum([tf.where(rows > 0, each, tf.zeros_like(each)) for each in own]), gradient

        found = add_up(*values)
        return list(found) if isinstance(found, (list, tuple)) else [found]


class _Context(tf.distribute.ReplicaContext):  # type: ignore[misc]
    """Where layers find the other workers. There is no strategy, so Keras divides no loss by a number of replicas."""

    def __init__(self, step: _Step) -> None:
        super().__init__(tf.distribute.get_strategy(), 0)
        self._step = step

    def all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        """Add up over the workers; the mean is that over all rows."""
        del options
        if self._step.is_alone:
            return value
        sums = self._step.sum_of_layers(tf.nest.flatten(value))
        if tf.distribute.ReduceOp(getattr(reduce_op, "value", reduce_op)) is tf.distribute.ReduceOp.MEAN:
            sums = [each / self._step.together._group.place.size for each in sums]
        return tf.nest.pack_sequence_as(value, sums)
