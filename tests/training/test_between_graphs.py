"""Between-graph replication: scripts started once per worker and parameter server, as in TensorFlow 1."""

from __future__ import annotations

import json
from pathlib import Path

import fsspec
import numpy as np
import pytest

from ignite_tf_magic.errors import ConfigError
from ignite_tf_magic.session import RunRequest, RunState, load
from tests.training.runs import succeeded

NUM_ROWS, NUM_EPOCHS = 200, 20
ARGS = (
    *("--ps_hosts={ps_hosts}", "--worker_hosts={worker_hosts}"),
    *("--job_name={job_name}", "--task_index={task_index}"),
)

# The trainer of published TensorFlow 1 articles, with another model (a line): a server in each process, variables
# on the parameter server, a self-recovering session.
TRAINER = """
import json
import tensorflow.compat.v1 as tf
from ignite_tf_magic import IgniteDataset

tf.disable_v2_behavior()
flags = tf.app.flags
flags.DEFINE_string("ps_hosts", "", "")
flags.DEFINE_string("worker_hosts", "", "")
flags.DEFINE_string("job_name", "", "")
flags.DEFINE_integer("task_index", 0, "")
flags.DEFINE_string("logdir", "", "")
FLAGS = flags.FLAGS


def main(_):
    cluster = tf.train.ClusterSpec({"ps": FLAGS.ps_hosts.split(","), "worker": FLAGS.worker_hosts.split(",")})
    server = tf.train.Server(cluster, job_name=FLAGS.job_name, task_index=FLAGS.task_index)
    if FLAGS.job_name == "ps":
        server.join()
    num_workers, index = len(FLAGS.worker_hosts.split(",")), FLAGS.task_index
    with tf.device(tf.train.replica_device_setter(worker_device="/job:worker/task:%d" % index, cluster=cluster)):
        rows = IgniteDataset("BETWEEN", equal_steps="repeat").repeat(EPOCHS).batch(10, drop_remainder=True)
        batch = tf.data.make_one_shot_iterator(rows).get_next()["val"]
        x, y = tf.cast(batch["x"], tf.float32), tf.cast(batch["y"], tf.float32)
        slope, offset = tf.Variable(0.0), tf.Variable(0.0)
        loss = tf.reduce_mean(tf.square(slope * x + offset - y))
        step = tf.train.get_or_create_global_step()
        optimizer = tf.train.GradientDescentOptimizer(0.3)
        SYNC
        train = optimizer.minimize(loss, global_step=step)
    num_rows, found = 0, []
    SESSION
    print("FOUND" + json.dumps([index, num_rows, *map(float, found), slope.device]), flush=True)


if __name__ == "__main__":
    tf.app.run()
"""
SUPERVISOR = """
    supervisor = tf.train.Supervisor(
        is_chief=index == 0, logdir=FLAGS.logdir, global_step=step, init_op=tf.global_variables_initializer()
    )
    with supervisor.managed_session(server.target) as session:
        try:
            while not supervisor.should_stop():
                num_rows += len(session.run([train, x])[1])
                found = session.run([slope, offset, loss])
        except tf.errors.OutOfRangeError:
            pass
"""
MONITORED = """
    with tf.train.MonitoredTrainingSession(
        master=server.target, is_chief=index == 0, hooks=HOOKS, checkpoint_dir=FLAGS.logdir, stop_grace_period_secs=3
    ) as session:
        while not session.should_stop():
            _, rows, *found = session.run([train, x, slope, offset, loss])
            num_rows += len(rows)
"""
# A step needs two gradients from any workers, so the training ends after steps, not rows.
HOOKS = "[together, tf.train.StopAtStepHook(last_step=100)]"
SYNC = """
        optimizer = tf.train.SyncReplicasOptimizer(optimizer, num_workers, total_num_replicas=num_workers)
        together = optimizer.make_session_run_hook(index == 0)
"""


def trainer(session: str, *, hooks: str = "[]", sync: str = "") -> str:
    source = TRAINER.replace("        SYNC\n", sync).replace("    SESSION\n", session)
    return source.replace("HOOKS", hooks).replace("EPOCHS", str(NUM_EPOCHS))


@pytest.fixture(scope="module")
def cache(session):
    x = np.linspace(-1, 1, NUM_ROWS)
    load("BETWEEN", {"x": x, "y": 3 * x + 1}, replace=True, report=str)
    return "BETWEEN"


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(trainer(SUPERVISOR), marks=pytest.mark.nightly),
        trainer(MONITORED),
        pytest.param(
            trainer(MONITORED, hooks=HOOKS, sync=SYNC).replace(f"repeat({NUM_EPOCHS})", "repeat()"),
            marks=pytest.mark.nightly,
        ),
    ],
    ids=["supervisor", "monitored", "synchronous"],
)
def test_a_trainer_of_the_articles_learns_from_all_rows(session, cache, source, tmp_path):
    args = (*ARGS, f"--logdir={tmp_path / 'logs'}")
    run, text = succeeded(session, RunRequest(cache, source, num_workers=2, num_ps=1, args=args))
    found = sorted(json.loads(part.splitlines()[0]) for part in text.split("FOUND")[1:])
    assert [each[0] for each in found] == [0, 1]
    assert all(each[-1] == "/job:ps/task:0" for each in found)
    # A worker looks for the chief every 30 s, so it may start after the training has ended.
    for each in (each for each in found if len(each) > 3):
        np.testing.assert_allclose(each[2:4], [3, 1], atol=0.02)
    seats = run.record().order.seats
    assert sum(seat.rows for seat in seats[:2]) == NUM_ROWS
    assert seats[2].partitions == () and seats[2].rows == 0
    assert run.info().state is RunState.SUCCEEDED
    assert run.info().tasks == ("worker 0", "worker 1", "ps 0")
    assert Path(tmp_path / "logs").is_dir()


@pytest.mark.nightly
def test_a_trainer_keeps_checkpoints_and_events_in_igfs(session, cache):
    """Without a shared directory of the hosts, which the articles use.

    Nightly. Shorter: test_a_trainer_of_the_articles_learns_from_all_rows
    """
    folder = "igfs:///between/logs"
    source = trainer(MONITORED, hooks="[tf.train.StopAtStepHook(last_step=30)]").replace(
        f"repeat({NUM_EPOCHS})", "repeat()"
    )
    request = RunRequest(cache, source, num_workers=2, num_ps=1, args=(*ARGS, f"--logdir={folder}"))
    succeeded(session, request)
    names = [str(path).rpartition("/")[2] for path in fsspec.filesystem("igfs").ls(folder, detail=False)]
    last = max(
        int(name.partition("-")[2].partition(".")[0]) for name in names if name.startswith("model.ckpt-")
    )
    assert last >= 30
    assert "checkpoint" in names and any(name.startswith("events.out.tfevents") for name in names)


def test_a_template_that_nothing_fills_is_refused(session, cache):
    request = RunRequest(cache, "pass", args=("{worker_hosts}", "{ps_host}"))
    with pytest.raises(ConfigError, match=r"\{ps_host\}.*\{ps_hosts\}, \{worker_hosts\}.*\{\{ and \}\}"):
        session.start_run(request)
