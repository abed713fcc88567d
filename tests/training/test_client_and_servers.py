"""Runs whose script is the client of TensorFlow servers near the data, or a chief that drives them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ignite_tf_magic.session import RunRequest, RunState, load
from tests.training.runs import succeeded, succeeded_though_killed

NUM_ROWS, NUM_STEPS = 60, 400

# The in-graph program of published articles: each worker computes on its own rows, and the client sums the results.
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

# The same with eager execution, as in current scripts.
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

for number in range(400):
    coordinator.schedule(step, args=(iterator,))
    if number == 20:
        coordinator.join()
        print("BEGUN", flush=True)
coordinator.join()
print("FOUND" + json.dumps([int(each) for each in total.numpy()]), flush=True)
"""


# A session on the client's own server runs the operations that are placed on workers' devices.
OWN_SERVER = """
import json
import tensorflow.compat.v1 as tf
from ignite_tf_magic import IgniteDataset, task

tf.disable_v2_behavior()
own = task()
server = tf.train.Server(tf.train.ClusterSpec(own.addresses), job_name=own.kind, task_index=own.index)
found = []
for i in range(len(own.addresses["worker"])):
    with tf.device("/job:worker/task:%d" % i):
        dataset = IgniteDataset("CLIENT").batch(100)
        row = tf.data.make_one_shot_iterator(dataset).get_next()
        found.append(tf.reduce_sum(row["val"]["label"]))
with tf.Session(server.target, config=CONFIG) as session:
    names = [device.name for device in session.list_devices()]
    assert all(any(kind in name for name in names) for kind in ("/job:chief", "/task:1")), names
    print("FOUND" + json.dumps([int(each) for each in session.run(found)]), flush=True)
"""


# Workers' gradients over all rows move a variable of the parameter server by steepest descent.
DESCENT = """
import json
import tensorflow.compat.v1 as tf
from ignite_tf_magic import IgniteDataset, task

tf.disable_v2_behavior()
workers = task().addresses["worker"]
with tf.device("/job:ps/task:0"):
    level = tf.Variable(tf.zeros([], tf.float64))
gradients = []
for i in range(len(workers)):
    with tf.device("/job:worker/task:%d" % i):
        rows = IgniteDataset("CLIENT").batch(100).repeat()
        label = tf.data.make_one_shot_iterator(rows).get_next()["val"]["label"]
        gradients.append(tf.reduce_sum(level - tf.cast(label, tf.float64)) / 60)
step = tf.assign_sub(level, 0.3 * tf.add_n(gradients))
with tf.Session("grpc://" + workers[0]) as session:
    session.run(tf.global_variables_initializer())
    for _ in range(20):
        session.run(step)
    print("FOUND" + json.dumps([float(session.run(level)), level.device]), flush=True)
"""


@pytest.fixture(scope="module")
def cache(session):
    load("CLIENT", {"label": np.arange(NUM_ROWS)}, replace=True, report=str)
    return "CLIENT"


def found_in(text: str) -> list:
    return json.loads(text.partition("FOUND")[2].splitlines()[0])


@pytest.mark.nightly
@pytest.mark.parametrize("script", [IN_GRAPH, EAGER], ids=["in_graph", "eager"])
def test_a_client_has_each_worker_read_its_own_rows(session, cache, script):
    """Nightly. Shorter: tests/training/test_graphs.py::test_the_in_graph_program_of_the_articles"""
    run, text = succeeded(session, RunRequest(cache, script, num_workers=2, strategy="standalone"))
    record = run.record()
    found = found_in(text)
    assert len(found) == 2 and all(found) and sum(found) == NUM_ROWS * (NUM_ROWS - 1) // 2
    assert run.info().tasks == ("worker 0", "worker 1", "chief")
    assert [each.rows > 0 for each in record.workers] == [True, True, False]


@pytest.mark.parametrize(
    "config", ["None", pytest.param("tf.ConfigProto(allow_soft_placement=True)", marks=pytest.mark.nightly)]
)
@pytest.mark.nightly
def test_a_session_of_the_clients_own_server_reaches_all_workers(session, cache, config):
    """Nightly. Shorter: tests/training/test_graphs.py::test_the_in_graph_program_of_the_articles"""
    script = OWN_SERVER.replace("CONFIG", config)
    _, text = succeeded(session, RunRequest(cache, script, num_workers=2, strategy="standalone"))
    found = found_in(text)
    assert len(found) == 2 and all(found) and sum(found) == NUM_ROWS * (NUM_ROWS - 1) // 2


