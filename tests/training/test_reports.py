"""A training's reports: records of all workers that match its history."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from ignite_tf_magic.training import measures, reporting
from ignite_tf_magic.training.callbacks import as_number
from ignite_tf_magic.training.records import (
    FILE_NAME,
    RecordReader,
    TrainingRecord,
    WorkerMeasures,
    mean_data_wait,
    without_repeats,
)
from ignite_tf_magic.ui.pictures import picture_of
from tests.training.processes import Workers

SCRIPT = Path(__file__).with_name("report_on.py")


def records_of(folder: Path) -> list[TrainingRecord]:
    return RecordReader().feed((folder / "igfs" / FILE_NAME).read_bytes())


def train(folder: Path, num_workers: int, wait_s: float, **environment: str) -> list[TrainingRecord]:
    folder.mkdir(exist_ok=True)
    workers = Workers(folder, num_workers, SCRIPT, arguments=(str(wait_s),))
    workers.run(**environment)
    return records_of(folder)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64", "int32"])
def test_numbers_of_every_width_are_taken(dtype):
    """NumPy alone cannot convert a scalar bfloat16 tensor."""
    value = tf.cast(tf.constant(2), dtype)
    assert reporting._numbers({"loss": value, "several": tf.stack([value, value])}) == {"loss": 2.0}
    assert as_number(value) == 2.0


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.nightly
def test_records_say_what_the_history_says_and_what_is_waited_for(tmp_path, num_workers):
    """Nightly. Shorter: test_several_steps_at_a_time_and_data_that_is_there"""
    found = train(tmp_path, num_workers, 0.25)
    history = json.loads((tmp_path / "history-0.json").read_text())
    epochs = [record for record in found if record.is_epoch]
    assert [(record.epoch, record.step, record.batch) for record in epochs] == [
        (0, 30, 30),
        (1, 60, 30),
        (2, 90, 30),
    ]
    for record in epochs:
        assert record.values == {name: values[record.epoch] for name, values in history.items()}
        assert (record.training, record.epochs, record.batches) == ("fit-0", 3, 30)
    steps = [record for record in found if not record.is_epoch]
    assert len(steps) >= 2
    assert all(set(record.values) == {"loss", "accuracy"} for record in steps)
    for record in found:
        assert len(record.workers) == num_workers
        assert record.examples_per_s == pytest.approx(
            sum(each.examples_per_s for each in record.workers), rel=0.3
        )
        assert all(each.memory_bytes > 50e6 for each in record.workers)
        assert all(0 < each.cpu_cores < os.cpu_count() + 0.5 for each in record.workers)
    assert 0 < found[-1].data_wait < 1
    # The fraction of waiting time shrinks on a busy machine; the absolute waiting time per batch of 20 rows does not.
    waited_s = [each.data_wait * 20 / each.examples_per_s for each in found if each.examples_per_s]
    assert max(waited_s) > 0.2
    assert list((tmp_path / "igfs" / "events" / "training").glob("events.out.tfevents.*"))


def test_several_steps_at_a_time_and_data_that_is_there(tmp_path):
    found = train(tmp_path, 1, 0.0, STEPS_PER_EXECUTION="4")
    last = found[-1]
    assert (last.is_epoch, last.step) == (True, 90)
    assert last.data_wait < 0.6
    assert last.examples_per_s > 0


def test_workers_without_tensorboard_write_no_event_files(tmp_path, monkeypatch):
    monkeypatch.setattr(reporting, "find_spec", lambda name: None)
    writer = reporting.EventWriter(str(tmp_path))
    with pytest.warns(UserWarning, match="tensorboard is not installed in the workers' interpreter"):
        writer.add(TrainingRecord(1.0, "fit-0", 0, 1, values={"loss": 1.0}))
    writer.add(TrainingRecord(2.0, "fit-0", 0, 2))
    writer.close()
    assert not list(tmp_path.iterdir())


# The format


numbers = st.floats(allow_nan=False, allow_infinity=False)
records = st.builds(
    TrainingRecord,
    time=st.floats(0, 2e11),
    training=st.sampled_from(["fit-0", "loop-1"]),
    epoch=st.integers(0, 9),
    step=st.integers(0, 99),
    is_epoch=st.booleans(),
    values=st.dictionaries(st.text(max_size=5), numbers, max_size=3),
    data_wait=st.none() | numbers,
    workers=st.tuples(
        st.builds(WorkerMeasures, memory_bytes=st.none() | numbers, cpu_cores=st.none() | numbers)
    ),
)


@given(st.lists(records, max_size=5), st.lists(st.integers(1, 400), max_size=9))
def test_records_come_whole_out_of_pieces(written, cuts):
    data = b"".join(record.to_line() for record in written)
    reader, found, begin = RecordReader(), [], 0
    for size in [*cuts, len(data)]:
        found += reader.feed(data[begin : begin + size])
        begin += size
    assert found == written
    assert reader.num_bytes == len(data)


@given(st.binary(max_size=50))
def test_what_is_no_record_is_left_out(noise):
    record = TrainingRecord(1.0, "fit-0", 0, 1)
    found = RecordReader().feed(b"\n" + noise.replace(b"\n", b" ") + b"\n{}\n[]\n" + record.to_line())
    assert found == [record]


def test_what_was_done_again_counts_once():
    first = [TrainingRecord(float(step), "fit-0", 0, step) for step in (5, 10, 15, 20)]
    again = [TrainingRecord(100.0 + step, "fit-0", 0, step) for step in (12, 18)]
    epoch = TrainingRecord(200.0, "fit-0", 0, 18, is_epoch=True)
    other = TrainingRecord(150.0, "fit-1", 0, 3)
    found = without_repeats([*first, *again[:1], other, *again[1:], epoch])
    assert found == [*first[:2], *again, epoch, other]


def test_the_wait_for_data_is_that_of_the_last_seconds():
    found = [TrainingRecord(float(second), "fit-0", 0, second, data_wait=0.1 * second) for second in range(8)]
    assert mean_data_wait(found, 2.0) == pytest.approx(0.6)
    assert mean_data_wait(found, 20.0) is None
    assert mean_data_wait([replace(each, data_wait=None) for each in found], 2.0) is None
    assert mean_data_wait([], 2.0) is None


def test_nvidia_smi_is_asked_for_the_gpus_of_this_worker(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\necho "50, 1000"\necho "100, 24"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert measures.ask_gpus("0,2") == (0.75, 1024 * 2**20)
    assert "--id=0,2" in (tmp_path / "asked").read_text()
    program.write_text("#!/bin/sh\necho '[N/A], 3'\n")
    assert measures.ask_gpus(None) is None
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    assert measures.ask_gpus(None) is None


@pytest.mark.parametrize(
    "change",
    [
        {"examples_per_s": "x"},
        {"time": 1e300},
        {"time": None},
        {"step": "7"},
        {"training": 1},
        {"epochs": [1]},
    ],
)
def test_lines_of_wrong_types_are_no_records(change):
    line = json.dumps({**json.loads(TrainingRecord(1.0, "fit-0", 0, 1).to_line()), **change}).encode()
    assert RecordReader().feed(line + b"\n") == []


def test_names_of_metrics_are_no_formulas():
    record = TrainingRecord(1.0, "fit-0", 0, 1, values={"$\\evil$": 0.5, "loss": 1.0})
    later = TrainingRecord(2.0, "fit-0", 0, 2, values={"$\\evil$": 0.4, "loss": 0.5})
    assert picture_of([("$\\frac{", [record, later])], "$\\title$").startswith(b"\x89PNG")
