"""Datasets in graphs of tf.compat.v1, read in sessions of a process that has not called `register`."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

SCRIPT = """
import json, sys
import tensorflow.compat.v1 as tf
from ignite_tf_magic import IgniteDataset

host, port, cache, is_version_1 = sys.argv[1:]
if is_version_1 == "True":
    tf.disable_v2_behavior()

def keys(make_iterator, change):
    with tf.Graph().as_default():
        rows = change(IgniteDataset(cache, host=host, port=int(port), page_size=10))
        iterator = make_iterator(rows.batch(7))
        batch, found = iterator.get_next(), []
        with tf.Session() as session:
            if make_iterator is tf.data.make_initializable_iterator:
                session.run(iterator.initializer)
            try:
                while True:
                    found += session.run(batch)["key"].tolist()
            except tf.errors.OutOfRangeError:
                return found

CHANGES = {
    "batch": lambda rows: rows,
    "shuffle": lambda rows: rows.shuffle(1000),
    "shuffle again": lambda rows: rows.shuffle(1000, seed=1).repeat(2),
    "the same seed": lambda rows: rows.shuffle(1000, seed=1).repeat(2),
    "one order": lambda rows: rows.shuffle(1000, seed=1, reshuffle_each_iteration=False).repeat(2),
    "map": lambda rows: rows.map(lambda row: {"key": row["key"] // 1}).shuffle(1000),
}
makers = (tf.data.make_one_shot_iterator, tf.data.make_initializable_iterator)
print("FOUND" + json.dumps([{name: keys(make, change) for name, change in CHANGES.items()} for make in makers]))
"""


@pytest.mark.parametrize("is_version_1", [True, False])
def test_iterators_of_version_1_read_and_shuffle(make_cache, is_version_1):
    cache = make_cache({"x": np.arange(40)})
    command = [sys.executable, "-c", SCRIPT, cache.endpoint.host, str(cache.endpoint.port), cache.name]
    done = subprocess.run([*command, str(is_version_1)], capture_output=True, text=True, check=False)
    assert "FOUND" in done.stdout, done.stderr
    for found in json.loads(done.stdout.partition("FOUND")[2]):
        order = found["batch"]
        for name, keys in found.items():
            assert sorted(keys) == sorted(order * (len(keys) // 40)), name
        assert order not in (found["shuffle"], found["map"])
        assert found["shuffle again"] == found["the same seed"]
        assert found["shuffle again"][:40] != found["shuffle again"][40:]
        assert found["one order"][:40] == found["one order"][40:] != order
