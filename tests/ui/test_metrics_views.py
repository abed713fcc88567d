"""Tests of a training's summary: its position, typical speed and best values; and of runs side by side."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

import pytest

from ignite_tf_magic.session import RunInfo, RunState, TrainingRecord
from ignite_tf_magic.ui.metrics_views import (
    comparison_view,
    history_view,
    last_words,
    series_of,
    typical_speed,
)

INFO = RunInfo(
    *("k3f-a", RunState.SUCCEEDED, 0, "A", ("db1",), 0, datetime.now(timezone.utc), None, 1, Path("/r")),
    workers=(),
    reason=None,
)


@dataclass
class Told:
    """A run whose record is the only thing that callers ask for."""

    id: str

    def info(self) -> RunInfo:
        return replace(INFO, id=self.id)


def epoch(number: int, speed: float | None, wait: float | None = None, training="fit-0", **values: float):
    return TrainingRecord(
        *(float(number), training, number, number * 10, 10, True, values, 4, 10),
        examples_per_s=speed,
        data_wait=wait,
    )


SPEEDS = [(552, 0.21), (3435, 0.11), (4302, 0.03), (3432, 0.12), (5406, 0.04), (7066, 0.03)]
FIT = [epoch(number, *told, loss=9.0 - number) for number, told in enumerate(SPEEDS)]


def test_the_speed_is_that_of_the_middle_epoch_by_speed():
    assert typical_speed(FIT) == "about 3,868 examples/s, waiting for data 8% of the time"
    assert last_words(FIT) == ["epoch 6/4, step 50: loss 4", typical_speed(FIT)]


@pytest.mark.parametrize("order", [1, -1])
def test_it_does_not_depend_on_the_order_of_the_epochs(order):
    assert typical_speed(FIT[::order]) == typical_speed(FIT)


def test_records_within_epochs_and_without_a_speed_do_not_count():
    within = replace(epoch(9, 1.0), is_epoch=False)
    assert typical_speed([*FIT, within, epoch(9, None)]) == typical_speed(FIT)
    assert typical_speed([within]) == "about 1 examples/s"
    assert typical_speed([epoch(9, None)]) == typical_speed([]) == ""


def test_of_several_trainings_the_last_is_told_of_by_name():
    second = [epoch(number, 10, training="fit-1", loss=2.0 + number) for number in range(2)]
    assert typical_speed([*FIT, *second]) == "about 10 examples/s"
    shown = history_view([*FIT, *second]).text
    assert "best: loss 2 in epoch 1\n" in shown
    assert shown.endswith("the chart and the best values are those of fit-1, the last of 2 trainings")
    assert "trainings" not in history_view(FIT).text


def test_a_long_training_is_thinned_to_its_epochs_first():
    """Every tenth record ends an epoch, and only these have validation values. A chart shows 30 of 1,000 records."""
    records = [
        replace(
            epoch(number // 10, None, loss=1.0, **({"val_loss": 2.0} if number % 10 == 9 else {})),
            is_epoch=number % 10 == 9,
            step=number,
        )
        for number in range(1000)
    ]
    for most in (30, 100, 150, 5000):
        (run,) = series_of([("a", records)], most)["runs"]
        assert min(most, 1000) / 2 <= len(run["step"]) <= most + 1
        assert run["step"] == sorted(run["step"]) and run["step"][-1] == 999
        assert len([value for value in run["values"]["val_loss"] if value is not None]) >= min(most, 100) / 2


def test_runs_side_by_side_tell_what_each_was_given_and_reached():
    runs = [(Told("a"), FIT, {"loss": "mse"}), (Told("b"), FIT[:1], {"loss": "mae"}), (Told("c"), [], {})]
    head, a, b, c, *_ = comparison_view(runs).text.splitlines()
    assert head.split() == ["run", "state", "workers", "epoch", "step", "loss", "loss", "given", "speed"]
    assert a.endswith(typical_speed(FIT)) and " mse " in a
    assert b.endswith("about 552 examples/s, waiting for data 21% of the time")
    assert c.split() == ["c", "succeeded", "1"]
