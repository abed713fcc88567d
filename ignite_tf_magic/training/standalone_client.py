"""How the script of a standalone client comes to know the servers that it drives."""

from __future__ import annotations

import tensorflow as tf

from ignite_tf_magic.dataset import tf_private
from ignite_tf_magic.training.task import task


def know_servers() -> None:
    """Let a standalone client put operations on the servers' devices: "/job:worker/task:0".

    They are asked when the client's first eager operation runs, so that a script of TensorFlow 1 has its own sessions.
    """
    own = task()
    if own.kind != "chief":
        return
    tf_private.set_server(
        tf.train.ServerDef(
            cluster=tf.train.ClusterSpec(own.addresses).as_cluster_def(),
            job_name=own.kind,
            task_index=own.index,
            protocol="grpc",
        )
    )
