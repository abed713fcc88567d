"""Datasets on remote devices: a chief, a ps and two workers as separate processes; the workers read the rows.

The ps has not called `register_schemes`: it represents a worker that forgot to.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from ignite_tf_magic import IgniteDataset
from tests.training.processes import free_ports

SHARES = ["0-511", "512-1023"]

SERVER = """
import json, os, sys
import tensorflow as tf
from ignite_tf_magic.dataset.tfrecord_files import record_file_system
from ignite_tf_magic.tfplugin.registration import register_schemes

spec, job, index, log = json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]

class Logging:
    def __init__(self, inner):
        self._inner = inner
    def __getattr__(self, name):
        return getattr(self._inner, name)
    def open_read(self, uri):
        with open(log, "a") as file:
            file.write(f"{os.getpid()} {uri.partition('?')[0]}\\n")
        return self._inner.open_read(uri)

if job == "worker":
    register_schemes({"ignite": Logging(record_file_system())})
server = tf.distribute.Server(tf.train.ClusterSpec(spec), job_name=job, task_index=index)
print("up", flush=True)
sys.stdin.read()
os._exit(0)
"""

MODEL = """
import json, os, sys, warnings
import numpy as np
import tensorflow as tf
from ignite_tf_magic import IgniteDataset

spec, cache = json.loads(sys.argv[1]), sys.argv[2]
found = {}

def start():
    return np.linspace(-1, 1, 640, dtype=np.float32).reshape(64, 10)

def to_example(row):
    return tf.cast(row["val"]["pixels"], tf.float32) / 255.0, tf.one_hot(row["val"]["label"], 10), row["key"]

def loss_of(x, y, weights):
    return tf.reduce_sum(tf.nn.softmax_cross_entropy_with_logits(labels=y, logits=tf.matmul(x, weights)))

def worker(number):
    return tf.device(f"/job:worker/task:{number}")
"""

CHIEF = (
    MODEL
    + """
from ignite_tf_magic.dataset.tfrecord_files import record_file_system
from ignite_tf_magic.tfplugin.registration import register_schemes

def refusal(function):
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""

before = IgniteDataset(cache, part="0-9")  # not connected yet: read by this process, without the plugin
found["before"] = len(list(before))

register_schemes({"ignite": record_file_system()})
resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
    tf.train.ClusterSpec(spec), rpc_layer="grpc", task_type="chief", task_id=0)
strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

# Eager operations on remote devices: rows, then gradients with the weights on the ps.
with tf.device("/job:ps/task:0"):
    weights = tf.Variable(start())
found["keys"], found["devices"], gradients = [], [], []
for number in (0, 1):
    with worker(number):
        examples = IgniteDataset(cache).map(to_example).shuffle(100).batch(1000)
        total, keys = tf.zeros([64, 10]), []
        for x, y, key in examples:
            with tf.GradientTape() as tape:
                loss = loss_of(x, y, weights)
            total += tape.gradient(loss, weights)
            keys += key.numpy().tolist()
        found["devices"].append(total.device)
        found["keys"].append(keys)
        gradients.append(total)
found["gradient"] = (gradients[0].numpy() + gradients[1].numpy()).tolist()

# Datasets per worker, from a function and from a dataset.
def batches(per_worker, count):
    iterator = iter(coordinator.create_per_worker_dataset(per_worker))
    step = tf.function(lambda it: next(it)["key"])
    values = [coordinator.schedule(step, args=(iterator,)) for _ in range(count)]
    coordinator.join()
    return [value.fetch().tolist() for value in values]

found["from_function"] = batches(lambda: IgniteDataset(cache).repeat().batch(50), 60)
found["from_dataset"] = batches(IgniteDataset(cache).repeat().batch(50), 60)

# What must not be answered with the chief's rows.
def on_ps():
    with tf.device("/job:ps/task:0"):
        list(IgniteDataset(cache))
found["unregistered"] = refusal(on_ps)
made_here = IgniteDataset(cache)
def iterated_there():
    with worker(0):
        next(iter(made_here))
found["made_elsewhere"] = refusal(iterated_there)
def with_password():
    with worker(0):
        IgniteDataset(cache, username="ada", password="hush")
found["with_password"] = refusal(with_password)
def forced():
    with worker(0):
        IgniteDataset(cache, read_by="caller")
found["forced"] = refusal(forced)
found["forced_in_function"] = refusal(
    lambda: iter(coordinator.create_per_worker_dataset(lambda: IgniteDataset(cache, read_by="caller"))))
found["here_on_purpose"] = len(list(IgniteDataset(cache, read_by="caller", part="0-9")))

# An error of the source on a worker comes out here, and is not taken for a lost worker.
found["source_error"] = refusal(lambda: batches(lambda: tf.data.TFRecordDataset("ignite://GONE/assigned").map(
    lambda record: {"key": record}), 1))

print("FOUND" + json.dumps(found), flush=True)
os._exit(0)
"""
)

SESSION = (
    MODEL
    + """
