"""A training that was interrupted comes to what it would have come to undisturbed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from processes import free_ports, worker_environment

FIT, LOOP = (Path(__file__).with_name(name) for name in ("train_on.py", "loop_on.py"))
NUM_STEPS = 100


class Workers:
    """The workers of a run, started again and again in one directory."""

    def __init__(self, folder: Path, num_workers: int, script: Path = FIT) -> None:
        self.folder = folder
        self.num_workers = num_workers
        self.script = script

    def start(self, step_s: float = 0.0, asked_at: int = 0) -> list[subprocess.Popen[bytes]]:
        ports = free_ports(self.num_workers)
        run = {
            "IGNITE_TF_RUN_ID": "run",
            "IGNITE_TF_RUN_URI": str(self.folder / "igfs"),
            "STEP_S": str(step_s),
            "ASKED_AT": str(asked_at),
        }
        processes = []
        for index in range(self.num_workers):
            env = {**os.environ, **run, **worker_environment(index, ports)}
            with (self.folder / f"output-{index}.txt").open("ab") as output:
                argv = [sys.executable, str(self.script), str(self.folder)]
                processes.append(subprocess.Popen(argv, env=env, stdout=output, stderr=output))
        return processes

    def until(self, step: int, processes: list[subprocess.Popen[bytes]]) -> None:
        deadline = time.monotonic() + 100
        path = self.folder / "steps-0"
        while not path.exists() or int(path.read_text().split()[-1]) < step:
            assert time.monotonic() < deadline, self.words()
            assert all(process.poll() is None for process in processes), self.words()
            time.sleep(0.02)

    def finish(self) -> list[dict[str, np.ndarray]]:
        processes = self.start()
        try:
            codes = [process.wait(120) for process in processes]
        finally:
            for process in processes:
                process.kill()
        assert codes == [0] * self.num_workers, self.words()
        return [dict(np.load(self.folder / f"result-{index}.npz")) for index in range(self.num_workers)]

    def words(self) -> str:
        return "".join(path.read_text(errors="replace")[-2000:] for path in self.folder.glob("output-*.txt"))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    return Workers(folder, 1).finish()[0]


def check(found: list[dict[str, np.ndarray]], undisturbed: dict[str, np.ndarray]) -> None:
    for each in found:
        assert int(each["steps"]) == NUM_STEPS
        assert each.keys() == undisturbed.keys()
        for name, value in undisturbed.items():
            np.testing.assert_allclose(each[name], value, atol=1e-5, err_msg=name)


@pytest.mark.timeout(300)
def test_asked_to_end_it_saves_first_and_what_is_done_is_given_at_once(tmp_path, undisturbed):
    workers = Workers(tmp_path, 2)
    processes = workers.start(step_s=0.05)
    workers.until(random.randrange(5, 60), processes)
    for process in processes:
        process.send_signal(signal.SIGTERM)
    assert [process.wait(20) for process in processes] == [-signal.SIGTERM] * 2, workers.words()
    done = max(int((tmp_path / f"steps-{index}").read_text().split()[-1]) for index in range(2))
    saved = [
        int(path.stem.partition("-")[2]) for path in (tmp_path / "igfs" / "training" / "fit-0").iterdir()
    ]
    assert max(saved) == done < NUM_STEPS
    check(workers.finish(), undisturbed)
    (tmp_path / "steps-0").unlink()
    check(workers.finish(), undisturbed)
    assert not (tmp_path / "steps-0").exists()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("asked_at", [19, 20])
def test_asked_to_end_when_an_epoch_ends(tmp_path, undisturbed, asked_at):
    """All of it is done, and what Keras does at its end is not; or that is done, too."""
    workers = Workers(tmp_path, 2)
    processes = workers.start(asked_at=asked_at)
    assert [process.wait(60) for process in processes] == [-signal.SIGTERM] * 2, workers.words()
    assert [path.name for path in (tmp_path / "igfs" / "training" / "fit-0").iterdir()] == ["step-20.npz"]
    check(workers.finish(), undisturbed)


@pytest.mark.timeout(300)
def test_killed_it_goes_on_from_the_last_checkpoint(tmp_path, undisturbed):
    workers = Workers(tmp_path, 1)
    for step in (40, 80):
        processes = workers.start(step_s=0.1)
        workers.until(step, processes)
        for process in processes:
            process.kill()
            process.wait()
    assert list((tmp_path / "igfs" / "training" / "fit-0").glob("step-*.npz"))
    check(workers.finish(), undisturbed)


@pytest.mark.timeout(300)
def test_a_loop_of_ones_own(tmp_path):
    (tmp_path / "alone").mkdir()
    undisturbed = Workers(tmp_path / "alone", 1, LOOP).finish()[0]
    workers = Workers(tmp_path, 2, LOOP)
    processes = workers.start(step_s=0.05)
    workers.until(random.randrange(5, 60), processes)
    for process in processes:
        process.send_signal(signal.SIGTERM)
    for process in processes:
        process.wait(20)
    saved = [
        int(path.stem.partition("-")[2]) for path in (tmp_path / "igfs" / "training" / "loop-0").iterdir()
    ]
    assert 0 < max(saved) < NUM_STEPS
    check(workers.finish(), undisturbed)
