"""Trains one Keras model on all workers as if they were one process.

Every worker runs Keras' own `fit` on its own rows, with its own variables. While a `with` block lasts, replaced public
methods connect the workers:

- Keras' optimizers, losses and metrics know the step in which they are called (`optimizers`, `losses`,
  `metric_updates`).
- `train_step` and `test_step` also accept a batch without rows, which counts for nothing.
- `get_metrics_result` adds up the metrics' counts over all workers.

So all workers make the same update from the same weights, and their weights stay equal bit for bit.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from ignite_tf_magic.dataset.batches import num_rows, or_one_row
from ignite_tf_magic.training.consistency import check_models, check_weights
from ignite_tf_magic.training.frameworks import Framework, layers_of
from ignite_tf_magic.training.group import WorkerGroup
from ignite_tf_magic.training.hooking import seams
from ignite_tf_magic.training.losses import hook_compiled_loss, whole_activities
from ignite_tf_magic.training.optimizers import optimizers_of
from ignite_tf_magic.training.step import NUM_FLAGS, Step, StepState
from ignite_tf_magic.training.tensorflow_seeds import other_numbers

_SEAMS = ("train_step", "test_step", "get_metrics_result", "reset_metrics")
_FUNCTIONS = ("train_function", "test_function")


class DataParallelFit:
    """Trains one model together with the other workers. Used in one thread.

    Attributes:
        model: The trained model.
        has_started: Whether all workers have received the chief's variables since the model was compiled.
    """

    def __init__(self, model: Any, framework: Framework, group: WorkerGroup) -> None:
        self.model = model
        self._framework = framework
        self._group = group
        self._step: Step | None = None
        self._shadows: dict[int, Any] = {}
        self._functions: dict[str, Any] = {}
        self._compiled: list[Any] = []
        self._state = StepState()
        self._is_installed = self._is_by_batch = self.has_started = False
        # One flag for training batches, one for evaluation batches.
        self._are_divided = {
            is_training: tf.Variable(False, trainable=False, name="divided") for is_training in (True, False)
        }

    @contextmanager
    def installed(self, *, by_batch: bool = False) -> Iterator[None]:
        """Replace the model's methods in a block, and restore them afterwards.

        With one worker, or inside another such block, this does nothing.

        Args:
            by_batch: Whether the logs of each step are used, and must therefore cover all workers.
        """
        if self._group.place.size == 1 or self._is_installed:
            yield
            return
        model = self.model
        if self._is_compiled_anew():
            self._functions, self._shadows = {}, {}
            self._state.gathered_metrics, self._state.shown_metrics = {}, {}
            self.has_started = False
        if by_batch != self._is_by_batch:
            self._functions, self._is_by_batch = {}, by_batch
        if by_batch:
            self.keep_metrics()
        hook_compiled_loss(model, self._framework)
        try:
            with (
                self._without_xla(),
                self._own_seams(),
                whole_activities(model, self._framework),
                other_numbers(self._group),
            ):
                yield
        finally:
            self._compiled = [model.optimizer, *model.metrics]  # now complete: everything is built

    @contextmanager
    def _without_xla(self) -> Iterator[None]:
        """Turn off XLA, which cannot compile operations between processes.

        tf_keras drops its traced functions when `jit_compile` changes, so they are restored afterwards.
        """
        model = self.model
        jit_compile, functions = model.jit_compile, {name: getattr(model, name) for name in _FUNCTIONS}
        model.jit_compile = False
        try:
            yield
        finally:
            model.jit_compile = jit_compile
            self._swap_functions(functions)

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Restore the model's own methods in a block, such as a callback that only this worker has."""
        if not self._is_installed:
            yield
            return
        model = self.model
        own = {name: vars(model).pop(name) for name in _SEAMS}
        functions = self._swap_functions(dict.fromkeys(_FUNCTIONS))
        self._is_installed = False
        try:
            yield
        finally:
            self._is_installed = True
            self._swap_functions(functions)
            for name, method in own.items():
                setattr(model, name, method)

    @contextmanager
    def _own_seams(self) -> Iterator[None]:
        others = {name: getattr(self, f"_{name}")(getattr(self.model, name)) for name in _SEAMS}
        with seams(self.model, others):
            before = self._swap_functions(self._functions)
            self._is_installed = True
            try:
                yield
            finally:
                self._is_installed = False
                self._functions = self._swap_functions(before)

    def _swap_functions(self, others: dict[str, Any]) -> dict[str, Any]:
        """Replace the functions that Keras has traced, and return the previous ones."""
        before = {name: getattr(self.model, name) for name in _FUNCTIONS}
        for name in _FUNCTIONS:
            setattr(self.model, name, others.get(name))
        return before

    def _is_compiled_anew(self) -> bool:
        now = [self.model.optimizer, *self.model.metrics]
        return len(now) != len(self._compiled) or any(map(operator.is_not, now, self._compiled))

    def start(self) -> None:
        """Copy the chief's variables to every worker. The model and its optimizers must be built."""
        self._state.wishes.assign(tf.zeros([NUM_FLAGS]))
        self._state.agreed.assign(tf.zeros([NUM_FLAGS]))
        self.has_started = True
        if self._group.place.size == 1:
            return
        optimizers = optimizers_of(self.model, self._framework)
        check_models(_descriptions(self.model, optimizers, self._framework), self._group)
        variables = [*self.model.variables, *self._framework.untracked_variables(self.model)]
        for optimizer in optimizers:
            variables += self._framework.optimizer_variables(optimizer)
        numbers = [each for each in variables if tf.as_dtype(each.dtype) not in (tf.string, tf.variant)]
        unique = list({id(variable): variable for variable in numbers}.values())
        values = self._group.from_chief([self._framework.tensor(variable) for variable in unique])
        for variable, value in zip(unique, values, strict=True):
            variable.assign(value)
        self._spread_seeds()

    def note_divided(self, is_divided: bool, *, is_training: bool) -> None:
        """Record whether this worker has every n-th row of batches common to all workers."""
        self._are_divided[is_training].assign(is_divided)

    def wish(self, what: int, *, wanted: bool = True) -> None:
        """Request an action of all workers with the next step, or withdraw the request."""
        self._state.wishes.scatter_nd_update([[what]], [float(wanted)])

    def agreed(self) -> np.ndarray:
        """Return the sums of the workers' requests in the last step: over 0 if any worker made one."""
        return np.zeros(NUM_FLAGS) if self._group.place.size == 1 else self._state.agreed.numpy()

    def take_rows_done(self) -> int:
        """Return the number of rows that all workers have trained since the last call."""
        rows = int(self._state.rows_done.numpy())
        self._state.rows_done.assign(0.0)
        return rows

    def wishes_for(self, what: int) -> bool:
        """Return whether this worker requests the action."""
        return bool(self._state.wishes[what] > 0)

    def results(self) -> dict[str, Any]:
        """Return the metrics' results over the rows of all workers. All workers must call it."""
        return dict(_flattened(self.model.get_metrics_result()))

    def check_weights(self, when: str) -> None:
        """Check that the weights of the model and its optimizers are the same on all workers.

        All workers must call it.

        Raises:
            WorkersDiffer: Some weights differ.
        """
        check_weights(self._named_values(), self._group, when)

    def _named_values(self) -> Iterator[tuple[str, Any]]:
        model, framework = self.model, self._framework
        for optimizer in optimizers_of(model, framework):
            for variable in framework.optimizer_variables(optimizer):
                name = getattr(optimizer, "name", type(optimizer).__name__)
                yield f"{name}/{variable.name}", framework.tensor(variable)
        others = [each for each in framework.other_variables(model) if not is_seed(each)]
        for variable in [*model.trainable_variables, *others]:
            if tf.as_dtype(variable.dtype).is_floating:  # counts of rows differ between workers
                yield getattr(variable, "path", variable.name), framework.tensor(variable)

    def _spread_seeds(self) -> None:
        """Give each worker other dropout seeds. Equal seeds would drop the same units on all workers."""
        for variable in self.model.non_trainable_variables:
            if is_seed(variable):
                value = tf.cast(self._framework.tensor(variable), tf.int64)
                index = tf.constant(
                    [0] * (math.prod(variable.shape) - 1) + [self._group.place.index], tf.int64
                )
                variable.assign(tf.cast(value + tf.reshape(index, tf.shape(value)), variable.dtype))

    # The replaced methods

    def _train_step(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda data: self._of_workers(original, data, is_training=True)

    def _test_step(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda data: self._of_workers(original, data, is_training=False)

    def _of_workers(self, original: Callable[[Any], Any], data: Any, *, is_training: bool) -> Any:
        """Run a step. Without rows, run it on one row of zeros that counts for nothing."""
        rows = num_rows(data)
        statistics = self._framework.other_variables(self.model) if is_training else []
        self._step = step = Step(
            self._group,
            self.model,
            rows,
            self._state,
            statistics,
            self._framework.tensor,
            self._are_divided[is_training],
        )
        try:
            with step.under_way():
                logs = _flattened(original(or_one_row(data, rows)))
            if is_training:
                step.finish()
            self._forget_metrics(step)
        finally:
            self._step = None
        return self._averaged(step, logs) if self._is_by_batch or self._is_own(logs) else logs

    def _forget_metrics(self, step: Step) -> None:
        """Undo metric updates that must not count.

        These are updates by a step without rows, and, on all workers but the first, updates that count the rows of all
        workers. The earlier values are copies kept from step to step, because the metrics may not exist yet when the
        first step begins.
        """
        gathered = {id(each) for metric in self._state.gathered_metrics.values() for each in metric.variables}
        for variable in self._framework.metric_variables(self.model):
            counts = self._group.place.is_chief if id(variable) in gathered else step.rows > 0
            shadow = self._shadow(variable)
            value = tf.where(counts, self._framework.tensor(variable), shadow)
            variable.assign(value)
            shadow.assign(value)

    def _shadow(self, variable: Any) -> Any:
        if id(variable) not in self._shadows:
            with tf.init_scope():
                zeros = tf.zeros(variable.shape, variable.dtype)
                self._shadows[id(variable)] = tf.Variable(zeros, trainable=False)
        return self._shadows[id(variable)]

    def keep_metrics(self) -> None:
        """Store the metrics' current values as those from before the next step."""
        for variable in self._framework.metric_variables(self.model):
            self._shadow(variable).assign(self._framework.tensor(variable))

    def _reset_metrics(self, original: Callable[[], None]) -> Callable[[], None]:
        def reset_metrics() -> None:
            original()
            self.keep_metrics()

        return reset_metrics

    def _get_metrics_result(self, original: Callable[[], Any]) -> Callable[[], Any]:
        def get_metrics_result() -> Any:
            if self._step is not None:
                return original()  # inside a step: this worker's result, for the progress bar
            return self._of_all(original)

        return get_metrics_result

    def _of_all(self, result: Callable[[], Any]) -> Any:
        variables = self._framework.metric_variables(self.model)
        sums = self._group.sum([self._framework.tensor(variable) for variable in variables])
        return self._framework.with_values(zip(variables, sums, strict=True), result)

    def _own_metrics_result(self) -> Any:
        return type(self.model).get_metrics_result(self.model)

    def _is_own(self, logs: Any) -> bool:
        """Return whether a custom step logs other values than metrics. Keras then shows its last logs."""
        return isinstance(logs, dict) and set(logs) != set(self._own_metrics_result())

    def _averaged(self, step: Step, logs: dict[str, Any]) -> dict[str, Any]:
        """Return a step's logs: metric results over all workers' rows, and other numbers averaged by rows."""
        found = {name: self._metric_of(name, value, step) for name, value in logs.items()}
        metrics = {name: metric for name, metric in found.items() if metric is not None}
        exact = self._of_all(lambda: {name: metric.result() for name, metric in metrics.items()})
        others = [name for name in logs if name not in metrics]
        means = step.average([tf.cast(logs[name], tf.float32) for name in others])
        found_logs: dict[str, Any] = logs | exact | dict(zip(others, means, strict=True))
        return found_logs

    def _metric_of(self, name: str, value: Any, step: Step) -> Any:
        """Return the metric whose result a step has logged, or None if the value is not of a metric."""
        if id(value) in step.results:
            return step.results[id(value)][1]
        shown = self._state.shown_metrics.values()
        return next((metric for metric in shown if metric.name == name), None)


def _descriptions(model: Any, optimizers: Sequence[Any], framework: Framework) -> Iterator[tuple[str, str]]:
    """Describe the parts of a training that must be the same on all workers. Initial weights may differ."""
    yield "the shapes of the model's variables", str([str(each.shape) for each in model.variables])
    variables = [[str(one.shape) for one in framework.optimizer_variables(each)] for each in optimizers]
    yield "the variables of the optimizers", str(variables)
    yield "what layers have been adapted to", "; ".join(_adapted(model))
    yield "the optimizers", str([(type(each).__name__, _options(each)) for each in optimizers])


def _adapted(model: Any) -> Iterator[str]:
    """Describe the vocabularies and bins of layers. They are not variables."""
    for layer in layers_of(model):
        if hasattr(layer, "get_vocabulary"):
            yield f"{layer.name}: {[str(word) for word in layer.get_vocabulary()]}"
        elif getattr(layer, "bin_boundaries", None) is not None:
            yield f"{layer.name}: {np.asarray(layer.bin_boundaries).tolist()}"


def _options(optimizer: Any) -> Any:
    """Return an optimizer's plain options except its name, or None if it does not provide them."""
    try:
        options = optimizer.get_config()
    except (NotImplementedError, TypeError, ValueError, AttributeError):
        return None
    plain = (bool, int, float, str, np.generic)
    return {name: each for name, each in options.items() if isinstance(each, plain) and name != "name"}


def is_seed(variable: Any) -> bool:
    """Return whether a variable is the state of a random number generator, which workers do not share."""
    names = (str(variable.name), str(getattr(variable, "path", "")))
    return any(part in name for name in names for part in ("seed_generator_state", "StateVar"))


def _flattened(logs: Any) -> Any:
    """Return results with nested dictionaries merged, as Keras does before it shows them."""
    if not isinstance(logs, dict):
        return logs
    found: dict[str, Any] = {}
    for name, value in logs.items():
        found |= _flattened(value) if isinstance(value, dict) else {name: value}
    return found
