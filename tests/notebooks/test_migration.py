"""Tests of the migration guides: line counts, shown code, and whether the migrated scripts work."""

from __future__ import annotations

import os
import subprocess
import sys

import fsspec
import numpy as np
import pytest
from sklearn.datasets import load_digits

from ignite_tf_magic.session import RunRequest, load
from tests.training.migrations import FOLDER, NAMES, difference, script
from tests.training.runs import succeeded

DIGITS = load_digits()


@pytest.fixture(scope="module")
def caches(session):
    """Create the caches that the guides use."""
    random = np.random.default_rng(3)
    columns = {"pixels": DIGITS.data.astype(np.float32), "label": DIGITS.target.astype(np.int64)}
    load("DIGITS", columns, replace=True, report=str)
    images = random.integers(0, 255, (1000, 28, 28)).astype(np.uint8)
    load("MNIST", {"pixels": images, "label": random.integers(0, 10, 1000)}, replace=True, report=str)


@pytest.mark.smoke
@pytest.mark.parametrize("name", NAMES)
def test_less_than_ten_lines_change(name):
    found = difference(name)
    assert 0 < sum(line.startswith("+") for line in found) < 10
    shown = (FOLDER.parent / "migration.md").read_text(encoding="utf-8")
    assert "```diff\n" + "\n".join(found) + "\n```" in shown


def test_from_tensorflow_io_as_a_plain_script(caches):
    argv = [sys.executable, str(FOLDER / "tensorflow_io_after.py")]
    done = subprocess.run(argv, env=os.environ, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert float(done.stdout.rpartition("accuracy ")[2]) > 0.7


def test_from_the_tutorial_of_keras(session, caches):
    name = "keras_tutorial"
    request = RunRequest("MNIST", script(name, "after"), num_workers=2, script_name=name)
    _, text = succeeded(session, request)
    lines = text.splitlines()
    assert sum(line.startswith("Epoch 3/3") for line in lines) == 1  # two workers that train together


def test_from_spark_with_parameter_servers_an_evaluator_and_fed_rows(caches):
    argv = [sys.executable, str(FOLDER / "tensorflowonspark_ps_after.py"), "--data", "DIGITS"]
    argv += ["--model", "igfs:///digits_ps.keras", "--epochs", "3"]
    done = subprocess.run(argv, env=os.environ, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Epoch 3/3" in done.stdout
    assert float(done.stdout.rpartition("accuracy ")[2].split()[0]) > 0.7


def test_from_spark(caches):
    argv = [sys.executable, str(FOLDER / "tensorflowonspark_after.py"), "--data", "DIGITS"]
    argv += ["--model", "igfs:///models/digits.keras", "--output", "igfs:///spark_predictions"]
    done = subprocess.run(argv, env=os.environ, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    files = fsspec.filesystem("igfs")
    parts = sorted(files.ls("igfs:///spark_predictions", detail=False))
    assert len(parts) == 2
    pairs = np.array(
        [list(map(int, line.split())) for part in parts for line in files.cat(part).splitlines()]
    )
    assert sorted(pairs[:, 0]) == sorted(DIGITS.target)
    assert np.mean(pairs[:, 0] == pairs[:, 1]) > 0.7
