"""A training over a cache that can be interrupted: moving_on.py FOLDER fit|loop; see train_on.py.

FOLDER/worker-N.json contains this worker's IGNITE_DATASET_ variables. For each step, the script appends a line to
FOLDER/rows-N: the epoch, and the keys of the rows in the step.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import as_worker  # noqa: F401
import keras
import numpy as np
import tensorflow as tf

import ignite_tf_magic as itf
from ignite_tf_magic.training.group import worker_group

EPOCHS, BATCH = 3, 100

folder, way = Path(sys.argv[1]), sys.argv[2]
place = worker_group().place
os.environ.update(json.loads((folder / f"worker-{place.index}.json").read_text()))
keras.utils.set_random_seed(7)
epoch = tf.Variable(0, dtype=tf.int64)


def note(number, keys) -> np.ndarray:
    with (folder / f"rows-{place.index}").open("a") as file:
        print(int(number), *(int(key) for key in keys if key), file=file)  # 0 marks a missing row
    return np.int64(0)


def end_if_asked(step: int) -> None:
    if step == int(os.environ.get("ASKED_AT", "0")):
        signal.raise_signal(signal.SIGTERM)


def features(row):
    key = tf.cast(row["key"], tf.float32)
    return tf.stack([key, key % 7, key % 11]), row["val"]["label"]


class Noting(keras.Sequential):
    def train_step(self, data):
        tf.numpy_function(note, [epoch, data[0][:, 0]], tf.int64)
        return super().train_step(data)


class Steps(keras.callbacks.Callback):
    def on_epoch_begin(self, number, logs=None):
        epoch.assign(number)

    def on_train_batch_end(self, batch, logs=None):
        end_if_asked(int(self.model.optimizer.iterations))


batches = itf.IgniteDataset("MOVING").map(features).shuffle(500).batch(BATCH)
if way == "fit":
    layers = keras.layers
    model = Noting([layers.Rescaling(0.001), layers.Dense(8, "relu"), layers.Dense(10)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(batches, epochs=EPOCHS, callbacks=[Steps()], verbose=0)
    steps = int(model.optimizer.iterations)
else:
    loop = itf.checkpoint(count=(count := tf.Variable(0)))
    for x, _ in loop.over(batches, epochs=EPOCHS):
        note(loop.epoch, x[:, 0].numpy())
        count.assign_add(1)
        time.sleep(0.05)  # else the loop would end before it checks whether to save
        end_if_asked(int(count))
    steps = int(count)
np.savez(folder / f"result-{place.index}.npz", steps=steps)
