"""Saved state of a dataset: iterator checkpoints, snapshots, and the tf.data service."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import ignite_tf_magic
from ignite_tf_magic import IgniteDataset


@pytest.fixture
def keys(digits):
    """The keys of a dataset that any process can rebuild."""
    ignite_tf_magic.register()
    dataset = IgniteDataset(digits.name, digits.endpoint.host, digits.endpoint.port, read_by="worker")
    return dataset.map(lambda row: row["key"])


def counted(batches):
    return sorted(np.concatenate([np.ravel(each) for each in batches.as_numpy_iterator()]).tolist())


@pytest.mark.parametrize("shuffled", [False, True])
def test_an_iterator_goes_on_from_its_checkpoint(keys, shuffled, tmp_path):
    batches = (keys.shuffle(1000, seed=3) if shuffled else keys).batch(64)
    iterator = iter(batches)
    before = [next(iterator).numpy().tolist() for _ in range(7)]
    path = tf.train.Checkpoint(iterator=iterator).save(str(tmp_path / "position"))
    rest = [each.numpy().tolist() for each in iterator]
    again = iter(batches)
    tf.train.Checkpoint(iterator=again).restore(path).assert_consumed()
    assert [each.numpy().tolist() for each in again] == rest
    assert sorted(key for each in (*before, *rest) for key in each) == list(range(5000))


def test_what_this_process_reads_is_refused_in_the_words_that_the_documents_explain(digits, tmp_path):
    rows = IgniteDataset(digits.name, digits.endpoint.host, digits.endpoint.port)
    checkpoint = tf.train.Checkpoint(iterator=iter(rows.batch(64)))
    with pytest.raises(tf.errors.UnimplementedError, match="GeneratorDataset does not support checkpointing"):
        checkpoint.save(str(tmp_path / "position"))
    with pytest.raises(
        tf.errors.UnimplementedError, match="GeneratorDatasetOp::Dataset does not support serialization"
    ):
        rows.snapshot(str(tmp_path / "snapshot"))


def test_a_snapshot_is_read_in_place_of_the_cache(keys, tmp_path):
    snapshot = keys.snapshot(str(tmp_path / "snapshot"))
    first = list(snapshot.as_numpy_iterator())
    assert sorted(first) == list(range(5000))
    assert list(snapshot.as_numpy_iterator()) == first


@pytest.mark.parametrize("mode", ["distributed_epoch", "parallel_epochs"])
def test_the_service_of_tf_data_reads_it(keys, mode):
    service = tf.data.experimental.service
    dispatcher = service.DispatchServer()
    address = dispatcher.target.partition("://")[2]
    worker = service.WorkerServer(service.WorkerConfig(dispatcher_address=address))
    served = keys.batch(64).apply(service.distribute(mode, dispatcher.target))
    assert counted(served) == list(range(5000))
    worker._stop()
    dispatcher._stop()
