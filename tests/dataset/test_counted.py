"""The numbers of rows and batches are known before reading; outside a run the cluster counts."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from ignite_tf_magic import IgniteDataset
from ignite_tf_magic.client.client import connect
from ignite_tf_magic.dataset.reader import ChunkReader
from ignite_tf_magic.protocol.messages import CacheConfig
from ignite_tf_magic.protocol.objects import BinaryObject
from ignite_tf_magic.session import open_session

ROWS = 1_050


@pytest.fixture
def cache(make_cache):
    columns = {"x": np.arange(ROWS, dtype=np.float32), "y": np.arange(ROWS, dtype=np.float32)}
    return make_cache(columns)


def opened(cache, **options):
    return IgniteDataset(cache.name, **cache.where(), **options)


@pytest.mark.parametrize("read_by", [None, "caller"])
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda rows: rows, ROWS),
        (lambda rows: rows.map(lambda row: row["val"]["x"]), ROWS),
        (lambda rows: rows.shuffle(100, seed=1), ROWS),
        (lambda rows: rows.map(lambda row: row["key"], vectorize=False), None),
        (lambda rows: rows.repeat(3), 3 * ROWS),
        (lambda rows: rows.repeat(2).repeat(2), 4 * ROWS),
        (lambda rows: rows.prefetch(2), ROWS),
        (lambda rows: rows.cache(), None),
        (lambda rows: rows.batch(100), 11),
        (lambda rows: rows.batch(100, drop_remainder=True), 10),
        (lambda rows: rows.repeat(2).batch(100), 21),
        (lambda rows: rows.batch(100).map(lambda row: row["key"]).prefetch(1), 11),
        (lambda rows: rows.batch(100).with_options(tf.data.Options()), 11),
        (lambda rows: rows.filter(lambda row: row["key"] < 5), None),
    ],
)
def test_it_is_known_as_it_is_read(cache, read_by, change, expected):
    dataset = change(opened(cache, read_by=read_by))
    if expected is None:
        assert dataset.cardinality() == tf.data.UNKNOWN_CARDINALITY
        with pytest.raises(TypeError, match="unknown"):
            len(dataset)
    else:
        assert len(dataset) == int(dataset.cardinality()) == len(list(dataset)) == expected


def test_repeated_without_end_it_is_infinite(cache):
    for dataset in (opened(cache).repeat(), opened(cache).repeat().batch(7)):
        assert dataset.cardinality() == tf.data.INFINITE_CARDINALITY


@pytest.mark.parametrize("options", [{"part": "0-99"}, {"where": "X < 5"}, {"allow_partial": True}])
def test_of_some_of_the_rows_it_is_not_known(cache, options):
    dataset = opened(cache, **options)
    assert dataset.cardinality() == dataset.batch(5).cardinality() == tf.data.UNKNOWN_CARDINALITY


def test_it_is_the_number_of_now(ignite, cache):
    rows = opened(cache)
    batches = rows.batch(100)
    assert (len(rows), len(batches)) == (ROWS, 11)
    with connect(ignite.connect_options) as client:
        more = {
            ROWS + number: BinaryObject(cache.name, {"x": np.float32(0), "y": np.float32(0)})
            for number in range(100)
        }
        client.cache(cache.name).put_all(more)
    assert (len(rows), len(batches)) == (ROWS + 100, 12)
    assert len(list(batches)) == 12


def test_packed_rows_are_counted(ignite):
    with open_session(ignite.connect_options, report=print) as session:
        session.load("COUNTED_PACKED", {"x": np.arange(ROWS, dtype=np.float32)}, packed=True)
        try:
            port = ignite.connect_options.endpoints[0].port
            rows = IgniteDataset("COUNTED_PACKED", port=port)
            assert (len(rows), len(rows.batch(100))) == (ROWS, 11)
        finally:
            session.client.destroy_cache("COUNTED_PACKED")


def test_workers_of_a_run_ask_nobody(as_worker, digits):
    """Workers would count at different times, but all must make the same number of steps."""
    as_worker(0, [range(512), range(512, 1024)])
    whole, mine = IgniteDataset(digits.name, assigned=False), IgniteDataset(digits.name)
    some = IgniteDataset(digits.name, where="label < 5")
    for rows in (whole, whole.batch(7), mine, some, some.map(lambda row: row["key"])):
        assert rows.cardinality() == tf.data.UNKNOWN_CARDINALITY
    assert len(mine.batch(500)) == -(-len(digits.keys) // 500)  # batches of all workers together


@pytest.mark.filterwarnings("ignore:Your input ran out of data")  # Keras, with unknown cardinality
def test_what_is_kept_is_read_once(cache, monkeypatch):
    """`cache()` keeps nothing until a pass ends, and Keras stops a pass early if it has counted the batches."""
    opens, start = [], ChunkReader.__init__
    monkeypatch.setattr(ChunkReader, "__init__", lambda *args: opens.append(1) or start(*args))
    kept = opened(cache).map(lambda row: (row["val"]["x"], row["val"]["y"])).cache().batch(105)
    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(kept.map(lambda x, y: (x / ROWS, y / ROWS)), epochs=3, verbose=0, shuffle=False)
    assert len(opens) == 1


def test_a_cache_that_was_empty_has_no_rows(ignite, client):
    made = client.create_cache(CacheConfig("COUNTED_EMPTY"))
    try:
        spec = {"key": tf.TensorSpec([], tf.int64), "val": tf.TensorSpec([], tf.int64)}
        rows = IgniteDataset("COUNTED_EMPTY", port=ignite.nodes[0].port, element_spec=spec)
        made.put(1, 2)
        assert rows.cardinality() != 1
        assert list(rows) == []
    finally:
        client.destroy_cache("COUNTED_EMPTY")


def test_keras_knows_its_steps_in_the_first_epoch(cache):
    batches = opened(cache).map(lambda row: (row["val"]["x"], row["val"]["y"])).batch(100)
    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    steps, seen = [], []
    told = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(batch),
        on_epoch_begin=lambda epoch, logs: steps.append(told.params["steps"]),
    )
    model.fit(
        batches.map(lambda x, y: (x / ROWS, y / ROWS)), epochs=2, verbose=0, shuffle=False, callbacks=[told]
    )
    assert steps == [11, 11]
    assert seen == 2 * list(range(11))
    assert int(model.optimizer.iterations) == 22
