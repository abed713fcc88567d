"""Hides the differences between Keras 3 and tf_keras in training on several workers."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ignite_tf_magic.errors import ConfigError

OLDEST_KERAS = (3, 12)

Arguments = tuple[Any, ...]
Options = dict[str, Any]
Replace = Callable[[Any], tuple[Arguments, Options]]


class Framework(ABC):
    """Keras 3 or tf_keras, imported by the script."""

    module: Any
    apply_name: str  # the optimizers' method that all other update methods call
    converts_steps = False  # whether AutoGraph converts a `train_step`

    @abstractmethod
    def unpack(self, data: Any) -> tuple[Any, Any, Any]:
        """Split a dataset element into x, y and sample weights."""

    @abstractmethod
    def tensor(self, variable: Any) -> Any:
        """Return the value of a variable."""

    def as_input(self, array: Any) -> Any:
        """Convert an array passed to `fit` to a tensor. Floats get the framework's float type."""
        found = tf.convert_to_tensor(array)
        return tf.cast(found, self.module.backend.floatx()) if found.dtype.is_floating else found

    @abstractmethod
    def metric_variables(self, model: Any) -> list[Any]:
        """Return the variables in which a model's metrics accumulate their counts."""

    def other_variables(self, model: Any) -> list[Any]:
        """Return a model's non-trainable variables except those of metrics; none before it is built."""
        if not model.built:
            return []
        counts = {id(each) for each in self.metric_variables(model)}
        own = [each for each in model.non_trainable_variables if id(each) not in counts]
        return own + self.untracked_variables(model)

    def untracked_variables(self, model: Any) -> list[Any]:
        """Return `tf.Variable`s that layers hold as attributes without listing them as theirs."""
        del model
        return []

    @abstractmethod
    def optimizer_variables(self, optimizer: Any) -> list[Any]:
        """Return an optimizer's own variables; none before it is built."""

    @abstractmethod
    def build_optimizer(self, optimizer: Any, variables: Sequence[Any]) -> None:
        """Create an optimizer's variables."""

    @abstractmethod
    def with_values(self, pairs: Iterable[tuple[Any, Any]], call: Callable[[], Any]) -> Any:
        """Call a function while some variables have other values, and return its result."""

    @abstractmethod
    def gradients_of(self, arguments: Arguments, options: Options) -> tuple[list[Any], Replace]:
        """Return the gradients in the arguments of `apply_name`, and a function that replaces them."""

    @abstractmethod
    def variables_of(self, optimizer: Any, arguments: Arguments, options: Options) -> list[Any]:
        """Return the variables that a call of `apply_name` with these arguments changes."""

    @property
    @abstractmethod
    def optimizer_classes(self) -> tuple[type, ...]:
        """The base classes of optimizers."""

    def adds_up_activities(self) -> bool:
        """Return whether activity regularization is a sum over the rows of a batch instead of their mean."""
        layer = self.module.layers.ActivityRegularization(l1=1.0)
        with tf.init_scope():
            layer(tf.ones([2, 1]))
            return float(layer.losses[0]) > 1.5

    @abstractmethod
    def steps_per_execution(self, model: Any) -> int:
        """Return the number of steps that one call of the train function makes."""

    @abstractmethod
    def set_steps_per_execution(self, model: Any, number: int) -> None:
        """Set the number of steps that one call of the train function makes."""

    def kept_seeds(self, model: Any) -> Callable[[], None]:
        """Return a function that restores the current seeds of layers for the next trace."""
        del model
        return lambda: None

    def count_step(self, model: Any) -> None:
        """Count a step that the model's own train function did not make, if callbacks read that counter."""
        del model

    def compiled_loss(self, model: Any) -> Any:
        """Return the object beside `compute_loss` that computes all losses of `compile`, or None."""
        del model

    def is_optimizer(self, thing: Any) -> bool:
        """Return whether an object is an optimizer."""
        return isinstance(thing, self.optimizer_classes)


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
        return tf.convert_to_tensor(variable if isinstance(variable, tf.Variable) else variable.value)

    def metric_variables(self, model: Any) -> list[Any]:
        return list(model.metrics_variables)

    def untracked_variables(self, model: Any) -> list[Any]:
        held = (each for layer in layers_of(model) for each in vars(layer).values())
        return list({id(each): each for each in _variables_in(held)}.values())

    def optimizer_variables(self, optimizer: Any) -> list[Any]:
        return list(optimizer.variables)

    def build_optimizer(self, optimizer: Any, variables: Sequence[Any]) -> None:
        if not optimizer.built:
            optimizer.build(variables)

    def with_values(self, pairs: Iterable[tuple[Any, Any]], call: Callable[[], Any]) -> Any:
        with self.module.StatelessScope(state_mapping=list(pairs)):
            # A result may be a variable, which has its old value again after the scope.
            return tf.nest.map_structure(tf.convert_to_tensor, call())

    def gradients_of(self, arguments: Arguments, options: Options) -> tuple[list[Any], Replace]:
        gradients, replace = _first_of(arguments, options, "grads")
        return list(gradients), replace

    def variables_of(self, optimizer: Any, arguments: Arguments, options: Options) -> list[Any]:
        given = arguments[1] if len(arguments) > 1 else options.get("trainable_variables")
        return list(optimizer._trainable_variables if given is None else given)

    @property
    def optimizer_classes(self) -> tuple[type, ...]:
        return (self.module.optimizers.Optimizer,)

    def steps_per_execution(self, model: Any) -> int:
        return int(model.steps_per_execution)

    def set_steps_per_execution(self, model: Any, number: int) -> None:
        model.steps_per_execution = number


