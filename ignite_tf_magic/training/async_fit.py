"""Runs Keras' `fit` in the chief of a run with parameter servers, whose workers make the steps."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from ignite_tf_magic.dataset.lineage import is_read_where_it_lives
from ignite_tf_magic.dataset.portable import graph_of
from ignite_tf_magic.errors import ConfigError
from ignite_tf_magic.training.callbacks import LeadingCallback, acts_by_batch, listed
from ignite_tf_magic.training.checkpoints import directory_in_run
from ignite_tf_magic.training.chief_client import Servers
from ignite_tf_magic.training.claim import name_in_run
from ignite_tf_magic.training.fit_data import end_is_well, explained, training_data
from ignite_tf_magic.training.frameworks import Framework, framework_of
from ignite_tf_magic.training.group import worker_group
from ignite_tf_magic.training.handed_out_fit import HandedOutFit
from ignite_tf_magic.training.models import leave_model
from ignite_tf_magic.training.parameters import note, of_fit
from ignite_tf_magic.training.reporting import Reporter, check_loss, reporter_of_fit
from ignite_tf_magic.training.resume import CheckpointPolicy, FitProgress, GracefulShutdown
from ignite_tf_magic.training.step_sources import HandedBatches, RowsOfWorkers
from ignite_tf_magic.training.task import task
from ignite_tf_magic.training.tensorflow_seeds import order_seed

_fits = itertools.count()


def fit_on_workers(model: Any, original: Callable[..., Any], given: dict[str, Any]) -> Any:
    """Run `fit` with steps that the workers make.

    Args:
        model: The compiled model.
        original: Keras' own `fit`, bound to the model.
        given: The arguments, by name.

    Raises:
        ConfigError: The model is not compiled, or `class_weight` cannot be applied to the data.
        ServerGone: A parameter server is gone.
    """
    framework, group, servers = framework_of(model), worker_group(), Servers(task().addresses)
    _check(model)
    fit = f"fit-{next(_fits)}"
    name = name_in_run(fit, group)
    progress = FitProgress(model, framework, group, CheckpointPolicy(directory_in_run(name), group))
    progress.find()
    given_data = given.get("x")
    data, _ = training_data(given, framework, group, order_seed(group, fit))
    source = _source(data, given, framework, len(servers.workers))
    note(name, of_fit(model, given, {"tensorflow": tf.__version__, "keras": framework.module.__version__}))
    reporter = reporter_of_fit(name, group, given, data["x"])
    callbacks = listed(given.pop("callbacks", None))
    follows = any(_looks_within_epochs(each, framework) for each in callbacks)
    handed = HandedOutFit(model, framework, servers, source, progress, follows=follows)
    history, asked = framework.module.callbacks.History(), GracefulShutdown()
    progress.callbacks = list(callbacks)
    leading = _leading(framework, handed, source, progress, reporter, asked)
    with handed.installed():
        if progress.was_found and source.element_spec is not None:
            handed.build(source.element_spec)
        if progress.is_done:
            return progress.result(history)
        given["initial_epoch"] = max(given.get("initial_epoch", 0), progress.epoch)
        progress.begin(data["x"], given["initial_epoch"])
        with (
            progress.skipping(),
            asked.listening(),
            end_is_well(given, "steps_per_epoch"),
            explained(given_data, group),
        ):
            found = original(**{**given, **data}, callbacks=[*callbacks, history, leading])
    leave_model(model)
    return found


def _check(model: Any) -> None:
    if getattr(model, "optimizer", None) is None and not getattr(model, "compiled", False):
        raise ConfigError("compile the model before fit: model.compile(optimizer, loss)")
    if model.run_eagerly:
        warnings.warn(
            "run_eagerly=True does not apply to steps on workers, which run as graphs; Python code in a "
            "step runs only once, when the chief traces it",
            stacklevel=2,
        )


def _source(
    data: dict[str, Any], given: dict[str, Any], framework: Framework, num_workers: int
) -> RowsOfWorkers | HandedBatches:
    """Return the source of the batches. If workers read the rows, Keras gets only a token for each step."""
    x = data["x"]
    if not isinstance(x, tf.data.Dataset):
        return HandedBatches(None)
    if weights := given.pop("class_weight", None):
        x = data["x"] = _weighted(x, weights, framework)
    spec, num_steps = x.element_spec, given.get("steps_per_epoch")
    if not is_read_where_it_lives(x):
        return HandedBatches(spec)
    graph = graph_of(x)
    if graph is None:
        warnings.warn(
            "the chief reads all rows of this fit and sends batches to the workers, because the dataset "
            "calls Python or uses lookup tables (py_function, from_generator, a lookup layer in map). With "
            "TensorFlow's own operations, and such layers in the model, each worker reads its own rows",
            stacklevel=2,
        )
        return HandedBatches(spec)
    tokens = tf.data.Dataset.range(1).repeat()
    is_endless = bool(x.cardinality() == tf.data.INFINITE_CARDINALITY)
    # Keras rejects an endless dataset without a number of steps, so the filter makes its cardinality unknown.
    data["x"] = tokens if num_steps or is_endless else tokens.filter(lambda _: True)
    goes_on = num_steps is not None
    return RowsOfWorkers(graph, spec, num_workers, goes_on=goes_on, is_endless=is_endless)


def _weighted(dataset: Any, weights: Mapping[int, float], framework: Framework) -> Any:
    """Add the weights of their classes to rows, as Keras does."""
    table = tf.constant([weights.get(each, 1.0) for each in range(max(weights) + 1)], tf.float32)

    def weigh(*data: Any) -> Any:
        x, y, own = framework.unpack(data if len(data) > 1 else data[0])
        if own is not None or not tf.is_tensor(y):
            raise ConfigError("class_weight requires a model with one output, and no sample_weight")
        if y.shape.rank is not None and y.shape.rank > 1:
            y_classes = tf.argmax(y, -1) if y.shape[-1] != 1 else tf.squeeze(y, -1)
        else:
            y_classes = y
        return x, y, tf.gather(table, tf.cast(y_classes, tf.int64))

    return dataset.map(weigh, tf.data.AUTOTUNE)


def _looks_within_epochs(callback: Any, framework: Framework) -> bool:
    return acts_by_batch(callback, framework) or getattr(callback, "save_freq", "epoch") != "epoch"


def _leading(framework: Framework, *parts: Any) -> Any:
    kind = type("LeadingSteps", (LeadingSteps, framework.module.callbacks.Callback), {})
    return kind(*parts)


class LeadingSteps(LeadingCallback):
    """The last callback: it begins epochs, saves and reports."""

    def __init__(
        self,
        handed: HandedOutFit,
        source: RowsOfWorkers | HandedBatches,
        progress: FitProgress,
        reporter: Reporter,
        asked: GracefulShutdown,
    ) -> None:
        super().__init__(progress, reporter, asked)
        self._handed = handed
        self._source = source

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Begin the epoch, and restore the training's state if it resumes in this epoch."""
        del logs
        num_steps, num_done = self.params.get("steps"), 0
        if self._goes_on_in(epoch):
            num_done = self._progress.num_batches_done
            if isinstance(self._source, RowsOfWorkers):
                self._source.resume(self._progress.facts.get("done_by_worker", ()), in_epoch=num_done > 0)
        self._handed.expect_epoch(num_steps - num_done if num_steps else None)
        self._reporter.go()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Stop, save and report."""
        if self._was_done_before(batch):
            return
        if self.model.stop_training:
            self._handed.stop()
        elif self._asked.is_asked or self._progress.wants_to_save():
            self._save(batch + 1, logs)
        if self._reporter.is_time():
            self._reporter.report(self.epoch, batch + 1, self.step, logs or {}, is_epoch=False)
            check_loss(logs or {}, self.epoch, self.step)

    def _save(self, num_batches: int, logs: Any) -> None:
        more = self._handed.settle()
        self._progress.save(
            self.epoch, num_batches + more, self.step + more, logs=logs, more=self._done_by_worker()
        )
        if self._asked.is_asked:
            self._asked.end()
        self._handed.go_on()

    def _done_by_worker(self) -> dict[str, Any]:
        return {"done_by_worker": list(self._source.num_done)}

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Report the epoch, and save if it is time to."""
        self._reporter.report(epoch, self.last_batch + 1, self.step, logs or {}, is_epoch=True)
        check_loss(logs or {}, epoch, self.step)
        if self._asked.is_asked or self._progress.wants_to_save():
            self._progress.save(epoch + 1, 0, self.step, more=self._done_by_worker())
        if self._asked.is_asked:
            self._asked.end()
