"""A custom training loop that takes some seconds and can be interrupted: loop_on.py FOLDER; see train_on.py."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import as_worker  # noqa: F401
import keras
import numpy as np
import tensorflow as tf

import ignite_tf_magic as itf
from ignite_tf_magic.training.group import worker_group

EPOCHS, ROWS, BATCH = 5, 1000, 50

folder = Path(sys.argv[1])
place = worker_group().place
strategy = itf.strategy()
keras.utils.set_random_seed(7)
random = np.random.default_rng(1)
x = random.normal(size=(ROWS, 16)).astype(np.float32)
y = (x.sum(axis=1) > 0).astype(np.int32)
batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)
batches = batches.map(lambda x, y: (x[place.index :: place.size], y[place.index :: place.size]))

with strategy.scope():
    layers = keras.layers
    model = keras.Sequential([keras.Input([16]), layers.Dense(16, "relu"), layers.Dense(2)])
    optimizer = keras.optimizers.Adam(0.01)
    optimizer.build(model.trainable_variables)


@tf.function
def train_step(x, y):
    def on_each(x, y):
        with tf.GradientTape() as tape:
            losses = keras.losses.sparse_categorical_crossentropy(y, model(x), from_logits=True)
            loss = tf.nn.compute_average_loss(losses, global_batch_size=BATCH)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return strategy.reduce("SUM", strategy.run(on_each, args=(x, y)), axis=None)


loop = itf.checkpoint(model=model, optimizer=optimizer)
for batch in loop.over(batches, epochs=EPOCHS):
    loop.log(loss=train_step(*batch))
    with (folder / f"steps-{place.index}").open("a") as file:
        print(loop.step + 1, file=file)
    time.sleep(float(os.environ.get("STEP_S", "0")))
weights = [np.asarray(weight) for weight in model.weights]
np.savez(folder / f"result-{place.index}.npz", *weights, steps=loop.step)
