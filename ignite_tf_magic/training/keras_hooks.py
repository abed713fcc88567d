"""Keras' `fit` and `evaluate` on all workers of a run, without a word of the script.

In a run with several workers the bootstrap calls `install_keras` when Keras has been imported. Then `fit` and
`evaluate` of `keras.Model` do what they do elsewhere, with this worker's part of the data, together with the others.
`predict` needs nothing: what a worker is given, it predicts.
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
from ignite_tf_magic.training.advice import check_elements, warn_of_own_statistics
from ignite_tf_magic.training.async_fit import fit_on_workers
from ignite_tf_magic.training.callbacks import for_worker, leading, same_logs
from ignite_tf_magic.training.checkpoints import directory_in_run
from ignite_tf_magic.training.claim import CLAIM, name_in_run, stay_alone, stay_out
from ignite_tf_magic.training.consistency import check_models, check_versions
from ignite_tf_magic.training.fit_data import described, end_is_well, evaluation_data, training_data
from ignite_tf_magic.training.frameworks import (
    Framework,
    framework_named,
    framework_of,
    look_at_step,
    too_old,
)
from ignite_tf_magic.training.group import WorkerGroup, worker_group
from ignite_tf_magic.training.losses import hook_losses
from ignite_tf_magic.training.metric_updates import hook_metrics
from ignite_tf_magic.training.models import leave_model
from ignite_tf_magic.training.optimizers import hook_optimizers, optimizers_of
from ignite_tf_magic.training.parameters import note, of_fit
from ignite_tf_magic.training.reporting import reporter_of_fit
from ignite_tf_magic.training.resume import CheckpointPolicy, FitProgress, GracefulShutdown
from ignite_tf_magic.training.saving import hook_saving
from ignite_tf_magic.training.seeding import own_random_numbers
from ignite_tf_magic.training.strategies import hook_strategies
from ignite_tf_magic.training.tapes import hook_tapes
from ignite_tf_magic.training.task import hands_steps_out, task, why_alone
from ignite_tf_magic.training.tensorflow_seeds import order_seed, own_numbers, seed_tensorflow
from ignite_tf_magic.training.together import DataParallelFit

_TOGETHER = "_ignite_tf_together"
_NO_STRATEGY = type(tf.distribute.get_strategy())  # that of a process in which nobody has asked for one
_is_at_work: contextvars.ContextVar[bool] = contextvars.ContextVar("at_work", default=False)
_trained_as_ever: weakref.WeakSet[Any] = weakref.WeakSet()
_installed: set[str] = set()
_told: set[str] = set()
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
            warnings.warn(
                f"Keras computes with {module.backend.backend()} here, and only TensorFlow trains one model on several "
                "workers: each worker trains a model of its own. Set KERAS_BACKEND=tensorflow, or use one worker",
                stacklevel=2,
            )
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
            stay_out(module.Model)
        return
    is_too_old = name == "keras" and too_old(module) is not None
    if is_too_old and group.place.size == 1:
        warnings.warn(
            f"Keras {module.__version__} is older than 3.12: it trains as ever, but begins anew after a restart, and "
            "it tells no metrics",
            stacklevel=2,
        )
        return
    group.connect()
    seed_tensorflow()
    if group.place.size > 1:
        hook_strategies()
    if group.place.size > 1 and not is_too_old:  # `fit` says so then; who imports Keras only needs no word
        framework = framework_named(name)
        hook_optimizers(framework, _tell_of_a_loop)
        hook_losses(framework)
        hook_tapes(framework)
        hook_metrics(framework)
        hook_adapt(framework, group, _is_at_work.get)
        hook_saving(module, group.place.index)
    for method, together in (("fit", _fit), ("evaluate", _evaluate)):
        setattr(module.Model, method, _wrapped(getattr(module.Model, method), together))
    for method in ("train_on_batch", "test_on_batch") if group.place.size > 1 else ():
        setattr(module.Model, method, _told_of(getattr(module.Model, method)))


def _is_on_tensorflow(module: Any) -> bool:
    return not hasattr(module, "backend") or module.backend.backend() == "tensorflow"


@contextlib.contextmanager
def independent() -> Iterator[None]:
    """Let Keras in this block train on this worker alone, as for a search in which each worker tries something else.

    Random numbers of Python, NumPy and TensorFlow are others on each worker here.
    """
    token = _is_at_work.set(True)
    try:
        with own_random_numbers(), own_numbers(worker_group().place.index):
            yield
    finally:
        _is_at_work.reset(token)


def _wrapped(original: Callable[..., Any], together: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def method(model: Any, *arguments: Any, **options: Any) -> Any:
        if _is_at_work.get() or _has_strategy(model):
            return original(model, *arguments, **options)
        bound = signature.bind(model, *arguments, **options)
        given = {name: value for name, value in bound.arguments.items() if name not in ("self", "kwargs")}
        given |= bound.arguments.get("kwargs", {})
        token = _is_at_work.set(True)
        try:
            return together(model, functools.partial(original, model), given)
        finally:
            _is_at_work.reset(token)

    return method


def _told_of(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that trains this worker alone, with a warning that it does."""

    @functools.wraps(original)
    def method(model: Any, *arguments: Any, **options: Any) -> Any:
        name = original.__name__
        if not _is_at_work.get() and name not in _told and not _has_strategy(model):
            _told.add(name)
            warnings.warn(
                f"{name} is a matter of this worker alone: each worker has a model of its own. `fit` trains one model "
                "on all of them, with what such a loop does in a `train_step` of the model. Where each is to train "
                "alone, `with ignite_tf_magic.independent():` says so",
                stacklevel=2,
            )
        return original(model, *arguments, **options)

    return method


