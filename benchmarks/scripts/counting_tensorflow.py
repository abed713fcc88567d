"""Does the same as `counting` with TensorFlow: MultiWorkerMirroredStrategy counts, igfs has checkpoints."""

# ruff: noqa: E402 - the journal begins before TensorFlow is there

import json
import os
import socket
import sys
import time
from pathlib import Path

TOLD = json.loads(sys.argv[1])
CONFIG = json.loads(os.environ["TF_CONFIG"])
WORKER = CONFIG["task"]["index"]
ASSIGNMENT = Path(os.environ["IGNITE_DATASET_ASSIGNMENT_FILE"])
GENERATION = int(ASSIGNMENT.name.split(".g")[1].split(".")[0]) if ".g" in ASSIGNMENT.name else 1
FOLDER = TOLD["journals"].get(socket.gethostname()) or TOLD["journals"]["*"]
JOURNAL = os.open(f"{FOLDER}/worker-{WORKER}.g{GENERATION}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
CHECKPOINT_EACH = 20
num_lines = 0


def tell(text):
    """Print a line, and record it in the journal once the write has returned."""
    global num_lines
    line = f"worker {WORKER} gen {GENERATION} line {num_lines} {text}\n".encode()
    num_lines += 1
    rest = line
    while rest:
        rest = rest[os.write(1, rest) :]
    os.write(JOURNAL, f"{time.time():.6f} ".encode() + line)


tell("imports TensorFlow")
import tensorflow as tf

from ignite_tf_magic.runs.hosts.topology import connect_to_most
from ignite_tf_magic.settings.options import ConnectOptions, Endpoint

rows = json.loads(ASSIGNMENT.read_text())["rows_by_worker"]
if sum(rows) != TOLD["rows"]:
    raise SystemExit(f"the workers read {sum(rows)} rows of {TOLD['rows']}")

strategy = tf.distribute.MultiWorkerMirroredStrategy()
step, total = tf.Variable(0, dtype=tf.int64), tf.Variable(0, dtype=tf.int64)
checkpoint = tf.train.Checkpoint(step=step, total=total)
manager = tf.train.CheckpointManager(checkpoint, f"{os.environ['IGNITE_TF_RUN_URI']}/training", max_to_keep=3)
if manager.latest_checkpoint:
    checkpoint.restore(manager.latest_checkpoint).assert_consumed()


@tf.function
def numbers_of_all():
    """Return the sum of the numbers of all workers."""
    mine = strategy.run(lambda: tf.constant(WORKER + 1, tf.int64))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, mine, axis=None)


tell(f"begins after step {int(step)}")
while int(step) < TOLD["steps"]:
    total.assign_add(numbers_of_all())
    step.assign_add(1)
    if WORKER == 0 and int(step) % CHECKPOINT_EACH == 0:
        manager.save()
    tell(f"step {int(step)}")
    time.sleep(TOLD["step_s"])

if WORKER == 0:
    manager.save()
    state = {"generation": GENERATION, "step": int(step), "total": int(total), "ended": True}
    endpoints = tuple(Endpoint(*each) for each in TOLD["endpoints"])
    # A node that was cut off may have come back as a cluster of its own.
    with connect_to_most(ConnectOptions(endpoints=endpoints, timeout_s=3.0)) as client:
        client.cache(TOLD["cache"]).put(os.environ["IGNITE_TF_RUN_ID"], json.dumps(state))
numbers_of_all()  # no worker leaves before the last checkpoint is written
tell("ends")