tf.compat.v1.disable_v2_behavior()
v1 = tf.compat.v1
with tf.device("/job:ps/task:0"):
    weights = v1.get_variable("weights", initializer=start())
gradients, keys, initializers = [], [], []
for number in (0, 1):
    with worker(number):
        examples = IgniteDataset(cache).map(to_example).batch(100_000)
        iterator = v1.data.make_initializable_iterator(examples)
        initializers.append(iterator.initializer)
        x, y, key = iterator.get_next()
        gradients += v1.gradients(loss_of(x, y, weights), weights)
        keys.append(key)
with tf.device("/job:ps/task:0"):
    forgotten = v1.data.make_initializable_iterator(IgniteDataset(cache).batch(10))
    rows = forgotten.get_next()["key"]
# Without the filters a session waits for the chief's server, too, which is not there.
config = v1.ConfigProto(device_filters=["/job:worker", "/job:ps"])
with v1.Session("grpc://" + spec["worker"][0], config=config) as session:
    session.run([v1.global_variables_initializer(), *initializers])
    gradient, keys = session.run([gradients[0] + gradients[1], keys])
    try:
        session.run(forgotten.initializer)
        session.run(rows)
        found["unregistered"] = ""
    except tf.errors.OpError as error:
        found["unregistered"] = f"{type(error).__name__}: {error}"
found["gradient"] = gradient.tolist()
found["keys"] = [part.tolist() for part in keys]
print("FOUND" + json.dumps(found), flush=True)
os._exit(0)
"""
)


CONNECTED_LATE = (
    MODEL
    + """
before = {by: IgniteDataset(cache, part="0-99", read_by=by) for by in (None, "caller")}
tf.config.experimental_connect_to_cluster(tf.train.ClusterSpec({"worker": spec["worker"]}))
for by, dataset in before.items():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with worker(0):
            for _ in dataset, dataset:
                next(iter(dataset))
    found[str(by)] = [str(each.message) for each in caught if "IgniteDataset" in str(each.message)]
print("FOUND" + json.dumps(found), flush=True)
os._exit(0)
"""
)

IN_GRAPH = (
    MODEL
    + """
tf.compat.v1.disable_v2_behavior()
v1 = tf.compat.v1
rows = IgniteDataset(cache)  # before the loop, as the article does
keys = rows.map(lambda row: row["key"])
nexts, initializers = [], []
for number in (0, 1):
    with worker(number):
        first, second = v1.data.make_one_shot_iterator(rows), v1.data.make_initializable_iterator(keys)
        initializers.append(second.initializer)
        nexts += [first.get_next()["key"], second.get_next()]

def refusal(function):
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""

def in_batches(make):
    with worker(1):
        make(rows.batch(10))
found["refused"] = [refusal(lambda: in_batches(make)) for make in (
    v1.data.make_one_shot_iterator, v1.data.make_initializable_iterator)]
os.environ["TF_CONFIG"] = json.dumps({"task": {"type": "worker", "index": 1}})
found["own"] = refusal(lambda: in_batches(v1.data.make_one_shot_iterator))
config = v1.ConfigProto(device_filters=["/job:worker"])
with v1.Session("grpc://" + spec["worker"][0], config=config) as session:
    session.run(initializers)
    found["keys"] = np.array([session.run(nexts) for _ in range(40)]).T.tolist()
