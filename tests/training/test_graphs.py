"""A TensorFlow 1 script as a run: the in-graph program of the articles, without ignite:// or igfs:// in it."""

from __future__ import annotations

import json

import numpy as np

from ignite_tf_magic.session import RunRequest, load
from tests.training.runs import succeeded

# Each task runs a TensorFlow server from TF_CONFIG and computes on its own rows; one session drives all.
SCRIPT = """
import json, os, time
import tensorflow.compat.v1 as tf
from ignite_tf_magic import IgniteDataset

tf.disable_v2_behavior()
config = json.loads(os.environ["TF_CONFIG"])
index = config["task"]["index"]
server = tf.distribute.Server(tf.train.ClusterSpec(config["cluster"]), job_name="worker", task_index=index)
done = os.environ["IGNITE_TF_RUN_URI"] + "/done"
if index:
    while not tf.gfile.Exists(done):
        time.sleep(0.1)
    print("registered", flush=True)
else:
    rows = IgniteDataset("GRAPHS").shuffle(60)
    nexts = []
    for task in range(2):
        with tf.device("/job:worker/task:%d" % task):
            nexts.append(tf.data.make_one_shot_iterator(rows).get_next()["val"]["label"])
    with tf.Session(server.target) as session:
        found = [[], []]
        for task in range(2):
            try:
                while True:
                    found[task].append(int(session.run(nexts[task])))
            except tf.errors.OutOfRangeError:
                pass
    with tf.gfile.GFile(done, "w") as file:
        file.write("x")
    print("FOUND" + json.dumps(found), flush=True)
"""


def test_the_in_graph_program_of_the_articles(session):
    load("GRAPHS", {"label": np.arange(60)}, replace=True, report=str)
    run, text = succeeded(session, RunRequest("GRAPHS", SCRIPT, num_workers=2))
    rows = [worker.rows for worker in run.info().workers]
    found = json.loads(text.partition("FOUND")[2].splitlines()[0])
    assert list(map(len, found)) == rows
    assert sorted([*found[0], *found[1]]) == list(range(60))
    assert "registered" in text
