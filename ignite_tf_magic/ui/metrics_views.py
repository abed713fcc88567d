"""Renders the metrics of trainings as sentences and tables."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from ignite_tf_magic.session import mean_data_wait
from ignite_tf_magic.ui.render import View, message_view, scalar_as_json, table_view

if TYPE_CHECKING:
    from ignite_tf_magic.session import TrainingRecord, TrainingRun

# `advice` reports trainings that wait for data for more than this share of the last so many seconds.
_MUCH_WAIT, _LONG_S = 0.3, 10.0
_MOST_POINTS = 1000
KEPT_POINTS = 300  # points of each line in charts that a notebook file stores
_NOT_DRAWN = ("learning_rate", "lr")
_LESS_IS_BETTER = frozenset(("loss", "error", "err", "mse", "mae", "rmse", "perplexity", "distance"))
_LARGER_IS_BETTER = frozenset(
    ("acc", "accuracy", "auc", "precision", "recall", "f1", "iou", "r2", "dice", "reward", "bleu", "score")
)
_NOTHING = "this run has reported no training; only Keras `fit` and loops with `checkpoint` report one"


def speed_text(record: TrainingRecord) -> str:
    """Return the speed of a training as a phrase; empty if unknown."""
    if record.examples_per_s is None:
        return ""
    waits = f", waits for data {record.data_wait:.0%} of the time" if record.data_wait is not None else ""
    return f"{record.examples_per_s:,.0f} examples/s{waits}"


def place_text(record: TrainingRecord) -> str:
    """Return the epoch, step and metrics of a record as a phrase."""
    epochs = f"/{record.epochs}" if record.epochs else ""
    values = ", ".join(f"{name} {value:.4g}" for name, value in record.values.items())
    return f"epoch {record.epoch + 1}{epochs}, step {record.step}" + (f": {values}" if values else "")


def advice(records: Sequence[TrainingRecord]) -> str | None:
    """Return advice for a training that waits too long for data, or None if it does not."""
    share = mean_data_wait(records, _LONG_S)
    if share is None or share < _MUCH_WAIT:
        return None
    return (
        f"the training waits for its data {share:.0%} of the time. What may help: `.map(f, num_parallel_calls="
        "tf.data.AUTOTUNE)`, `.prefetch(tf.data.AUTOTUNE)` after the last step, larger batches, `.cache()` after "
        "the slow steps if the rows fit in memory, more workers"
    )


def last_words(records: Sequence[TrainingRecord]) -> list[str]:
    """Return lines that summarize a training, for the end of a cell."""
    if not records:
        return []
    return [text for text in [place_text(_last(records)), typical_speed(records), advice(records)] if text]


def typical_speed(records: Sequence[TrainingRecord]) -> str:
    """Return the median speed of the last training, by its epochs if it has any; empty if unknown."""
    told = [each for each in of_last_training(records) if each.examples_per_s is not None]
    told = [each for each in told if each.is_epoch] or told
    if not told:
        return ""
    waits = [each.data_wait for each in told if each.data_wait is not None]
    waiting = f", waiting for data {median(waits):.0%} of the time" if waits else ""
    return f"about {median(each.examples_per_s or 0.0 for each in told):,.0f} examples/s{waiting}"


def of_last_training(records: Sequence[TrainingRecord]) -> list[TrainingRecord]:
    """Return the records of the run's last training."""
    return [each for each in records if each.training == records[-1].training]


def history_view(records: Sequence[TrainingRecord], most: int | None = 10) -> View:
    """Show a run's last `most` epochs (None: all), or its last records if it has no epochs, then the best values."""
    if not records:
        return message_view(_NOTHING)
    epochs = [each for each in records if each.is_epoch]
    shown = epochs if most is None else epochs[-most:]
    shown = shown or list(records[-20:])
    names = list(dict.fromkeys(name for each in shown for name in each.values))
    several = len({each.training for each in shown}) > 1
    head = [*(["training"] if several else []), "epoch", "step", *names, "examples/s", "waits for data"]
    rows = [
        [
            *([each.training] if several else []),
            str(each.epoch + 1),
            str(each.step),
            *(_number(each.values.get(name)) for name in names),
            "" if each.examples_per_s is None else f"{each.examples_per_s:,.0f}",
            "" if each.data_wait is None else f"{each.data_wait:.0%}",
        ]
        for each in shown
    ]
    table = table_view(head, rows, right=set(range(int(several), len(head))), upper=False)
    notes = _best_epochs([each for each in of_last_training(records) if each.is_epoch], names)
    trainings = list(dict.fromkeys(each.training for each in records))
    if len(trainings) > 1:
        notes.append(
            f"the chart and the best values are those of {trainings[-1]}, the last of {len(trainings)} trainings"
        )
    if len(epochs) > len(shown):
        notes.append(f"the last {len(shown)} of {len(epochs)} epochs; --all shows all")
    if not notes:
        return table
    below = message_view("\n".join(notes))
    return View(f"{table.text}\n{below.text}", table.html + below.html)


def _best_epochs(epochs: Sequence[TrainingRecord], names: Sequence[str]) -> list[str]:
    if len(epochs) < 2:
        return []
    found = []
    for name in names:
        if name not in _NOT_DRAWN and (best := best_of(epochs, name)) is not None:
            found.append(f"{name} {best.values[name]:.4g} in epoch {best.epoch + 1}")
    return [f"best: {', '.join(found)}"] if found else []


def best_of(records: Sequence[TrainingRecord], name: str) -> TrainingRecord | None:
    """Return the record with the best value of a metric, an epoch if possible; None if no record has the metric."""
    told = [each for each in records if math.isfinite(each.values.get(name, math.nan))]
    told = [each for each in told if each.is_epoch] or told
    if not told:
        return None
    return (max if grows(name) else min)(told, key=lambda each: each.values[name])


