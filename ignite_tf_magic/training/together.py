"""One Keras model, trained on all workers as if they were one process.

Every worker runs Keras' own `fit` on its own rows, with variables that are its own. What makes them one is done at
public seams, for as long as a `with` lasts:

- Keras' classes of optimizers, losses and metrics know of the step that they are called in (`optimizers`, `losses`,
  `metric_updates`): each comes to what it comes to over the whole batch. Clipping and loss scaling come behind it.
- `train_step` and `test_step` cope with a batch without rows, which counts for nothing.
- `get_metrics_result` adds up over all workers what metrics have counted.

So all workers make the same update from the same weights, and stay equal to the bit.
"""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from ignite_tf_magic.dataset.batches import num_rows, or_one_row
from ignite_tf_magic.training.consistency import check_models, check_weights
from ignite_tf_magic.training.frameworks import Framework, layers_of, look_at_step
from ignite_tf_magic.training.group import WorkerGroup
from ignite_tf_magic.training.hooking import seams
from ignite_tf_magic.training.losses import whole_activities
from ignite_tf_magic.training.optimizers import optimizers_of
from ignite_tf_magic.training.reductions import number_of_all, tell_of_changes
from ignite_tf_magic.training.step import NUM_FLAGS, Flags, Step
from ignite_tf_magic.training.tensorflow_seeds import other_numbers

_STEPS = ("train", "test")
_SEAMS = ("train_step", "test_step", "get_metrics_result", "reset_metrics")


