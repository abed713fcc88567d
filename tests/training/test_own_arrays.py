"""Rows that a script reads into NumPy: a run with two workers trains on each of them once, whichever it reads."""

from __future__ import annotations

import numpy as np
import pytest

from ignite_tf_magic.session import RunRequest, load
from tests.training.runs import succeeded

NUM_ROWS, NUM_VALUES = 700, 4
SCRIPT = """
import keras
import tensorflow as tf
import ignite_tf_magic as itf

counts = {name: keras.metrics.Sum(name) for name in ("rows", "keys", "values")}


class Net(keras.Model):
    metrics = property(lambda self: list(counts.values()))

    def train_step(self, data):
        x, y = data
        counts["rows"].update_state(tf.ones(tf.shape(y)))
        counts["keys"].update_state(tf.cast(y, tf.float32))
        counts["values"].update_state(tf.reduce_sum(x, 1))
        return super().train_step(data)


found = []
for assigned in (True, False):
    rows = itf.IgniteDataset("NUMBERS_HELD").arrays(assigned=assigned)
    inputs = keras.Input([4])
    net = Net(inputs, keras.layers.Dense(1)(inputs))
    net.compile(keras.optimizers.SGD(1e-9), "mse")
    history = net.fit(rows["val"]["x"], rows["key"], batch_size=64, epochs=2, verbose=0)
    found.append({"mine": len(rows["key"]), **history.history})
itf.result(found)
"""


def test_each_row_is_trained_once(session):
    x = np.random.default_rng(4).integers(0, 5, (NUM_ROWS, NUM_VALUES)).astype(np.float32)
    load("NUMBERS_HELD", {"x": x}, replace=True, report=str)
    run, _ = succeeded(session, RunRequest("NUMBERS_HELD", SCRIPT, num_workers=2))
    of_its_own, of_all = run.result
    assert of_its_own["mine"] < of_all["mine"] == NUM_ROWS
    for found in (of_its_own, of_all):
        assert found["rows"] == [NUM_ROWS] * 2
        assert found["keys"] == pytest.approx([NUM_ROWS * (NUM_ROWS - 1) / 2] * 2)
        assert found["values"] == pytest.approx([float(x.sum())] * 2)