def grows(name: str) -> bool:
    """Return whether larger values of a metric are better, judged by the words of its name."""
    words = set(re.findall(r"[a-z]+\d?", name.lower()))
    return not words & _LESS_IS_BETTER and bool(words & _LARGER_IS_BETTER or "io_u" in name.lower())


def comparison_view(
    runs: Sequence[tuple[TrainingRun, Sequence[TrainingRecord], Mapping[str, Any]]], best: str | None = None
) -> View:
    """Compare several runs side by side by their metrics and their differing parameters.

    Args:
        runs: The runs, each with its records and its parameters.
        best: A metric: show the record with each run's best value of it, the best run first. None shows the last
            record of each run.
    """
    kept = {
        run.id: best_of(records, best) if best else _last(records) if records else None
        for run, records, _ in runs
    }
    if best:
        worst = float("-inf") if grows(best) else float("inf")
        values = {run_id: record.values[best] if record else worst for run_id, record in kept.items()}
        runs = sorted(runs, key=lambda each: values[each[0].id], reverse=grows(best))
    names = list(dict.fromkeys(name for record in kept.values() if record for name in record.values))
    names = [best, *(name for name in names if name != best)] if best else names
    differing = _differing([given for _, _, given in runs])
    rows = []
    for run, records, given in runs:
        info, record = run.info(), kept[run.id]
        told = [_number(record.values.get(name)) if record else "" for name in names]
        place = [str(record.epoch + 1), str(record.step)] if record else ["", ""]
        chosen = [_shown(given.get(name)) for name in differing]
        rows.append(
            [
                run.id,
                info.state.value,
                ", ".join(info.tags),
                str(info.num_workers),
                *place,
                *told,
                *chosen,
                typical_speed(records),
            ]
        )
    chosen_heads = [f"{name} given" if name in names else name for name in differing]
    head = ["run", "state", "tags", "workers", "epoch", "step", *names, *chosen_heads, "speed"]
    if not any(row[2] for row in rows):
        head, rows = [*head[:2], *head[3:]], [[*row[:2], *row[3:]] for row in rows]
    numbers = {head.index("workers") + place for place in range(3 + len(names))}
    table = table_view(head, rows, right=numbers, upper=False)
    if best is None:
        return table
    note = message_view(f"each with its {'largest' if grows(best) else 'smallest'} {best}, the best first")
    return View(f"{table.text}\n{note.text}", table.html + note.html)


def _differing(given: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of the parameters that are not the same in all runs."""
    names = dict.fromkeys(name for each in given for name in each)
    return [name for name in names if len({repr(each.get(name)) for each in given}) > 1]


def _shown(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def series_of(
    runs: Sequence[tuple[str, Sequence[TrainingRecord]]], most_points: int = _MOST_POINTS
) -> dict[str, Any]:
    """Return the data of an interactive chart: the last training of each named run, thinned to `most_points`.

    Non-finite values are text, and missing values are None. `not_finite` counts non-finite values before thinning.
    """
    metrics: dict[str, None] = {}
    found = []
    for name, records in runs:
        of_last = of_last_training(records)
        shown = _thinned(of_last, most_points)
        names = dict.fromkeys(metric for each in shown for metric in each.values)
        metrics.update(names)
        found.append(
            {
                "name": name,
                "step": [each.step for each in shown],
                "epoch": [_epoch(each) for each in shown],
                "time": [round(each.time - shown[0].time, 3) for each in shown],
                "values": {
                    metric: [scalar_as_json(each.values.get(metric)) for each in shown] for metric in names
                },
                "not_finite": {metric: _num_not_finite(of_last, metric) for metric in names},
            }
        )
    return {"runs": found, "metrics": [name for name in metrics if name not in _NOT_DRAWN]}


def _thinned(records: Sequence[TrainingRecord], most: int) -> list[TrainingRecord]:
    """Return at most `most` records, and always the last one. Prefers epochs: only they have validation metrics."""
    epochs = [each for each in records if each.is_epoch]
    others = [each for each in records if not each.is_epoch]
    kept = _every(epochs, most)
    kept = [*kept, *_every(others, most - len(kept)), *records[-1:]]
    ids = {id(each) for each in kept}
    return [each for each in records if id(each) in ids]


def _every(records: Sequence[TrainingRecord], most: int) -> Sequence[TrainingRecord]:
    return records[:: -(-len(records) // most) or 1] if most > 0 else []


def _epoch(record: TrainingRecord) -> float:
    """Return the number of completed epochs, including the fraction of the current one."""
    if record.is_epoch:
        return record.epoch + 1.0
    return record.epoch + (min(record.batch / record.batches, 1.0) if record.batches else 0.0)


def _num_not_finite(records: Sequence[TrainingRecord], metric: str) -> int:
    return sum(not math.isfinite(each.values.get(metric, 0.0)) for each in records)


def as_json(
    run: TrainingRun, records: Sequence[TrainingRecord], parameters: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the metrics of a run for JSON output."""
    return {
        "id": run.id,
        "tags": list(run.info().tags),
        "parameters": dict(parameters),
        "records": [
            {
                "time": each.time,
                "training": each.training,
                "epoch": each.epoch,
                "step": each.step,
                "is_epoch": each.is_epoch,
                "values": {name: scalar_as_json(value) for name, value in each.values.items()},
                "examples_per_s": each.examples_per_s,
                "data_wait": each.data_wait,
            }
            for each in records
        ],
    }


def _last(records: Sequence[TrainingRecord]) -> TrainingRecord:
    """Return the record of the last epoch, or else the last record."""
    return next((each for each in reversed(records) if each.is_epoch), records[-1])


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