@pytest.mark.nightly
def test_a_client_moves_a_variable_of_a_parameter_server_by_gradients_of_all_rows(session, cache):
    """Nightly. Shorter: tests/notebooks/test_documents.py::test_examples_of_the_documents_run"""
    _, text = succeeded(session, RunRequest(cache, DESCENT, num_workers=2, num_ps=1, strategy="standalone"))
    level, device = found_in(text)
    assert level == pytest.approx((NUM_ROWS - 1) / 2 * (1 - 0.7**20), abs=1e-6)
    assert device == "/job:ps/task:0"


def test_a_coordinator_gives_steps_to_workers_that_read_their_own_rows(session, cache):
    run, text = succeeded(session, RunRequest(cache, COORDINATOR, num_workers=2, num_ps=1))
    assert found_in(text) == [NUM_ROWS * (NUM_ROWS - 1) // 2, NUM_ROWS]
    assert run.info().state is RunState.SUCCEEDED
    assert run.info().tasks == ("worker 0", "worker 1", "ps 0", "chief")


SLOW_COORDINATOR = COORDINATOR.replace(
    "def step(iterator):\n",
    "def step(iterator):\n    tf.py_function(lambda: __import__('time').sleep(0.02), [], [])\n",
).replace(".batch(1)", ".repeat().batch(1)")


def are_all_at_work(run, said):
    return said.count("serves at") == 3 and "BEGUN" in said


@pytest.mark.nightly
def test_a_killed_worker_is_replaced_while_the_others_go_on(session, cache):
    """Steps are executed at least once: the killed worker's unfinished step is repeated.

    Nightly. Shorter: tests/runs/test_decisions.py::test_a_process_that_was_started_again_is_noted
    """
    request = RunRequest(cache, SLOW_COORDINATOR, num_workers=2, num_ps=1)
    run, text = succeeded_though_killed(session, request, 0, are_all_at_work)
    _, num_steps = found_in(text)
    assert num_steps >= NUM_STEPS
    record = run.record()
    assert (record.generation, record.workers[0].respawns) == (1, 1)
    assert "ended by signal 9; started again (1)" in run.directory.log(0).read_text()


@pytest.mark.nightly
def test_a_killed_parameter_server_restarts_the_run(session, cache):
    """Its variables are lost, so all tasks restart, from a checkpoint if the script keeps one.

    Nightly. Shorter: tests/runs/test_decisions.py::test_a_parameter_server_that_ends_fails_the_generation
    """
    request = RunRequest(cache, SLOW_COORDINATOR, num_workers=2, num_ps=1)
    run, text = succeeded_though_killed(session, request, 2, lambda _, said: "BEGUN" in said)
    assert run.record().generation == 2
    assert "ps 0" in run.record().past[0].cause
    assert found_in(text.rpartition("BEGUN")[2])[1] >= NUM_STEPS


EVALUATED = """
import json, time
import tensorflow as tf
from ignite_tf_magic import IgniteDataset, task

own, path = task(), "igfs:///evaluated/told.txt"
if own.kind == "evaluator":
    while not tf.io.gfile.exists(path):
        time.sleep(0.1)
    seen = sum(int(row["val"]["label"]) for row in IgniteDataset("CLIENT"))
    print("EVALUATED" + json.dumps([tf.io.gfile.GFile(path).read(), len(own.addresses["worker"]), seen]), flush=True)
elif own.is_chief:
    tf.io.gfile.makedirs("igfs:///evaluated")
    with tf.io.gfile.GFile(path, "w") as file:
        file.write("told")
"""


@pytest.mark.nightly
def test_an_evaluator_reads_all_rows_and_may_finish_after_the_workers(session, cache):
    """Nightly. Shorter: tests/runs/test_decisions.py::test_an_evaluator_may_finish_for_a_while"""
    run, text = succeeded(session, RunRequest(cache, EVALUATED, num_workers=2, has_evaluator=True))
    told = json.loads(text.partition("EVALUATED")[2].splitlines()[0])
    assert told == ["told", 2, NUM_ROWS * (NUM_ROWS - 1) // 2]
    assert run.info().tasks == ("worker 0", "worker 1", "evaluator")


@pytest.mark.parametrize("module", ["keras", pytest.param("tf_keras", marks=pytest.mark.nightly)])
@pytest.mark.nightly
def test_who_lets_the_chief_fit_alone_is_told(session, cache, module):
    """Nightly. No shorter one: a chief, a worker and a parameter server are needed, each with TensorFlow."""
    script = f"""
import {module} as keras
import numpy as np
model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(np.ones([8, 1]), np.ones([8, 1]), verbose=0)
"""
    _, text = succeeded(session, RunRequest(cache, script, num_workers=2, strategy="standalone"))
    assert "this fit trains in the chief alone" in text and "--strategy sync" in text
