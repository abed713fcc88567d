"""Runs Keras' `fit` and `evaluate` on all workers of a run, without changes to the script.

In a run with several workers the bootstrap calls `install_keras` after Keras has been imported. Then `fit` and
`evaluate` of `keras.Model` work as usual, but together with the other workers, each on its part of the data. `predict`
stays as it is: each worker predicts the data that it is passed.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import inspect
import itertools
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from ignite_tf_magic.dataset.batches import empty_like, or_one_row
from ignite_tf_magic.errors import ConfigError
from ignite_tf_magic.training import shares
from ignite_tf_magic.training.adapting import hook_adapt
from ignite_tf_magic.training.async_fit import fit_on_workers
from ignite_tf_magic.training.callbacks import (
    for_worker,
    leading,
    listed,
    numbered_steps,
    only_of_chief,
    same_logs,
)
from ignite_tf_magic.training.checkpoints import directory_in_run
from ignite_tf_magic.training.claim import CLAIM, name_in_run, refuse_fit, stay_alone, why_not
from ignite_tf_magic.training.consistency import check_models, check_versions
from ignite_tf_magic.training.fit_data import (
    described,
    end_is_well,
    evaluation_data,
    explained,
    training_data,
)
from ignite_tf_magic.training.frameworks import (
    Framework,
    framework_named,
    framework_of,
    look_at_step,
    too_old,
)
from ignite_tf_magic.training.group import WorkerGroup, worker_group
from ignite_tf_magic.training.loop_steps import average_in_loops, loop_exchange
from ignite_tf_magic.training.losses import hook_losses
from ignite_tf_magic.training.metric_updates import hook_metrics
from ignite_tf_magic.training.models import leave_model
from ignite_tf_magic.training.one_rule import print_rule
from ignite_tf_magic.training.optimizers import hook_optimizers, optimizers_of
from ignite_tf_magic.training.parameters import note, of_fit
from ignite_tf_magic.training.reporting import reporter_of_fit
from ignite_tf_magic.training.resume import CheckpointPolicy, FitProgress, GracefulShutdown
from ignite_tf_magic.training.roll_call import OPERATIONS, calling_callback, roll_call
from ignite_tf_magic.training.saving import hook_saving
from ignite_tf_magic.training.seeding import own_random_numbers
from ignite_tf_magic.training.strategies import hook_strategies
from ignite_tf_magic.training.task import hands_steps_out, task, why_alone
from ignite_tf_magic.training.tensorflow_seeds import order_seed, own_numbers, seed_tensorflow
from ignite_tf_magic.training.together import DataParallelFit

_TOGETHER = "_ignite_tf_together"
_NO_STRATEGY = type(tf.distribute.get_strategy())  # the class of the default strategy
_is_independent: contextvars.ContextVar[bool] = contextvars.ContextVar("independent", default=False)
_trained_as_ever: weakref.WeakSet[Any] = weakref.WeakSet()
_installed: set[str] = set()
_fits = itertools.count()


def install_keras() -> None:
    """Prepare Keras 3, which has just been imported."""
    _install("keras")


def install_tf_keras() -> None:
    """Prepare tf_keras, which has just been imported."""
    _install("tf_keras")


def _install(name: str) -> None:
    group = worker_group()
    module = sys.modules[name]
    if name in _installed:
        return
    if not _is_on_tensorflow(module):
        if group.place.size > 1:
            backend = (
                f"Keras uses the backend {module.backend.backend()} here, but only TensorFlow trains one "
                "model on several workers: set KERAS_BACKEND=tensorflow, or use one worker"
            )
            refuse_fit(module.Model, backend, _is_independent.get)
        return
    _installed.add(name)
    own = task()
    if hands_steps_out(own):
        if CLAIM.take():
            seed_tensorflow()
            module.Model.fit = _wrapped(module.Model.fit, fit_on_workers)
        return
    if reason := why_alone(own):
        stay_alone(module.Model, reason, _has_strategy)
        return
    if not CLAIM.take():
        if group.place.size > 1:
            refuse_fit(module.Model, why_not(), _is_independent.get)
        return
    is_too_old = name == "keras" and too_old(module) is not None
    if is_too_old and group.place.size == 1:
        warnings.warn(
            f"Keras {module.__version__} is older than 3.12: it trains as usual, but starts from the "
            "beginning after a restart, and reports no metrics",
            stacklevel=2,
        )
        return
    group.connect()
    seed_tensorflow()
    if group.place.size > 1:
        hook_strategies()
    if group.place.size > 1 and not is_too_old:  # if too old, only `fit` raises
        framework = framework_named(name)
        in_loops = average_in_loops(framework, loop_exchange(group), _is_independent.get)
        hook_optimizers(framework, in_loops)
        hook_losses(framework)
        hook_metrics(framework)
        hook_adapt(framework, group, _is_independent.get)
        hook_saving(module, group.place.index)
    wrapped = {"fit": _fit, "evaluate": _evaluate}
    if group.place.size > 1:
        wrapped |= {"train_on_batch": _on_batch, "test_on_batch": _on_batch}
    for method, together in wrapped.items():
        setattr(module.Model, method, _wrapped(getattr(module.Model, method), together))


def _is_on_tensorflow(module: Any) -> bool:
    return not hasattr(module, "backend") or module.backend.backend() == "tensorflow"


@contextlib.contextmanager
def independent() -> Iterator[None]:
    """Let Keras train on this worker alone in a block, for example in a hyperparameter search.

    Random numbers of Python, NumPy and TensorFlow differ between workers in the block.
    """
    with _alone(), own_random_numbers(), own_numbers(worker_group().place.index):
        yield


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    token = _is_independent.set(True)
    try:
        yield
    finally:
        _is_independent.reset(token)


def _wrapped(original: Callable[..., Any], together: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def method(model: Any, *arguments: Any, **options: Any) -> Any:
        # `fit` validates through `evaluate`, with data that is already divided among the workers.
        is_of_fit = options.get("_use_cached_eval_dataset")
        if is_of_fit or _is_independent.get() or _has_strategy(model):
            return original(model, *arguments, **options)
        bound = signature.bind(model, *arguments, **options)
        given = {name: value for name, value in bound.arguments.items() if name not in ("self", "kwargs")}
        given |= bound.arguments.get("kwargs", {})
        with _in_step_with_others(original.__name__, model):
            return together(model, functools.partial(original, model), given)

    return method


def _in_step_with_others(method: str, model: Any) -> contextlib.AbstractContextManager[None]:
    """Compare the workers' operations during a call, except for a single batch, which is too short."""
    group = worker_group()
    if group.place.size == 1:
        return contextlib.nullcontext()
    if method.endswith("_on_batch"):
        return OPERATIONS.within(f"`{method}`")
    callback = calling_callback(framework_of(model).module.callbacks.Callback)
    return roll_call(group).during(f"`{method}`{callback}")


