"""Supports custom training loops: the strategy for them, and resuming after a restart."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from ignite_tf_magic.dataset.batches import num_batches
from ignite_tf_magic.errors import ConfigError
from ignite_tf_magic.training.checkpoints import Checkpoint, directory_in_run
from ignite_tf_magic.training.claim import CLAIM, name_in_run, why_not
from ignite_tf_magic.training.group import WorkerGroup, as_array, communication, worker_group
from ignite_tf_magic.training.reading import begin_at, is_record, record_sources
from ignite_tf_magic.training.reporting import RecordWriter, Reporter, check_loss, writer_of_run
from ignite_tf_magic.training.resume import CheckpointPolicy, GracefulShutdown
from ignite_tf_magic.training.task import task, why_alone

# The approximate interval at which the workers ask each other whether to save or report.
_ASK_EVERY_S = 0.2
_loops = itertools.count()
_strategies: list[Any] = []


def strategy() -> Any:
    """Return the strategy for a custom training loop: over all workers of the run, or for one process.

    Call it at the top of the script, before the first tensor, variable or dataset is made. Batches of `IgniteDataset`
    are this worker's parts of global batches, and their sizes differ. So divide the sum of a batch's losses by the rows
    of all workers, as `tf.nn.compute_average_loss(losses, global_batch_size=n)` does. `experimental_distribute_dataset`
    does not divide these batches again.

    Raises:
        ConfigError: Another process of this worker trains already, or TensorFlow has already run operations.
    """
    group = worker_group()
    if group.place.size == 1:
        return tf.distribute.get_strategy()
    if not _strategies:
        if not CLAIM.take():
            raise ConfigError(why_not())
        group.connect()
        way = tf.distribute.experimental.CommunicationImplementation(communication().upper())
        options = tf.distribute.experimental.CommunicationOptions(implementation=way)
        _strategies.append(tf.distribute.MultiWorkerMirroredStrategy(communication_options=options))
    return _strategies[0]


def checkpoint(**objects: Any) -> Loop:
    """Return a training loop that resumes where it was when the run is started again.

    Example:
        loop = checkpoint(model=model, optimizer=optimizer)
        for batch in loop.over(dataset, epochs=5):
            loop.log(loss=train_step(batch))

    Args:
        objects: The trained objects: models, optimizers, variables, or any object with `variables`. All their variables
            must exist when the loop begins.
    """
    return Loop(objects, worker_group())


class Loop:
    """A training loop. Every worker has one, and runs the same steps.

    Attributes:
        epoch: The current epoch, from 0.
        step: The number of steps finished since the beginning of the training.
    """

    def __init__(self, objects: dict[str, Any], group: WorkerGroup) -> None:
        self._objects = objects
        self._group = group
        self._name = f"loop-{next(_loops)}"
        self._saving = CheckpointPolicy(None, group)
        self._asked = GracefulShutdown()
        self._dataset: Any = None
        self._steps_until_asked = 1
        self._asked_at, self._asked_step = time.monotonic(), 0
        self._logged = _Logged()
        self._reporter = Reporter(self._name, group, None)
        self.epoch = self.step = 0

    def over(self, dataset: Any, epochs: int) -> Iterator[Any]:
        """Yield the batches of all epochs, except those that were finished before a restart of the run.

        The trained objects are restored before the first batch. They are saved after a batch has been used, from time
        to time and on SIGTERM. In a run, the loop's progress is reported like that of a `fit`.
        """
        name = name_in_run(self._name, self._group)
        self._saving = CheckpointPolicy(directory_in_run(name), self._group)
        checkpoint = self._saving.find()
        first, skipped = (
            (int(checkpoint.facts["epoch"]), int(checkpoint.facts["batches"])) if checkpoint else (0, 0)
        )
        if checkpoint:
            self._restore(checkpoint)
        self._dataset = dataset
        begin_at(dataset, first, skipped, checkpoint, self._group)
        self._reporter = Reporter(name, self._group, _writer(), epochs=epochs, batches=num_batches(dataset))
        batches = self._reporter.measured(dataset)
        with self._asked.listening():
            for self.epoch in range(first, epochs):
                number = 0
                self._reporter.go()
                for number, batch in enumerate(batches, 1):
                    if self.epoch == first and number <= skipped:
                        continue
                    yield batch
                    self.step += 1
                    self._after(self.epoch, number)
                self._tell(number, self._logged.of_epoch(), is_epoch=True)
            self._save(epochs, 0)
            self._group.settle()

    def log(self, **values: Any) -> None:
        """Log a step's loss and metrics over the rows of all workers, for example from `strategy.reduce`.

        The run's history has their means over each epoch. Its metrics and chart show the latest values, updated about
        once a second.

        Args:
            values: Numbers or scalar tensors. With `--stop-on-nan` the run ends when `loss` is not finite.
        """
        self._logged.add(values)

    def _after(self, epoch: int, num_batches: int) -> None:
        """From time to time, save or report if a worker requests it; the chief sets the steps until the next time."""
        self._steps_until_asked -= 1
        if self._steps_until_asked:
            return
        is_chief = self._group.place.is_chief
        wants = self._asked.is_asked or (is_chief and self._saving.is_time())
        is_time, pause = (self._reporter.is_time(), self._pause()) if is_chief else (False, 0)
        wanted, pause, is_time = self._group.sum_arrays([np.array([wants, pause, is_time], np.float32)])[0]
        self._steps_until_asked = max(int(pause), 1)
        if is_time:
            self._tell(num_batches, self._logged.latest(), is_epoch=False)
        if wanted:
            self._save(epoch, num_batches)
            self._asked.end_together(self._group)

    def _tell(self, num_batches: int, values: dict[str, float], *, is_epoch: bool) -> None:
        self._reporter.report(self.epoch, num_batches, self.step, values, is_epoch=is_epoch)
        check_loss(values, self.epoch, self.step)

    def _pause(self) -> int:
        """Return the number of steps until the workers ask again, from the duration of the last steps."""
        now = time.monotonic()
        step_s = (now - self._asked_at) / max(self.step - self._asked_step, 1)
        self._asked_at, self._asked_step = now, self.step
        return min(int(_ASK_EVERY_S / max(step_s, 1e-6)), 1000)

    def _save(self, epoch: int, num_batches: int) -> None:
        if not self._saving.is_on:
            return
        read, sources = record_sources(self._dataset if num_batches else None, epoch, self._group)
        facts = {"epoch": epoch, "batches": num_batches, "sources": sources}
        self._saving.save(lambda: Checkpoint(self.step, {**self._arrays(), **read}, facts))

    def _restore(self, checkpoint: Checkpoint) -> None:
        self.step = checkpoint.step
        variables = dict(self._variables())
        trained = {name: value for name, value in checkpoint.arrays.items() if not is_record(name)}
        if missing := sorted(trained.keys() - variables.keys()):
            raise ConfigError(
                f"the checkpoint has {', '.join(missing[:5])}, which do not exist yet: build models and "
                "optimizers (optimizer.build(model.trainable_variables)) before the loop"
            )
        for name, value in trained.items():
            variables[name].assign(value)

    def _arrays(self) -> dict[str, np.ndarray]:
        return {name: as_array(variable) for name, variable in self._variables()}

    def _variables(self) -> Iterator[tuple[str, Any]]:
        for name, thing in self._objects.items():
            if not hasattr(thing, "variables"):
                yield name, thing
                continue
            variables = thing.variables() if callable(thing.variables) else thing.variables
            yield from ((f"{name} {at}", variable) for at, variable in enumerate(variables))


class _Logged:
    """The values that a loop has logged. Tensors are not waited for until they are read."""

    def __init__(self) -> None:
        self._latest: dict[str, Any] = {}
        self._sums: dict[str, tuple[Any, int]] = {}

    def add(self, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            total, count = self._sums.get(name, (0.0, 0))
            self._sums[name] = total + tf.cast(value, tf.float64), count + 1
        self._latest.update(values)

    def latest(self) -> dict[str, float]:
        return {name: float(value) for name, value in self._latest.items()}

    def of_epoch(self) -> dict[str, float]:
        """Return the means since the last call."""
        sums, self._sums = self._sums, {}
        return {name: float(total) / count for name, (total, count) in sums.items()}


def _writer() -> RecordWriter | None:
    """Return the run's record writer. If each worker trains its own model, only the first worker has one."""
    own = task()
    return None if own.kind == "worker" and own.index and why_alone(own) else writer_of_run()
