"""A client whose graph makes each worker compute the gradient of its own rows, for `benchmarks.modes`.

The variable is on the parameter server, and the sum of the gradients moves it: steepest descent over all rows, with
the same result however the rows are distributed.
"""

import json
import os
import time

import tensorflow.compat.v1 as tf

from ignite_tf_magic import IgniteDataset, task

TOLD = json.loads(os.environ["MODES_TOLD"])
tf.disable_v2_behavior()
workers = task().addresses["worker"]
with tf.device("/job:ps/task:0"):
    slope = tf.Variable(tf.zeros([3], tf.float64))
gradients, keys = [], []
for index in range(len(workers)):
    with tf.device(f"/job:worker/task:{index}"):
        rows = IgniteDataset(TOLD["cache"]).batch(TOLD["rows"]).repeat()
        row = tf.data.make_one_shot_iterator(rows).get_next()
        x, line = (tf.cast(row["val"][name], tf.float64) for name in ("x", "line"))
        error = tf.reduce_sum(x * slope, axis=1) - line
        gradients.append(tf.reduce_sum(2 * error[:, None] * x, axis=0) / TOLD["rows"])
        keys.append(row["key"])
train = tf.assign_sub(slope, TOLD["rate"] * tf.add_n(gradients))
read = []
with tf.Session("grpc://" + workers[0]) as session:
    session.run(tf.global_variables_initializer())
    for step in range(TOLD["steps"]):
        _, read = session.run([train, keys])
        print(f"STEP {step + 1}", flush=True)
        time.sleep(TOLD["pause_s"])
    found = [float(each) for each in session.run(slope)]
read = [[int(key) for key in each] for each in read]
print(f"FOUND {json.dumps({'slope': found, 'device': slope.device, 'keys': read})}", flush=True)