class DataParallelFit:
    """Trains one model together with the other workers. Used in one thread.

    Attributes:
        model: What is trained.
    """

    def __init__(self, model: Any, framework: Framework, group: WorkerGroup) -> None:
        self.model = model
        self._framework = framework
        self._group = group
        self._step: Step | None = None
        self._shadows: dict[int, Any] = {}
        self._functions: dict[str, Any] = {}
        self._compiled: list[Any] = []
        self._waiting: set[str] = set()
        self._flags = Flags(_no_flags("wishes"), _no_flags("agreed"))
        # Of the batches of training, and of others.
        self._are_divided = {
            is_training: tf.Variable(False, trainable=False, name="divided") for is_training in (True, False)
        }

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Take the model's seams, and give them back; those of one worker alone only see to the end of the data."""
        model = self.model
        if self._is_compiled_anew():
            self._functions, self._shadows, self._waiting = {}, {}, set()
        try:
            with self._installed_alone() if self._group.place.size == 1 else self._installed_together():
                yield
        finally:
            self._compiled = [model.optimizer, *model.metrics]  # as they are when all is built

    def _is_compiled_anew(self) -> bool:
        now = [self.model.optimizer, *self.model.metrics]
        return len(now) != len(self._compiled) or any(map(operator.is_not, now, self._compiled))

    @contextmanager
    def _installed_alone(self) -> Iterator[None]:
        model = self.model
        steps = {
            f"{name}_step": self._behind_its_data(name, getattr(model, f"{name}_step")) for name in _STEPS
        }
        with seams(model, steps):
            yield

    @contextmanager
    def _installed_together(self) -> Iterator[None]:
        model = self.model
        if model.run_eagerly:
            _warn_of_eager_steps(self._group)
        before = {name: getattr(model, name) for name in ("train_function", "test_function", "jit_compile")}
        others = {name: getattr(self, f"_{name}")(getattr(model, name)) for name in _SEAMS}
        with seams(model, others):
            try:
                model.jit_compile = False  # XLA compiles no operation between processes
                model.train_function = self._functions.get("train_function")
                model.test_function = self._functions.get("test_function")
                with whole_activities(model, self._framework), other_numbers(self._group):
                    yield
            finally:
                self._functions = {name: getattr(model, name) for name in ("train_function", "test_function")}
                for name, value in before.items():
                    setattr(model, name, value)

    def start(self) -> None:
        """Give every worker the chief's variables; the model and its optimizers are built by then."""
        self._flags.wishes.assign(tf.zeros([NUM_FLAGS]))
        self._flags.agreed.assign(tf.zeros([NUM_FLAGS]))
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
        """Note whether this worker has every n-th row of batches that all workers have."""
        self._are_divided[is_training].assign(is_divided)

    def wish(self, what: int, *, wanted: bool = True) -> None:
        """Ask all workers to do something with the next step, or not any more."""
        self._flags.wishes.scatter_nd_update([[what]], [float(wanted)])

    def agreed(self) -> np.ndarray:
        """Return what the workers agreed on in the last step; more than 0 where any of them asked for it."""
        return np.zeros(NUM_FLAGS) if self._group.place.size == 1 else self._flags.agreed.numpy()

    def wishes_for(self, what: int) -> bool:
        """Whether this worker has asked for that."""
        return bool(self._flags.wishes[what] > 0)

    def results(self) -> dict[str, Any]:
        """Return what metrics have come to over the rows of all workers. All of them call."""
        return dict(_flattened(self.model.get_metrics_result()))

    def check_weights(self, when: str) -> None:
        """Make sure that all workers have the same weights, of the model and of optimizers. All of them call.

        Raises:
            WorkersDiffer: They have not.
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
            if (dtype := tf.as_dtype(variable.dtype)).is_floating or dtype.is_integer:
                yield getattr(variable, "path", variable.name), framework.tensor(variable)

    def _spread_seeds(self) -> None:
        """Let each worker drop out other units: equal seeds would drop the same ones everywhere."""
        for variable in self.model.non_trainable_variables:
            if is_seed(variable):
                value = tf.cast(self._framework.tensor(variable), tf.int64)
                index = tf.constant(
                    [0] * (math.prod(variable.shape) - 1) + [self._group.place.index], tf.int64
                )
                variable.assign(tf.cast(value + tf.reshape(index, tf.shape(value)), variable.dtype))

    def hold_back(self, name: str, data: Any) -> None:
        """Let nothing of a step happen before its batch is there, from now on and until the model is compiled again.

        Keras asks for batches until there is none, where nobody knows how many there are. What does not depend on the
        batch may then be done once more than there are batches: an optimizer counts a step too many, a metric a zero.

        Args:
            name: "train" or "test".
            data: A dataset of the step's batches.
        """
        # Eager steps, and XLA's, begin with their batch as they are. (Together there is no XLA.)
        is_behind = self.model.run_eagerly or (self._group.place.size == 1 and self.model.jit_compile)
        if is_behind or name in self._waiting:
            return
        # A look at the step makes what variables it needs: behind a batch there would be none of them yet.
        look_at_step(self.model, self._framework, getattr(self.model, f"{name}_step"), data.element_spec)
        setattr(self.model, f"{name}_function", None)
        self._waiting.add(name)

    # The seams

    def _behind_its_data(self, name: str, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def behind(data: Any) -> Any:
            if name not in self._waiting:
                return step(data)
            parts = tf.nest.flatten(data, expand_composites=True)
            with tf.control_dependencies([part for part in parts if part is not None]):
                return step(data)

        return behind

    def _train_step(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return self._behind_its_data("train", lambda data: self._careful(original, data, is_training=True))

    def _test_step(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return self._behind_its_data("test", lambda data: self._careful(original, data, is_training=False))

    def _careful(self, original: Callable[[Any], Any], data: Any, *, is_training: bool) -> Any:
        """Do a step; without rows, do it with one of zeros, and let it count for nothing."""
        x, _, _ = self._framework.unpack(data)
        rows = num_rows(x)
        statistics = self._framework.other_variables(self.model) if is_training else []
        self._step = step = Step(
            self._group,
            self.model,
            rows,
            self._flags,
            statistics,
            self._framework.tensor,
            self._are_divided[is_training],
        )
        try:
            with step.under_way():
                logs = _flattened(original(or_one_row(data, rows)))
            if is_training:
                tell_of_changes(step)
                step.finish()
            self._forget_metrics(step)
        finally:
            self._step = None
        return self._spread(step, logs) if self._is_own(logs) else logs

    def _forget_metrics(self, step: Step) -> None:
        """Undo what metrics have counted without rows, and but for the first worker what each has counted of all rows.

        Their values are kept beside them from step to step: when the first step begins, they may not have been made.
        """
        gathered = {id(each) for metric in step.gathered_metrics.values() for each in metric.variables}
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
        """Take what metrics have counted now for what they had before the next step."""
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
                return original()  # within a step: this worker's, for the progress bar
            return self._of_all(original)

        return get_metrics_result

    def _of_all(self, result: Callable[[], Any]) -> Any:
        variables = self._framework.metric_variables(self.model)
        sums = self._group.sum([self._framework.tensor(variable) for variable in variables])
        return self._framework.with_values(zip(variables, sums, strict=True), result)

    def _own_metrics_result(self) -> Any:
        return type(self.model).get_metrics_result(self.model)

    def _is_own(self, logs: Any) -> bool:
        """Whether a step of the script's own gives other things than metrics; Keras then shows the last."""
        return isinstance(logs, dict) and set(logs) != set(self._own_metrics_result())

    def _spread(self, step: Step, logs: dict[str, Any]) -> dict[str, Any]:
        """Make the results of a step those of all workers: metrics of all rows, other values weighted by the rows."""
        exact = self._of_all(self._own_metrics_result)
        others = [name for name in logs if name not in exact]
        values = [
            number_of_all(tf.cast(logs[name], tf.float32), step, f"what a step returns as {name}")
            for name in others
        ]
        *sums, total = self._group.sum([step.or_zero(value * step.rows) for value in values] + [step.rows])
        means = {name: value / total for name, value in zip(others, sums, strict=True)}
        return {name: exact[name] if name in exact else means[name] for name in logs}


