"""Extra tracing does not change a training, and functions are not traced more often than by TensorFlow itself."""

from __future__ import annotations

import importlib
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import pytest
import tensorflow as tf

from ignite_tf_magic.training import waiting
from ignite_tf_magic.training.frameworks import framework_of, look_at_step

ROWS = np.random.default_rng(1).normal(size=(32, 6)).astype(np.float32)


def losses(framework: str, num_looks: int, *, is_built: bool) -> list[float]:
    """Train with a seeded dropout and seeded initial weights, and return the losses."""
    keras = importlib.import_module(framework)
    first, last = (keras.initializers.RandomNormal(seed=seed) for seed in (1, 2))
    layers = [
        keras.layers.Dense(16, "relu", kernel_initializer=first),
        keras.layers.Dropout(0.3, seed=5),
        keras.layers.Dense(6, kernel_initializer=last),
    ]
    model = keras.Sequential(layers)
    if is_built:
        model.build((None, 6))
    model.compile("sgd", "mse")
    data = tf.data.Dataset.from_tensors((ROWS, ROWS))
    for _ in range(num_looks):
        look_at_step(model, framework_of(model), model.train_step, data.element_spec)
    return model.fit(data, epochs=3, verbose=0, shuffle=False).history["loss"]


@pytest.mark.parametrize("is_built", [True, False], ids=["built", "by its first batch"])
@pytest.mark.parametrize("framework", ["keras", "tf_keras"])
def test_a_look_at_a_step_leaves_what_layers_draw(framework, is_built):
    plain = losses(framework, 0, is_built=is_built)
    assert len(set(plain)) == 3
    for num_looks in (1, 2):
        assert losses(framework, num_looks, is_built=is_built) == plain


def test_a_function_that_waits_for_data_is_traced_once(monkeypatch):
    """A variable created inside the function would cause a second trace."""
    monkeypatch.setattr(waiting, "_counters", [])
    traces = []

    @tf.function
    def step(iterator):
        traces.append(1)
        return next(iterator)

    iterator = iter(waiting.timed(tf.data.Dataset.range(6).batch(2)))
    assert [step(iterator).numpy().tolist() for _ in range(3)] == [[0, 1], [2, 3], [4, 5]]
    assert len(traces) == 1
    assert waiting.counted()[1] == 6
