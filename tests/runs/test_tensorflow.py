"""Tests of workers that run TensorFlow itself, in one cluster."""

from __future__ import annotations

import os
import signal

import pytest

from ignite_tf_magic.runs.states import RunState
from tests.runs.light_runs import text_of

pytest.importorskip("tensorflow")

TRAIN = """
import sys, time
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    weight = tf.Variable(0.0)

@tf.function
def step(value):
    def replica():
        return tf.distribute.get_replica_context().all_reduce("sum", tf.constant(value))
    return strategy.run(replica)

index = strategy.cluster_resolver.task_id
for _ in range(5):
    total = step(float(index + 1))
print("sum", float(total), flush=True)
"""


@pytest.mark.nightly
def test_workers_train_in_step_and_the_one_that_failed_is_named_not_the_one_that_lost_it(start):
    """Nightly. Shorter: test_a_worker_killed_before_the_others_are_up_does_not_leave_them_waiting"""
    # The step after the print ends only when the other worker has reached it, too.
    script = TRAIN + "step(0.0)\nif index == 1: raise RuntimeError('the cause')\nwhile True: step(1.0)"
    run = start(script, 2, start_timeout_s=300.0)
    info = run.wait(300)
    assert info.state is RunState.FAILED
    for worker in range(2):
        assert "sum 3.0" in text_of(run, worker).splitlines()
    failure = run.failure()
    assert failure.worker == 1
    assert "RuntimeError: the cause" in failure.traceback


def test_a_worker_killed_before_the_others_are_up_does_not_leave_them_waiting(start):
    wait = (
        "import os, time\n"
        "if '\"index\": 1' in os.environ['TF_CONFIG']:\n"
        "    print('here', flush=True)\n"
        "    time.sleep(60)\n"
    )
    run = start(wait + TRAIN, 2, start_timeout_s=300.0)
    for chunk in run.follow(1):
        if "here" in chunk.text:
            break
    os.kill(run.info().workers[1].pid, signal.SIGKILL)
    assert run.wait(300).exit_code == 137
    assert run.failure().worker == 1
