"""The reading position in a checkpoint, and how a training resumes from it."""

from __future__ import annotations

import os
import warnings

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import pytest
import tensorflow as tf

from ignite_tf_magic.dataset.lineage import passes_of
from ignite_tf_magic.dataset.passes import EpochTracker, RowShard, Stream
from ignite_tf_magic.training.checkpoints import Checkpoint
from ignite_tf_magic.training.group import WorkerGroup
from ignite_tf_magic.training.reading import begin_at, is_record, record_sources
from ignite_tf_magic.training.task import Place

ALONE = WorkerGroup(Place())
GROUPS = ((0, 2), (1, 3))


def source(share: RowShard | None):
    dataset = tf.data.Dataset.range(10)
    dataset.passes = EpochTracker(share)
    return dataset


def shared(num_partitions: int = 4, num_rows: int = 20):
    return source(RowShard(0, (num_rows,), num_partitions, Stream((tuple(range(num_partitions)),), 8)))


def saved_in_mid_epoch(*sources) -> Checkpoint:
    data = tf.data.Dataset.zip(sources)
    begin_at(data, 3, 0, None, ALONE)
    for passes in passes_of(data):
        passes.start()
        passes.note(Stream(GROUPS, 16))
    arrays, facts = record_sources(data, 3, ALONE)
    assert all(map(is_record, arrays))
    return Checkpoint.from_bytes(Checkpoint(35, arrays, {"sources": facts}).to_bytes())


def test_each_source_goes_on_with_its_own_record():
    saved = saved_in_mid_epoch(shared(), source(None), shared(8))
    assert [fact is None for fact in saved.facts["sources"]].count(True) == 1
    again = [shared(), source(None), shared(8)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        begin_at(tf.data.Dataset.zip(*again), 3, 5, saved, ALONE)
    for dataset in again:
        dataset.passes.start()
    first, none, last = (dataset.passes.stream() for dataset in again)
    assert first == last == Stream(GROUPS, 16)
    assert none is None


def in_a_row(sources):
    data = tf.data.Dataset.range(1)
    for each in sources:
        data = data.concatenate(each)
    return data


@pytest.mark.parametrize(
    "now",
    [
        list,
        lambda: [shared(), shared()],
        lambda: [source(None)],
        lambda: [shared(8)],
        lambda: [shared(num_rows=21)],
        lambda: [source(RowShard(0, (10, 10), 4, Stream((), 8)))],
    ],
    ids=["fewer", "more", "not assigned", "partitions", "rows", "workers"],
)
def test_what_does_not_fit_is_said_once_and_batches_are_left_out_all_the_same(now):
    sources = now()
    saved = saved_in_mid_epoch(shared())
    with pytest.warns(UserWarning, match="of epoch 4 .* trained twice or left out") as caught:
        begin_at(in_a_row(sources), 3, 5, saved, ALONE)
    assert len(caught) == 1
    for each in sources:
        assert each.passes.start() == 5
        assert each.passes.stream() is None


def test_what_was_not_one_pass_over_its_source_cannot_go_on():
    data = shared()
    begin_at(data, 3, 0, None, ALONE)
    for _ in range(4):
        data.passes.start()
    arrays, facts = record_sources(data, 3, ALONE)
    with pytest.warns(UserWarning, match="trained twice or left out"):
        begin_at(shared(), 3, 5, Checkpoint(35, arrays, {"sources": facts}), ALONE)


@pytest.mark.filterwarnings("error")
def test_where_an_epoch_begins_nothing_has_to_fit():
    begin_at(shared(), 4, 0, saved_in_mid_epoch(shared(8)), ALONE)
    begin_at(np.zeros(3), 4, 5, Checkpoint(35, {}, {}), ALONE)


def one_for_one(data):
    return data.map(lambda x: x, 2).map(lambda x: x).prefetch(1).with_options(tf.data.Options())


@pytest.mark.parametrize(
    ("transform", "expected"),
    [
        (one_for_one, [True]),
        (lambda data: data.shuffle(3), [False]),
        (lambda data: data.filter(lambda x: x > 2).prefetch(1), [False]),
        (lambda data: data.map(lambda x: x, 2, deterministic=False), [False]),
        (lambda data: data.repeat(2), [False]),
        (lambda data: data.cache().prefetch(1), []),
        (lambda data: tf.data.Dataset.range(3), []),
    ],
)
def test_batches_are_left_out_at_the_source_where_they_stay_what_they_are(transform, expected):
    """After shuffling or filtering, the first batches are different ones; cached rows are not read again."""
    assert list(passes_of(transform(source(None))).values()) == expected
