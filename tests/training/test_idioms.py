"""Idioms of tutorials, on rows of a cache: on two workers, and on one, whose steps equal those of a lone process."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ignite_tf_magic.session import RunRequest, load
from tests.training.runs import succeeded

NUM_ROWS = 250
BEGINNING = """
import json, os, pathlib, warnings
import keras
import numpy as np
import tensorflow as tf
import ignite_tf_magic as itf

said = {}

def rows():
    return itf.IgniteDataset("IDIOM_PICTURES")

def pair(row):
    return tf.cast(tf.reshape(row["val"]["image"], [8, 8, 3]), tf.float32) / 255, row["val"]["label"]

def resized(row):
    image, label = pair(row)
    return tf.image.resize(image, (6, 6)), label

def model(size=8, **compiled):
    keras.utils.set_random_seed(1)
    inputs = keras.Input([size, size, 3])
    found = keras.Model(inputs, keras.layers.Dense(3)(keras.layers.Flatten()(keras.layers.Conv2D(2, 3)(inputs))))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    found.compile(keras.optimizers.Adam(0.01), loss, **compiled)
    return found

def fitted(name, data, size=8, compiled={}, **options):
    one = model(size, **compiled)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        one.fit(data, verbose=0, **options)
    said[name] = [int(one.optimizer.iterations), " ".join(str(each.message) for each in told)]
    return one
"""
ENDING = "print(json.dumps(said))"


def pictures_columns(num_rows: int = NUM_ROWS) -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)
    return {
        "image": random.integers(0, 255, (num_rows, 8, 8, 3)).astype(np.uint8),
        "label": random.integers(0, 3, num_rows).astype(np.int32),
        "digit": (np.arange(num_rows) % 10).astype(np.int32),
        "numbers": random.integers(0, 5, (num_rows, 4)).astype(np.float32),
        "place": np.linspace(-1, 1, num_rows, dtype=np.float32),
    }


@pytest.fixture(scope="module", autouse=True)
def pictures(session):
    load("IDIOM_PICTURES", pictures_columns(), replace=True, report=str)


def said_by(session, script: str, num_workers: int) -> list[dict]:
    """Return the results that each worker printed, by worker."""
    request = RunRequest("IDIOM_PICTURES", BEGINNING + script + ENDING, num_workers=num_workers)
    run = succeeded(session, request)[0]
    texts = ["" for _ in range(num_workers)]
    for chunk in run.follow():
        texts[chunk.worker] += chunk.text
    return [json.loads(next(line for line in text.splitlines() if line.startswith("{"))) for text in texts]


# The number of steps and the warnings with functions that cannot be vectorized, cached rows, and filtered rows.
STEPS = """
fitted("vectorised", rows().map(pair).batch(50))
fitted("row by row", rows().map(resized).batch(50), 6)
fitted("asked for row by row", rows().map(pair, vectorize=False).shuffle(250).batch(50))
fitted("kept", rows().map(pair).cache().batch(125), epochs=2)
fitted("kept and compiled", rows().map(pair).cache().batch(125), compiled={"jit_compile": True}, epochs=2)
fitted("left out", rows().map(pair).filter(lambda image, label: label >= 0).batch(50 // itf.task().num_workers))
fitted("padded", rows().map(pair).padded_batch(50))
fitted("repeated", rows().map(pair).repeat(2).batch(64))
fitted("repeated evenly", rows().map(pair).repeat(2).batch(50))
nested = rows().map(lambda row: tf.data.Dataset.from_tensors(row["val"]["label"]))
said["nested"] = int(nested.flat_map(lambda labels: labels).reduce(0, lambda count, _: count + 1))
"""


def check_steps(by_worker: list[dict]) -> None:
    """Check the results of STEPS on each worker."""
    own_batches, repeated = "each worker has put rows of its own into batches", "after repeat()"
    assert sum(said["nested"] for said in by_worker) == NUM_ROWS
    for index, said in enumerate(by_worker):
        found = {name: each[0] for name, each in said.items() if isinstance(each, list)}
        told = {name: each[1] for name, each in said.items() if isinstance(each, list)}
        assert {name: found[name] for name in ("vectorised", "row by row", "asked for row by row")} == {
            "vectorised": 5,
            "row by row": 5,
            "asked for row by row": 5,
        }
        # If the cardinality is unknown, Keras in one process counts an extra step per epoch.
        counted = (4, 4, 8) if len(by_worker) > 1 else (6, 4, 9)
        assert (found["kept"], found["kept and compiled"], found["repeated"]) == counted
        is_told = len(by_worker) > 1 and index == 0
        assert [name for name in told if own_batches in told[name]] == ["left out", "padded"] * is_told
        assert repeated not in told["repeated evenly"]


@pytest.mark.timeout(900)
@pytest.mark.nightly
def test_steps_of_one_worker_are_those_of_one_process(session):
    """Nightly. Shorter: tests/training/test_two_workers.py::test_steps_are_those_of_one_process"""
    check_steps(said_by(session, STEPS, 1))


@pytest.mark.timeout(900)
@pytest.mark.nightly
def test_a_pass_that_ends_in_a_batch_is_told_of(session):
    """Nightly. Shorter: tests/training/test_two_workers.py::test_steps_are_those_of_one_process"""
    script = """
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    rows().repeat(2).batch(64)
said["uneven"] = [str(each.message) for each in told]
"""
    for said in said_by(session, script, 2):
        (words,) = said["uneven"]
        assert words.startswith("batch(64) after repeat()")
    assert said_by(session, script, 1) == [{"uneven": []}]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.nightly
def test_data_of_other_kinds(session, tmp_path, num_workers):
    """Doubles, validation rows of unknown or zero number, and a model that all workers export.

    Nightly. Shorter: tests/training/test_two_workers.py::test_steps_are_those_of_one_process
    """
    script = """
class Own(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x, training=True) - y[:, None]))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}

