"""Rows as arrays: those of a worker's shard, and those of all workers."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from ignite_tf_magic import IgniteDataset


def test_a_workers_rows_and_those_of_all(as_worker, digits):
    shares = [list(range(300)), list(range(300, 1024))]
    seen = []
    for worker in range(2):
        as_worker(worker, shares)
        dataset = IgniteDataset(digits.name)
        mine, everything = dataset.arrays(), dataset.arrays(assigned=False)
        assert mine["val"]["pixels"].dtype == np.uint8
        assert mine["val"]["pixels"].shape == (len(mine["key"]), 64)
        np.testing.assert_array_equal(mine["val"]["pixels"], digits.columns["pixels"][mine["key"]])
        assert sorted(everything["key"]) == list(digits.keys)
        seen += list(mine["key"])
    assert 0 < len(mine["key"]) < len(digits.keys)
    assert sorted(seen) == list(digits.keys)


def test_of_mapped_rows_and_of_none(as_worker, digits):
    as_worker(0, [[5, 6], list(range(7, 1024))])
    rows = IgniteDataset(digits.name).map(lambda row: (row["val"]["label"] * 2, row["key"]))
    labels, keys = rows.arrays()
    assert len(keys) < len(digits.keys)
    np.testing.assert_array_equal(labels, digits.columns["label"][keys] * 2)
    assert sorted(rows.arrays(assigned=False)[1]) == list(digits.keys)
    as_worker(0, [[], list(range(1024))])
    none = IgniteDataset(digits.name).arrays()
    assert none["val"]["pixels"].shape == (0, 64)
    assert none["key"].dtype == np.int64


def test_rows_of_different_lengths(make_cache):
    texts = np.array(["a", "bb", "", "cccc"], object)
    lists = np.array([np.arange(n, dtype=np.int32) for n in (3, 0, 1, 2)], object)
    cache = make_cache({"text": texts, "numbers": lists})
    found = IgniteDataset(cache.name, **cache.where()).arrays()
    order = np.argsort(found["key"])
    assert [text.decode() for text in found["val"]["text"][order]] == list(texts)
    ragged = tf.gather(found["val"]["numbers"], order)
    assert ragged.to_list() == [list(each) for each in lists]


def test_without_an_end(digits):
    with pytest.raises(ValueError, match="take repeat"):
        IgniteDataset(digits.name, **digits.where()).repeat().arrays()
