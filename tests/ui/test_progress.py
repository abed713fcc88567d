"""Tests of a run's progress, in words and as a fraction."""

from __future__ import annotations

import base64
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from ignite_tf_magic.session import RunInfo, RunState, TrainingRecord, WorkerRecord
from ignite_tf_magic.ui.assets import kept_chart
from ignite_tf_magic.ui.metrics_views import series_of
from ignite_tf_magic.ui.progress import progress_of, seconds_left, share_done
from ignite_tf_magic.ui.run_html import RunPicture

BEGAN = datetime(2026, 11, 21, 9, 0, tzinfo=timezone.utc)


def at(seconds: float) -> datetime:
    return BEGAN + timedelta(seconds=seconds)


def run(state: RunState, *workers: WorkerRecord, **more: object) -> RunInfo:
    what = {"reason": None, "ended_at": None, **more}
    return RunInfo(
        id="k3f-mnist-1121-0900",
        state=state,
        exit_code=None,
        cache="MNIST",
        hosts=("db1",),
        restarts=0,
        started_at=BEGAN,
        num_workers=max(len(workers), 1),
        directory=Path("/runs"),
        workers=workers,
        **what,
    )


def worker(number: int, phase: str = "", since: float | None = None) -> WorkerRecord:
    return WorkerRecord(number, "db1", phase=phase, phase_at=None if since is None else at(since).timestamp())


def record(
    seconds: float, epoch: int, batch: int, *, is_epoch: bool = False, **values: float
) -> TrainingRecord:
    return TrainingRecord(
        *(at(seconds).timestamp(), "fit-0", epoch, epoch * 10 + batch, batch, is_epoch, values, 4, 10),
        examples_per_s=2345.6,
    )


@pytest.mark.parametrize(
    ("info", "words"),
    [
        (run(RunState.STARTING), "1 worker: starting, 12 s"),
        (run(RunState.RUNNING, worker(0), worker(1)), "2 workers: starting Python, 12 s"),
        (
            run(RunState.RUNNING, worker(0, "importing TensorFlow", 3), worker(1, "importing TensorFlow", 5)),
            "2 workers: importing TensorFlow, 9 s",
        ),
        (
            run(RunState.RUNNING, worker(0, "importing TensorFlow", 3), worker(1, "running the script", 5)),
            "2 workers: 1 importing TensorFlow, 9 s; 1 running the script, 7 s",
        ),
        (
            run(RunState.RESTARTING, reason="worker 1 was killed"),
            "1 worker: being started again: worker 1 was killed",
        ),
        (run(RunState.QUEUED, waiting_for="1 GPU on db1"), "waits: 1 GPU on db1"),
        (run(RunState.SUCCEEDED, ended_at=at(9)), "succeeded"),
    ],
)
def test_before_and_behind_the_training(info, words):
    assert progress_of(info, [], at(12)).words == words


def test_while_it_trains():
    records = [record(20, 0, 2, loss=2.0), record(30, 1, 5, loss=0.51234, accuracy=0.9)]
    found = progress_of(run(RunState.RUNNING, worker(0, "training", 20)), records, at(31))
    assert found.words == "epoch 2/4, step 5/10, loss 0.5123, accuracy 0.9, 2,346 examples/s, 19 s left"
    assert found.share == pytest.approx(0.375)


def test_what_was_told_before_a_restart_is_not_where_the_run_stands():
    told = [record(20, 0, 2, loss=2.0), record(22, 1, 5, loss=0.5)]
    begins = replace(run(RunState.RUNNING, worker(0, "importing TensorFlow", 25)), restarts=1)
    assert progress_of(begins, told, at(31)).words == "1 worker: importing TensorFlow, 6 s"
    assert progress_of(begins, told, at(31)).share is None
    trains = replace(begins, workers=(worker(0, "training", 32),))
    assert progress_of(trains, [*told, record(32, 1, 6, loss=0.4)], at(33)).words.startswith(
        "epoch 2/4, step 6/10"
    )


