"""`ignite_tf_magic.run` in a script: what a function writes is shown, what it returns comes back."""

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
    importlib.import_module("ipykernel")  # which a script may do
    InteractiveShell.clear_instance()  # a script has none; tests of magics do
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


def test_its_failure_is_an_exception_with_its_traceback(cache):
    with pytest.raises(RunFailed, match="return 1 // 0"):
        ignite_tf_magic.run(broken, cache, report=str)
    assert cache not in [run.cache for run in list_runs().runs]


def test_it_is_waited_for(cache):
    with pytest.raises(TypeError, match="detach"):
        ignite_tf_magic.run(train, cache, detach=True)
