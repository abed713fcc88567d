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

import numpy as np
import tensorflow as tf

from ignite_tf_magic.batches import num_batches
from ignite_tf_magic.errors import ConfigError
from ignite_tf_magic.training import shares
from ignite_tf_magic.training.advice import check_elements, warn_of_own_statistics
from ignite_tf_magic.training.callbacks import for_worker, leading
from ignite_tf_magic.training.checkpoints import directory_in_run
from ignite_tf_magic.training.claim import CLAIM, name_in_run, stay_out
from ignite_tf_magic.training.frameworks import Framework, framework_of, optimizers_of, too_old
from ignite_tf_magic.training.group import WorkerGroup, worker_group
from ignite_tf_magic.training.models import leave_model
from ignite_tf_magic.training.reporting import Reporter, writer_of_run
from ignite_tf_magic.training.resume import Asked, Progress, Saving, skipping
from ignite_tf_magic.training.together import Together

_is_at_work: contextvars.ContextVar[bool] = contextvars.ContextVar("at_work", default=False)
_models: weakref.WeakKeyDictionary[Any, Together] = weakref.WeakKeyDictionary()
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
    if name in _installed or not _is_on_tensorflow(module):
        return
    _installed.add(name)
    if not CLAIM.take():
        if group.place.size > 1:
            stay_out(module.Model)
        return
    if name == "keras" and group.place.size == 1 and too_old(module):
        warnings.warn(
            f"Keras {module.__version__} is older than 3.12: it trains as ever, but begins anew after a restart, and "
            "it tells no metrics",
            stacklevel=2,
        )
        return
    group.connect()
    methods = {"fit": _fit} if group.place.size == 1 else {"fit": _fit, "evaluate": _evaluate}
    for method, together in methods.items():
        setattr(module.Model, method, _wrapped(getattr(module.Model, method), together))


def _is_on_tensorflow(module: Any) -> bool:
    return not hasattr(module, "backend") or module.backend.backend() == "tensorflow"


@contextlib.contextmanager
def independent() -> Iterator[None]:
    """Let Keras in this block train on this worker alone, as for a search in which each worker tries something else."""
    token = _is_at_work.set(True)
    try:
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


def _has_strategy(model: Any) -> bool:
    """Whether the script has made the model for a strategy of its own.

    Raises:
        ConfigError: It is one with which Keras 3 cannot train.
    """
    strategy = model.distribute_strategy
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        if strategy.num_replicas_in_sync > 1 and worker_group().place.size > 1:
            warnings.warn(
                f"the model was made for {type(strategy).__name__}: each worker trains a model of its own. To train "
                "one on all workers, make it outside of the strategy's scope",
                stacklevel=4,
            )
        return bool(strategy.num_replicas_in_sync > 1)
    if type(model).__module__.partition(".")[0] != "tf_keras" and "keras" in _installed:
        raise ConfigError(
            "the model was made in the scope of a MultiWorkerMirroredStrategy, with which Keras 3 cannot `fit`. Leave "
            "the strategy out: `fit` trains on all workers of the run by itself"
        )
    return True


def _fit(model: Any, original: Callable[..., Any], given: dict[str, Any]) -> Any:
    framework, group = framework_of(model), worker_group()
    together, asked = _together(model, framework, group), Asked()
    check_elements(model, given.get("x"))
    name = name_in_run(f"fit-{next(_fits)}", group)
    progress = Progress(model, framework, group, Saving(directory_in_run(name), group))
    progress.find()
    data = _training_data(given, group)
    reporter = _reporter(name, group, given, data["x"])
    callbacks = for_worker(given.pop("callbacks", None), framework, group)
    history = framework.module.callbacks.History()
    progress.callbacks = list(callbacks)
    callbacks += [history, leading(framework, together, group, progress, reporter, asked)]
    if not group.place.is_chief:
        given["verbose"] = 0
    elif group.place.size > 1:
        warn_of_own_statistics(model)
    with together.installed():
        _build(model, data["x"], framework, needs_all=progress.was_found)
        progress.restore()
        together.start()
        if progress.is_done:
            return _result(model, history, progress)
        given["initial_epoch"] = max(given.get("initial_epoch", 0), progress.epoch)
        progress.begin(data["x"], given["initial_epoch"])
        if framework.steps_per_execution(model) == 1:
            data |= shares.read_ahead(data["x"], given)
        data["x"] = reporter.measured(data["x"])
        with _skipping(model, framework, progress), asked.listening(), _end_of_data_is_well(given):
            found = original(**{**given, **data}, callbacks=callbacks)
    if group.place.is_chief:
        leave_model(model)
    return found


@contextlib.contextmanager
def _end_of_data_is_well(given: dict[str, Any]) -> Iterator[None]:
    """Keep Keras from warning of data whose number of batches nobody knew: nobody has asked for so many."""
    with warnings.catch_warnings():
        if given.get("steps_per_epoch") is None and given.get("validation_steps") is None:
            warnings.filterwarnings("ignore", "Your input ran out of data", UserWarning)
        yield


def _reporter(name: str, group: WorkerGroup, given: dict[str, Any], data: Any) -> Reporter:
    batches = given.get("steps_per_epoch") or num_batches(data)
    return Reporter(name, group, writer_of_run(), epochs=given.get("epochs", 1), batches=batches)


