"""Keras' `fit` in the chief of a run with parameter servers: the workers execute its steps."""

from __future__ import annotations

import json
import re

import fsspec
import numpy as np
import pytest

from ignite_tf_magic.session import RunRequest, load
from tests.training.runs import succeeded, succeeded_though_killed

NUM_ROWS, BATCH, EPOCHS = 600, 16, 3
TOTAL = NUM_ROWS * (NUM_ROWS - 1) // 2
CACHE = "ASYNC"
AGAIN = pytest.param("tf_keras", marks=pytest.mark.nightly)
FRAMEWORKS = pytest.mark.parametrize("module", ["keras", AGAIN])

BEGIN = """
import json, os, sys, time, warnings
import {module} as keras
import numpy as np
import tensorflow as tf
from ignite_tf_magic import IgniteDataset, task

def example(row):
    return row["val"]["x"], row["val"]["label"]

def dense(*between):
    layers = keras.layers
    return keras.Sequential([keras.Input([8]), layers.Dense(16, "relu"), *between, layers.Dense(4)])

def compiled(model, **options):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    options = dict(metrics=["accuracy"]) | options
    model.compile(options.pop("optimizer", None) or keras.optimizers.Adam(0.01), options.pop("loss", loss), **options)
    return model

def tell(case, model, history, **more):
    counts = {{id(each) for metric in model.metrics for each in metric.variables}}
    weights = [np.asarray(each).tolist() for each in model.weights if id(each) not in counts]
    told = {{name: [float(each) for each in values] for name, values in history.history.items()}}
    found = dict(weights=weights, iterations=int(np.asarray(model.optimizer.iterations)), history=told, **more)
    print("FOUND " + case + " " + json.dumps(found), flush=True)

rows = IgniteDataset("ASYNC").map(example)
"""

# Typical uses of Keras; with one worker the results are those of one process.
CASES = """
keras.utils.set_random_seed(3)
model = compiled(dense())
tell("plain", model, model.fit(rows.batch(16), epochs=3, validation_data=rows.batch(50), verbose=0))

keras.utils.set_random_seed(3)
model = compiled(dense(keras.layers.BatchNormalization()), weighted_metrics=["accuracy"])
calls = [
    keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / (1 + epoch)),
    keras.callbacks.EarlyStopping("loss", patience=9, restore_best_weights=True),
]
weights = {0: 0.5, 1: 1.0, 2: 1.5, 3: 2.0}
history = model.fit(rows.batch(16), epochs=3, class_weight=weights, callbacks=calls, verbose=0)
tell("weighted", model, history)

keras.utils.set_random_seed(3)
model = keras.Sequential([keras.layers.Dense(16, "relu"), keras.layers.Dropout(0.3, seed=5), keras.layers.Dense(4)])
rate = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
model = compiled(model, optimizer=keras.optimizers.SGD(rate, momentum=0.9))
tell("unbuilt", model, model.fit(rows.repeat().batch(16), epochs=3, steps_per_epoch=20, verbose=0))

class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.first, self.last = keras.layers.Dense(16, "relu"), keras.layers.Dense(4)
        self.other = keras.optimizers.SGD(0.05)
        self.told = keras.metrics.Mean(name="told")

    def call(self, x):
        return self.last(self.first(x))

    @property
    def metrics(self):
        return [self.told]

    def train_step(self, data):
        x, y = data
        with tf.GradientTape(persistent=True) as tape:
            loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, self(x), from_logits=True))
        for optimizer, layer in ((self.optimizer, self.first), (self.other, self.last)):
            weights = layer.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        self.told.update_state(loss)
        return {"told": self.told.result(), "last": loss}

keras.utils.set_random_seed(3)
model = Net()
model(tf.zeros([1, 8]))
model.compile(keras.optimizers.Adam(0.01))
tell("own_step", model, model.fit(rows.batch(16), epochs=3, verbose=0))

random = np.random.default_rng(7)
x, y = random.normal(size=(200, 8)).astype("float32"), random.integers(0, 4, 200)
weights = random.uniform(size=200).astype("float32")
keras.utils.set_random_seed(3)
model = compiled(dense())
options = dict(batch_size=24, sample_weight=weights, validation_split=0.2, epochs=3, shuffle=False)
history = model.fit(x, y, verbose=0, **options)
tell("arrays", model, history)

def halved(x, y):
    x = tf.ensure_shape(tf.numpy_function(lambda each: each / 2, [x], tf.float32), [None, 8])
    return x, y

keras.utils.set_random_seed(3)
model = compiled(dense())
tell("python", model, model.fit(rows.batch(16).map(halved), epochs=2, verbose=0))

class Rates(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.sums = []

    def on_train_batch_end(self, batch, logs=None):
        self.sums.append(float(np.abs(np.asarray(self.model.weights[0])).sum()))
        if batch == 4 and len(self.sums) > 38:
            self.model.stop_training = True

keras.utils.set_random_seed(3)
model, own = compiled(dense()), Rates()
history = model.fit(rows.batch(16), epochs=3, callbacks=[own], verbose=0)
tell("stopped", model, history, num_batches=len(own.sums), differ=len(set(own.sums)))
"""
NAMES = ["plain", "weighted", "unbuilt", "own_step", "arrays", "python"]

