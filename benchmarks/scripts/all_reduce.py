"""All-reduces vectors of some sizes on all workers as fast as possible; the result is steps per second, by bytes."""

import json
import sys
import time

import tensorflow as tf

import ignite_tf_magic

strategy = tf.distribute.MultiWorkerMirroredStrategy()


@tf.function
def total(size):
    """Return the sum of all workers' vectors."""
    return strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("sum", tf.ones([size])))


found = {}
for num_bytes, num_steps in json.loads(sys.argv[1]):
    for _ in range(3):
        total(num_bytes // 4).numpy()
    began = time.monotonic()
    for _ in range(num_steps):
        total(num_bytes // 4).numpy()
    found[str(num_bytes)] = num_steps / (time.monotonic() - began)
ignite_tf_magic.result(found)
