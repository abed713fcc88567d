"""Workers reach different operations: differ_on.py FOLDER HOW writes the error to said-WORKER.json."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import as_worker  # noqa: F401
import keras
import numpy as np

from ignite_tf_magic import task

folder, how = Path(sys.argv[1]), sys.argv[2]
x = np.random.default_rng(1).normal(size=(400, 4)).astype(np.float32)
y = x.sum(axis=1, keepdims=True)
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")


class Check(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if task().index == 1 and epoch == 1:
            model.evaluate(x, y, batch_size=20, verbose=0)


class Slow(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if task().index == 1 and epoch == 1:
            time.sleep(12)


class Wait(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1:
            (folder / f"waits-{task().index}").touch()
            while not (folder / "go").exists():
                time.sleep(0.05)


callbacks = {"different": [Check()], "slow": [Slow()], "stopped": [Wait()]}[how]
said = {}
# An earlier training ends much later on the chief, as if it saved a large model.
if how == "different":
    if task().is_chief:
        model.save = lambda path: time.sleep(4)
    model.fit(x, y, batch_size=20, verbose=0)
try:
    said["loss"] = model.fit(x, y, batch_size=20, epochs=4, verbose=0, callbacks=callbacks).history["loss"]
    for _ in range(30):
        said["evaluated"] = model.evaluate(x, y, batch_size=20, verbose=0)
except Exception as error:  # noqa: BLE001 - the test checks it
    said["raised"] = f"{type(error).__name__}: {error}"
(folder / f"said-{task().index}.json").write_text(json.dumps(said))