def _tell_of_a_loop() -> None:
    """Warn, once, of a loop of the script's own in which this worker takes its own gradients alone."""
    if _told or _is_at_work.get() or tf.distribute.has_strategy():
        return
    _told.add("apply")
    warnings.warn(
        "an optimizer takes the gradients of this worker alone: in a loop of the script's own each worker trains a "
        "model of its own, on what it is given. `ignite_tf_magic.strategy()` is for loops over all workers, and `fit` "
        "trains one model on all of them by itself. Where each is to train alone, "
        "`with ignite_tf_magic.independent():` says so",
        stacklevel=4,
    )


def _has_strategy(model: Any) -> bool:
    """Return whether the script has made the model for a strategy of its own: then Keras trains it as ever.

    Raises:
        ConfigError: It is one with which Keras 3 cannot train.
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
    if not is_of_all and model not in _trained_as_ever:
        _trained_as_ever.add(model)
        alone = ": each worker trains a model of its own, on what it is given" if num_workers > 1 else ""
        warnings.warn(
            f"the model was made for {name}, so Keras trains it as ever{alone}. It begins anew after a restart, and "
            "tells no metrics. To train one model on all workers, make it outside of the strategy's scope",
            stacklevel=4,
        )
    return True


def _fit(model: Any, original: Callable[..., Any], given: dict[str, Any]) -> Any:
    framework, group = framework_of(model), worker_group()
    together, asked = _together(model, framework, group), GracefulShutdown()
    check_elements(model, given.get("x"))
    check_versions({"TensorFlow": tf.__version__, "Keras": framework.module.__version__}, group)
    check_models([("the arguments of `fit`", described(given))], group)
    fit = f"fit-{next(_fits)}"
    name = name_in_run(fit, group)
    progress = FitProgress(model, framework, group, CheckpointPolicy(directory_in_run(name), group))
    progress.find()
    data, firsts = training_data(given, framework, group, order_seed(group, fit))
    together.note_divided(firsts.is_training_divided, is_training=True)
    together.note_divided(firsts.is_validation_divided, is_training=False)
    note(name, of_fit(model, given, {"tensorflow": tf.__version__, "keras": framework.module.__version__}))
    reporter = reporter_of_fit(name, group, given, data["x"])
    callbacks = for_worker(given.pop("callbacks", None), framework, group)
    history = framework.module.callbacks.History()
    progress.callbacks = list(callbacks)
    callbacks = [
        *same_logs(callbacks, framework, together, group),
        *callbacks,
        history,
        leading(framework, together, group, progress, reporter, asked, firsts),
    ]
    if not group.place.is_chief:
        given["verbose"] = 0
    elif group.place.size > 1:
        warn_of_own_statistics(model)
    with together.installed():
        _build(model, data["x"], framework, needs_all=progress.was_found)
        _hold_back(together, train=data["x"], test=data.get("validation_data"))
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
        ):
            found = original(**{**given, **data}, callbacks=callbacks)
    group.settle()
    if group.place.is_chief:
        leave_model(model)
    return found


def _evaluate(model: Any, original: Callable[..., Any], given: dict[str, Any]) -> Any:
    framework, group = framework_of(model), worker_group()
    if group.place.size == 1:
        together = _together(model, framework, group)
        with together.installed():
            _hold_back(together, test=given.get("x"))
            return original(**given)
    check_elements(model, given.get("x"))
    data, firsts = evaluation_data(given, framework, group)
    if not group.place.is_chief:
        given["verbose"] = 0
    together = _together(model, framework, group)
    together.note_divided(firsts.is_validation_divided, is_training=False)
    with together.installed():
        _hold_back(together, test=data.get("x"))
        found = original(**given, **data)
    for first in firsts.of_validation:
        first.check(group)
    group.settle()
    return found


def _hold_back(together: DataParallelFit, **data: Any) -> None:
    """Let steps wait for their batches where nobody knows how many there are."""
    for name, each in data.items():
        if isinstance(each, tf.data.Dataset) and int(each.cardinality()) == tf.data.UNKNOWN_CARDINALITY:
            together.hold_back(name, each)


def _together(model: Any, framework: Framework, group: WorkerGroup) -> DataParallelFit:
    if getattr(model, "optimizer", None) is None and not getattr(model, "compiled", False):
        raise ConfigError("compile the model before fit: model.compile(optimizer, loss)")
    # In the model's own dictionary, past what Keras does with attributes, so that it goes with the model; a copy of it
    # has it, too.
    known = vars(model).get(_TOGETHER)
    if not isinstance(known, DataParallelFit) or known.model is not model:
        known = vars(model)[_TOGETHER] = DataParallelFit(model, framework, group)
    return known


def _build(model: Any, data: Any, framework: Framework, *, needs_all: bool) -> None:
    """Make the variables of a model that knows its inputs only now, and of all else; nothing is computed."""
    if isinstance(data, tf.data.Dataset) and (needs_all or not model.built):
        if model.run_eagerly:  # a step that looks at values cannot be traced
            zeros = or_one_row(empty_like(data.element_spec), tf.constant(0))
            if needs_all:
                model.train_step(zeros)  # what it changes is restored next
            else:
                model(framework.unpack(zeros)[0])
        else:
            look_at_step(model, framework, model.train_step, data.element_spec)
    if model.built:
        for optimizer in optimizers_of(model, framework):
            framework.build_optimizer(optimizer, model.trainable_variables)