class TfKeras(Framework):
    """The package tf_keras, which is Keras 2."""

    apply_name = "apply_gradients"
    converts_steps = True

    def __init__(self, module: Any) -> None:
        self.module = module

    def unpack(self, data: Any) -> tuple[Any, Any, Any]:
        found: tuple[Any, Any, Any] = self.module.utils.unpack_x_y_sample_weight(data)
        return found

    def tensor(self, variable: Any) -> Any:
        return tf.convert_to_tensor(variable)

    def as_input(self, array: Any) -> Any:
        return array if tf.is_tensor(array) else super().as_input(array)

    def metric_variables(self, model: Any) -> list[Any]:
        return [variable for metric in model.metrics for variable in metric.variables]

    def optimizer_variables(self, optimizer: Any) -> list[Any]:
        found = optimizer.variables
        return list(found() if callable(found) else found)

    def build_optimizer(self, optimizer: Any, variables: Sequence[Any]) -> None:
        if hasattr(optimizer, "build"):
            with tf.init_scope():
                optimizer.build(variables)
        else:  # a legacy optimizer
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

    def gradients_of(self, arguments: Arguments, options: Options) -> tuple[list[Any], Replace]:
        pairs, replace = _first_of(arguments, options, "grads_and_vars")
        listed = list(pairs)
        variables = [variable for _, variable in listed]
        return [gradient for gradient, _ in listed], lambda others: replace(
            list(zip(others, variables, strict=True))
        )

    def variables_of(self, optimizer: Any, arguments: Arguments, options: Options) -> list[Any]:
        del optimizer
        pairs, _ = _first_of(arguments, options, "grads_and_vars")
        return [variable for _, variable in pairs]

    @property
    def optimizer_classes(self) -> tuple[type, ...]:
        return (self.module.optimizers.Optimizer, self.module.optimizers.legacy.Optimizer)

    def steps_per_execution(self, model: Any) -> int:
        return int(model._steps_per_execution)

    def set_steps_per_execution(self, model: Any, number: int) -> None:
        model._steps_per_execution.assign(number)

    def kept_seeds(self, model: Any) -> Callable[[], None]:
        # A layer increments its seed in each trace (RandomGenerator.make_legacy_seed), and uses the last value.
        found: Iterable[Any] = (getattr(layer, "_random_generator", None) for layer in layers_of(model))
        seeds = [(each, each._seed) for each in found if getattr(each, "_built", False)]

        def restore() -> None:
            for generator, seed in seeds:
                generator._seed = seed

        return restore

    def count_step(self, model: Any) -> None:
        model._train_counter.assign_add(1)

    def compiled_loss(self, model: Any) -> Any:
        return model.compiled_loss


