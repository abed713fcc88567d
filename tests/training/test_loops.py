"""Custom loops in which workers do not train together."""

from __future__ import annotations

import json

import pytest

from ignite_tf_magic.training import loops


@pytest.mark.parametrize(("index", "tells"), [(0, True), (1, False)])
def test_of_workers_that_train_a_model_each_the_first_tells(index, tells, monkeypatch, tmp_path):
    cluster = {"worker": ["one:1", "two:1"], "ps": ["one:2"]}
    task = {"type": "worker", "index": index}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
    monkeypatch.setenv("IGNITE_TF_RUN_URI", str(tmp_path))
    assert (loops._writer() is not None) == tells
