"""Runs whose script is the client of TensorFlow servers beside the data, or a chief that drives them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ignite_tf_magic.session import RunRequest, RunState, load
from tests.training.runs import succeeded

NUM_ROWS = 60

# The in-graph program of the articles: gradients on every worker, of its own rows, added up by the client.
IN_GRAPH = """
import json
import tensorflow.compat.v1 as tf
from ignite_tf_magic import IgniteDataset, task

tf.disable_v2_behavior()
workers = task().addresses["worker"]
dataset = IgniteDataset("CLIENT")
sums = []
for i in range(len(workers)):
    with tf.device("/job:worker/task:%d" % i):
        row = tf.data.make_one_shot_iterator(dataset).get_next()
        sums.append(tf.reduce_sum(row["val"]["label"]))
total = tf.add_n(sums)
with tf.Session("grpc://" + workers[0]) as session:
    found = [[], []]
    for i in range(2):
        try:
            while True:
                found[i].append(int(session.run(sums[i])))
        except tf.errors.OutOfRangeError:
            pass
print("FOUND" + json.dumps([sum(each) for each in found]), flush=True)
"""

# The same with eager execution, as people write today.
EAGER = """
import json
import tensorflow as tf
from ignite_tf_magic import IgniteDataset

found = []
for i in range(2):
    with tf.device(f"/job:worker/task:{i}"):
        total = tf.zeros([], tf.int64)
        for row in IgniteDataset("CLIENT").batch(10):
            total += tf.reduce_sum(row["val"]["label"])
        assert f"task:{i}" in total.device, total.device
        found.append(int(total))
print("FOUND" + json.dumps(found), flush=True)
"""

COORDINATOR = """
import json
import tensorflow as tf
from ignite_tf_magic import IgniteDataset, task

own = task()
assert own.kind == "chief" and len(own.addresses["ps"]) == 1, own
strategy = tf.distribute.ParameterServerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver())
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    total = tf.Variable(tf.zeros([2], tf.int64), aggregation=tf.VariableAggregation.SUM)
assert "/job:ps" in total.device, total.device

@tf.function
def per_worker():
    return IgniteDataset("CLIENT").batch(1).map(lambda row: row["val"]["label"][0])

rows = coordinator.create_per_worker_dataset(per_worker)
iterator = iter(rows)

@tf.function
def step(iterator):
    row = iterator.get_next_as_optional()
    if row.has_value():
        total.assign_add(tf.stack([row.get_value(), tf.constant(1, tf.int64)]))

for _ in range(400):
    coordinator.schedule(step, args=(iterator,))
coordinator.join()
print("FOUND" + json.dumps([int(each) for each in total.numpy()]), flush=True)
"""


@pytest.fixture(scope="module")
def cache(session):
    load("CLIENT", {"label": np.arange(NUM_ROWS)}, replace=True, report=str)
    return "CLIENT"


def found_in(text: str) -> list[int]:
    return json.loads(text.partition("FOUND")[2].splitlines()[0])


@pytest.mark.parametrize("script", [IN_GRAPH, EAGER], ids=["in_graph", "eager"])
def test_a_client_has_each_worker_read_its_own_rows(session, cache, script):
    run, text = succeeded(session, RunRequest(cache, script, num_workers=2, strategy="standalone"))
    record = run.record()
    found = found_in(text)
    assert len(found) == 2 and all(found) and sum(found) == NUM_ROWS * (NUM_ROWS - 1) // 2
    assert run.info().tasks == ("worker 0", "worker 1", "chief")
    assert [each.rows > 0 for each in record.workers] == [True, True, False]


def test_a_coordinator_gives_steps_to_workers_that_read_their_own_rows(session, cache):
    run, text = succeeded(session, RunRequest(cache, COORDINATOR, num_workers=2, num_ps=1))
    assert found_in(text) == [NUM_ROWS * (NUM_ROWS - 1) // 2, NUM_ROWS]
    assert run.info().state is RunState.SUCCEEDED
    assert run.info().tasks == ("worker 0", "worker 1", "ps 0", "chief")
