"""The pass's number determines its order, and a pass can begin in its middle."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

from ignite_tf_magic import IgniteDataset
from ignite_tf_magic.client.client import connect
from ignite_tf_magic.dataset import paged
from ignite_tf_magic.dataset.lineage import passes_of
from ignite_tf_magic.dataset.passes import EpochTracker, PassSeed


@pytest.fixture(params=[1, 2], ids=["alone", "of two"])
def in_a_run(request, digits, ignite, tmp_path, monkeypatch):
    """Become a worker of a run."""
    with connect(ignite.connect_options) as client:
        stats = client.cache(digits.name).partition_stats()
    half = range(512)
    rows = [sum(stats[p].rows for p in stats if (p in half) == first) for first in (True, False)]
    record = {
        "cache": digits.name,
        "worker": 0,
        "rows_by_worker": rows if request.param == 2 else [sum(rows)],
    }
    path = tmp_path / "assignment.json"
    path.write_text(json.dumps(record))
    monkeypatch.setenv("IGNITE_DATASET_HOST", digits.endpoint.host)
    monkeypatch.setenv("IGNITE_DATASET_PORT", str(digits.endpoint.port))
    monkeypatch.setenv("IGNITE_DATASET_PART", "0-511" if request.param == 2 else "0-1023")
    monkeypatch.setenv("IGNITE_DATASET_ASSIGNED_CACHE", digits.name)
    monkeypatch.setenv("IGNITE_DATASET_ASSIGNMENT_FILE", str(path))
    monkeypatch.setenv("IGNITE_TF_RUN_ID", "mnist-1122-0900-abc")


def read(dataset) -> list[list[int]]:
    return [batch.tolist() for batch in dataset.as_numpy_iterator()]


def shuffled(name: str, **options):
    dataset = IgniteDataset(name).map(lambda row: row["key"]).shuffle(700, **options)
    return dataset.batch(256).map(lambda keys: keys).prefetch(2)


@pytest.mark.parametrize("options", [{}, {"seed": 3}])
def test_a_training_goes_on_where_it_was(in_a_run, digits, options):
    undisturbed = shuffled(digits.name, **options)
    passes = [read(undisturbed) for _ in range(3)]
    assert passes[0] != passes[1] != passes[2]
    again = shuffled(digits.name, **options)  # as after a restart
    (position,) = passes_of(again)
    position.begin(1, skipped_batches=4)
    found = read(again)
    assert found[:4] == [[]] * 4
    assert found[4:] == passes[1][4:]
    assert read(again) == passes[2]
    assert again.cardinality() == undisturbed.cardinality()
    assert again.options().experimental_distribute.auto_shard_policy.name == "OFF"


def test_the_same_order_in_each_pass(in_a_run, digits):
    dataset = shuffled(digits.name, reshuffle_each_iteration=False)
    assert read(dataset) == read(dataset)


def test_two_pipelines_over_one_dataset_have_passes_of_their_own(in_a_run, digits):
    rows = IgniteDataset(digits.name).map(lambda row: row["key"])
    first, second = rows.batch(256), rows.batch(256)
    whole = read(second)
    (position,) = passes_of(first)
    position.begin(0, skipped_batches=2)
    assert read(second) == whole
    assert read(first) == [[], [], *whole[2:]]


def test_a_training_goes_on_where_it_was_with_rows_that_are_kept(in_a_run, digits):
    def kept():
        return IgniteDataset(digits.name).shuffle(700).cache().map(lambda row: row["key"]).batch(256)

    undisturbed = kept()
    passes = [read(undisturbed) for _ in range(5)]
    again = kept()
    (position,) = passes_of(again)
    position.begin(3, skipped_batches=4)
    assert read(again) == [[]] * 4 + passes[3][4:]
    assert read(again) == passes[4]


def test_outside_of_runs_nothing_is_numbered(digits):
    dataset = IgniteDataset(digits.name, **digits.where()).batch(256)
    assert passes_of(dataset) == {}


def test_seeds():
    def draw(seed: int | None, first: int, number: int, **options) -> list[int]:
        passes = EpochTracker()
        passes.begin(first)
        seeds = PassSeed(seed, passes, "part", **options)
        return [int(seeds()) for _ in range(number)]

    assert draw(5, 0, 4)[2:] == draw(5, 2, 2)
    assert len(set(draw(5, 0, 100) + draw(6, 0, 100))) == 200
    assert len(set(draw(5, 0, 3, reshuffle=False))) == 1
    assert draw(None, 0, 1) != draw(None, 0, 1)
    assert all(0 <= seed <= np.iinfo(np.int64).max for seed in draw(-7, 0, 50))


def test_shard_in_a_run_of_several_workers_is_hinted_at_once(in_a_run, digits, monkeypatch, recwarn):
    monkeypatch.setattr(paged, "_hinted", set())
    rows = IgniteDataset(digits.name).map(lambda row: row["key"])
    for _ in range(2):
        part = [int(key) for key in rows.shard(2, 1).as_numpy_iterator()]
    assert len(part) == len([*rows.as_numpy_iterator()]) // 2
    told = [
        str(each.message)
        for each in recwarn
        if "shard() takes a part of this worker's rows" in str(each.message)
    ]
    assert len(told) == (1 if os.environ["IGNITE_DATASET_PART"] == "0-511" else 0)
