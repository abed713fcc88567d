"""Runs on one machine: servers of TensorFlow, JAX and PyTorch accept no outside connections, results are unchanged."""

from __future__ import annotations

import socket
from pathlib import Path

import numpy as np
import pytest

from ignite_tf_magic.runs import loopback
from ignite_tf_magic.session import RunRequest, RunState, load
from ignite_tf_magic.training import rendezvous
from tests.listening import accepts, is_loopback, listeners
from tests.notebooks.test_other_frameworks import python_with_torch
from tests.waiting import until

__all__ = ["python_with_torch"]

pytestmark = pytest.mark.skipif(loopback.library() is None, reason="Linux and a compiler are needed")

ANOTHER = "127.0.0.2"  # a server on all interfaces of this machine also answers here
WAIT = """
import os, time
def meet():
    print("READY", flush=True)
    while not os.path.exists(os.environ["IGNITE_TF_RUN_DIR"] + "/go"): time.sleep(0.05)
"""
SYNC = """
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
meet()
@tf.function
def total(value):
    return strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("sum", tf.constant(value)))
print("FOUND", float(total(float(strategy.cluster_resolver.task_id + 1))), flush=True)
"""
STANDALONE = """
import tensorflow as tf
meet()
found = 0.0
for i in range(2):
    with tf.device(f"/job:worker/task:{i}"):
        found += tf.constant(i + 1.0)
print("FOUND", float(found), flush=True)
"""
ASYNC = """
import tensorflow as tf
strategy = tf.distribute.ParameterServerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver())
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    total = tf.Variable(0.0)
meet()
@tf.function
def step(value):
    total.assign_add(value)
for value in (1.0, 2.0):
    coordinator.schedule(step, args=(tf.constant(value),))
coordinator.join()
print("FOUND", float(total.numpy()), flush=True)
"""
BETWEEN = """
import sys
import tensorflow.compat.v1 as tf
ps, workers, job, index = sys.argv[1].split(","), sys.argv[2].split(","), sys.argv[3], int(sys.argv[4])
tf.disable_v2_behavior()
server = tf.train.Server(tf.train.ClusterSpec({"ps": ps, "worker": workers}), job_name=job, task_index=index)
if job == "ps":
    server.join()
meet()
with tf.device("/job:ps/task:0"):
    values = [tf.constant(1.0), tf.constant(2.0)]
with tf.Session(server.target) as session:
    print("FOUND", float(session.run(tf.add_n(values))), flush=True)
open(os.environ["IGNITE_TF_RUN_DIR"] + f"/done-{index}", "w").close()
while not all(os.path.exists(os.environ["IGNITE_TF_RUN_DIR"] + f"/done-{i}") for i in range(2)): time.sleep(0.05)
"""
JAX = """
import jax
import jax.numpy as jnp
from jax.experimental.multihost_utils import process_allgather
jax.distributed.initialize()
process_allgather(jnp.ones(1))  # which has it open what it needs
meet()
print("FOUND", float(process_allgather(jnp.array(jax.process_index() + 1.0)).sum()), flush=True)
"""
TORCH = """
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
meet()
value = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(value)
print("FOUND", float(value), flush=True)
"""
TEMPLATES = ("{ps_hosts}", "{worker_hosts}", "{job_name}", "{task_index}")
CASES = {
    "sync": (SYNC, {}),
    "standalone": (STANDALONE, {"strategy": "standalone"}),
    "async": (ASYNC, {"num_ps": 1}),
    "between": (BETWEEN, {"args": TEMPLATES, "num_ps": 1}),
    "jax": (JAX, {}),
    "torch": (TORCH, {}),
}


@pytest.fixture(scope="module")
def cache(session):
    load("PRIVATE", {"x": np.arange(10)}, replace=True, report=str)
    return "PRIVATE"


def own_addresses() -> list[str]:
    """Return this machine's outgoing address and ANOTHER."""
    found = [ANOTHER]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        if not asking.connect_ex(("192.0.2.1", 9)):  # sends no packet
            found.append(asking.getsockname()[0])
    return found


def listening(run):
    return listeners(each.pid for each in run.info().workers)


def check_ports_and_let_go_on(run) -> None:
    """Check who can reach the servers of a run whose scripts wait in `meet`, then let the scripts continue."""
    record = run.record()
    expected = [
        each
        for role, each in zip(record.spec.roles, record.order.addresses, strict=True)
        if role.job != "chief"  # a chief is only a client of the others
    ]
    ports = {int(each.removeprefix("127.0.0.1:")) for each in expected}
    # A parameter server may start after the workers' scripts.
    until(lambda: ports <= {port for _, port in listening(run)}, what="all servers")
    found = listening(run)
    assert [each for each in found if not is_loopback(each[0])] == []
    for port in {port for _, port in found}:
        assert not any(accepts(address, port) for address in own_addresses())
    Path(run.directory.files / "go").touch()


@pytest.mark.timeout(600)
@pytest.mark.nightly
@pytest.mark.parametrize("case", [case for case in CASES if case != "sync"])
def test_servers_of_a_run_on_one_machine_are_reached_from_there_alone(session, cache, case, request):
    """Nightly. Shorter: tests/training/test_two_workers.py::test_servers_are_reached_from_this_machine_alone"""
    source, options = CASES[case]
    if case == "torch":
        options = {"python": request.getfixturevalue("python_with_torch")}
    run = session.start_run(RunRequest(cache, WAIT + source, num_workers=2, **options))
    num_scripts, text = 1 if case in ("standalone", "async") else 2, ""
    for chunk in run.follow():
        text += chunk.text
        if text.count("READY") == num_scripts:
            num_scripts = -1
            check_ports_and_let_go_on(run)
    run.wait(300)
    assert run.failure() is None, text
    assert run.info().state is RunState.SUCCEEDED
    results = [line for line in text.splitlines() if line.startswith("FOUND")]
    assert set(results) == {"FOUND 3.0"}, text


def test_what_chooses_ports_of_its_own_is_refused_behind_a_tunnel(monkeypatch):
    monkeypatch.setenv(loopback.TUNNEL, "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    monkeypatch.setenv("IGNITE_TF_ADDRESS", "")
    with pytest.raises(RuntimeError, match="choose their own ports"):
        rendezvous._join()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    rendezvous._join()
