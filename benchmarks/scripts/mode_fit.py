"""A `fit` whose weights show how often each row was trained, for `benchmarks.modes`.

Row n moves only weight n, towards its own target and by the same fraction each time, in any batch. So the result of one
process is known, and an extra or missing row is visible.
"""

# ruff: noqa: ARG002 - Keras' own names

import json
import os
import time
from pathlib import Path

import keras
import tensorflow as tf

from ignite_tf_magic import IgniteDataset, task

TOLD = json.loads(os.environ["MODES_TOLD"])
IS_ASYNC = "ps" in task().addresses


class Made(keras.layers.Layer):
    """Counts all executed steps, including repeated ones that other counters count once."""

    def build(self, shape):
        self.made = self.add_weight(shape=(), initializer="zeros", trainable=False, name="made")

    def call(self, x, training=False):
        if training:
            self.made.assign_add(1.0)
        return x


def saved():
    """Return the step of the last checkpoint; 0 without one."""
    names = tf.io.gfile.glob(f"{os.environ['IGNITE_TF_RUN_URI']}/training/fit-0/step-*.npz")
    return max((int(Path(name).stem.partition("-")[2]) for name in names), default=0)


class Steps(keras.callbacks.Callback):
    """Prints steps, and slows the training down until it can be struck and has been saved."""

    number = first = 0
    is_saved = not TOLD["is_struck"]

    def on_train_batch_end(self, batch, logs=None):
        Steps.number = int(self.model.optimizer.iterations)
        Steps.first = Steps.first or Steps.number
        if task().is_chief:
            print(f"STEP {Steps.number}", flush=True)
            if Steps.number >= TOLD["save_by"] and not Steps.is_saved:
                Steps.is_saved = saved() >= TOLD["saved"]
                print("SAVED" if Steps.is_saved else "not saved", flush=True)
                time.sleep(0 if Steps.is_saved else TOLD["save_s"])
        time.sleep(TOLD["pause_s"])


def example(row):
    return tf.one_hot(row["val"]["number"], TOLD["rows"]), tf.expand_dims(row["val"]["target"], -1)


if not IS_ASYNC:  # else the chief reads everything, and the workers run no script
    keys = IgniteDataset(TOLD["cache"]).arrays()["key"]
    print(f"KEYS {json.dumps([int(key) for key in keys])}", flush=True)
before = saved()
weights = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
made = Made()
model = keras.Sequential([keras.Input([TOLD["rows"]]), *([made] if IS_ASYNC else []), weights])
# The batches of one worker may have any size; with a sum, the result does not depend on it. The batches of all
# workers have one size, so a mean suffices.
loss = keras.losses.MeanSquaredError(reduction="sum" if IS_ASYNC else "sum_over_batch_size")
share = TOLD["share"] / 2 * (1 if IS_ASYNC else TOLD["batch"])
model.compile(keras.optimizers.SGD(share), loss)
rows = IgniteDataset(TOLD["cache"]).map(example)
history = model.fit(rows.batch(TOLD["batch"]), epochs=TOLD["epochs"], callbacks=[Steps()], verbose=0)
found = {
    "weights": [float(each) for each in weights.get_weights()[0][:, 0]],
    "iterations": int(model.optimizer.iterations),
    "made": float(made.get_weights()[0]) if IS_ASYNC else None,
    "losses": history.history["loss"],
    "saved": before,
    "first": Steps.first,
}
print(f"FOUND {json.dumps(found)}", flush=True)
