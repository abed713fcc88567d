"""Hyperparameters of a run: the values that scripts may record, and parsing of untrusted records."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ignite_tf_magic import config
from ignite_tf_magic.errors import ConfigError
from ignite_tf_magic.session.provenance import made_with
from ignite_tf_magic.training.parameters import _as_json, of_fit, parse
from ignite_tf_magic.version import __version__


def test_a_script_has_back_what_it_tells():
    assert config(rate=0.1, layers=[64, 32], name=None) == {"rate": 0.1, "layers": [64, 32], "name": None}


@pytest.mark.parametrize("value", [object(), {"a": 1}, [object()], b"bytes", 1j])
def test_what_has_no_place_is_refused(value):
    with pytest.raises(ConfigError, match=r"config\(what=.* is not a valid hyperparameter type"):
        config(what=value)


def test_what_the_script_tells_counts_before_what_its_last_training_was_given():
    parts = {
        "fit-0": {"epochs": 1, "loss": "mse"},
        "config": {"rate": 0.1, "loss": "own"},
        "fit-1": {"epochs": 5},
    }
    assert parse(json.dumps(parts).encode()) == {"epochs": 5, "rate": 0.1, "loss": "own"}


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", {}),
        (b"[1]", {}),
        (b"{" * 100_000, {}),
        (b'{"config": 3}', {}),
        (b'{"config": {"a": ' + b"[" * 900 + b"]" * 900 + b"}}", {}),
        (b'{"config": {"a": {"b": 1}, "c": [[1], "x"], "d": true}}', {"c": [[1], "x"], "d": True}),
    ],
)
def test_a_file_of_others(data, found):
    assert parse(data) == found


class Named:
    name = "net"

    def __init__(self, **more):
        vars(self).update(more)


def test_numbers_of_numpy_are_numbers_and_what_is_none_is_a_word():
    assert of_fit(Named(), {"epochs": np.int64(5)}, {})["epochs"] == 5
    assert _as_json([1.0, float("nan"), [float("inf")]]) == [1.0, "nan", ["inf"]]


def test_what_fit_is_given_has_names_and_numbers():
    class Adam:
        learning_rate = 0.001

    class CosineDecay:
        def get_config(self):
            return {}

    class Scheduled:
        _learning_rate = CosineDecay()

    def own_loss():
        return 0

    model = Named(optimizer=Adam(), loss={"a": own_loss, "b": "mse"})
    assert of_fit(model, {"epochs": 3, "batch_size": None}, {"keras": "3.12"}) == {
        "model": "net",
        "optimizer": "Adam",
        "learning_rate": 0.001,
        "loss": "a: own_loss, b: mse",
        "epochs": 3,
        "keras": "3.12",
    }
    assert of_fit(Named(optimizer=Scheduled(), loss=None), {}, {})["learning_rate"] == "CosineDecay"
    assert of_fit(Named(), {}, {}) == {"model": "net"}


def test_the_commit_is_known_where_there_is_one(tmp_path):
    import subprocess

    def git(*words):
        identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
        return subprocess.run(
            ["git", "-C", str(tmp_path), *identity, *words], check=True, capture_output=True, text=True
        ).stdout.strip()

    assert made_with(tmp_path).keys() == {"ignite_tf_magic", "python"}
    assert made_with(tmp_path)["ignite_tf_magic"] == __version__
    git("init", "-q")
    assert "git" not in made_with(tmp_path)
    (tmp_path / "train.py").write_text("1")
    git("add", ".")
    git("commit", "-qm", "x")
    head = git("rev-parse", "HEAD")
    (tmp_path / "below").mkdir()
    assert made_with(tmp_path / "below")["git"] == head[:12]
    (tmp_path / "train.py").write_text("2")
    assert made_with(tmp_path)["git"] == f"{head[:12]} (changed)"
