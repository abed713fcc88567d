"""An interrupted training ends with the results of an undisturbed one."""

from __future__ import annotations

import random
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from ignite_tf_magic.training.records import FILE_NAME, RecordReader, TrainingRecord, without_repeats
from tests.training.processes import Workers
from tests.waiting import until

FIT, LOOP = (Path(__file__).with_name(name) for name in ("train_on.py", "loop_on.py"))
NUM_STEPS = 100


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    return results(Workers(folder, 1, FIT))[0]


def until_step(workers: Workers, step: int, processes: list[subprocess.Popen[bytes]]) -> None:
    def is_done() -> bool:
        is_done = workers.steps(0) >= step
        assert is_done or all(process.poll() is None for process in processes), workers.words()
        return is_done

    until(is_done, what=lambda: f"step {step}: {workers.words()}")


def results(workers: Workers) -> list[dict[str, np.ndarray]]:
    workers.run()
    return [dict(np.load(workers.folder / f"result-{index}.npz")) for index in range(workers.num_workers)]


def epochs_told(folder: Path) -> list[TrainingRecord]:
    found = RecordReader().feed((folder / "igfs" / FILE_NAME).read_bytes())
    return [record for record in without_repeats(found) if record.is_epoch]


def last_saved(folder: Path, training: str) -> int:
    paths = (folder / "igfs" / "training" / training).glob("step-*.npz")
    return max(int(path.stem.partition("-")[2]) for path in paths)


def check(found: list[dict[str, np.ndarray]], undisturbed: dict[str, np.ndarray]) -> None:
    for each in found:
        assert int(each["steps"]) == NUM_STEPS
        assert each.keys() == undisturbed.keys()
        for name, value in undisturbed.items():
            np.testing.assert_allclose(each[name], value, atol=1e-5, err_msg=name)


@pytest.mark.nightly
def test_asked_to_end_it_saves_first_and_what_is_done_is_given_at_once(tmp_path, undisturbed):
    """Nightly. Shorter: test_asked_to_end_in_the_last_step"""
    workers = Workers(tmp_path, 2, FIT)
    processes = workers.start(STEP_S="0.05")
    until_step(workers, random.randrange(5, 60), processes)
    for process in processes:
        process.send_signal(signal.SIGTERM)
    assert [process.wait(300) for process in processes] == [-signal.SIGTERM] * 2, workers.words()
    done = max(workers.steps(index) for index in range(2))
    assert last_saved(tmp_path, "fit-0") == done < NUM_STEPS
    check(results(workers), undisturbed)
    (tmp_path / "steps-0").unlink()
    check(results(workers), undisturbed)
    assert not (tmp_path / "steps-0").exists()


@pytest.mark.parametrize(
    ("num_workers", "asked_at", "steps_per_execution"),
    [pytest.param(1, 19, 1, marks=pytest.mark.nightly), (2, 16, 8)],
)
@pytest.mark.nightly
def test_asked_to_end_when_an_epoch_ends(
    tmp_path, undisturbed, num_workers, asked_at, steps_per_execution, monkeypatch
):
    """The epoch's steps are done, but not what Keras does at its end.

    Nightly. Shorter: test_asked_to_end_in_the_last_step
    """
    monkeypatch.setenv("STEPS_PER_EXECUTION", str(steps_per_execution))
    workers = Workers(tmp_path, num_workers, FIT)
    processes = workers.start(ASKED_AT=str(asked_at))
    assert [process.wait(300) for process in processes] == [-signal.SIGTERM] * num_workers, workers.words()
    # Usually 20: when asked, the training may already be about to save.
    assert last_saved(tmp_path, "fit-0") in (asked_at, 20)
    check(results(workers), undisturbed)


@pytest.mark.nightly
def test_workers_are_asked_one_after_the_other(tmp_path, undisturbed):
    """The signals arrive at different times. The first worker waits for the second, and none fails.

    Nightly. Shorter: test_asked_to_end_in_the_last_step
    """
    workers = Workers(tmp_path, 2, FIT)
    processes = workers.start(STEP_S="0.05")
    until_step(workers, 10, processes)
    processes[1].send_signal(signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        processes[1].wait(0.7)
    processes[0].send_signal(signal.SIGTERM)
    assert [process.wait(300) for process in processes] == [-signal.SIGTERM] * 2, workers.words()
    check(results(workers), undisturbed)


def test_asked_to_end_in_the_last_step(tmp_path, undisturbed):
    """The training ends before the code after `fit` runs."""
    workers = Workers(tmp_path, 1, FIT)
    (process,) = workers.start(ASKED_AT_END="1")
    assert process.wait(300) == -signal.SIGTERM, workers.words()
    assert not (tmp_path / "result-0.npz").exists()
    check(results(workers), undisturbed)


@pytest.mark.nightly  # tests/ssh and benchmarks.resume cover this on hosts
def test_killed_it_goes_on_from_the_last_checkpoint(tmp_path, undisturbed):
    """Nightly. Shorter: test_asked_to_end_in_the_last_step"""
    workers = Workers(tmp_path, 1, FIT)
    for step in (40, 80):
        processes = workers.start(STEP_S="0.1")
        until_step(workers, step, processes)
        for process in processes:
            process.kill()
            process.wait()
    assert list((tmp_path / "igfs" / "training" / "fit-0").glob("step-*.npz"))
    check(results(workers), undisturbed)


@pytest.mark.nightly
def test_a_loop_of_ones_own(tmp_path):
    """Nightly. Shorter: test_asked_to_end_in_the_last_step"""
    (tmp_path / "alone").mkdir()
    undisturbed = results(Workers(tmp_path / "alone", 1, LOOP))[0]
    workers = Workers(tmp_path, 2, LOOP)
    processes = workers.start(STEP_S="0.05")
    until_step(workers, random.randrange(5, 60), processes)
    for process in processes:
        process.send_signal(signal.SIGTERM)
    for process in processes:
        process.wait(300)
    assert 0 < last_saved(tmp_path, "loop-0") < NUM_STEPS
    check(results(workers), undisturbed)
    told, of_undisturbed = epochs_told(tmp_path), epochs_told(tmp_path / "alone")
    assert [(record.training, record.epoch, record.step) for record in told] == [
        ("loop-0", epoch, 20 * (epoch + 1)) for epoch in range(5)
    ]
    assert [len(record.workers) for record in told] == [2] * 5
    for record, other in list(zip(told, of_undisturbed, strict=True))[3:]:  # it was interrupted earlier
        assert record.values["loss"] == pytest.approx(other.values["loss"], abs=1e-5)
