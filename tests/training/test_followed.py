"""A run of two workers trains on rows as they come: each follows its own partitions, and all steps are shared."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from ignite_tf_magic.session import RunRequest, load
from tests.training.runs import succeeded

SCRIPT = """
import warnings
warnings.simplefilter("error")
import hashlib
import keras
import ignite_tf_magic as itf

rows = itf.IgniteDataset("COMING", follow=True)
keys = keras.metrics.Sum("keys")
seen = keras.metrics.Sum("seen")


class Net(keras.Model):
    metrics = property(lambda self: [keys, seen])

    def train_step(self, data):
        x, y = data
        keys.update_state(y)
        seen.update_state(keras.ops.ones_like(y))
        return super().train_step(data)


inputs = keras.Input([1])
net = Net(inputs, keras.layers.Dense(1, use_bias=False)(inputs))
net.compile(keras.optimizers.SGD(0.1), "mse")
batches = rows.map(lambda row: (row["val"]["x"][None], row["key"])).batch(101)
history = net.fit(batches, steps_per_epoch=30, epochs=1, verbose=0, shuffle=False).history
weights = hashlib.sha256(net.get_weights()[0].tobytes()).hexdigest()
itf.result({"seen": history["seen"][-1], "keys": history["keys"][-1]})
print("WEIGHTS", weights, flush=True)
"""


@pytest.mark.timeout(600)
def test_two_workers_share_the_rows_that_come(session):
    load("COMING", {"x": np.linspace(-1, 1, 100, dtype=np.float32)}, replace=True, report=str)
    has_ended = threading.Event()

    def put() -> None:
        while not has_ended.is_set():  # nobody knows how many of so many are in which share
            load("COMING", {"x": np.linspace(-1, 1, 300, dtype=np.float32)}, append=True, report=str)

    putting = threading.Thread(target=put)
    putting.start()
    try:
        run, text = succeeded(session, RunRequest("COMING", SCRIPT, num_workers=2))
    finally:
        has_ended.set()
        putting.join()
    assert run.result["seen"] == 30 * 101
    assert run.result["keys"] > 0
    weights = [line for line in text.splitlines() if line.startswith("WEIGHTS")]
    assert len(weights) == 2
    assert len(set(weights)) == 1
