"""Rows that the nodes pick out, in a run: each worker's own, every one once in an epoch, as in one process."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ignite_tf_magic.session import RunRequest, load
from tests.training.runs import succeeded

ROWS = 900
SCRIPT = """
import hashlib
import json
import keras
import ignite_tf_magic as itf

keys = keras.metrics.Sum("keys")
seen = keras.metrics.Sum("seen")


class Net(keras.Model):
    metrics = property(lambda self: [keys, seen])

    def train_step(self, data):
        x, y = data
        keys.update_state(y)
        seen.update_state(keras.ops.ones_like(y))
        return super().train_step(data)


def fitted(batches):
    inputs = keras.Input([1])
    net = Net(inputs, keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")(inputs))
    net.compile(keras.optimizers.SGD(0.1), "mse")
    history = net.fit(batches, epochs=2, verbose=0, shuffle=False).history
    return {"seen": history["seen"], "keys": history["keys"], "weight": float(net.get_weights()[0][0, 0])}


chosen = itf.IgniteDataset("PICKED", where="label < ?", where_args=[3])
selected = itf.IgniteDataset.from_sql("SELECT _KEY AS k, x * 2 AS x FROM PICKED WHERE label < 3")
found = {
    "where": fitted(chosen.map(lambda row: (row["val"]["x"][None], row["key"])).batch(100)),
    "sql": fitted(selected.map(lambda row: (row["X"][None], row["K"])).batch(100)),
}
print("FOUND", json.dumps(found), flush=True)
"""


@pytest.mark.timeout(600)
def test_each_worker_trains_on_its_own(session):
    columns = {"x": np.zeros(ROWS, np.float32), "label": (np.arange(ROWS) % 10).astype(np.int32)}
    load("PICKED", columns, replace=True, report=str)
    _, text = succeeded(session, RunRequest("PICKED", SCRIPT, num_workers=2))
    told = [json.loads(line.split(" ", 1)[1]) for line in text.splitlines() if line.startswith("FOUND")]
    assert len(told) == 2 and told[0] == told[1]
    keys = [key for key in range(ROWS) if key % 10 < 3]
    for way in ("where", "sql"):
        assert told[0][way]["seen"] == [len(keys)] * 2
        assert told[0][way]["keys"] == [sum(keys)] * 2
