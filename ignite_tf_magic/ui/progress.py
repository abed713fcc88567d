"""Computes the progress of a run as a phrase and a fraction. Pure: uses no clock or file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from ignite_tf_magic.session import RunState
from ignite_tf_magic.ui.metrics_views import of_last_training

if TYPE_CHECKING:
    from ignite_tf_magic.session import RunInfo, TrainingRecord

_WORTH_TELLING = 0.02  # the fraction of a training to measure before estimating the remaining time
_PAUSE_S = 60.0
_UNDER_WAY = {
    RunState.FAILING: "failed; its workers are being ended",
    RunState.RESTARTING: "being started again",
    RunState.STOPPING: "stopping",
    RunState.FINISHING: "done; its servers are being ended",
}


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a run.

    Attributes:
        words: The progress as a line of text.
        share: The completed fraction of the training, from 0 to 1; None if unknown.
        state: The state of the run.
    """

    words: str
    share: float | None
    state: RunState


def progress_of(info: RunInfo, records: Sequence[TrainingRecord], now: datetime) -> Progress:
    """Return the progress of a run.

    Args:
        info: The state of the run.
        records: The records of its training, oldest first.
        now: The current time in UTC.
    """
    if info.state.has_ended:
        words, share = info.state.value, 1.0 if info.state is RunState.SUCCEEDED else None
    elif info.state is RunState.RUNNING and records and (info.has_told_training or not info.restarts):
        words, share = _training(records), share_done(records[-1])
    else:
        words, share = f"{info.counted_workers}: {_before_training(info, now)}", None
    if info.left_until is not None:
        words = f"{words}; {info.waiting_for}"
    elif info.waiting_for and not info.state.has_ended:
        words = f"waits: {info.waiting_for}"
    return Progress(words, share, info.state)


def _before_training(info: RunInfo, now: datetime) -> str:
    if info.state in _UNDER_WAY:
        return _UNDER_WAY[info.state] + (f": {info.reason}" if info.reason else "")
    seconds = (now - info.started_at).total_seconds()
    if info.state is not RunState.RUNNING:
        return f"{info.state.value}, {_span(seconds)}"
    began: dict[str, list[float]] = {}
    for worker in info.workers:
        if worker.exit_code is None:
            since = worker.phase_at if worker.phase_at is not None else info.started_at.timestamp()
            began.setdefault(worker.phase or "starting Python", []).append(since)
    told = [
        f"{'' if len(began) == 1 else f'{len(times)} '}{phase}, {_span(now.timestamp() - min(times))}"
        for phase, times in sorted(began.items(), key=lambda item: min(item[1]))
    ]
    return "; ".join(told) or "ended"


def _training(records: Sequence[TrainingRecord]) -> str:
    last = records[-1]
    epochs = f"/{last.epochs}" if last.epochs else ""
    batches = f"/{last.batches}" if last.batches else ""
    step = f"step {last.batch}{batches}" if last.batch else f"{last.step} steps"
    values = [f"{name} {value:.4g}" for name, value in last.values.items()][:2]
    speed = f"{last.examples_per_s:,.0f} examples/s" if last.examples_per_s else ""
    left = seconds_left(records)
    parts = [f"epoch {last.epoch + 1}{epochs}", step, *values, speed, f"{_span(left)} left" if left else ""]
    return ", ".join(filter(None, parts))


def share_done(record: TrainingRecord) -> float | None:
    """Return the completed fraction of a training; None if its number of epochs is unknown."""
    if not record.epochs:
        return None
    if record.is_epoch:
        return min((record.epoch + 1) / record.epochs, 1.0)
    within = min(record.batch / record.batches, 1.0) if record.batches else 0.0
    return min((record.epoch + within) / record.epochs, 1.0)


def seconds_left(records: Sequence[TrainingRecord]) -> float | None:
    """Estimate the remaining seconds of a training from its pace so far; None if too little is done."""
    of_training = _without_pauses(of_last_training(records))
    shares = [(each.time, share) for each in of_training if (share := share_done(each)) is not None]
    if not shares:
        return None
    (began_at, first), (ended_at, share) = shares[0], shares[-1]
    if share - first < _WORTH_TELLING or share >= 1.0 or ended_at <= began_at:
        return None
    return (1.0 - share) * (ended_at - began_at) / (share - first)


def _without_pauses(records: Sequence[TrainingRecord]) -> Sequence[TrainingRecord]:
    """Return the records since the last long pause, such as a restart of the run."""
    gaps = [after.time - before.time for before, after in pairwise(records)]
    if not gaps:
        return records
    long_s = max(_PAUSE_S, 10 * median(gaps))
    begins = max((number + 1 for number, gap in enumerate(gaps) if gap > long_s), default=0)
    return records[begins:]


def _span(seconds: float) -> str:
    whole = max(round(seconds), 0)
    if whole < 100:
        return f"{whole} s"
    if whole < 100 * 60:
        return f"{round(whole / 60)} min"
    return f"{whole / 3600:.1f} h"
