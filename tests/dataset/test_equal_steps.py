"""Workers with unequal shards make equal numbers of steps, and sharding loses no row."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from ignite_tf_magic import IgniteDataset
from ignite_tf_magic.training.shares import read_ahead
from tests.training.processes import free_ports

TEN_TO_ONE = [range(930), range(930, 1024)]


def read(become, cache: str, shares: list[range], batch: int, **options) -> list[list[dict]]:
    """Return the batches of each worker."""
    found = []
    for worker in range(len(shares)):
        become(worker, shares)
        dataset = IgniteDataset(cache, **options).batch(batch)
        found.append(list(dataset.as_numpy_iterator()))
        assert int(dataset.cardinality()) == len(found[-1])
    return found


def keys_by_step(found: list[list[dict]]) -> list[np.ndarray]:
    assert len({len(batches) for batches in found}) == 1
    return [np.concatenate([batch["key"] for batch in step]) for step in zip(*found, strict=True)]


@pytest.mark.parametrize(
    "shares", [TEN_TO_ONE, [range(1024), range(0)], [range(400), range(400, 401), range(401, 1024)]]
)
def test_global_batches_have_every_row_once(as_worker, digits, shares):
    steps = keys_by_step(read(as_worker, digits.name, shares, 64))
    assert [len(keys) for keys in steps[:-1]] == [64] * (len(steps) - 1)
    assert sorted(np.concatenate(steps).tolist()) == digits.keys.tolist()


def test_drop_and_repeat_have_full_batches_only(as_worker, digits):
    steps = keys_by_step(read(as_worker, digits.name, TEN_TO_ONE, 100, equal_steps="drop"))
    assert [len(keys) for keys in steps] == [100] * (len(digits.keys) // 100)
    seen = np.concatenate(steps).tolist()
    assert len(set(seen)) == len(seen)
    steps = keys_by_step(read(as_worker, digits.name, TEN_TO_ONE, 100, equal_steps="repeat"))
    assert [len(keys) for keys in steps] == [100] * -(-len(digits.keys) // 100)
    assert set(np.concatenate(steps).tolist()) == set(digits.keys.tolist())


@pytest.mark.nightly
def test_repeated_rows_are_repeated_batches(as_worker, digits):
    """Nightly. Shorter: tests/dataset/test_counted.py::test_it_is_known_as_it_is_read"""
    num_steps = -(-len(digits.keys) // 100)
    found = []
    for worker in range(2):
        as_worker(worker, TEN_TO_ONE)
        rows = IgniteDataset(digits.name)
        twice = rows.repeat(2).map(lambda row: {"key": row["key"]}).shuffle(500).batch(100)
        found.append(list(twice.as_numpy_iterator()))
        assert int(twice.cardinality()) == len(found[-1]) == 2 * num_steps
        endless = rows.repeat().batch(100)
        assert int(endless.cardinality()) == tf.data.INFINITE_CARDINALITY
        assert len(list(endless.take(3 * num_steps))) == 3 * num_steps
        assert sum(1 for _ in rows.repeat().take(2 * len(digits.keys))) == 2 * len(digits.keys)
    keys = np.concatenate(keys_by_step(found)).tolist()
    assert sorted(keys) == sorted([*digits.keys.tolist()] * 2)


def test_rows_that_have_gone_since_they_were_counted_end_nothing_early(as_worker, make_cache):
    cache = make_cache({"x": np.arange(3000, dtype=np.int32)})
    rows = as_worker(0, [range(512), range(512, 1024)], cache.name, more_rows=1)
    dataset = IgniteDataset(cache.name).batch(100)
    sizes = [len(batch["key"]) for batch in dataset.as_numpy_iterator()]
    assert len(sizes) == int(dataset.cardinality()) == -(-sum(rows) // 100)
    assert sum(sizes) < rows[0]
    assert sizes[-1] == 0


def test_the_only_worker_knows_its_number_of_steps(as_worker, digits, make_cache):
    as_worker(0, [range(1024)])
    batches = IgniteDataset(digits.name).batch(100)
    found = list(batches.as_numpy_iterator())
    assert len(found) == int(batches.cardinality()) == -(-len(digits.keys) // 100)
    assert sorted(np.concatenate([batch["key"] for batch in found])) == digits.keys.tolist()
    cache = make_cache({"x": np.arange(3000, dtype=np.int32)})
    (rows,) = as_worker(0, [range(1024)], cache.name, more_rows=1)
    batches = IgniteDataset(cache.name).batch(100)
    sizes = [len(batch["key"]) for batch in batches.as_numpy_iterator()]
    assert sum(sizes) == rows > 3000  # missing rows are replaced: Keras fails with an empty batch
    assert len(sizes) == int(batches.cardinality())


def test_epochs_are_read_ahead(as_worker, digits):
    as_worker(0, TEN_TO_ONE)
    batches = IgniteDataset(digits.name).map(lambda row: row["key"]).batch(64)
    num_steps, given = int(batches.cardinality()), {"epochs": 5, "initial_epoch": 2}
    ahead = read_ahead(batches, given)
    assert ahead["steps_per_epoch"] == num_steps
    keys = np.concatenate(list(ahead["x"].as_numpy_iterator()))
    assert len(keys) == 3 * len(set(keys.tolist()))
    assert given == {"epochs": 5, "initial_epoch": 2}
    assert read_ahead(batches, {"epochs": 1}) == {}
    assert read_ahead(batches, {"epochs": 3, "steps_per_epoch": 2}) == {}
    assert read_ahead(tf.data.Dataset.range(9).batch(2), given) == {}


def test_strings_and_arrays_of_any_length_in_an_empty_batch(as_worker, make_cache):
    cache = make_cache({"name": np.array(["a", "bc"], object), "x": np.arange(2, dtype=np.int32)})
    as_worker(1, [range(1024), range(0)], cache.name)
    (batch,) = IgniteDataset(cache.name).batch(64)
    assert batch["val"]["name"].shape == (0,)


def test_shuffled_shares_keep_equal_steps(as_worker, digits):
    as_worker(1, TEN_TO_ONE)
    dataset = IgniteDataset(digits.name).shuffle(100, seed=1).batch(64)
    assert len(list(dataset)) == -(-len(digits.keys) // 64)


def test_another_cache_is_read_whole(as_worker, digits, make_cache):
    as_worker(0, TEN_TO_ONE)
    other = make_cache({"x": np.arange(100, dtype=np.int32)})
    assert sum(len(b["key"]) for b in IgniteDataset(other.name).batch(7)) == 100
    whole = IgniteDataset(digits.name, assigned=False)
    assert sum(len(b["key"]) for b in whole.batch(1000)) == len(digits.keys)


WORKER = """
import json, os, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf
from ignite_tf_magic import IgniteDataset
strategy = tf.distribute.MultiWorkerMirroredStrategy()
dataset = IgniteDataset(sys.argv[1]).map(lambda row: row["key"]).batch(64)
keys = []
for step, global_batch in enumerate(strategy.experimental_distribute_dataset(dataset)):
    for local in strategy.experimental_local_results(global_batch):
        keys += local.numpy().tolist()
print(json.dumps({"keys": keys}))
"""


def test_two_workers_count_every_row_exactly_once(as_worker, digits, monkeypatch):
    """AUTO sharding of MultiWorkerMirroredStrategy would give each worker half of its own rows."""
    shares = [range(512), range(512, 1024)]
    ports = free_ports(2)
    workers = []
    for index in (0, 1):
        as_worker(index, shares)
        spec = {"worker": [f"127.0.0.1:{port}" for port in ports]}
        monkeypatch.setenv(
            "TF_CONFIG", json.dumps({"cluster": spec, "task": {"type": "worker", "index": index}})
        )
        workers.append(
            subprocess.Popen(
                [sys.executable, "-c", WORKER, digits.name],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    try:
        outputs = [worker.communicate(timeout=300) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    found = []
    for worker, (out, err) in zip(workers, outputs, strict=True):
        assert worker.returncode == 0, err[-2000:]
        found.append(json.loads(out.strip().splitlines()[-1])["keys"])
    seen = [key for keys in found for key in keys]
    assert sorted(seen) == digits.keys.tolist()
