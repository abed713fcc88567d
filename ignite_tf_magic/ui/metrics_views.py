"""Views of a training's metrics, in words and tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ignite_tf_magic.session import mean_data_wait
from ignite_tf_magic.ui.render import message_view, table_view

if TYPE_CHECKING:
    from ignite_tf_magic.session import TrainingRecord, TrainingRun
    from ignite_tf_magic.ui.render import View

# Training that waits for data more than this, over such a time, is told so.
_MUCH_WAIT, _LONG_S = 0.3, 10.0
_NOTHING = "this run has told nothing of a training: only `fit` of Keras and loops with `checkpoint` do"


def speed_text(record: TrainingRecord) -> str:
    """Say how fast a training is, in a few words; empty when it is not known."""
    if record.examples_per_s is None:
        return ""
    waits = f", waits for data {record.data_wait:.0%} of the time" if record.data_wait is not None else ""
    return f"{record.examples_per_s:,.0f} examples/s{waits}"


def place_text(record: TrainingRecord) -> str:
    """Say where a training is."""
    epochs = f"/{record.epochs}" if record.epochs else ""
    values = ", ".join(f"{name} {value:.4g}" for name, value in record.values.items())
    return f"epoch {record.epoch + 1}{epochs}, step {record.step}" + (f": {values}" if values else "")


def advice(records: Sequence[TrainingRecord]) -> str | None:
    """Tell who trains on data that comes too slowly what to do; None when it does not."""
    share = mean_data_wait(records, _LONG_S)
    if share is None or share < _MUCH_WAIT:
        return None
    return (
        f"the training waits for its data {share:.0%} of the time. What may help: `.map(f, num_parallel_calls="
        "tf.data.AUTOTUNE)`, `.prefetch(tf.data.AUTOTUNE)` behind the last step, larger batches, `.cache()` behind "
        "what is slow when the rows fit in memory, more workers"
    )


def last_words(records: Sequence[TrainingRecord]) -> list[str]:
    """Sum a training up, for the end of a cell."""
    if not records:
        return []
    last = _last(records)
    speeds = [each for each in records if each.training == last.training and each.examples_per_s]
    found = [place_text(last)]
    if speeds:
        found.append(speed_text(speeds[len(speeds) // 2]))
    return found + [text for text in [advice(records)] if text]


def history_view(records: Sequence[TrainingRecord]) -> View:
    """Show the epochs of a run, or its last records where there are none."""
    if not records:
        return message_view(_NOTHING)
    shown = [each for each in records if each.is_epoch] or list(records[-20:])
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
    return table_view(head, rows, right=set(range(int(several), len(head))), upper=False)


def comparison_view(runs: Sequence[tuple[TrainingRun, Sequence[TrainingRecord]]]) -> View:
    """Show how several runs have fared, side by side: the last of what each has told."""
    lasts = [_last(records) if records else None for _, records in runs]
    names = list(dict.fromkeys(name for last in lasts if last for name in last.values))
    rows = []
    for (run, records), last in zip(runs, lasts, strict=True):
        info = run.info()
        speed = speed_text(records[len(records) // 2]) if records else ""
        values = [_number(last.values.get(name)) if last else "" for name in names]
        place = [str(last.epoch + 1), str(last.step)] if last else ["", ""]
        rows.append([run.id, info.state.value, str(info.num_workers), *place, *values, speed])
    head = ["run", "state", "workers", "epoch", "step", *names, "speed"]
    return table_view(head, rows, right=set(range(2, len(head) - 1)), upper=False)


def as_json(run: TrainingRun, records: Sequence[TrainingRecord]) -> dict[str, Any]:
    """Return what a run has told to programs."""
    return {
        "id": run.id,
        "records": [
            {
                "time": each.time,
                "training": each.training,
                "epoch": each.epoch,
                "step": each.step,
                "is_epoch": each.is_epoch,
                "values": {name: _finite(value) for name, value in each.values.items()},
                "examples_per_s": each.examples_per_s,
                "data_wait": each.data_wait,
            }
            for each in records
        ],
    }


def _last(records: Sequence[TrainingRecord]) -> TrainingRecord:
    """Return the last epoch, or the last record where there is none."""
    return next((each for each in reversed(records) if each.is_epoch), records[-1])


def _finite(value: float) -> float | str:
    """JSON has no word for what is no finite number."""
    return value if abs(value) < float("inf") else str(value)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
