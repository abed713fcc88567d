"""Trains a small model for 500 steps; the result is its steps and losses. Prints "begun" when it has begun."""

# ruff: noqa: ARG002 - Keras' own names

import os
import time

import keras
import tensorflow as tf

import ignite_tf_magic

STEP_S = 0.01


class Pace(keras.callbacks.Callback):
    """Slows the training down so that it can be struck."""

    def on_train_begin(self, logs=None):
        print("begun", flush=True)

    def on_train_batch_end(self, batch, logs=None):
        time.sleep(STEP_S)


def features(row):
    return tf.cast(row["val"]["pixels"], tf.float32) / 255, row["val"]["label"]


keras.utils.set_random_seed(20)
rows = ignite_tf_magic.IgniteDataset(os.environ["IGNITE_DATASET_ASSIGNED_CACHE"]).map(features)
model = keras.Sequential([keras.layers.Dense(32, "relu"), keras.layers.Dense(10)])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.Adam(0.003), loss)
history = model.fit(rows.shuffle(500, seed=3).batch(32), epochs=5, callbacks=[Pace()], verbose=0)
steps = int(model.optimizer.iterations)
ignite_tf_magic.result({"steps": steps, "losses": history.history["loss"]})