print("FOUND" + json.dumps(found), flush=True)
os._exit(0)
"""
)


@dataclass
class Servers:
    spec: dict[str, list[str]]
    pids: list[int]
    logs: list[Path]
    environment: dict[str, str]

    def run(self, script, cache):
        done = subprocess.run(
            [sys.executable, "-c", script, json.dumps(self.spec), cache],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        answers = [line for line in done.stdout.splitlines() if line.startswith("FOUND")]
        assert answers, done.stdout[-2000:] + done.stderr[:3000] + done.stderr[-4000:]
        return json.loads(answers[0].removeprefix("FOUND"))


@pytest.fixture(scope="module")
def servers(digits, tmp_path_factory):
    """Start a ps and two workers, each worker with its own partitions."""
    folder = tmp_path_factory.mktemp("servers")
    ports = [f"127.0.0.1:{port}" for port in free_ports(4)]
    spec = {"worker": ports[:2], "ps": ports[2:3], "chief": ports[3:]}
    plain = {name: value for name, value in os.environ.items() if not name.startswith("IGNITE_DATASET_")}
    plain |= {"TF_CPP_MIN_LOG_LEVEL": "3", "GRPC_VERBOSITY": "ERROR"}
    where = {"IGNITE_DATASET_HOST": digits.endpoint.host, "IGNITE_DATASET_PORT": str(digits.endpoint.port)}
    started, logs = [], []
    try:
        for job, index in (("worker", 0), ("worker", 1), ("ps", 0)):
            share = {"IGNITE_DATASET_PART": SHARES[index], "IGNITE_DATASET_ASSIGNED_CACHE": digits.name}
            log = folder / f"{job}{index}.log"
            logs.append(log)
            command = [sys.executable, "-c", SERVER, json.dumps(spec), job, str(index), str(log)]
            with log.with_suffix(".err").open("w") as errors:
                process = subprocess.Popen(
                    command,
                    env={**plain, **where, **share},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                )
            started.append(process)
        for server in started:
            assert server.stdout.readline() == b"up\n", (folder / "worker0.err").read_text()[-3000:]
        yield Servers(spec, [server.pid for server in started], logs, {**plain, **where})
    finally:
        for server in started:
            server.kill()
            server.communicate()


@pytest.fixture(scope="module")
def expected(digits):
    """Return what one process computes: the keys of each shard, and the gradient over all rows."""
    keys = []
    for share in SHARES:
        dataset = IgniteDataset(digits.name, **digits.where(), part=share)
        keys.append({int(key) for batch in dataset.batch(1000) for key in batch["key"]})
    assert not keys[0] & keys[1]
    assert keys[0] | keys[1] == set(digits.keys.tolist())
    weights = tf.constant(np.linspace(-1, 1, 640, dtype=np.float32).reshape(64, 10))
    x = tf.cast(digits.columns["pixels"], tf.float32) / 255.0
    y = tf.one_hot(digits.columns["label"], 10)
    with tf.GradientTape() as tape:
        tape.watch(weights)
        logits = tf.matmul(x, weights)
        loss = tf.reduce_sum(tf.nn.softmax_cross_entropy_with_logits(labels=y, logits=logits))
    return keys, tape.gradient(loss, weights).numpy()


def assert_each_worker_reads_its_own(servers, found, expected, name):
    for number, keys in enumerate(found["keys"]):
        assert len(keys) == len(expected[0][number])
        assert set(keys) == expected[0][number]
        opened = servers.logs[number].read_text().splitlines()
        assert {int(line.partition(" ")[0]) for line in opened} == {servers.pids[number]}
        assert all(line.endswith(f"/{name}/assigned") or "/GONE/" in line for line in opened)
    np.testing.assert_allclose(np.array(found["gradient"]), expected[1], rtol=1e-3, atol=1e-3)


@pytest.mark.nightly
def test_eager_remote_devices_and_a_coordinator(servers, digits, expected):
    """Nightly. Shorter:
    tests/training/test_client_and_servers.py::test_a_coordinator_gives_steps_to_workers_that_read_their_own_rows
    """
    found = servers.run(CHIEF, digits.name)
    assert_each_worker_reads_its_own(servers, found, expected, digits.name)
    assert [f"/job:worker/replica:0/task:{n}/" in name for n, name in enumerate(found["devices"])] == [
        True,
        True,
    ]
    for way in ("from_function", "from_dataset"):
        batches = [set(batch) for batch in found[way]]
        by = [[batch for batch in batches if batch <= keys] for keys in expected[0]]
        assert sum(map(len, by)) == 60, "a batch mixes the shares of two workers"
        assert by[0] and by[1]
    assert found["before"] == found["here_on_purpose"] > 0
    assert "ignite_tf_magic.register()" in found["unregistered"]
    assert found["unregistered"].startswith("UnimplementedError")
    assert "make it inside tf.device" in found["made_elsewhere"]
    assert "a graph keeps no secrets" in found["with_password"]
    assert "hush" not in found["with_password"]
    assert found["forced"].startswith("ConfigError")
    assert found["forced_in_function"].startswith("ConfigError")
    assert "GONE" in found["source_error"]


@pytest.mark.nightly
def test_in_graph_gradients_in_a_session(servers, digits, expected):
    """Nightly. Shorter: tests/training/test_graphs.py::test_the_in_graph_program_of_the_articles"""
    found = servers.run(SESSION, digits.name)
    assert_each_worker_reads_its_own(servers, found, expected, digits.name)
    assert "ignite_tf_magic.register()" in found["unregistered"]


@pytest.mark.nightly
def test_a_dataset_made_before_the_loop_over_devices_is_read_on_each_or_refused(servers, digits, expected):
    """Nightly. Shorter: tests/training/test_graphs.py::test_the_in_graph_program_of_the_articles"""
    found = servers.run(IN_GRAPH, digits.name)
    for number, keys in enumerate(found["keys"]):
        assert len(set(keys)) == 40
        assert set(keys) <= expected[0][number // 2]
    for refusal in found["refused"]:
        assert refusal.startswith("ConfigError: the iterator is to be on /job:worker/task:1")
    assert found["own"] == ""  # no error if the session's task is this process


@pytest.mark.nightly
def test_rows_of_this_process_asked_for_on_another_device_are_told_of(servers, digits):
    """Nightly. No shorter one: only a process with another TensorFlow server gets this warning."""
    found = servers.run(CONNECTED_LATE, digits.name)
    assert len(found["None"]) == 1
    assert "these are its rows, not those of the device" in found["None"][0]
    assert found["caller"] == []