def _variables_in(things: Iterable[Any]) -> Iterator[Any]:
    for thing in things:
        if isinstance(thing, tf.Variable):
            yield thing
        elif isinstance(thing, (list, tuple)):
            yield from _variables_in(thing)
        elif isinstance(thing, dict):
            yield from _variables_in(thing.values())


def _first_of(arguments: Arguments, options: Options, name: str) -> tuple[Any, Replace]:
    """Return a positional or named argument, and a function that replaces it."""
    if arguments:
        return arguments[0], lambda other: ((other, *arguments[1:]), options)
    return options[name], lambda other: ((), {**options, name: other})


def too_old(module: Any) -> str | None:
    """Return why an imported Keras cannot train on several workers, or None if it can."""
    version = tuple(int(part) for part in module.__version__.split(".")[:2])
    if version >= OLDEST_KERAS:
        return None
    return (
        f"Keras {module.__version__} is too old to train on several workers: before 3.10 metrics cannot be "
        "added up. Install keras>=3.12 on the hosts, or use tf_keras"
    )


_KINDS: dict[str, type[Keras3] | type[TfKeras]] = {"keras": Keras3, "tf_keras": TfKeras}


def framework_named(name: str) -> Framework:
    """Return the framework named "keras" or "tf_keras", which must be imported already."""
    return _KINDS[name](sys.modules[name])


def framework_of(model: Any) -> Framework:
    """Return the framework of a model.

    Raises:
        ConfigError: The model is of neither Keras 3 nor tf_keras.
    """
    for name in _KINDS:
        module = sys.modules.get(name)
        if module is not None and isinstance(model, module.Model):
            return framework_named(name)
    raise ConfigError(f"{type(model).__name__} is neither a model of Keras 3 nor of tf_keras")


def is_of_keras(thing: Any) -> bool:
    """Return whether a class, a function or an object's class is part of Keras itself."""
    owner = thing if hasattr(thing, "__qualname__") else type(thing)
    return str(owner.__module__).partition(".")[0] in _KINDS


def look_at_step(model: Any, framework: Framework, step: Callable[[Any], Any], element_spec: Any) -> None:
    """Trace a step of a model, which creates the variables that it needs, without computing anything.

    The layers' seeds for the next trace are the same as without this call.
    """
    restore = framework.kept_seeds(model)

    def looked_at(data: Any) -> Any:
        # TensorFlow traces a function again if it has created variables, here as in the training.
        nonlocal restore
        restore = framework.kept_seeds(model)
        return step(data)

    tf.function(looked_at, autograph=framework.converts_steps).get_concrete_function(element_spec)
    restore()


def adapted_state(layer: Any) -> list[Any]:
    """Return the state that `adapt` has given a layer, as arrays.

    It includes vocabularies and bins, which are not variables.
    """
    found = [each.numpy() for each in layer.variables if hasattr(each, "numpy")]
    for one in (layer, *vars(layer).values()):  # a text layer contains a lookup layer
        weights, bins = getattr(one, "idf_weights", None), getattr(one, "bin_boundaries", None)
        found += [np.asarray(each) for each in (weights, bins) if each is not None]
    if hasattr(layer, "get_vocabulary"):
        found.append(np.array(layer.get_vocabulary(), object))
    return found


def layers_of(model: Any) -> Iterator[Any]:
    """Yield a model and all its layers, including those inside nested models and wrappers."""
    waiting, seen = [model], set()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        waiting += reversed(getattr(one, "layers", []))
        waiting += [each for each in (getattr(one, "layer", None),) if each is not None]
