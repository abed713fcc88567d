"""A `fit` that goes on where it was when its run is started again.

What it needs is saved now and then in the run's directory: variables of model and optimizers, what metrics have counted
so far in the epoch, the state of callbacks, and how many batches of which epoch are done. The workers agree on the step
after which they save, so that all of it is of one moment. On SIGTERM they save first, and end then.

The n-th `fit` of a script goes on with what the n-th `fit` saved; one that was done gives its result at once.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from ignite_tf_magic.errors import IgniteTfError
from ignite_tf_magic.training.checkpoints import Checkpoint, CheckpointDirectory
from ignite_tf_magic.training.frameworks import Framework
from ignite_tf_magic.training.group import WorkerGroup, as_array
from ignite_tf_magic.training.hooking import seams
from ignite_tf_magic.training.optimizers import optimizers_of
from ignite_tf_magic.training.reading import begin_at, record_sources

# Saving may take a twentieth of the time, and what can be lost is bounded.
_SHARE_OF_TIME, _SHORTEST_S, _LONGEST_S = 0.05, 2.0, 60.0
_ASKED_WITHIN_S = 2.0  # less than a process is given to end when it was asked to
_KEPT_OF_CALLBACKS = (bool, int, float, str, type(None), np.number)


class CheckpointPolicy:
    """Where a training is saved, and when it is time to. The chief writes; all workers call.

    Args:
        directory: Where checkpoints are; None saves nothing.
        group: The workers.
    """

    def __init__(self, directory: CheckpointDirectory | None, group: WorkerGroup) -> None:
        self._directory = directory
        self._group = group
        self._is_broken = False
        self._saved_at = time.monotonic()
        self._pause_s = _SHORTEST_S

    def find(self) -> Checkpoint | None:
        """Look for the last checkpoint; all workers take the one that the chief has found."""
        if self._directory is None:
            return None
        found = self._guarded(self._directory.latest) if self._group.place.is_chief else None
        (step,) = self._group.from_chief([tf.constant(-1 if found is None else found.step, tf.int64)])
        if int(step) >= 0 and found is None:
            return self._directory.read(int(step))
        return found

    @property
    def is_on(self) -> bool:
        """Whether anything is to be saved at all; the same on all workers."""
        return self._directory is not None

    def is_time(self) -> bool:
        """Whether to save again: saving may take a small share of the time, and little may be lost."""
        is_able = self.is_on and not self._is_broken
        return is_able and time.monotonic() - self._saved_at >= self._pause_s

    def save(self, make: Callable[[], Checkpoint]) -> None:
        """Save what a function gives; only the chief calls it."""
        if self._directory is None:
            return
        began = time.monotonic()
        if self._group.place.is_chief and not self._is_broken:
            self._guarded(partial(self._directory.write, make()))
        self._saved_at = time.monotonic()
        pause_s = (self._saved_at - began) / _SHARE_OF_TIME
        self._pause_s = min(max(pause_s, _SHORTEST_S), _LONGEST_S)

    def _guarded(self, call: Callable[[], Any]) -> Any:
        """Do something with files; a training does not end because it cannot be saved."""
        try:
            return call()
        except (OSError, IgniteTfError) as error:
            url = self._directory.url if self._directory else ""
            warnings.warn(f"the training cannot be saved at {url}: {error}. It goes on", stacklevel=2)
            self._is_broken = True
            return None


class FitProgress:
    """How far one `fit` has come, and the way to its checkpoints.

    Args:
        model: The model; built, and its optimizers too, before `restore`.
        group: The workers.
        saving: Where to.
    """

    def __init__(
        self, model: Any, framework: Framework, group: WorkerGroup, saving: CheckpointPolicy
    ) -> None:
        self._model = model
        self._framework = framework
        self._group = group
        self._saving = saving
        self._found: Checkpoint | None = None
        self._data: Any = None
        self.callbacks: list[Any] = []

    # Before the training

    def find(self) -> None:
        """Look for the last checkpoint."""
        self._found = self._saving.find()

    @property
    def epoch(self) -> int:
        """The epoch that the training begins or goes on with."""
        return 0 if self._found is None else int(self._found.facts["epoch"])

    @property
    def num_batches_done(self) -> int:
        """Batches of that epoch that are done."""
        return 0 if self._found is None else int(self._found.facts["batches"])

    @property
    def logs(self) -> Mapping[str, Any]:
        """What the last step that was done gave."""
        return {} if self._found is None else self._found.facts["logs"]

    @property
    def step(self) -> int:
        """Steps done since the beginning."""
        return 0 if self._found is None else self._found.step

    @property
    def facts(self) -> Mapping[str, Any]:
        """What was saved beside numbers; nothing where nothing was found."""
        return {} if self._found is None else self._found.facts

    @property
    def was_found(self) -> bool:
        """Whether there is anything to go on with."""
        return self._found is not None

    @property
    def is_done(self) -> bool:
        """Whether the training had come to its end."""
        return self._found is not None and bool(self._found.facts["is_done"])

    def begin(self, data: Any, epoch: int) -> None:
        """Let the data begin with the epoch with which the training begins or goes on, where it was in it."""
        self._data = data
        begin_at(data, epoch, self.num_batches_done, self._found, self._group)

    def restore(self) -> None:
        """Set all variables to the values that they had."""
        if self._found is not None:
            for name, variable in self._variables():
                variable.assign(self._found.arrays[name].astype(tf.as_dtype(variable.dtype).as_numpy_dtype))

    def restore_metrics(self) -> None:
        """Restore what metrics had counted: the chief's, as later all workers' counts are added up."""
        if self._found is None:
            return
        for at, variable in enumerate(self._framework.metric_variables(self._model)):
            value = self._found.arrays.get(f"metric {at}")
            if value is not None and self._group.place.is_chief:
                variable.assign(value)

    def restore_callbacks(self) -> None:
        """Restore what callbacks remembered."""
        if self._found is None:
            return
        for at, (callback, state) in enumerate(
            zip(self.callbacks, self._found.facts["callbacks"], strict=False)
        ):
            if state["kind"] == type(callback).__name__:
                vars(callback).update(state["values"])
                weights = [self._found.arrays[f"callback {at} {n}"] for n in range(state["num_weights"])]
                if weights:
                    callback.best_weights = weights

    def restore_history(self, history: Any) -> None:
        """Put earlier epochs into the history."""
        if self._found is not None:
            saved = self._found.facts["history"].items()
            history.history = {name: [_shown(value) for value in values] for name, values in saved}
            history.epoch = list(self._found.facts["epochs"])

    def result(self, history: Any) -> Any:
        """Return what a training has come to that was done before its run was started again."""
        history.set_model(self._model)
        self.restore_history(history)
        self._model.history = history
        return history

    # During the training

    @contextmanager
    def skipping(self) -> Iterator[None]:
        """Let the first calls of the train function take what was done without doing it, and give what was given last.

        Keras looks at its names at the end of an epoch, of which there may be nothing left to do.
        """
        if not self.num_batches_done:
            yield
            return
        model, left = self._model, self.num_batches_done
        original, batches_per_call = model.make_train_function, self._framework.steps_per_execution(model)

        def make_train_function(force: bool = False) -> Any:
            original(force=force)
            function = model.train_function

            def train_function(iterator: Any) -> Any:
                nonlocal left
                if not left:
                    return function(iterator)
                taken = min(batches_per_call, left)
                left -= taken
                for _ in range(taken):
                    next(iterator)
                return dict(self.logs)

            model.train_function = train_function
            return train_function

        with seams(model, {"make_train_function": make_train_function}):
            yield

    def wants_to_save(self) -> bool:
        """Whether it is time to save."""
        return self._saving.is_time()

    def save(
        self,
        epoch: int,
        num_batches: int,
        step: int,
        *,
        is_done: bool = False,
        logs: Mapping[str, Any] | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        """Save; all workers call. `epoch` and `num_batches` say where to go on; `logs` are those of the last step.

        `more` is found again in `facts`.
        """
        if not self._saving.is_on:
            return
        metrics = self._framework.metric_variables(self._model) if num_batches else []
        counts = self._group.sum([self._framework.tensor(variable) for variable in metrics])
        read, sources = record_sources(self._data if num_batches else None, epoch, self._group)
        facts = {
            "epoch": epoch,
            "batches": num_batches,
            "is_done": is_done,
            "logs": {name: as_array(value).tolist() for name, value in (logs or {}).items()},
            "sources": sources,
            **(more or {}),
        }
        self._saving.save(lambda: self._checkpoint(step, counts, read, facts))

    def _checkpoint(
        self, step: int, counts: list[Any], read: Mapping[str, np.ndarray], facts: Mapping[str, Any]
    ) -> Checkpoint:
        arrays = {name: self._framework.tensor(variable).numpy() for name, variable in self._variables()}
        arrays |= read
        arrays |= {f"metric {at}": count.numpy() for at, count in enumerate(counts)}
        states = []
        for at, callback in enumerate(self.callbacks):
            weights = getattr(callback, "best_weights", None) or []
            arrays |= {f"callback {at} {n}": np.asarray(weight) for n, weight in enumerate(weights)}
            values = {name: _plain(value) for name, value in vars(callback).items() if _is_kept(name, value)}
            states.append({"kind": type(callback).__name__, "num_weights": len(weights), "values": values})
        history = self._model.history
        more = {
            "callbacks": states,
            "history": {name: np.asarray(values).tolist() for name, values in history.history.items()},
            "epochs": list(history.epoch),
        }
        return Checkpoint(step, arrays, {**facts, **more})

    def _variables(self) -> Iterator[tuple[str, Any]]:
        for at, variable in enumerate(self._model.variables):
            yield f"model {at}", variable
        for at, variable in enumerate(self._framework.untracked_variables(self._model)):
            yield f"untracked {at}", variable
        for number, optimizer in enumerate(optimizers_of(self._model, self._framework)):
            for at, variable in enumerate(self._framework.optimizer_variables(optimizer)):
                yield f"optimizer {number} {at}", variable


def _shown(value: Any) -> Any:
    """Return a metric's value as Keras gives it: a number, or an array of several."""
    return np.asarray(value) if isinstance(value, list) else value


