"""What a training says that cannot go well; the same on all workers, so that none waits for another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.training.processes import Workers

SCRIPT = Path(__file__).with_name("bad_on.py")


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bad")
    Workers(folder, 2, SCRIPT).run(IGNITE_TF_STOP_ON_NAN="1")
    return [json.loads((folder / f"errors-{index}.json").read_text()) for index in range(2)]


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
