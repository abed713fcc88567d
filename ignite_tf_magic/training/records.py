"""Records of a training: one line of JSON for each record, in metrics.jsonl of its directory in igfs.

The chief writes, for all workers; a chief that was started again goes on in the same file, and tells anew of what was
done since the last checkpoint. Knows no TensorFlow: notebooks read this.
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
    """What one worker has measured. None stands for what is not known.

    Attributes:
        data_wait: Share of its time in which it waited for data, from 0 to 1.
        memory_bytes: Of its process.
        gpu_share: How busy its GPUs were, from 0 to 1.
        gpu_memory_bytes: In use on them.
        cpu_cores: How many cores its process kept busy, with all its threads.
    """

    examples_per_s: float | None = None
    data_wait: float | None = None
    memory_bytes: float | None = None
    gpu_share: float | None = None
    gpu_memory_bytes: float | None = None
    cpu_cores: float | None = None


@dataclass(frozen=True, slots=True)
class TrainingRecord:
    """How a training stands.

    Attributes:
        time: Seconds since the epoch, by the chief's clock.
        training: Which of the script's: "fit-0" is its first `fit`, "loop-0" its first loop of its own.
        epoch: From 0; `epochs` is how many there are to be, None when nobody knows.
        step: Steps done since the beginning of the training.
        batch: Batches done of the epoch; `batches` is how many it has, None when nobody knows.
        is_epoch: Whether it sums an epoch up; then `values` has those of validation, too. Else the rest is about the
            time since the record before.
        values: Loss and metrics, over the rows of all workers.
        examples_per_s: Of all workers together.
        data_wait: The share of time waited for data, of the worker that waited most: the others wait for it.
        workers: What each has measured.
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
        """Return it as a line."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> TrainingRecord | None:
        """Read a line; None when it is not one of a record. What a later version tells beside it is left out."""
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
    """Whether its fields have their types, on which who draws them relies: anybody in igfs writes such lines."""
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
    """Whether it can be sent to a browser: JSON may hold halves of characters."""
    return type(name) is str and not any("\ud800" <= letter <= "\udfff" for letter in name)


def _is_int64(number: object) -> bool:
    return type(number) is int and abs(number) < 2**63


class RecordReader:
    """Makes records of bytes that come in pieces. Has no file."""

    def __init__(self) -> None:
        self._rest = b""
        self.num_bytes = 0

    def feed(self, data: bytes) -> list[TrainingRecord]:
        """Take the next bytes; gives the records that they complete."""
        self.num_bytes += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [record for line in lines if (record := TrainingRecord.from_line(line))]


def without_repeats(records: Iterable[TrainingRecord]) -> list[TrainingRecord]:
    """Leave out what a training did, and did anew after it was started again."""
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
    """Return the mean share of time waited for data in the last seconds; None when that is not known for so long."""
    last = records[-1].time if records else 0.0
    recent = [each for each in records if each.time >= last - seconds and each.data_wait is not None]
    if not recent or last - records[0].time < seconds:
        return None
    return sum(each.data_wait or 0.0 for each in recent) / len(recent)