# Each worker reads its own rows once per epoch; the sum of their labels shows that.
SUMMED = """
class Summed(keras.Sequential):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x, training=True)[:, 0] - x[:, 0]))
        weights = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        much = product = tf.fill([400, 400], tf.reduce_sum(tf.square(x)) * 1e-9)
        for _ in range(SLOWNESS):
            product = tf.linalg.matmul(product, much)
        loss += 0 * product[0, 0]
        self.mean.update_state(loss, tf.shape(x)[0])
        self.seen.update_state(y)
        self.steps.update_state(1)
        return {each.name: each.result() for each in self.metrics}

    @property
    def metrics(self):
        return [self.mean, self.seen, self.steps]

model = Summed([keras.Input([8]), keras.layers.Dense(1)])
model.mean, model.seen, model.steps = (
    keras.metrics.Mean(name="loss"), keras.metrics.Sum(name="seen"), keras.metrics.Sum(name="steps"))
model.compile(keras.optimizers.SGD(0.05))

class Begun(keras.callbacks.Callback):
    batches = 0
    def on_train_batch_end(self, batch, logs=None):
        Begun.batches += 1
        if Begun.batches >= 5:
            print("BEGUN", flush=True)

keras.utils.set_random_seed(3)
rows = IgniteDataset("ASYNC").map(lambda row: (row["val"]["x"], row["val"]["number"]))
history = model.fit(rows.batch(16), epochs=3, callbacks=[Begun()], verbose=0)
tell("summed", model, history, batches=Begun.batches)
"""


@pytest.fixture(scope="module")
def cache(session):
    random = np.random.default_rng(5)
    x = random.normal(size=(NUM_ROWS, 8)).astype(np.float32)
    label = (np.abs(x.sum(axis=1)) % 4).astype(np.int64)
    load(CACHE, {"x": x, "label": label, "number": np.arange(NUM_ROWS)}, replace=True, report=str)
    return CACHE


def found_in(text: str) -> dict:
    """Return the printed results by case name."""
    told = re.findall(r"FOUND (\w+) (.*)", text)
    return {name: json.loads(found) for name, found in told}


def written(module: str, script: str) -> str:
    return BEGIN.format(module=module) + script


def has_begun_and_saved(run, said) -> bool:
    files = fsspec.filesystem("igfs")
    return "BEGUN" in said and bool(files.glob(f"igfs:///runs/{run.id}/training/fit-0/step-*.npz"))


@pytest.fixture(scope="module")
def cases(session, cache, request):
    """The results of all cases in one process, and in a run with a worker and two parameter servers."""
    script = written(request.param, CASES)
    alone = found_in(succeeded(session, RunRequest(cache, script))[1])
    _, text = succeeded(session, RunRequest(cache, script, num_workers=1, num_ps=2))
    assert "in the chief alone" not in text
    assert "the chief reads all rows of this fit" in text  # the dataset that calls Python
    return alone, found_in(text)


