"""Tests of `ignite_tf_magic.run` in a script: the function's output is shown, and its result is returned."""

from __future__ import annotations

import importlib
import os

import numpy as np
import pytest
from IPython.core.interactiveshell import InteractiveShell

import ignite_tf_magic
from ignite_tf_magic.errors import RunFailed
from ignite_tf_magic.session import list_runs, load

FACTOR = 3


@pytest.fixture
def cache(ignite, tmp_path, monkeypatch):
    importlib.import_module("ipykernel")  # scripts may import ipykernel
    InteractiveShell.clear_instance()  # tests of magics leave an instance; a script has none
    monkeypatch.setenv("IGNITE_TF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("IGNITE_TF_CLUSTER", ",".join(map(str, ignite.connect_options.endpoints)))
    load("RUN_FUNCTION", {"x": np.arange(50)}, replace=True, report=str)
    return "RUN_FUNCTION"


def train(number, more=0):
    print("partitions", os.environ["IGNITE_DATASET_PART"])
    return {"found": number * FACTOR + more}


def broken():
    return 1 // 0


def test_what_it_writes_and_what_it_returns(cache, capsys):
    assert ignite_tf_magic.run(train, cache, args=(4,), kwargs={"more": 1}, report=str) == {"found": 13}
    assert "partitions 0-1023" in capsys.readouterr().out.splitlines()


def doubled(function):
    def wrapper(*arguments):
        return 2 * function(*arguments)

    return wrapper


@doubled
def counted(session, rows):
    """Uses a captured session and dataset. Its decorator sets no `__wrapped__`."""
    with session:
        return session.client.cache("RUN_FUNCTION").size() + sum(1 for _ in rows)


def test_what_is_captured_travels_as_settings(cache):
    from ignite_tf_magic import IgniteDataset, connect

    rows = IgniteDataset("RUN_FUNCTION")
    with connect(report=str) as session:
        found = ignite_tf_magic.run(lambda: counted(session, rows), cache, report=str)
    assert found == 2 * (50 + 50)


def fits():
    import keras

    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1, name="only")])
    model.compile("sgd", "mse")
    history = model.fit(np.ones([8, 1]), np.ones(8), epochs=2, verbose=0)
    return {"all": (model, history), "kept": object} if os.environ.get("KEPT") else (model, history)


def test_a_model_and_its_history_come_back(cache):
    model, history = ignite_tf_magic.run(fits, cache, report=str)
    assert model.layers[0].name == "only"
    assert len(history.history["loss"]) == 2


def test_what_cannot_come_back_is_kept(cache, capsys):
    with pytest.raises(RunFailed, match=r"cannot send result.*is kept on .*, in .*result\.pickle"):
        ignite_tf_magic.run(fits, cache, env={"KEPT": "1"}, report=str)


def test_its_failure_is_an_exception_with_its_traceback(cache):
    with pytest.raises(RunFailed, match="return 1 // 0"):
        ignite_tf_magic.run(broken, cache, report=str)
    assert cache not in [run.cache for run in list_runs().runs]


def test_it_is_waited_for(cache):
    with pytest.raises(TypeError, match="detach"):
        ignite_tf_magic.run(train, cache, detach=True)
