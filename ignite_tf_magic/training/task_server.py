"""Runs a TensorFlow server for a task without a script: a worker or parameter server that others drive."""

from __future__ import annotations

import os
import threading

import tensorflow as tf

from ignite_tf_magic.training.task import task


def serve() -> None:
    """Run the server of this process's task until the process is terminated."""
    own = task()
    config = tf.compat.v1.ConfigProto()
    # Steps that wait for each other share these threads. With fewer threads they could wait forever.
    if (os.cpu_count() or 1) <= own.num_workers:
        config.inter_op_parallelism_threads = own.num_workers + 1
    server = tf.distribute.Server(
        tf.train.ClusterSpec(own.addresses),
        job_name=own.kind,
        task_index=own.index,
        protocol="grpc",
        config=config,
    )
    print(f"serves at {own.addresses[own.kind][own.index]}", flush=True)  # noqa: T201 - it is the task's output
    threading.Event().wait()
    del server
