"""Defines the records of a training: lines of JSON in metrics.jsonl in the run's directory in igfs.

The chief writes for all workers. After a restart, it appends to the same file, and records the steps since the last
checkpoint again. This module does not import TensorFlow, because notebooks use it to read records.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field
from types import NoneType
from typing import Any

FILE_NAME = "metrics.jsonl"
_END_OF_TIME = 250_000_000_000.0  # in the year 9892


@dataclass(frozen=True, slots=True)
class WorkerMeasures:
    """The measures of one worker. None means unknown.

    Attributes:
        data_wait: Fraction of its time that it waited for data, from 0 to 1.
        memory_bytes: Memory of its process.
        gpu_share: Utilization of its GPUs, from 0 to 1.
        gpu_memory_bytes: Memory in use on its GPUs.
        cpu_cores: Average number of cores that its process used, with all threads.
    """

    examples_per_s: float | None = None
    data_wait: float | None = None
    memory_bytes: float | None = None
    gpu_share: float | None = None
    gpu_memory_bytes: float | None = None
    cpu_cores: float | None = None


@dataclass(frozen=True, slots=True)
class TrainingRecord:
    """The state of a training at one moment.

    Attributes:
        time: Unix time in seconds, by the chief's clock.
        training: The name of the training in the script: "fit-0" is the first `fit`, "loop-0" the first custom loop.
        epoch: The epoch, from 0.
        step: Steps finished since the beginning of the training.
        batch: Finished batches of the epoch.
        is_epoch: Whether the record summarizes an epoch. Its `values` then include those of validation. Otherwise the
            measures cover the time since the previous record.
        values: Loss and metrics, over the rows of all workers.
        epochs: The planned number of epochs, or None if unknown.
        batches: The number of batches in the epoch, or None if unknown.
        examples_per_s: Examples per second of all workers together.
        data_wait: Fraction of time that the worker that waited most waited for data. The others wait for it.
        workers: The measures of each worker.
    """

    time: float
    training: str
    epoch: int
    step: int
    batch: int = 0
    is_epoch: bool = False
    values: Mapping[str, float] = field(default_factory=dict)
    epochs: int | None = None
    batches: int | None = None
    examples_per_s: float | None = None
    data_wait: float | None = None
    workers: tuple[WorkerMeasures, ...] = ()

    def to_line(self) -> bytes:
        """Return the record as a line of JSON."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> TrainingRecord | None:
        """Parse a line, or return None if it is not a record. Fields of later versions are ignored."""
        try:
            content: dict[str, Any] = json.loads(line)
            content["workers"] = tuple(
                WorkerMeasures(**_known(WorkerMeasures, each)) for each in content["workers"]
            )
            content["values"] = {str(name): float(value) for name, value in content["values"].items()}
            record = cls(**_known(cls, content))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
            return None
        return record if _is_sound(record) else None


def _known(kind: type[Any], content: Mapping[str, Any]) -> dict[str, Any]:
    names = kind.__dataclass_fields__
    return {name: value for name, value in content.items() if name in names}


def _is_sound(record: TrainingRecord) -> bool:
    """Return whether the fields have their types. Anyone can write lines in igfs, and charts rely on the types."""
    measured = [each for worker in record.workers for each in astuple(worker)]
    numbers = [record.time, record.examples_per_s, record.data_wait, *measured]
    counts = [record.epoch, record.step, record.batch, record.epochs, record.batches]
    return (
        _is_text(record.training)
        and type(record.is_epoch) is bool
        and all(map(_is_text, record.values))
        and type(record.time) in (int, float)
        and 0 <= record.time < _END_OF_TIME
        and all(type(each) in (float, NoneType) or _is_int64(each) for each in numbers)
        and all(each is None or _is_int64(each) for each in counts)
        and None not in counts[:3]
    )


def _is_text(name: object) -> bool:
    """Return whether a value is a text without lone surrogates: JSON may contain them, a browser rejects them."""
    return type(name) is str and not any("\ud800" <= letter <= "\udfff" for letter in name)


def _is_int64(number: object) -> bool:
    return type(number) is int and abs(number) < 2**63


class RecordReader:
    """A parser that turns chunks of bytes into records. It opens no file itself."""

    def __init__(self) -> None:
        self._rest = b""
        self.num_bytes = 0

    def feed(self, data: bytes) -> list[TrainingRecord]:
        """Add the next bytes, and return the records that they complete."""
        self.num_bytes += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [record for line in lines if (record := TrainingRecord.from_line(line))]


def without_repeats(records: Iterable[TrainingRecord]) -> list[TrainingRecord]:
    """Return records without those of steps that a restarted training has repeated."""
    by_training: dict[str, list[TrainingRecord]] = {}
    for record in records:
        earlier = by_training.setdefault(record.training, [])
        while earlier and _place(earlier[-1]) >= _place(record):
            earlier.pop()
        earlier.append(record)
    return [record for of_training in by_training.values() for record in of_training]


def _place(record: TrainingRecord) -> tuple[int, bool]:
    return record.step, record.is_epoch


def mean_data_wait(records: Sequence[TrainingRecord], seconds: float) -> float | None:
    """Return the mean `data_wait` of the last seconds, or None if the records do not cover that time."""
    last = records[-1].time if records else 0.0
    recent = [each for each in records if each.time >= last - seconds and each.data_wait is not None]
    if not recent or last - records[0].time < seconds:
        return None
    return sum(each.data_wait or 0.0 for each in recent) / len(recent)