OF_FRAMEWORKS = pytest.mark.parametrize("cases", ["keras", AGAIN], indirect=True)


@OF_FRAMEWORKS
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.nightly
def test_one_worker_comes_to_what_one_process_comes_to(cases, name):
    """Nightly. Shorter: test_two_workers_train_each_row_once_an_epoch"""
    alone, found = (each[name] for each in cases)
    assert found["iterations"] == alone["iterations"]
    assert found["history"].keys() == alone["history"].keys()
    for own, others in zip(found["weights"], alone["weights"], strict=True):
        np.testing.assert_allclose(own, others, atol=1e-5)
    for key, values in alone["history"].items():
        np.testing.assert_allclose(found["history"][key], values, atol=1e-5, err_msg=key)


@OF_FRAMEWORKS
@pytest.mark.nightly
def test_a_callback_that_acts_by_batches_sees_weights_and_may_stop(cases):
    """Nightly. Shorter: test_two_workers_train_each_row_once_an_epoch"""
    _, found = (each["stopped"] for each in cases)
    assert found["num_batches"] == 38 + 5
    assert found["differ"] > 20  # steps run ahead, so two reads may return the same weights
    assert 43 <= found["iterations"] <= 45  # steps in flight are completed and counted
    assert len(found["history"]["loss"]) == 2


@FRAMEWORKS
def test_two_workers_train_each_row_once_an_epoch(session, cache, module):
    script = written(module, SUMMED.replace("SLOWNESS", "1").replace("rows.batch", "rows.shuffle(100).batch"))
    run, text = succeeded(session, RunRequest(cache, script, num_workers=2, num_ps=2))
    found, shares = found_in(text)["summed"], [each.rows for each in run.record().workers[:2]]
    assert all(shares)
    num_steps = sum(-(-rows // BATCH) for rows in shares)
    assert "Exception ignored" not in text  # at the end of the rows
    assert found["history"]["seen"] == [TOTAL] * EPOCHS
    assert found["history"]["steps"] == [num_steps] * EPOCHS
    assert found["iterations"] == found["batches"] == num_steps * EPOCHS
    losses = found["history"]["loss"]
    assert losses[-1] < losses[0] / 2


@FRAMEWORKS
@pytest.mark.nightly
def test_a_killed_worker_is_replaced_and_no_row_is_lost_or_counted_twice(session, cache, module):
    """The step that the worker had not reported is repeated, and counted once.

    Nightly. Shorter: tests/runs/test_decisions.py::test_a_process_that_was_started_again_is_noted
    """
    script = written(module, SUMMED.replace("SLOWNESS", "20"))
    request = RunRequest(cache, script, num_workers=2, num_ps=1)
    run, text = succeeded_though_killed(session, request, 0, lambda _, said: "BEGUN" in said)
    record, found = run.record(), found_in(text)["summed"]
    assert (record.generation, record.workers[0].respawns) == (1, 1)
    assert found["history"]["seen"] == [TOTAL] * EPOCHS
    assert found["iterations"] == found["batches"] == sum(found["history"]["steps"])


@FRAMEWORKS
@pytest.mark.nightly
def test_a_killed_parameter_server_restarts_the_fit_from_its_checkpoint(session, cache, module):
    """Nightly. Shorter: tests/runs/test_decisions.py::test_a_parameter_server_that_ends_fails_the_generation"""
    script = written(module, SUMMED.replace("SLOWNESS", "60"))
    request = RunRequest(cache, script, num_workers=2, num_ps=1)
    run, text = succeeded_though_killed(session, request, 2, has_begun_and_saved)
    assert run.record().generation == 2
    found = found_in(text)["summed"]
    assert found["history"]["seen"] == [TOTAL] * EPOCHS
    assert found["iterations"] == sum(found["history"]["steps"])