def _is_kept(name: str, value: Any) -> bool:
    return not name.startswith("_") and isinstance(value, _KEPT_OF_CALLBACKS)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.number) else value


class GracefulShutdown:
    """Whether this process was asked to end while a training goes on. Then the training saves, and ends it."""

    def __init__(self) -> None:
        self.is_asked = False
        self._previous: Any = None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take SIGTERM; only the main thread can."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._previous = signal.signal(signal.SIGTERM, self._on_signal)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, self._previous)
        if self.is_asked:  # after the last step
            self.end()

    def _on_signal(self, number: int, frame: Any) -> None:
        del number, frame
        self.is_asked = True

    def end_together(self, group: WorkerGroup) -> None:
        """End if any worker was asked to, as soon as this one is; all workers call, when they have saved."""
        if not group.any_true(self.is_asked):
            return
        deadline = time.monotonic() + _ASKED_WITHIN_S
        while not self.is_asked and time.monotonic() < deadline:
            time.sleep(0.01)
        group.settle()
        if self.is_asked:
            self.end()

    def end(self) -> None:
        """End the process as it would have ended without this."""
        signal.signal(signal.SIGTERM, self._previous)
        if callable(self._previous):
            self._previous(signal.SIGTERM, None)
        else:
            os.kill(os.getpid(), signal.SIGTERM)
