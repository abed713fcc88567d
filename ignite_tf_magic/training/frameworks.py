"""What differs between Keras 3 and tf_keras, as far as training together goes. Public names only."""

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
    """One of the two, imported by the script."""

    module: Any
    apply_name: str  # of the method of optimizers that all others end in
    converts_steps = False  # whether AutoGraph converts a `train_step`

    @abstractmethod
    def unpack(self, data: Any) -> tuple[Any, Any, Any]:
        """Take an element apart into x, y and sample weights."""

    @abstractmethod
    def tensor(self, variable: Any) -> Any:
        """Return the value of a variable."""

    def as_input(self, array: Any) -> Any:
        """Return a tensor of an array that `fit` is given, of the framework's type of floats if it has floats."""
        found = tf.convert_to_tensor(array)
        return tf.cast(found, self.module.backend.floatx()) if found.dtype.is_floating else found

    @abstractmethod
    def metric_variables(self, model: Any) -> list[Any]:
        """List the variables in which a model's metrics count."""

    def other_variables(self, model: Any) -> list[Any]:
        """List the variables of a model that are not trained, but for what metrics count; none before it is built."""
        if not model.built:
            return []
        counts = {id(each) for each in self.metric_variables(model)}
        own = [each for each in model.non_trainable_variables if id(each) not in counts]
        return own + self.untracked_variables(model)

    def untracked_variables(self, model: Any) -> list[Any]:
        """List TensorFlow's own variables that layers hold as attributes and do not count among theirs."""
        del model
        return []

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
    def gradients_of(self, arguments: Arguments, options: Options) -> tuple[list[Any], Replace]:
        """Find the gradients in the arguments of `apply_name`; also returns how to put others in their place."""

    @abstractmethod
    def variables_of(self, optimizer: Any, arguments: Arguments, options: Options) -> list[Any]:
        """Return the variables that a call of `apply_name` with these arguments changes."""

    @property
    @abstractmethod
    def optimizer_classes(self) -> tuple[type, ...]:
        """The base classes of optimizers."""

    def adds_up_activities(self) -> bool:
        """Return whether what regularises activities is a sum over the rows of a batch, and not their mean."""
        layer = self.module.layers.ActivityRegularization(l1=1.0)
        with tf.init_scope():
            layer(tf.ones([2, 1]))
            return float(layer.losses[0]) > 1.5

    @abstractmethod
    def steps_per_execution(self, model: Any) -> int:
        """Tell how many steps a call of the train function does."""

    @abstractmethod
    def set_steps_per_execution(self, model: Any, number: int) -> None:
        """Say how many steps a call of the train function does."""

    def kept_seeds(self, model: Any) -> Callable[[], None]:
        """Return what puts the seeds that layers give the next trace back to what they are now."""
        del model
        return lambda: None

    def count_step(self, model: Any) -> None:
        """Count a step that the model's own train function has not made, where callbacks ask it for their number."""
        del model

    def compiled_loss(self, model: Any) -> Any:
        """Return what a step of the script's own may call for all losses of `compile`, beside `compute_loss`."""
        del model

    def is_optimizer(self, thing: Any) -> bool:
        """Whether something is an optimizer."""
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
            # A result may be a variable, whose value is another one again after the scope.
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
    """tf_keras, which is Keras 2."""

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
        # A layer with a seed counts it up in each trace (RandomGenerator.make_legacy_seed), and draws by the last one.
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
    """Return an argument, given by place or by name, and how to put another in its place."""
    if arguments:
        return arguments[0], lambda other: ((other, *arguments[1:]), options)
    return options[name], lambda other: ((), {**options, name: other})


def too_old(module: Any) -> str | None:
    """Tell why an imported Keras cannot train on several workers; None when it can."""
    version = tuple(int(part) for part in module.__version__.split(".")[:2])
    if version >= OLDEST_KERAS:
        return None
    return (
        f"Keras {module.__version__} is too old to train on several workers: before 3.10 metrics do not say how they "
        "add up. Install keras>=3.12 on the hosts, or use tf_keras"
    )


_KINDS: dict[str, type[Keras3] | type[TfKeras]] = {"keras": Keras3, "tf_keras": TfKeras}


def framework_named(name: str) -> Framework:
    """Return one of the two, "keras" or "tf_keras", which has been imported."""
    return _KINDS[name](sys.modules[name])


def framework_of(model: Any) -> Framework:
    """Return which of the two a model is of.

    Raises:
        ConfigError: It is of neither.
    """
    for name in _KINDS:
        module = sys.modules.get(name)
        if module is not None and isinstance(model, module.Model):
            return framework_named(name)
    raise ConfigError(f"{type(model).__name__} is neither a model of Keras 3 nor of tf_keras")


def is_of_keras(thing: Any) -> bool:
    """Return whether a class, a function or an object's class is Keras' own, not the script's or another package's."""
    owner = thing if hasattr(thing, "__qualname__") else type(thing)
    return str(owner.__module__).partition(".")[0] in _KINDS


def look_at_step(model: Any, framework: Framework, step: Callable[[Any], Any], element_spec: Any) -> None:
    """Trace a step of a model, which makes what variables it needs; nothing is computed.

    Layers give what is traced next the seeds that they would have given it without this.
    """
    restore = framework.kept_seeds(model)

    def looked_at(data: Any) -> Any:
        # TensorFlow traces again what has made variables, here as in the training.
        nonlocal restore
        restore = framework.kept_seeds(model)
        return step(data)

    tf.function(looked_at, autograph=framework.converts_steps).get_concrete_function(element_spec)
    restore()


def adapted_state(layer: Any) -> list[Any]:
    """Return what `adapt` has made of a layer, as arrays: vocabularies and bins are no variables."""
    found = [each.numpy() for each in layer.variables if hasattr(each, "numpy")]
    for one in (layer, *vars(layer).values()):  # a layer of texts has one that looks up words
        weights, bins = getattr(one, "idf_weights", None), getattr(one, "bin_boundaries", None)
        found += [np.asarray(each) for each in (weights, bins) if each is not None]
    if hasattr(layer, "get_vocabulary"):
        found.append(np.array(layer.get_vocabulary(), object))
    return found


def layers_of(model: Any) -> Iterator[Any]:
    """Iterate over a model and all layers in it, those of models and of wrappers within, too."""
    waiting, seen = [model], set()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        waiting += reversed(getattr(one, "layers", []))
        waiting += [each for each in (getattr(one, "layer", None),) if each is not None]