def _has_strategy(model: Any) -> bool:
    """Return whether the script made the model for its own strategy. Keras then trains it without this package.

    Raises:
        ConfigError: Keras 3 cannot train with the strategy, or the strategy does not include the other workers.
    """
    strategy = model.distribute_strategy
    if isinstance(strategy, _NO_STRATEGY):
        return False
    name, num_workers = type(strategy).__name__, worker_group().place.size
    is_of_all = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy) and num_workers > 1
    if is_of_all and framework_of(model).module.__name__ == "keras":
        raise ConfigError(
            f"the model was made in the scope of a {name}, with which Keras 3 cannot `fit`. Leave the strategy out: "
            "`fit` trains on all workers of the run by itself"
        )
    if not is_of_all and num_workers > 1:
        raise ConfigError(
            f"the model was made in the scope of a {name}, so each worker would train a model of its own. "
            "To train one model on all workers, make it outside that scope; to train one on each worker, "
            "put `with ignite_tf_magic.independent():` around fit"
        )
    if not is_of_all and model not in _trained_as_ever:
        _trained_as_ever.add(model)
        warnings.warn(
            f"the model was made for {name}, so Keras trains it as usual. It starts from the beginning "
            "after a restart, and reports no metrics",
            stacklevel=4,
        )
    return True


