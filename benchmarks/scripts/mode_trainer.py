"""A trainer that is started once for each worker and parameter server, for `benchmarks.modes`.

It learns a line without noise, so the result does not depend on who makes the steps. All workers wait for each other
before the first step, so all of them make some.
"""

import json
import os
import time
from pathlib import Path

import tensorflow.compat.v1 as tf

from ignite_tf_magic import IgniteDataset

TOLD = json.loads(os.environ["MODES_TOLD"])
URI = os.environ["IGNITE_TF_RUN_URI"]
for name, kind in (
    ("ps_hosts", "string"),
    ("worker_hosts", "string"),
    ("job_name", "string"),
    ("task_index", "integer"),
):
    getattr(tf.flags, f"DEFINE_{kind}")(name, None, "")
FLAGS = tf.flags.FLAGS


def look_often():
    """Look for the chief's variables every second instead of every 30 seconds, to shorten rounds."""
    begin = tf.train.SessionManager.__init__

    def patched(self, *args, **options):
        begin(self, *args, **{"recovery_wait_secs": 1, **options})

    tf.train.SessionManager.__init__ = patched


def meet(index, num_workers):
    """Wait until all workers of this generation have a session."""
    generation = Path(os.environ["IGNITE_DATASET_ASSIGNMENT_FILE"]).name.partition(".")[2]
    folder = f"{URI}/met/{generation}"
    tf.gfile.MakeDirs(folder)
    with tf.gfile.Open(f"{folder}/{index}", "w") as file:
        file.write("here")
    while len(tf.gfile.ListDirectory(folder)) < num_workers:
        time.sleep(0.1)


def tell_keys():
    """Read this worker's rows once, in a separate graph, and print their keys."""
    with tf.Graph().as_default(), tf.Session() as session:
        rows = IgniteDataset(TOLD["cache"]).batch(TOLD["rows"])
        keys = session.run(tf.data.make_one_shot_iterator(rows).get_next()["key"])
    print(f"KEYS {json.dumps([int(key) for key in keys])}", flush=True)


def main(_):
    tf.disable_v2_behavior()
    cluster = tf.train.ClusterSpec({"ps": FLAGS.ps_hosts.split(","), "worker": FLAGS.worker_hosts.split(",")})
    server = tf.train.Server(cluster, job_name=FLAGS.job_name, task_index=FLAGS.task_index)
    if FLAGS.job_name == "ps":
        server.join()
    look_often()
    index, num_workers, num_steps = FLAGS.task_index, cluster.num_tasks("worker"), 0
    tell_keys()
    with tf.device(
        tf.train.replica_device_setter(worker_device=f"/job:worker/task:{index}", cluster=cluster)
    ):
        rows = IgniteDataset(TOLD["cache"]).repeat().batch(TOLD["batch"])
        batch = tf.data.make_one_shot_iterator(rows).get_next()["val"]
        slope = tf.Variable(tf.zeros([3]))
        error = tf.reduce_sum(tf.cast(batch["x"], tf.float32) * slope, axis=1) - tf.cast(
            batch["line"], tf.float32
        )
        step = tf.train.get_or_create_global_step()
        optimizer = tf.train.GradientDescentOptimizer(TOLD["rate"])
        train = optimizer.minimize(tf.reduce_mean(tf.square(error)), global_step=step)
    folder = f"{URI}/trainer"
    options = {
        "checkpoint_dir": folder,
        "save_checkpoint_steps": TOLD["save_steps"],
        "save_checkpoint_secs": None,
    }
    hooks = [tf.train.StopAtStepHook(last_step=TOLD["steps"])]
    with tf.train.MonitoredTrainingSession(
        server.target, is_chief=index == 0, hooks=hooks, **options
    ) as session:
        meet(index, num_workers)
        while not session.should_stop():
            _, number, found = session.run([train, step, slope])
            num_steps += 1
            print(f"STEP {int(number)}", flush=True)
            time.sleep(TOLD["pause_s"])
    told = {"slope": list(map(float, found)), "step": int(number), "own": num_steps, "device": slope.device}
    told["saved"] = tf.train.latest_checkpoint(folder) if index == 0 else None
    print(f"FOUND {json.dumps(told)}", flush=True)


if __name__ == "__main__":
    tf.app.run(main)
