"""What differs between Keras 3 and tf_keras, as far as training together goes. Public names only."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from ignite_tf_magic.errors import ConfigError

OLDEST_KERAS = (3, 12)


class Framework(ABC):
    """One of the two, imported by the script."""

    module: Any
    apply_name: str  # of the method of optimizers that all others end in

    @abstractmethod
    def unpack(self, data: Any) -> tuple[Any, Any, Any]:
        """Take an element apart into x, y and sample weights."""

    @abstractmethod
    def tensor(self, variable: Any) -> Any:
        """Give the value of a variable."""

    @abstractmethod
    def metric_variables(self, model: Any) -> list[Any]:
        """List the variables in which a model's metrics count."""

    def other_variables(self, model: Any) -> list[Any]:
        """List the variables of a model that are not trained; none before it is built."""
        return list(model.non_trainable_variables) if model.built else []

    @abstractmethod
    def optimizer_variables(self, optimizer: Any) -> list[Any]:
        """List an optimizer's own variables; none before it is built."""

    @abstractmethod
    def build_optimizer(self, optimizer: Any, variables: Sequence[Any]) -> None:
        """Make an optimizer's variables."""

    @abstractmethod
    def with_values(self, pairs: Iterable[tuple[Any, Any]], call: Callable[[], Any]) -> Any:
        """Call a function for which some variables have other values."""

    @abstractmethod
    def gradients_of(
        self, arguments: Sequence[Any]
    ) -> tuple[list[Any], Callable[[list[Any]], Sequence[Any]]]:
        """Find the gradients in the arguments of `apply_name`; also gives how to put others in their place."""

    @abstractmethod
    def steps_per_execution(self, model: Any) -> int:
        """Tell how many steps a call of the train function does."""

    def is_optimizer(self, thing: Any) -> bool:
        """Whether something is an optimizer."""
        return isinstance(thing, self.module.optimizers.Optimizer)


class Keras3(Framework):
    """Keras 3 on TensorFlow."""

    apply_name = "apply"

    def __init__(self, module: Any) -> None:
        self.module = module
        if reason := too_old(module):
            raise ConfigError(reason)

    def unpack(self, data: Any) -> tuple[Any, Any, Any]:
        found: tuple[Any, Any, Any] = self.module.utils.unpack_x_y_sample_weight(data)
        return found

    def tensor(self, variable: Any) -> Any:
        return tf.convert_to_tensor(variable.value)

    def metric_variables(self, model: Any) -> list[Any]:
        return list(model.metrics_variables)

    def optimizer_variables(self, optimizer: Any) -> list[Any]:
        return list(optimizer.variables)

    def build_optimizer(self, optimizer: Any, variables: Sequence[Any]) -> None:
        if not optimizer.built:
            optimizer.build(variables)

    def with_values(self, pairs: Iterable[tuple[Any, Any]], call: Callable[[], Any]) -> Any:
        with self.module.StatelessScope(state_mapping=list(pairs)):
            return call()

    def gradients_of(
        self, arguments: Sequence[Any]
    ) -> tuple[list[Any], Callable[[list[Any]], Sequence[Any]]]:
        gradients, *rest = arguments
        return list(gradients), lambda others: [others, *rest]

    def steps_per_execution(self, model: Any) -> int:
        return int(model.steps_per_execution)


class TfKeras(Framework):
    """tf_keras, which is Keras 2."""

    apply_name = "apply_gradients"

    def __init__(self, module: Any) -> None:
        self.module = module

    def unpack(self, data: Any) -> tuple[Any, Any, Any]:
        found: tuple[Any, Any, Any] = self.module.utils.unpack_x_y_sample_weight(data)
        return found

    def tensor(self, variable: Any) -> Any:
        return tf.convert_to_tensor(variable)

    def metric_variables(self, model: Any) -> list[Any]:
        return [variable for metric in model.metrics for variable in metric.variables]

    def optimizer_variables(self, optimizer: Any) -> list[Any]:
        found = optimizer.variables
        return list(found() if callable(found) else found)

    def build_optimizer(self, optimizer: Any, variables: Sequence[Any]) -> None:
        if hasattr(optimizer, "build"):
            with tf.init_scope():
                optimizer.build(variables)
        else:  # a legacy one
            with tf.name_scope(optimizer._name):
                optimizer._create_all_weights(variables)

    def with_values(self, pairs: Iterable[tuple[Any, Any]], call: Callable[[], Any]) -> Any:
        listed = list(pairs)
        before = [tf.identity(variable) for variable, _ in listed]
        for variable, value in listed:
            variable.assign(value)
        found = tf.nest.map_structure(tf.identity, call())
        for (variable, _), value in zip(listed, before, strict=True):
            variable.assign(value)
        return found

    def gradients_of(
        self, arguments: Sequence[Any]
    ) -> tuple[list[Any], Callable[[list[Any]], Sequence[Any]]]:
        pairs, *rest = arguments
        listed = list(pairs)
        variables = [variable for _, variable in listed]
        return [gradient for gradient, _ in listed], lambda others: [
            zip(others, variables, strict=True),
            *rest,
        ]

    def steps_per_execution(self, model: Any) -> int:
        return int(model._steps_per_execution)

    def is_optimizer(self, thing: Any) -> bool:
        kinds = (self.module.optimizers.Optimizer, self.module.optimizers.legacy.Optimizer)
        return isinstance(thing, kinds)


def too_old(module: Any) -> str | None:
    """Tell why an imported Keras cannot train on several workers; None when it can."""
    version = tuple(int(part) for part in module.__version__.split(".")[:2])
    if version >= OLDEST_KERAS:
        return None
    return (
        f"Keras {module.__version__} is too old to train on several workers: before 3.10 metrics do not say how they "
        "add up. Install keras>=3.12 on the hosts, or use tf_keras"
    )


def framework_of(model: Any) -> Framework:
    """Tell which of the two a model is of."""
    for name, kind in (("keras", Keras3), ("tf_keras", TfKeras)):
        module = sys.modules.get(name)
        if module is not None and isinstance(model, module.Model):
            found: Framework = kind(module)
            return found
    raise ConfigError(f"{type(model).__name__} is neither a model of Keras 3 nor of tf_keras")


def optimizers_of(model: Any, framework: Framework) -> Iterator[Any]:
    """Give all optimizers that a model has, each once: those of a `train_step` of its own are attributes."""
    found = [model.optimizer, *vars(model).values()]
    yield from {id(each): each for each in found if framework.is_optimizer(each)}.values()