def test_a_run_that_its_owner_has_left_goes_on():
    left = run(
        RunState.RUNNING, worker(0, "training", 20), waiting_for="its owner has ended", left_until=at(99)
    )
    words = progress_of(left, [record(20, 0, 2, loss=2.0)], at(21)).words
    assert words == "epoch 1/4, step 2/10, loss 2, 2,346 examples/s; its owner has ended"


def test_the_share_and_what_is_left():
    assert share_done(record(0, 3, 10, is_epoch=True)) == 1.0
    assert share_done(TrainingRecord(0.0, "loop-0", 3, 40)) is None
    assert seconds_left([record(0, 0, 1)]) is None
    assert seconds_left([record(0, 0, 0), record(10, 0, 10, is_epoch=True)]) == pytest.approx(30)
    assert seconds_left([record(0, 0, 0), record(10, 3, 10, is_epoch=True)]) is None
    other = TrainingRecord(0.0, "fit-1", 0, 1, epochs=4, batches=10)
    assert seconds_left([record(0, 0, 0), record(10, 2, 0), other]) is None


def test_a_pause_does_not_count():
    before = [record(10.0 * batch, 0, batch) for batch in range(1, 11)]
    later = [record(36_000 + 10.0 * batch, 1, batch) for batch in range(1, 11)]
    assert seconds_left([*before, *later]) == pytest.approx(200, rel=0.2)


def test_a_long_run_in_other_units():
    records = [record(0, 0, 0), record(3600, 0, 5)]
    assert progress_of(run(RunState.RUNNING), records, at(3600)).words.endswith("7.0 h left")
    records = [record(0, 0, 0), record(300, 1, 0)]
    assert progress_of(run(RunState.RUNNING), records, at(300)).words.endswith("15 min left")


def test_what_a_cell_keeps_is_text_html_and_a_picture():
    progress = progress_of(run(RunState.SUCCEEDED, ended_at=at(9)), [], at(9))
    tail = ["<b>not bold</b>", "\x1b[31mred\x1b[0m\x1b]0;title\x07"]
    picture = RunPicture("run k3f", progress, b"png", "", tail, 30_000, "%ignite_tf logs k3f")
    bundle = picture.bundle()
    assert bundle["text/plain"] == f"run k3f [{'#' * 24}] succeeded\n<b>not bold</b>\nred"
    assert base64.b64decode(bundle["image/png"]) == b"png"
    html = bundle["text/html"]
    assert "&lt;b&gt;not bold&lt;/b&gt;" in html and "<b>not bold" not in html and "\x1b" not in html
    assert "the last 2 of 30,000 lines; all: %ignite_tf logs k3f" in html
    assert "<script" not in html
    assert "image/png" not in RunPicture("", progress).bundle()


def test_names_of_metrics_stay_text_in_a_chart_that_is_kept():
    html = kept_chart({"runs": [], "metrics": ["</script><img src=x>"]})
    assert "<img" not in html
    assert html.count("</script>") == 1 and html.endswith("</script>")


def test_points_of_a_chart_are_bounded_and_end_with_the_last():
    records = [record(number, 0, number, loss=1 / (number + 1)) for number in range(12_345)]
    records[5] = record(5, 0, 5, loss=float("nan"))
    series = series_of([("", records)])
    (line,) = series["runs"]
    assert series["metrics"] == ["loss"]
    assert len(line["step"]) == len(line["values"]["loss"]) <= 1001
    assert line["step"][-1] == records[-1].step
    assert line["not_finite"] == {"loss": 1}  # this value is not among the points
    assert series_of([("", [])]) == {
        "runs": [{"name": "", "step": [], "epoch": [], "time": [], "values": {}, "not_finite": {}}],
        "metrics": [],
    }


def test_what_is_not_finite_and_what_was_not_told_differ_in_a_chart():
    records = [
        record(0, 0, 0, loss=float("inf"), acc=1.0),
        record(1, 0, 1, loss=float("nan")),
        record(2, 0, 2),
    ]
    (line,) = series_of([("", records)])["runs"]
    assert line["values"] == {"loss": ["inf", "nan", None], "acc": [1.0, None, None]}
    assert line["not_finite"] == {"loss": 2, "acc": 0}
