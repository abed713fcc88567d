"""Resumes a `fit` after its run is started again.

Checkpoints are written from time to time into the run's directory. They contain the variables of the model and its
optimizers, the metrics' counts so far in the epoch, the state of callbacks, the epoch, and its number of finished
batches. The workers agree on the step after which they save, so a checkpoint shows one moment. On SIGTERM they save
before they exit.

The n-th `fit` of a restarted script resumes from the checkpoint of the n-th `fit` before the restart. If that one was
finished, its result is returned at once.
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

# Saving takes at most about a twentieth of the time. The longest pause bounds the work that can be lost.
_SHARE_OF_TIME, _SHORTEST_S, _LONGEST_S = 0.05, 2.0, 60.0
_ASKED_WITHIN_S = 2.0  # less than the time in which a process must exit after SIGTERM
_KEPT_OF_CALLBACKS = (bool, int, float, str, type(None), np.number)


class CheckpointPolicy:
    """Decides when a training is saved, and where. The chief writes; all workers call.

    Args:
        directory: The directory of the checkpoints. None turns saving off.
        group: The workers.
    """

    def __init__(self, directory: CheckpointDirectory | None, group: WorkerGroup) -> None:
        self._directory = directory
        self._group = group
        self._is_broken = False
        self._saved_at = time.monotonic()
        self._pause_s = _SHORTEST_S

    def find(self) -> Checkpoint | None:
        """Return the last checkpoint, or None. All workers return the one that the chief finds."""
        if self._directory is None:
            return None
        found = self._guarded(self._directory.latest) if self._group.place.is_chief else None
        (step,) = self._group.from_chief([tf.constant(-1 if found is None else found.step, tf.int64)])
        if int(step) >= 0 and found is None:
            return self._directory.read(int(step))
        return found

    @property
    def is_on(self) -> bool:
        """Whether the training is saved at all; the same on all workers."""
        return self._directory is not None

    def is_time(self) -> bool:
        """Return whether the pause since the last save is over."""
        is_able = self.is_on and not self._is_broken
        return is_able and time.monotonic() - self._saved_at >= self._pause_s

    def save(self, make: Callable[[], Checkpoint]) -> None:
        """Save the checkpoint that a function returns. Only the chief calls the function."""
        if self._directory is None:
            return
        began = time.monotonic()
        if self._group.place.is_chief and not self._is_broken:
            self._guarded(partial(self._directory.write, make()))
        self._saved_at = time.monotonic()
        pause_s = (self._saved_at - began) / _SHARE_OF_TIME
        self._pause_s = min(max(pause_s, _SHORTEST_S), _LONGEST_S)

    def _guarded(self, call: Callable[[], Any]) -> Any:
        """Call a function that uses files. If it fails, warn and stop saving; the training continues."""
        try:
            return call()
        except (OSError, IgniteTfError) as error:
            url = self._directory.url if self._directory else ""
            warnings.warn(f"the training cannot be saved at {url}: {error}. It continues", stacklevel=2)
            self._is_broken = True
            return None


class FitProgress:
    """The progress of one `fit`, saved to and restored from checkpoints.

    Args:
        model: The model. It and its optimizers must be built before `restore`.
        framework: The model's framework.
        group: The workers.
        saving: Decides when the progress is saved, and where.
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
        """Read the last checkpoint, if there is one."""
        self._found = self._saving.find()

    @property
    def epoch(self) -> int:
        """The epoch in which the training begins or resumes."""
        return 0 if self._found is None else int(self._found.facts["epoch"])

    @property
    def num_batches_done(self) -> int:
        """The number of finished batches of that epoch."""
        return 0 if self._found is None else int(self._found.facts["batches"])

    @property
    def logs(self) -> Mapping[str, Any]:
        """The logs of the last finished step."""
        return {} if self._found is None else self._found.facts["logs"]

    @property
    def step(self) -> int:
        """The number of steps finished since the beginning of the training."""
        return 0 if self._found is None else self._found.step

    @property
    def facts(self) -> Mapping[str, Any]:
        """The facts in the checkpoint; empty without a checkpoint."""
        return {} if self._found is None else self._found.facts

    @property
    def was_found(self) -> bool:
        """Whether there is a checkpoint to resume from."""
        return self._found is not None

    @property
    def is_done(self) -> bool:
        """Whether the training was finished before."""
        return self._found is not None and bool(self._found.facts["is_done"])

    def begin(self, data: Any, epoch: int) -> None:
        """Make the data start in the given epoch, after its batches that are already done."""
        self._data = data
        begin_at(data, epoch, self.num_batches_done, self._found, self._group)

    def restore(self) -> None:
        """Set all variables to their saved values."""
        if self._found is not None:
            for name, variable in self._variables():
                variable.assign(self._found.arrays[name].astype(tf.as_dtype(variable.dtype).as_numpy_dtype))

    def restore_metrics(self) -> None:
        """Restore the metrics' counts, on the chief only: later all workers' counts are added up."""
        if self._found is None:
            return
        for at, variable in enumerate(self._framework.metric_variables(self._model)):
            value = self._found.arrays.get(f"metric {at}")
            if value is not None and self._group.place.is_chief:
                variable.assign(value)

    def restore_callbacks(self) -> None:
        """Restore the saved state of callbacks."""
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
        """Put the epochs before the restart into the history."""
        if self._found is not None:
            saved = self._found.facts["history"].items()
            history.history = {name: [_shown(value) for value in values] for name, values in saved}
            history.epoch = list(self._found.facts["epochs"])

    def result(self, history: Any) -> Any:
        """Return the history of a training that was finished before the restart."""
        history.set_model(self._model)
        self.restore_history(history)
        self._model.history = history
        return history

    # During the training

    @contextmanager
    def skipping(self) -> Iterator[None]:
        """Skip finished batches: the train function reads them, and returns the logs of the last finished step.

        Keras needs these logs' names at the end of an epoch that may have no batches left.
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
        """Return whether it is time to save."""
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
        """Save the progress. All workers must call it.

        Args:
            epoch: The epoch in which to resume.
            num_batches: Finished batches of that epoch.
            step: Steps finished since the beginning of the training.
            is_done: Whether the training is finished.
            logs: The logs of the last step.
            more: Further facts, which `facts` returns after a restart.
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
    """Return a metric's value in Keras' form: a number, or an array of several."""
    return np.asarray(value) if isinstance(value, list) else value


