"""Trainings that must fail: bad_on.py FOLDER writes each one's error to FOLDER/errors-WORKER.json."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import as_worker  # noqa: F401
import keras
import numpy as np
import tensorflow as tf

from ignite_tf_magic.training.group import worker_group

x = np.random.default_rng(1).normal(size=(60, 16)).astype(np.float32)
y = np.zeros(60, np.float32)


def model(inputs: int = 16, rate: float = 0.01):
    found = keras.Sequential([keras.Input([inputs]), keras.layers.Dense(4, "relu"), keras.layers.Dense(1)])
    found.compile(keras.optimizers.SGD(rate), "mse")
    return found


def diverging():
    model(rate=1e30).fit(x, y, batch_size=10, epochs=50, verbose=0)


def small_batch():
    model().fit(x, y, batch_size=1, verbose=0)


def not_compiled():
    keras.Sequential([keras.layers.Dense(1)]).fit(x, y, verbose=0)


def misfit():
    model(inputs=7).fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(10), verbose=0)


said = {}
for bad in (small_batch, not_compiled, misfit, diverging):
    try:
        bad()
    except Exception as error:  # noqa: BLE001 - the test checks it
        said[bad.__name__] = [type(error).__name__, str(error)]
path = Path(sys.argv[1]) / f"errors-{worker_group().place.index}.json"
path.write_text(json.dumps(said))
