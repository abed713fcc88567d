"""A training that takes some seconds and can be interrupted: train_on.py FOLDER writes its weights and history there.

Each step appends a line to a file, which tells the interrupting test the progress.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import as_worker  # noqa: F401
import keras
import numpy as np

from ignite_tf_magic.training.group import worker_group

EPOCHS, ROWS, BATCH = 5, 1000, 50

folder = Path(sys.argv[1])
place = worker_group().place
keras.utils.set_random_seed(7)
random = np.random.default_rng(1)
x = random.normal(size=(ROWS, 16)).astype(np.float32)
y = (x.sum(axis=1) > 0).astype(np.int32)


class Steps(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        with (folder / f"steps-{place.index}").open("a") as file:
            print(step := int(self.model.optimizer.iterations), file=file)
        if step == int(os.environ.get("ASKED_AT", "0")):
            signal.raise_signal(signal.SIGTERM)
        time.sleep(float(os.environ.get("STEP_S", "0")))

    def on_train_end(self, logs=None):
        if os.environ.get("ASKED_AT_END"):
            signal.raise_signal(signal.SIGTERM)


layers = keras.layers
model = keras.Sequential(
    [layers.Dense(16, "relu"), layers.BatchNormalization(synchronized=True), layers.Dense(2)]
)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
steps_per_execution = int(os.environ.get("STEPS_PER_EXECUTION", "1"))
model.compile(
    keras.optimizers.Adam(0.01), loss, metrics=["accuracy"], steps_per_execution=steps_per_execution
)
callbacks = [Steps(), keras.callbacks.ReduceLROnPlateau("loss", patience=1)]
history = model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, callbacks=callbacks, verbose=0)
np.savez(
    folder / f"result-{place.index}.npz",
    *model.get_weights(),
    steps=int(model.optimizer.iterations),
    **{f"history {name}": values for name, values in history.history.items()},
)
