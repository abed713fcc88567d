"""Tests of the value that a worker returns as the result of its run."""

from __future__ import annotations

import json

import pytest

from ignite_tf_magic.session import run_values

MODEL = type("Model", (), {"__module__": "keras.src.models.model", "name": "net"})


@pytest.mark.parametrize(("index", "left"), [(0, ["net", "result.zip"]), (1, [])])
def test_the_first_worker_alone_leaves_a_model_that_all_return(monkeypatch, index, left):
    done = []
    addresses = {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}
    monkeypatch.setenv(
        "TF_CONFIG", json.dumps({"cluster": addresses, "task": {"type": "worker", "index": index}})
    )
    monkeypatch.setenv("IGNITE_TF_RUN_ID", "k3f-digits-1121-0412")
    monkeypatch.setattr(run_values, "leave_model", lambda model: done.append(model.name))
    monkeypatch.setattr(run_values, "_put", lambda volume, run_id, name, data: done.append(name))
    run_values.result(MODEL())
    assert done == left
