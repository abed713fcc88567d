"""Reports a training's progress while it runs: the chief writes records and event files into igfs.

About once a second, an operation of all workers gathers their measures. A thread writes the records, and a failure to
write never ends a training.
"""

from __future__ import annotations

import atexit
import math
import os
import queue
import threading
import time
import warnings
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import fsspec
import numpy as np
import tensorflow as tf

from ignite_tf_magic.dataset.batches import num_batches
from ignite_tf_magic.errors import IgniteTfError, TrainingDiverged
from ignite_tf_magic.runs.phases import FIRST_STEP, TRAINING, tell_phase
from ignite_tf_magic.training.group import WorkerGroup, as_array
from ignite_tf_magic.training.measures import NUM_NUMBERS, Meter, Sample
from ignite_tf_magic.training.records import FILE_NAME, TrainingRecord, WorkerMeasures
from ignite_tf_magic.training.waiting import timed

_INTERVAL_S = 1.0
_LAST_WORDS_S = 5.0
_EVENTS = "events/training"


class Reporter:
    """Reports one training. All workers have a reporter, and call `report` in the same step.

    Args:
        training: The training's name in the records.
        group: The workers.
        writer: Writes the records. None, as outside of a run, turns off reporting and gathering.
        epochs: The planned number of epochs.
        batches: The number of batches in an epoch.
    """

    def __init__(
        self,
        training: str,
        group: WorkerGroup,
        writer: RecordWriter | None,
        *,
        epochs: int | None = None,
        batches: int | None = None,
    ) -> None:
        self._training = training
        self._group = group
        self._writer = writer
        self._epochs = epochs
        self._batches = batches
        self._told_at = time.monotonic()
        self._of_epoch = self._nothing()
        self._meter = Meter() if writer is not None else None
        self._has_told = False

    @property
    def is_on(self) -> bool:
        """Whether reporting is on; the same on all workers."""
        return self._writer is not None

    def measured(self, data: Any) -> Any:
        """Return the data, wrapped to measure the wait for it if it is a dataset and reporting is on."""
        return timed(data) if self.is_on and isinstance(data, tf.data.Dataset) else data

    def go(self) -> None:
        """Resume the measurement of the training."""
        if self._meter is not None:
            self._meter.go()

    def pause(self) -> None:
        """Pause the measurement, for example during validation: that time does not count."""
        if self._meter is not None:
            self._meter.pause()

    def is_time(self) -> bool:
        """Return whether it is time to report again."""
        return self.is_on and time.monotonic() - self._told_at >= _INTERVAL_S

    def report(self, epoch: int, batch: int, step: int, values: Mapping[str, Any], *, is_epoch: bool) -> None:
        """Report the training's progress.

        Blocks until all workers have called, but not until the record is written. The measures cover the time since the
        last report, or the whole epoch at its end.
        """
        if self._writer is None or self._meter is None:
            return
        if not self._has_told:
            tell_phase(TRAINING)
            self._has_told = True
        samples = self._gathered(self._meter.take())
        self._told_at = time.monotonic()
        if not self._group.place.is_chief:
            return
        self._of_epoch = [new.after(old) for new, old in zip(samples, self._of_epoch, strict=True)]
        if is_epoch:
            samples, self._of_epoch = self._of_epoch, self._nothing()
        slowest_s = max(sample.seconds for sample in samples)
        rows = sum(sample.rows for sample in samples)
        waits = [wait for sample in samples if (wait := _ratio(sample.waited_s, sample.seconds)) is not None]
        self._writer.add(
            TrainingRecord(
                time=time.time(),
                training=self._training,
                epoch=epoch,
                step=step,
                batch=batch,
                is_epoch=is_epoch,
                values=_numbers(values),
                epochs=self._epochs,
                batches=self._batches,
                examples_per_s=_ratio(rows, slowest_s) if rows else None,
                data_wait=max(waits) if waits and rows else None,
                workers=tuple(map(_worker_record, samples)),
            )
        )

    def _nothing(self) -> list[Sample]:
        return [Sample()] * self._group.place.size

    def _gathered(self, own: Sample) -> list[Sample]:
        """Return the samples of all workers, by adding up arrays in which each worker fills its own row."""
        size, index = self._group.place.size, self._group.place.index
        rows = np.zeros((size, NUM_NUMBERS), np.float64)
        rows[index] = own.to_array()
        return [Sample.from_array(row) for row in self._group.sum_arrays([rows])[0]]


def check_loss(values: Mapping[str, Any], epoch: int, step: int) -> None:
    """Raise an error if the loss is not finite and the run has --stop-on-nan.

    All workers see the same values, so all of them raise it.

    Raises:
        TrainingDiverged: The loss is not finite.
    """
    loss = float(values.get("loss", 0.0))
    if os.environ.get("IGNITE_TF_STOP_ON_NAN") and not math.isfinite(loss):
        raise TrainingDiverged(
            f"the loss is {loss} in step {step} of epoch {epoch + 1}. A smaller learning rate, clipnorm, or a look at "
            "the data may help"
        )


