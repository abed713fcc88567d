"""Batches that the run has already split, in `MultiWorkerMirroredStrategy`; and deterministic trainings."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ignite_tf_magic.errors import ConfigError
from ignite_tf_magic.session import RunRequest, load
from tests.training.runs import succeeded

NUM_ROWS = 1000


@pytest.fixture(scope="module", autouse=True)
def points(session):
    x = np.random.default_rng(1).normal(size=(NUM_ROWS, 4)).astype(np.float32)
    columns = {"x": x, "label": (x.sum(axis=1) > 0).astype(np.int32)}
    load("DEALT_POINTS", columns, replace=True, report=str)


def said(session, script: str, num_workers: int) -> tuple[list, str]:
    """Return the JSON that workers print, and their whole output."""
    _, text = succeeded(session, RunRequest("DEALT_POINTS", script, num_workers=num_workers))
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")], text


@pytest.mark.timeout(900)
@pytest.mark.nightly
def test_batches_that_were_dealt_are_not_cut_again(session):
    """Nightly. Shorter: tests/notebooks/test_documents.py::test_examples_of_the_documents_run"""
    script = """
import json, warnings
import tensorflow as tf
import ignite_tf_magic as itf

strategy = itf.strategy()
rows = itf.IgniteDataset("DEALT_POINTS").map(lambda row: row["key"])

def keys(distributed):
    return [strategy.experimental_local_results(batch)[0].numpy().tolist() for batch in distributed]

dealt = keys(strategy.experimental_distribute_dataset(rows.batch(125).map(lambda keys: keys + 0)))
mine = [batch.numpy().tolist() for batch in rows.batch(125)]
of_all = keys(strategy.experimental_distribute_dataset(tf.data.Dataset.range(100).batch(10)))

@tf.function
def step(numbers):
    numbers = tf.cast(numbers, tf.float32)
    return tf.nn.compute_average_loss(numbers), tf.nn.compute_average_loss(numbers, global_batch_size=125)

with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    strategy.run(step, args=(tf.range(3),))
told = [str(each.message) for each in told if "global_batch_size" in str(each.message)]
print(json.dumps({"dealt": dealt, "mine": mine, "of_all": of_all, "told": told}))
"""
    workers, text = said(session, script, 2)
    assert all(worker["dealt"] == worker["mine"] for worker in workers)
    steps = [sum(map(len, parts)) for parts in zip(*(worker["dealt"] for worker in workers), strict=True)]
    assert steps == [125] * (NUM_ROWS // 125)
    assert sorted(key for worker in workers for part in worker["dealt"] for key in part) == list(
        range(NUM_ROWS)
    )
    assert sorted(key for worker in workers for part in worker["of_all"] for key in part) == list(range(100))
    assert [len(worker["told"]) for worker in workers] == [1, 1]
    assert "Exception ignored" not in text


@pytest.mark.timeout(900)
@pytest.mark.nightly
def test_deterministic_operations_know_no_time(session):
    """Nightly. Shorter: tests/training/test_two_workers.py::test_steps_are_those_of_one_process"""
    script = """
import json
import keras, tensorflow as tf
import ignite_tf_magic as itf

keras.utils.set_random_seed(1)
tf.config.experimental.enable_op_determinism()
model = keras.Sequential([keras.Input([4]), keras.layers.Dense(2)])
model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
rows = itf.IgniteDataset("DEALT_POINTS").map(lambda row: (row["val"]["x"], row["val"]["label"]))
history = model.fit(rows.batch(125), epochs=2, verbose=0)
print(json.dumps({"loss": history.history["loss"]}))
"""
    workers, _ = said(session, script, 2)
    assert workers[0] == workers[1]
    assert workers[0]["loss"][1] < workers[0]["loss"][0]


@pytest.mark.timeout(900)
@pytest.mark.nightly
def test_tensors_cannot_go_between_gpus_that_are_not_there(session):
    """Nightly. Shorter: test_ways_that_there_are_not"""
    script = "import tensorflow as tf\ntf.config.set_visible_devices([], 'GPU')\nimport keras"
    request = RunRequest("DEALT_POINTS", script, num_workers=2, communication="nccl", max_restarts=0)
    run = session.start_run(request)
    run.wait(300)
    text = "".join(chunk.text for chunk in run.follow())
    assert "--communication nccl sends tensors from GPU to GPU" in text
    assert "--gpus 1" in text


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"communication": "mpi"}, "--communication mpi: auto, ring or nccl is needed"),
        ({"communication": "ring", "num_ps": 1}, "--strategy async do not"),
    ],
)
def test_ways_that_there_are_not(session, options, told):
    with pytest.raises(ConfigError, match=told):
        session.start_run(RunRequest("DEALT_POINTS", "pass", num_workers=2, **options))
