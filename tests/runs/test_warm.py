"""Tests which scripts may start warm, what their processes receive, and that `after_import` works there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ignite_tf_magic.runs.task import WorkerTask
from ignite_tf_magic.runs.warm import early_program, may_start_warm


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("import tensorflow as tf", True),
        ("if True:\n    from keras import layers", True),
        ("import tensorflow.keras", True),
        ("print('import tensorflow')", False),
        ("import tensorflow_io", False),
        ("import numpy", False),
        ("import os\nos.environ['KERAS_BACKEND'] = 'jax'\nimport keras", False),
        ("from os import environ, putenv\nimport tensorflow", False),
        ("import torch\nimport tensorflow", False),
        ("import tf_keras\nimport tensorflow", False),
        ("import sys\nsys.path.insert(0, '.')\nimport tensorflow", False),
    ],
)
def test_a_script_starts_warm_when_it_imports_tensorflow_and_nothing_comes_before(script, expected):
    assert may_start_warm(script) is expected


def told(**environment: str | None) -> dict[str, str | None]:
    program = early_program("python3", WorkerTask(0, "s", (), "/c", environment, "/e", "/f"))
    assert program.argv == ("python3", "-m", "ignite_tf_magic.runs.parked")
    return json.loads(program.input_text)["environment"]


def test_an_early_process_has_what_the_user_has_set_and_nothing_of_a_run():
    of_a_run = {
        "TF_CONFIG": "{}",
        "IGNITE_TF_RUN_ID": "r",
        "IGNITE_DATASET_HOST": "h",
        "RANK": "0",
        "MASTER_PORT": None,
    }
    of_the_user = {
        "XLA_FLAGS": "--x",
        "KERAS_BACKEND": "tensorflow",
        "CUDA_VISIBLE_DEVICES": None,
        "RANKING": "1",
    }
    found = told(**of_a_run, **of_the_user)
    assert found == {**of_the_user, "TF_CPP_MIN_LOG_LEVEL": "2", "GRPC_VERBOSITY": "ERROR"}
    assert told(TF_CPP_MIN_LOG_LEVEL="0")["TF_CPP_MIN_LOG_LEVEL"] == "0"


@pytest.mark.parametrize("first", ["outer", "inner", "outer.part", "user"])
def test_calls_follow_the_imports_of_hidden_modules_in_the_same_order(tmp_path, first):
    (tmp_path / "outer").mkdir()
    (tmp_path / "outer" / "__init__.py").write_text("import inner\nVALUE = []\n")
    (tmp_path / "outer" / "part.py").write_text("")
    (tmp_path / "inner.py").write_text("VALUE = []\n")
    (tmp_path / "user.py").write_text("import outer.part\n")
    code = """
import importlib, json, sys
from ignite_tf_magic.after_import import after_import
from ignite_tf_magic.runs.parked import _HiddenModules
is_warm, first = sys.argv[1] == "warm", sys.argv[2]
if is_warm:
    import outer.part
    kept = outer, sys.modules["inner"]
    sys.meta_path.insert(0, _HiddenModules(["inner", "outer"]))
called = []
for name in ("outer", "inner"):
    after_import(name, lambda name=name: called.append(name))
before = list(called)
importlib.import_module(first)
import outer, inner
if is_warm:
    assert kept == (outer, inner)
    assert not [each for each in sys.meta_path if isinstance(each, _HiddenModules)]
specs = [[m.__spec__.name, m.__spec__.origin, type(m.__spec__.loader).__name__, type(m.__loader__).__name__]
         for m in (outer, inner)]
print(json.dumps([before, called, specs, outer.__path__]))
"""
    path = f"{tmp_path}:{Path(__file__).resolve().parents[2]}"

    def found(how: str) -> list[object]:
        argv = [sys.executable, "-c", code, how, first]
        answer = subprocess.run(argv, env={"PYTHONPATH": path}, capture_output=True, text=True, check=True)
        return json.loads(answer.stdout)

    assert found("warm") == found("cold")
    assert found("warm")[:2] == [[], ["inner", "outer"]]