def _ratio(part: float, whole: float) -> float | None:
    return _known(part / whole) if whole > 0 else None


def _known(number: float) -> float | None:
    return None if math.isnan(number) else number


def _worker_record(sample: Sample) -> WorkerMeasures:
    return WorkerMeasures(
        examples_per_s=_ratio(sample.rows, sample.seconds) if sample.rows else None,
        data_wait=_ratio(sample.waited_s, sample.seconds) if sample.rows else None,
        memory_bytes=_known(sample.memory_bytes),
        gpu_share=_known(sample.gpu_share),
        gpu_memory_bytes=_known(sample.gpu_memory_bytes),
        cpu_cores=_ratio(sample.cpu_s, sample.seconds),
    )


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the values that are single numbers."""
    found = {}
    for name, value in values.items():
        number = as_array(value)
        is_number = np.issubdtype(number.dtype, np.number) or number.dtype == tf.bfloat16.as_numpy_dtype
        if number.ndim == 0 and is_number:
            found[str(name)] = float(number)
    return found


class RecordWriter:
    """Writes records into a run's directory, in a thread. The first failure is a warning and ends the writing.

    Args:
        url: The run's directory.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._waiting: queue.SimpleQueue[TrainingRecord | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def add(self, record: TrainingRecord) -> None:
        """Queue a record for writing."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._write, name="records", daemon=True)
            self._thread.start()
            atexit.register(self.close)
        self._waiting.put(record)

    def close(self) -> None:
        """Write the queued records. Blocks for a few seconds at most."""
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join(_LAST_WORDS_S)

    def _write(self) -> None:
        events = EventWriter(f"{self._url}/{_EVENTS}")
        try:
            files, path = fsspec.core.url_to_fs(self._url)
            files.makedirs(path, exist_ok=True)
            with files.open(f"{path}/{FILE_NAME}", "ab") as file:
                while (record := self._waiting.get()) is not None:
                    file.write(record.to_line())
                    file.flush()
                    events.add(record)
        except (OSError, IgniteTfError) as error:
            warnings.warn(f"metrics can no longer be written to {self._url}: {error}", stacklevel=1)
        events.close()


class EventWriter:
    """Writes records as scalars for TensorBoard."""

    def __init__(self, logdir: str) -> None:
        self._logdir = logdir
        self._writer: Any = None
        self._is_broken = False

    def add(self, record: TrainingRecord) -> None:
        """Write a record. After a failure, warn once and write nothing more."""
        if self._is_broken:
            return
        try:
            if self._writer is None:
                if find_spec("tensorboard") is None:  # newer versions of TensorFlow do not install it
                    raise FileNotFoundError("tensorboard is not installed in the workers' interpreter")
                self._writer = tf.summary.create_file_writer(self._logdir)
            with self._writer.as_default(step=record.step):
                for name, value in _scalars(record).items():
                    tf.summary.scalar(name, value)
            self._writer.flush()
        except (tf.errors.OpError, OSError) as error:
            self._is_broken = True
            warnings.warn(f"event files cannot be written to {self._logdir}: {error}", stacklevel=1)

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None and not self._is_broken:
            self._writer.close()


def _scalars(record: TrainingRecord) -> dict[str, float]:
    prefix = f"{record.training}/{'epoch_' if record.is_epoch else ''}"
    found = {f"{prefix}{name}": value for name, value in record.values.items()}
    speed = {"examples_per_s": record.examples_per_s, "data_wait": record.data_wait}
    for number, worker in enumerate(record.workers):
        speed[f"worker_{number}/data_wait"] = worker.data_wait
        speed[f"worker_{number}/memory_bytes"] = worker.memory_bytes
        speed[f"worker_{number}/gpu_share"] = worker.gpu_share
        speed[f"worker_{number}/cpu_cores"] = worker.cpu_cores
    found |= {f"{record.training}/{name}": value for name, value in speed.items() if value is not None}
    return found


_writers: dict[str, RecordWriter] = {}


def reporter_of_fit(training: str, group: WorkerGroup, given: Mapping[str, Any], data: Any) -> Reporter:
    """Make the reporter of a `fit` from its arguments and this worker's data."""
    batches = given.get("steps_per_epoch") or num_batches(data)
    tell_phase(FIRST_STEP)
    return Reporter(training, group, writer_of_run(), epochs=given.get("epochs", 1), batches=batches)


def writer_of_run() -> RecordWriter | None:
    """Return the record writer of this process's run, or None outside of runs."""
    url = os.environ.get("IGNITE_TF_RUN_URI")
    return _writers.setdefault(url, RecordWriter(url)) if url else None
