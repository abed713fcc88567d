"""A `fit` whose weights tell how often each row was trained, for `benchmarks.modes`.

Row n moves weight n alone, towards its own target and by the same share each time, in whichever batch it is, so what
one process comes to is known, and a row too many or too few shows.
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
    """Counts the steps that were made, those too that were made again and are counted once elsewhere."""

    def build(self, shape):
        self.made = self.add_weight(shape=(), initializer="zeros", trainable=False, name="made")

    def call(self, x, training=False):
        if training:
            self.made.assign_add(1.0)
        return x


def saved():
    """The step of the last checkpoint; 0 where there is none."""
    names = tf.io.gfile.glob(f"{os.environ['IGNITE_TF_RUN_URI']}/training/fit-0/step-*.npz")
    return max((int(Path(name).stem.partition("-")[2]) for name in names), default=0)


class Steps(keras.callbacks.Callback):
    """Tells of steps, and lets the training last long enough to be struck, and be saved before."""

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


if not IS_ASYNC:  # else the chief reads all that there is, and the workers run no script
    keys = IgniteDataset(TOLD["cache"]).arrays()["key"]
    print(f"KEYS {json.dumps([int(key) for key in keys])}", flush=True)
before = saved()
weights = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
made = Made()
model = keras.Sequential([keras.Input([TOLD["rows"]]), *([made] if IS_ASYNC else []), weights])
# Batches of one worker may be of any size, and their sum is the same however they are cut; those of all workers are of
# one size, so a mean will do.
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
