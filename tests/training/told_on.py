"""Trainings that are not what they look like: told_on.py FOLDER leaves what was said in FOLDER/told-WORKER.json."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

import as_worker  # noqa: F401
import keras
import numpy as np
import tensorflow as tf

import ignite_tf_magic as itf
from ignite_tf_magic.training.group import worker_group

place = worker_group().place
x = np.random.default_rng(1).normal(size=(60, 16)).astype(np.float32)
y = np.zeros(60, np.float32)


def model(rate: float = 0.01):
    found = keras.Sequential(
        [keras.Input([16]), keras.layers.Dense(4, "relu", name="first"), keras.layers.Dense(1)]
    )
    found.compile(keras.optimizers.SGD(rate), "mse")
    return found


def batch_by_batch():
    one = model()
    for _ in range(2):
        one.train_on_batch(x, y)


def independent():
    with itf.independent():
        model().train_on_batch(x, y)


def mirrored():
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        one = model()
    history = one.fit(x, y, epochs=2, verbose=0)
    assert len(history.history["loss"]) == 2
    one.evaluate(x, y, verbose=0)


def shuffled_differently():
    data = tf.data.Dataset.from_tensor_slices((x, np.arange(60.0))).shuffle(60, seed=place.index)
    model().fit(data.batch(10), epochs=2, verbose=0)


def changed_at_random():
    random = tf.random.Generator.from_seed(place.index)
    data = tf.data.Dataset.from_tensor_slices((x, np.arange(60.0))).batch(10)
    model().fit(data.map(lambda a, b: (a + random.normal(tf.shape(a)), b)), verbose=0)


def rate_by_the_clock():
    class ByTheClock(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.optimizer.learning_rate.assign(0.01 + 0.001 * place.index)

    model().fit(x, y, batch_size=10, callbacks=[ByTheClock()], verbose=0)


def weights_without_an_optimizer():
    class Net(keras.Model):
        def train_step(self, data):
            a, b = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self(a) - b[:, None]))
            for variable, gradient in zip(
                self.trainable_variables, tape.gradient(loss, self.trainable_variables), strict=True
            ):
                variable.assign_sub(0.01 * gradient)
            return {"loss": loss}

    inputs = keras.Input([16])
    net = Net(inputs, keras.layers.Dense(1, name="only")(inputs))
    net.compile()
    net.fit(x, y, batch_size=10, verbose=0)


def rows_compared():
    class Net(keras.Model):
        def train_step(self, data):
            a, _ = data
            with tf.GradientTape() as tape:
                made = self(a)
                loss = tf.reduce_mean(tf.matmul(made, made, transpose_b=True))
            variables = self.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
            return {"loss": loss}

    inputs = keras.Input([16])
    net = Net(inputs, keras.layers.Dense(3)(inputs))
    net.compile("sgd")
    net.fit(x, y, batch_size=10, epochs=2, verbose=0)


def several_values():
    """A metric with a value for each class, also in a checkpoint."""
    one = keras.Sequential([keras.Input([16]), keras.layers.Dense(3, "sigmoid")])
    one.compile("sgd", "binary_crossentropy", metrics=[keras.metrics.F1Score(average=None)])
    labels = np.eye(3, dtype=np.float32)[np.arange(60) % 3]
    return np.shape(one.fit(x, labels, batch_size=10, epochs=2, verbose=0).history["f1_score"])


class Coder(keras.Model):
    """Does not say how it is made, nor what a call of it is."""

    def __init__(self, size):
        super().__init__(name="coder")
        self.coder = keras.Sequential([keras.Input([16]), keras.layers.Dense(size), keras.layers.Dense(16)])
        self.size = lambda: size

    def train_step(self, data):
        assert isinstance(data, tf.Tensor), "as where there is one process"
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self.coder(data) - data))
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return {"loss": loss}

    def get_config(self):
        raise NotImplementedError("a Coder does not say how it is made")


def unsavable():
    coder = Coder(3)
    coder.compile("adam")
    coder.fit(x, batch_size=10, verbose=0)
    return float(np.sum(coder.coder.get_weights()[0]))


told = {}
for each in (
    *(batch_by_batch, independent, mirrored, shuffled_differently, changed_at_random, rate_by_the_clock),
    *(weights_without_an_optimizer, rows_compared, several_values, unsavable),
):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result, error = each(), None
        except Exception as failure:  # noqa: BLE001 - it is what the test looks at
            result, error = None, [type(failure).__name__, str(failure)]
    told[each.__name__] = {"warnings": [str(one.message) for one in caught], "error": error, "result": result}
path = Path(sys.argv[1]) / f"told-{place.index}.json"
path.write_text(json.dumps(told))