inputs = keras.Input([4])
own = Own(inputs, keras.layers.Dense(1)(inputs))
own.compile("sgd")
doubles = np.random.default_rng(1).normal(size=(60, 4))
said["doubles"] = own.fit(doubles, doubles[:, 0], shuffle=False, verbose=0).history["loss"]

history = model(6).fit(
    rows().map(resized).batch(50), validation_data=rows().map(resized).filter(lambda *_: True).batch(50), verbose=0
).history
said["validated"] = len(history["val_loss"])

inputs = keras.Input([None, 4])
steps = keras.Sequential([inputs, keras.layers.LSTM(2), keras.layers.Dense(3)])
steps.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
series = rows().map(lambda row: (tf.reshape(pair(row)[0], [-1, 4]), row["val"]["label"]))
nothing = series.filter(lambda *_: False).batch(50)
said["series"] = len(steps.fit(series.batch(50), validation_data=nothing, verbose=0).history["loss"])

place = pathlib.Path(PLACE)
for _ in range(4):
    own.export(place, verbose=False)
exported = tf.saved_model.load(place)
said["exported"] = np.asarray(exported.serve(tf.zeros([1, 4]))).shape == (1, 1)
"""
    script = script.replace("PLACE", repr(str(tmp_path / "exported")))
    for said in said_by(session, script, num_workers):
        assert len(said["doubles"]) == said["validated"] == said["series"] == 1
        assert said["exported"]
    assert [each.name for each in tmp_path.iterdir()] == ["exported"]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("framework", ["keras", pytest.param("tf_keras", marks=pytest.mark.nightly)])
@pytest.mark.parametrize("num_workers", [pytest.param(1, marks=pytest.mark.nightly), 2])
@pytest.mark.nightly
def test_steps_are_traced_once_for_a_model(session, framework, num_workers):
    """Repeated fits and evaluations do not retrace, and a deleted model is freed.

    Nightly. Shorter: tests/training/test_two_workers.py::test_steps_are_those_of_one_process
    """
    script = """
import gc, weakref

class Traced(keras.Sequential):
    traces = 0

    def train_step(self, data):
        Traced.traces += 1
        return super().train_step(data)

    def test_step(self, data):
        Traced.traces += 1
        return super().test_step(data)

def compiled():
    one = Traced([keras.Input([8, 8, 3]), keras.layers.Flatten(), keras.layers.Dense(3)])
    one.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return one

def uncounted():
    return rows().map(pair).filter(lambda *_: True).batch(50)

one, counts = compiled(), []
for _ in range(3):
    one.fit(uncounted(), validation_data=uncounted(), verbose=0)
    one.evaluate(uncounted(), verbose=0)
    one.fit(rows().map(pair).batch(50), verbose=0)
    counts.append(Traced.traces)
one.compile("sgd", "mse")
said["traces"], said["later"] = counts[0], counts[2] - counts[0]
known = weakref.ref(one)
del one
keras.backend.clear_session()
gc.collect()
said["left"] = known() is not None
"""
    if framework == "tf_keras":
        script = "import tf_keras as keras\n" + script
    for said in said_by(session, script, num_workers):
        assert 2 <= said["traces"] <= 8
        assert said["later"] == 0
        assert not said["left"]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.nightly
def test_steps_that_look_at_values(session, num_workers):
    """Eager models that get their input shape in `fit`, with an unknown number of rows.

    Nightly. Shorter: tests/training/test_two_workers.py::test_steps_are_those_of_one_process
    """
    script = """
class Looking(keras.Sequential):
    seen = 0.0

    def train_step(self, data):
        self.seen += float(np.asarray(data[1]).sum())
        return super().train_step(data)

one = Looking([keras.layers.Flatten(), keras.layers.Dense(3)])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
one.compile("adam", loss, run_eagerly=True)
one.fit(rows().map(pair).filter(lambda *_: True).batch(50), verbose=0)
said["seen"] = one.seen
said["labels"] = float(sum(np.sum(label) for _, label in rows().map(pair).batch(250)))
"""
    for said in said_by(session, script, num_workers):
        assert said["seen"] == said["labels"] > 0