def _warn_of_eager_steps(group: WorkerGroup) -> None:
    if group.place.is_chief:
        warnings.warn(
            "steps that run eagerly leave no graph to look at, so nothing is said here of what a step makes of rows "
            "otherwise than one process does, as by sums and comparisons of them. Fit once without "
            "run_eagerly=True to be told",
            stacklevel=2,
        )


def _descriptions(model: Any, optimizers: Sequence[Any], framework: Framework) -> Iterator[tuple[str, str]]:
    """Describe what of a training must be the same on all workers; their first weights need not be."""
    yield "the shapes of the model's variables", str([str(each.shape) for each in model.variables])
    variables = [[str(one.shape) for one in framework.optimizer_variables(each)] for each in optimizers]
    yield "the variables of the optimizers", str(variables)
    yield "what layers have been adapted to", "; ".join(_adapted(model))
    yield "the optimizers", str([(type(each).__name__, _options(each)) for each in optimizers])


def _adapted(model: Any) -> Iterator[str]:
    """Describe vocabularies and bins, which are no variables, of the layers that have some."""
    for layer in layers_of(model):
        if hasattr(layer, "get_vocabulary"):
            yield f"{layer.name}: {[str(word) for word in layer.get_vocabulary()]}"
        elif getattr(layer, "bin_boundaries", None) is not None:
            yield f"{layer.name}: {np.asarray(layer.bin_boundaries).tolist()}"


def _options(optimizer: Any) -> Any:
    """Return an optimizer's options but for its name; nothing of one that does not tell them."""
    try:
        options = optimizer.get_config()
    except (NotImplementedError, TypeError, ValueError, AttributeError):
        return None
    plain = (bool, int, float, str, np.generic)
    return {name: each for name, each in options.items() if isinstance(each, plain) and name != "name"}


def is_seed(variable: Any) -> bool:
    """Return whether a variable is the state of a generator of random numbers, which workers do not share."""
    names = (str(variable.name), str(getattr(variable, "path", "")))
    return any(part in name for name in names for part in ("seed_generator_state", "StateVar"))


def _no_flags(name: str) -> Any:
    return tf.Variable(tf.zeros([NUM_FLAGS]), trainable=False, name=name)


def _flattened(logs: Any) -> Any:
    """Return results without results within, as of a metric that gives several: Keras does so before it shows them."""
    if not isinstance(logs, dict):
        return logs
    found: dict[str, Any] = {}
    for name, value in logs.items():
        found |= _flattened(value) if isinstance(value, dict) else {name: value}
    return found
