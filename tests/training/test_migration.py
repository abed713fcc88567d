"""The migration guides: as short as they say, shown as they are, and what they lead to works."""

from __future__ import annotations

import os
import subprocess
import sys

import fsspec
import numpy as np
import pytest
from sklearn.datasets import load_digits

from ignite_tf_magic.session import RunRequest, load, open_session
from tests.training.migrations import FOLDER, NAMES, difference, script

DIGITS = load_digits()


@pytest.fixture(scope="module")
def environment(ignite, tmp_path_factory):
    """The caches of the guides, and the variables by which their scripts find the cluster."""
    home = tmp_path_factory.mktemp("home")
    endpoints = ",".join(map(str, ignite.connect_options.endpoints))
    found = {"IGNITE_TF_HOME": str(home), "IGNITE_TF_CLUSTER": endpoints}
    random = np.random.default_rng(3)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in found.items():
            patch.setenv(name, value)
        columns = {"pixels": DIGITS.data.astype(np.float32), "label": DIGITS.target.astype(np.int64)}
        load("DIGITS", columns, replace=True, report=str)
        images = random.integers(0, 255, (1000, 28, 28)).astype(np.uint8)
        load("MNIST", {"pixels": images, "label": random.integers(0, 10, 1000)}, replace=True, report=str)
        yield found


def output_of_run(name: str, cache: str) -> list[str]:
    with open_session(report=str) as session:
        run = session.start_run(RunRequest(cache, script(name, "after"), num_workers=2, script_name=name))
        text = "".join(chunk.text for chunk in run.follow())
        run.wait(300)
        assert run.failure() is None, text
        return text.splitlines()


@pytest.mark.parametrize("name", NAMES)
def test_less_than_ten_lines_change(name):
    found = difference(name)
    assert 0 < sum(line.startswith("+") for line in found) < 10
    shown = (FOLDER.parent / "migration.md").read_text(encoding="utf-8")
    assert "```diff\n" + "\n".join(found) + "\n```" in shown


def test_from_tensorflow_io_as_a_plain_script(environment):
    argv = [sys.executable, str(FOLDER / "tensorflow_io_after.py")]
    done = subprocess.run(argv, env=os.environ, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert float(done.stdout.rpartition("accuracy ")[2]) > 0.7


def test_from_the_tutorial_of_keras(environment):
    lines = output_of_run("keras_tutorial", "MNIST")
    assert sum(line.startswith("Epoch 3/3") for line in lines) == 1  # two that know of each other


def test_from_spark(environment):
    argv = [sys.executable, str(FOLDER / "tensorflowonspark_after.py"), "--data", "DIGITS"]
    argv += ["--model", "igfs:///models/digits.keras", "--output", "igfs:///predictions"]
    done = subprocess.run(argv, env=os.environ, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    files = fsspec.filesystem("igfs")
    parts = sorted(files.ls("igfs:///predictions", detail=False))
    assert len(parts) == 2
    pairs = np.array(
        [list(map(int, line.split())) for part in parts for line in files.cat(part).splitlines()]
    )
    assert sorted(pairs[:, 0]) == sorted(DIGITS.target)
    assert np.mean(pairs[:, 0] == pairs[:, 1]) > 0.7
