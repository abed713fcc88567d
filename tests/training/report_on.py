"""A training that waits for its data: report_on.py FOLDER SECONDS_PER_BATCH writes its history to FOLDER."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import as_worker  # noqa: F401
import keras
import numpy as np
import tensorflow as tf

from ignite_tf_magic.training.group import worker_group

folder, wait_s = Path(sys.argv[1]), float(sys.argv[2])
place = worker_group().place
keras.utils.set_random_seed(7)
random = np.random.default_rng(1)
x = random.normal(size=(600, 16)).astype(np.float32)
y = (x.sum(axis=1) > 0).astype(np.int32)


def slowly(value):
    time.sleep(wait_s)
    return value


def slow(row, label):
    row = tf.ensure_shape(tf.numpy_function(slowly, [row], tf.float32), row.shape)
    return row, label


batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(20).map(slow)
model = keras.Sequential([keras.layers.Dense(16, "relu"), keras.layers.Dense(2)])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(
    "adam", loss, metrics=["accuracy"], steps_per_execution=int(os.environ.get("STEPS_PER_EXECUTION", "1"))
)
history = model.fit(batches, epochs=3, validation_data=(x[:100], y[:100]), verbose=0)
(folder / f"history-{place.index}.json").write_text(json.dumps(history.history))
