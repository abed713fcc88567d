"""A dataset that follows a cache: existing and new rows, ending early, and workers' shards."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

from ignite_tf_magic import IgniteDataset
from ignite_tf_magic.client.cache_facts import mark_loading
from ignite_tf_magic.client.client import connect
from ignite_tf_magic.client.load import put_rows
from ignite_tf_magic.errors import ConfigError, LoadIncomplete
from ignite_tf_magic.protocol.encode import RowEncoder

pytestmark = pytest.mark.timeout(120)


def columns(keys) -> dict[str, np.ndarray]:
    keys = np.asarray(list(keys))
    return {
        "x": keys.astype(np.float32) / 7,
        "label": (keys % 3).astype(np.int32),
        "name": keys.astype(str).astype(object),
    }


@pytest.fixture
def cache(make_cache):
    return make_cache(columns(range(100)))


@pytest.fixture
def put(ignite, cache):
    def put(keys) -> None:
        with connect(ignite.connect_options) as client:
            put_rows(client.cache(cache.name), RowEncoder(cache.name, columns(keys), np.asarray(list(keys))))

    return put


def followed(cache, **options):
    return IgniteDataset(cache.name, **cache.where(), follow=True, **options)


def taken(batches, num_rows: int) -> dict[int, tuple[float, int, bytes]]:
    """Take batches until there are `num_rows` rows. Returns the rows by key."""
    found: dict[int, tuple[float, int, bytes]] = {}
    while len(found) < num_rows:
        rows = next(batches)
        value = rows["val"]
        parts = (rows["key"], value["x"], value["label"], value["name"])
        for key, *row in zip(*(part.numpy().tolist() for part in parts), strict=True):
            found[key] = tuple(row)
    return found


def expected(keys) -> dict[int, tuple[float, int, bytes]]:
    made = columns(keys)
    return {
        int(key): (float(made["x"][n]), int(made["label"][n]), str(key).encode())
        for n, key in enumerate(keys)
    }


def test_rows_that_are_there_and_then_those_that_are_put(cache, put):
    dataset = followed(cache)
    assert dataset.cardinality() == tf.data.INFINITE_CARDINALITY
    assert dataset.batch(10).cardinality() == tf.data.INFINITE_CARDINALITY
    batches = iter(dataset.batch(10))
    assert taken(batches, 100) == expected(range(100))
    putting = threading.Thread(target=lambda: [put(range(n, n + 50)) for n in range(100, 400, 50)])
    putting.start()
    assert taken(batches, 300) == expected(range(100, 400))
    putting.join()


def test_each_iteration_begins_anew_and_one_may_leave_out_what_it_knows(cache):
    dataset = followed(cache)
    for _ in range(2):
        assert taken(iter(dataset.batch(20)), 100) == expected(range(100))
    assert taken(iter(followed(cache, after=69).batch(10)), 30) == expected(range(70, 100))


def test_what_runs_on_pages_runs_on_those_that_come(cache, put):
    rows = followed(cache).map(lambda row: (row["key"], row["val"]["x"] * 2)).shuffle(50, seed=1)
    batches = iter(rows.batch(25).prefetch(2))
    found = [next(batches) for _ in range(4)]
    put(range(100, 200))
    found += [next(batches) for _ in range(4)]
    keys = np.concatenate([key.numpy() for key, _ in found])
    assert sorted(keys.tolist()) == list(range(200))
    assert keys.tolist() != sorted(keys.tolist())
    np.testing.assert_allclose(np.concatenate([x.numpy() for _, x in found]), keys / 7 * 2, rtol=1e-6)


def test_a_function_that_tensorflow_cannot_vectorise(cache):
    @tf.py_function(Tout=tf.int64)
    def told(key):
        return key

    rows = followed(cache).map(lambda row: tf.ensure_shape(told(row["key"]), []), vectorize=False)
    assert sorted(np.concatenate([next(each) for each in [iter(rows.batch(50))] for _ in range(2)])) == list(
        range(100)
    )


@pytest.mark.parametrize("ahead", [0, 2])
def test_it_ends_in_the_middle_though_nothing_comes(cache, ahead):
    rows = followed(cache).batch(30)
    batches = iter(rows.prefetch(ahead) if ahead else rows)
    next(batches)
    time.sleep(0.5)  # the iterator is waiting for rows of a fourth batch
    started = time.monotonic()
    del batches
    assert time.monotonic() - started < 30
    assert len(list(followed(cache).take(7))) == 7
    assert not [each for each in threading.enumerate() if each.name.startswith("follow")]


def test_keras_trains_by_steps(cache, put):
    rows = followed(cache).map(lambda row: (row["val"]["x"][None], row["val"]["x"][None] * 3))
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1, use_bias=False)])
    model.compile(keras.optimizers.SGD(0.001), "mse")
    put(range(100, 200))
    history = model.fit(rows.batch(20), steps_per_epoch=5, epochs=2, verbose=0, shuffle=False)
    assert len(history.history["loss"]) == 2
    assert model.get_weights()[0][0, 0] == pytest.approx(3, abs=0.1)


def test_workers_follow_shares_of_their_own_and_share_each_batch(cache, put, as_worker):
    shares = [range(0, 1024, 2), range(1, 1024, 2), range(0)]
    found, batches = [], []
    for worker in range(2):
        as_worker(worker, shares[:2], cache.name)
        batches.append(iter(followed(cache).batch(11)))
        first = next(batches[worker])
        assert len(first["key"]) == (6, 5)[worker]
        found.append(first["key"].numpy().tolist())
    put(range(100, 1000))
    for keys, each in zip(found, batches, strict=True):
        for rows in itertools.islice(each, 70):
            keys += rows["key"].numpy().tolist()
    assert len(set(found[0])) == len(found[0])
    assert len(set(found[1])) == len(found[1])
    assert not set(found[0]) & set(found[1])
    # With fewer rows than workers, each worker still brings one row.
    assert len(next(iter(followed(cache).batch(1)))["key"]) == 1
    as_worker(2, shares, cache.name)
    with pytest.raises(ConfigError, match="no partition of cache"):
        followed(cache)


def test_parts_of_a_cache(cache, put):
    rows = followed(cache, part="0-511")
    ours = IgniteDataset(cache.name, **cache.where(), part="0-511").arrays()["key"].tolist()
    batches = iter(rows.batch(len(ours)))
    assert sorted(next(batches)["key"].numpy().tolist()) == sorted(ours)
    put(range(100, 300))
    more = IgniteDataset(cache.name, **cache.where(), part="0-511").arrays()["key"].tolist()
    more = sorted(set(more) - set(ours))
    few = next(iter(followed(cache, part="0-511", after=99).batch(len(more))))
    assert sorted(few["key"].numpy().tolist()) == more


def test_what_it_cannot_do(cache):
    with pytest.raises(ConfigError, match="give follow=True as well"):
        IgniteDataset(cache.name, **cache.where(), after=3)
    with pytest.raises(ConfigError, match="name them: part="):
        followed(cache, local=True)
    with pytest.raises(ConfigError, match="by this process alone"):
        followed(cache, read_by="worker")
    with tf.Graph().as_default(), pytest.raises(ConfigError, match="by this process alone"):
        followed(cache)
    with pytest.raises(ValueError, match=r"take\(\) some first"):
        followed(cache).arrays()
    with pytest.raises(ValueError, match="have no end"):
        followed(cache).cache()


def test_what_goes_wrong_later_is_told(ignite, cache, put):
    batches = iter(followed(cache).batch(100))
    next(batches)
    with connect(ignite.connect_options) as client:
        client.cache(cache.name).put(100, "no object")
    with pytest.raises(tf.errors.OpError, match="SchemaError.*key 100 has another type in"):
        next(batches)


def test_a_cache_that_is_destroyed(ignite, fill_cache):
    cache = fill_cache(ignite, "FOLLOWED_UNTIL_GONE", columns(range(100)))
    batches = iter(followed(cache, fields=["label"]).batch(100))
    next(batches)
    with connect(ignite.connect_options) as client:
        client.destroy_cache(cache.name)
    with pytest.raises(tf.errors.OpError, match="CacheNotFound"):
        next(batches)


@pytest.mark.parametrize("ahead", [pytest.param("", marks=pytest.mark.nightly), ".prefetch(2)"])
def test_a_process_ends_though_it_follows(cache, ahead):
    script = f"""
from ignite_tf_magic import IgniteDataset
batches = iter(IgniteDataset({cache.name!r}, follow=True).batch(30){ahead})
print(len(next(batches)["key"]), flush=True)
"""
    env = {**os.environ, "IGNITE_TF_CLUSTER": str(cache.endpoint)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=100
    )
    assert (done.returncode, done.stdout) == (0, "30\n"), done.stderr


def test_a_load_that_is_under_way_is_followed(cache, client):
    mark_loading(client, cache.name, 1000)
    with pytest.raises(LoadIncomplete):
        IgniteDataset(cache.name, **cache.where())
    assert set(taken(iter(followed(cache).batch(25)), 100)) == set(range(100))