def _result(model: Any, history: Any, progress: Progress) -> Any:
    """Give what a training has come to that was done before its run was started again."""
    history.set_model(model)
    progress.restore_history(history)
    model.history = history
    return history


def _skipping(
    model: Any, framework: Framework, progress: Progress
) -> contextlib.AbstractContextManager[None]:
    if not progress.num_batches_done:
        return contextlib.nullcontext()
    return skipping(model, progress.num_batches_done, framework.steps_per_execution(model), progress.logs)


def _evaluate(model: Any, original: Callable[..., Any], given: dict[str, Any]) -> Any:
    framework, group = framework_of(model), worker_group()
    check_elements(model, given.get("x"))
    data = _evaluation_data(given, group)
    if not group.place.is_chief:
        given["verbose"] = 0
    with _together(model, framework, group).installed():
        return original(**given, **data)


def _together(model: Any, framework: Framework, group: WorkerGroup) -> Together:
    if getattr(model, "optimizer", None) is None and not getattr(model, "compiled", False):
        raise ConfigError("compile the model before fit: model.compile(optimizer, loss)")
    if model not in _models:
        _models[model] = Together(model, framework, group)
    return _models[model]


def _training_data(given: dict[str, Any], group: WorkerGroup) -> dict[str, Any]:
    """Take the data out of the arguments of `fit`, and give this worker's part of it."""
    x, y, weights = (given.pop(name, None) for name in ("x", "y", "sample_weight"))
    validation, split = given.pop("validation_data", None), given.pop("validation_split", 0.0)
    batch_rows, shuffle = given.pop("batch_size", None), given.pop("shuffle", True)
    validation_rows = given.pop("validation_batch_size", None) or batch_rows
    if split and validation is None and not _is_source(x):
        (x, y, weights), validation = _split(x, y, weights, split)
    found = {"x": _share(x, y, weights, batch_rows, bool(shuffle), group), "shuffle": False}
    if isinstance(found["x"], tf.data.Dataset):
        found["x"] = shares.in_step(found["x"], group)
    else:
        found |= {"y": y, "sample_weight": weights, "batch_size": batch_rows}
    if validation is not None:
        parts = validation if isinstance(validation, (tuple, list)) else (validation,)
        v_x, v_y, v_weights = (*parts, None, None)[:3]
        part = _share(v_x, v_y, v_weights, validation_rows, False, group)
        found["validation_data"] = shares.with_a_batch(part) if isinstance(part, tf.data.Dataset) else part
    return found


def _evaluation_data(given: dict[str, Any], group: WorkerGroup) -> dict[str, Any]:
    x, y, weights = (given.pop(name, None) for name in ("x", "y", "sample_weight"))
    batch_rows = given.pop("batch_size", None)
    if given.get("_use_cached_eval_dataset"):
        return {"x": x, "y": y, "sample_weight": weights, "batch_size": batch_rows}
    part = _share(x, y, weights, batch_rows, False, group)
    if not isinstance(part, tf.data.Dataset):
        return {"x": part, "y": y, "sample_weight": weights, "batch_size": batch_rows}
    return {"x": shares.with_a_batch(part)}


def _is_source(x: Any) -> bool:
    """Whether something gives batches by itself, in contrast to arrays: a dataset, a generator, a PyDataset."""
    return isinstance(x, tf.data.Dataset) or hasattr(x, "__next__") or hasattr(x, "on_epoch_end")


def _share(x: Any, y: Any, weights: Any, batch_rows: int | None, shuffle: bool, group: WorkerGroup) -> Any:
    if isinstance(x, tf.data.Dataset):
        return shares.share_of(x, group)
    if _is_source(x):
        return x  # a generator's batches are this worker's own
    parts = _without_lists((x, y, weights) if weights is not None else (x, y) if y is not None else (x,))
    return shares.share_of(shares.of_arrays(parts, batch_rows, shuffle=shuffle, group=group), group)


def _without_lists(arrays: Any) -> Any:
    """Make tuples of lists, which datasets take for tensors."""
    if isinstance(arrays, (list, tuple)):
        return tuple(map(_without_lists, arrays))
    return (
        {name: _without_lists(each) for name, each in arrays.items()} if isinstance(arrays, dict) else arrays
    )


def _split(x: Any, y: Any, weights: Any, share: float) -> tuple[tuple[Any, Any, Any], tuple[Any, ...]]:
    """Take the last rows for validation, as Keras does."""
    arrays = (x, y, weights)
    total = len(tf.nest.flatten(x)[0])
    at = int(np.floor(total * (1.0 - share)))

    def cut(part: slice) -> tuple[Any, ...]:
        return tuple(
            None if each is None else tf.nest.map_structure(lambda a: a[part], each) for each in arrays
        )

    x, y, weights = cut(slice(None, at))
    return (x, y, weights), cut(slice(at, None))


def _build(model: Any, data: Any, framework: Framework, *, needs_all: bool) -> None:
    """Make the variables of a model that knows its inputs only now, and of all else; nothing is computed."""
    if isinstance(data, tf.data.Dataset) and (needs_all or not model.built):
        tf.function(model.train_step).get_concrete_function(data.element_spec)
    if model.built:
        for optimizer in optimizers_of(model, framework):
            framework.build_optimizer(optimizer, model.trainable_variables)
