"""Trains on the assignment in FOLDER/worker-N.json: train_skewed.py FOLDER NUM_ROWS BATCH_ROWS.

Writes to FOLDER/seen-N.json, for each epoch, how often the least and the most frequent row was trained on, over all
workers, according to the metrics of `fit`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from ignite_tf_magic.after_import import after_import
from ignite_tf_magic.training import keras_hooks

after_import("keras", keras_hooks.install_keras)

import keras  # noqa: E402 - as in a run, hooks come before Keras
import tensorflow as tf  # noqa: E402

import ignite_tf_magic as itf  # noqa: E402

folder, num_rows, batch_rows = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
index = itf.task().index
os.environ.update(json.loads((folder / f"worker-{index}.json").read_text()))


class Seen(keras.metrics.Metric):
    """Counts each row; keys are 1 to `num_rows`."""

    def __init__(self) -> None:
        super().__init__(name="seen")
        self.counts = self.add_variable((num_rows + 1,), "zeros", name="counts")

    def update_state(self, y_true, y_pred, sample_weight=None):
        del y_pred, sample_weight
        keys = tf.cast(y_true[:, 1], tf.int32)
        self.counts.assign_add(tf.math.bincount(keys, minlength=num_rows + 1, dtype=tf.float32))

    def result(self):
        return {"least": tf.reduce_min(self.counts[1:]), "most": tf.reduce_max(self.counts[1:])}


def example(row):
    key = tf.cast(row["key"], tf.float32)
    return tf.stack([key, key % 7]) / num_rows, tf.stack([key % 2, key])


def loss(y_true, y_pred):
    return keras.losses.mean_squared_error(y_true[:, :1], y_pred)


keras.utils.set_random_seed(3)
rows = itf.IgniteDataset(os.environ["IGNITE_DATASET_ASSIGNED_CACHE"]).map(example)
model = keras.Sequential([keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])
model.compile("adam", loss, metrics=[Seen()])
history = model.fit(rows.shuffle(100).batch(batch_rows), epochs=2, verbose=0).history
found = {name: history[name] for name in ("least", "most")}
(folder / f"seen-{index}.json").write_text(json.dumps({**found, "steps": int(model.optimizer.iterations)}))