def _is_kept(name: str, value: Any) -> bool:
    return not name.startswith("_") and isinstance(value, _KEPT_OF_CALLBACKS)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.number) else value


class GracefulShutdown:
    """Handles SIGTERM during a training: the training saves first, and then ends the process."""

    def __init__(self) -> None:
        self.is_asked = False
        self._previous: Any = None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Catch SIGTERM in a block. Outside of the main thread, which alone can catch it, do nothing."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._previous = signal.signal(signal.SIGTERM, self._on_signal)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, self._previous)
        if self.is_asked:  # it came after the last step
            self.end()

    def _on_signal(self, number: int, frame: Any) -> None:
        del number, frame
        self.is_asked = True

    def end_together(self, group: WorkerGroup) -> None:
        """End the process if any worker was asked to end. All workers must call it after they save.

        A worker that was not asked itself waits up to two seconds for its own signal, and continues without one.
        """
        if not group.any_true(self.is_asked):
            return
        deadline = time.monotonic() + _ASKED_WITHIN_S
        while not self.is_asked and time.monotonic() < deadline:
            time.sleep(0.01)
        group.settle()
        if self.is_asked:
            self.end()

    def end(self) -> None:
        """End the process as SIGTERM would have without this class."""
        signal.signal(signal.SIGTERM, self._previous)
        if callable(self._previous):
            self._previous(signal.SIGTERM, None)
        else:
            os.kill(os.getpid(), signal.SIGTERM)
