"""What a training says that cannot go well; the same on all workers, so that none waits for another."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from ignite_tf_magic.training.records import TrainingRecord
from tests.training.processes import Workers

SCRIPT = Path(__file__).with_name("bad_on.py")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("bad")


@pytest.fixture(scope="module")
def said(folder):
    Workers(folder, 2, SCRIPT).run(IGNITE_TF_STOP_ON_NAN="1")
    return [json.loads((folder / f"errors-{index}.json").read_text()) for index in range(2)]


def test_the_loss_for_which_a_training_ends_is_told(said, folder):
    *_, last = map(TrainingRecord.from_line, (folder / "igfs" / "metrics.jsonl").read_bytes().splitlines())
    assert not math.isfinite(last.values["loss"])


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("small_batch", "ConfigError", "it needs at least 2 rows"),
        ("not_compiled", "ConfigError", "compile the model before fit"),
        (
            "misfit",
            "ConfigError",
            "the model takes inputs of shape (None, 7), and the dataset gives (None, 16)",
        ),
        ("diverging", "TrainingDiverged", "A smaller learning rate, clipnorm"),
    ],
)
def test_every_worker_says_it(said, name, kind, words):
    for of_worker in said:
        assert of_worker[name][0] == kind
        assert words in of_worker[name][1]