def _fit(model: Any, original: Callable[..., Any], given: dict[str, Any]) -> Any:
    framework, group = framework_of(model), worker_group()
    together, asked = _together(model, framework, group), GracefulShutdown()
    check_versions({"TensorFlow": tf.__version__, "Keras": framework.module.__version__}, group)
    check_models([("the arguments of `fit`", described(given))], group)
    fit = f"fit-{next(_fits)}"
    name = name_in_run(fit, group)
    progress = FitProgress(model, framework, group, CheckpointPolicy(directory_in_run(name), group))
    progress.find()
    source = given.get("x")
    data, firsts = training_data(given, framework, group, order_seed(group, fit))
    together.note_divided(firsts.is_training_divided, is_training=True)
    together.note_divided(firsts.is_validation_divided, is_training=False)
    note(name, of_fit(model, given, {"tensorflow": tf.__version__, "keras": framework.module.__version__}))
    reporter = reporter_of_fit(name, group, given, data["x"])
    callbacks = for_worker(given.pop("callbacks", None), framework, group)
    history = framework.module.callbacks.History()
    progress.callbacks = list(callbacks)
    is_planned = group.place.size > 1 and given.get("steps_per_epoch") is None
    planned_rows = shares.planned_rows(data["x"]) if is_planned else None
    led = [
        *numbered_steps(framework, group),
        *same_logs(callbacks, framework, together, group),
        *callbacks,
        history,
        leading(framework, together, group, progress, reporter, asked, firsts, planned_rows),
    ]
    if not group.place.is_chief:
        given["verbose"] = 0
    with together.installed(), explained(source, group):
        _build(model, data["x"], framework, group, needs_all=progress.was_found)
        if group.place.size > 1 and group.place.is_chief:
            print_rule(model, framework)
        progress.restore()
        together.start()
        if progress.is_done:
            group.settle()
            return progress.result(history)
        given["initial_epoch"] = max(given.get("initial_epoch", 0), progress.epoch)
        progress.begin(data["x"], given["initial_epoch"])
        if framework.steps_per_execution(model) == 1:
            data |= shares.read_ahead(data["x"], given)
        data["x"] = reporter.measured(data["x"])
        with (
            progress.skipping(),
            asked.listening(),
            end_is_well(given, "steps_per_epoch", "validation_steps"),
            only_of_chief(callbacks, framework, group, lambda: _on_this_worker_alone(together)),
        ):
            found = original(**{**given, **data}, callbacks=led)
    group.settle()
    if group.place.is_chief:
        leave_model(model)
    return found


@contextlib.contextmanager
def _on_this_worker_alone(together: DataParallelFit) -> Iterator[None]:
    with together.suspended(), _alone():
        yield


def _evaluate(model: Any, original: Callable[..., Any], given: dict[str, Any]) -> Any:
    framework, group = framework_of(model), worker_group()
    if group.place.size == 1:
        return original(**given)
    source = given.get("x")
    data, firsts = evaluation_data(given, framework, group)
    if not group.place.is_chief:
        given["verbose"] = 0
    together = _together(model, framework, group)
    together.note_divided(firsts.is_validation_divided, is_training=False)
    given["callbacks"] = [*numbered_steps(framework, group), *listed(given.pop("callbacks", None))]
    with together.installed(), explained(source, group):
        found = original(**given, **data)
    for first in firsts.of_validation:
        first.check(group)
    group.settle()
    return found


def _on_batch(model: Any, original: Callable[..., Any], given: dict[str, Any]) -> Any:
    """Run one step of all workers, each with its own batch."""
    framework, group = framework_of(model), worker_group()
    together = _together(model, framework, group)
    with together.installed(by_batch=True):
        if not together.has_started:
            rows = framework.module.utils.pack_x_y_sample_weight(
                given["x"], given.get("y"), given.get("sample_weight")
            )
            batch = tf.data.Dataset.from_tensors(tf.nest.map_structure(framework.as_input, rows))
            _build(model, batch, framework, group, needs_all=False)
            if group.place.is_chief:
                print_rule(model, framework)
            together.start()
        return original(**given)


def _together(model: Any, framework: Framework, group: WorkerGroup) -> DataParallelFit:
    if getattr(model, "optimizer", None) is None and not getattr(model, "compiled", False):
        raise ConfigError("compile the model before fit: model.compile(optimizer, loss)")
    # Stored in the model's `__dict__`, which bypasses Keras' attribute handling, so that it is freed with the model. A
    # copy of the model may contain the original's object, which is replaced here.
    known = vars(model).get(_TOGETHER)
    if not isinstance(known, DataParallelFit) or known.model is not model:
        known = vars(model)[_TOGETHER] = DataParallelFit(model, framework, group)
    return known


def _build(model: Any, data: Any, framework: Framework, group: WorkerGroup, *, needs_all: bool) -> None:
    """Create all variables of a model, also of one that gets its input shapes from the data.

    No step is computed, except with `run_eagerly`.
    """
    is_needed = needs_all or (group.place.size > 1 and not model.built)
    if isinstance(data, tf.data.Dataset) and is_needed:
        if model.run_eagerly:  # a step that reads values in Python cannot be traced
            zeros = or_one_row(empty_like(data.element_spec), tf.constant(0))
            if needs_all:
                model.train_step(zeros)  # the caller restores the variables that it changes
            else:
                model(framework.unpack(zeros)[0])
        else:
            look_at_step(model, framework, model.train_step, data.element_spec)
    if model.built and (needs_all or group.place.size > 1):
        for optimizer in optimizers_of(model, framework):
            framework.build_optimizer(optimizer, model.trainable_variables)
