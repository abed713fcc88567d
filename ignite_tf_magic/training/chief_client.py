"""Connects a chief to the TensorFlow servers that it drives: workers, and parameter servers if it has some."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from ignite_tf_magic.dataset import tf_private
from ignite_tf_magic.errors import ServerGone
from ignite_tf_magic.runs.listening import listens
from ignite_tf_magic.training.task import Task, hands_steps_out, task

# The same settings as in ParameterServerStrategy: one request at a time to each worker. So a request to a lost worker
# fails for its caller.
_AS_A_COORDINATOR = {
    "TF_ENABLE_EAGER_CLIENT_STREAMING_ENQUEUE": "False",
    "TF_PS_DISABLE_ASYNC_EXECUTOR_GLOBALLY": "True",
}
_RETRIES = 50
_ASK_S, _PROBE_S = 0.2, 2.0


def know_servers() -> None:
    """Let a chief place operations on the servers' devices, such as "/job:worker/task:0".

    TensorFlow connects to the servers when the chief's first eager operation runs. Functions created before this call
    would be unknown to the servers. A TensorFlow 1 script uses its own sessions instead.
    """
    own = task()
    if own.kind != "chief":
        return
    server = tf.train.ServerDef(
        cluster=tf.train.ClusterSpec(own.addresses).as_cluster_def(),
        job_name=own.kind,
        task_index=own.index,
        protocol="grpc",
    )
    if hands_steps_out(own):
        os.environ.update(_AS_A_COORDINATOR)
        _keep_workers_apart(server, own)
    tf_private.set_server(server, _RETRIES)


def _keep_workers_apart(server: tf.train.ServerDef, own: Task) -> None:
    """Let each worker see only the parameter servers and the chief, not other workers, which may be replaced."""
    for kind, seen in (("worker", "/job:ps"), ("ps", "/job:worker")):
        filters = server.cluster_device_filters.jobs.add()
        filters.name = kind
        for index in range(len(own.addresses[kind])):
            filters.tasks[index].device_filters.extend([seen, f"/job:{own.kind}"])


class Servers:
    """The workers and parameter servers of a chief. Thread-safe.

    Attributes:
        workers: The device of each worker.
        ps: The device of each parameter server.
    """

    def __init__(self, addresses: Mapping[str, Sequence[str]]) -> None:
        self._addresses = addresses
        self.workers = tuple(f"/job:worker/replica:0/task:{n}" for n in range(len(addresses["worker"])))
        self.ps = tuple(f"/job:ps/replica:0/task:{n}" for n in range(len(addresses["ps"])))
        self._lock = threading.Lock()

    def check_ps(self) -> None:
        """Check that all parameter servers accept connections.

        Raises:
            ServerGone: A parameter server does not. Its variables are lost.
        """
        for index, address in enumerate(self._addresses["ps"]):
            if not listens(address, _PROBE_S):
                raise ServerGone(
                    f"parameter server {index} does not answer at {address}: its part of the model is "
                    "lost. The run starts again from the last checkpoint of this fit"
                )

    def rejoin(self, worker: int, is_wanted: Callable[[], bool]) -> bool:
        """Wait until a worker's process is back, and connect to it. Return False once `is_wanted` is false."""
        waiting = threading.Event()
        while is_wanted():
            if listens(self._addresses["worker"][worker], _PROBE_S):
                try:
                    with self._lock:
                        tf_private.renew_servers()
                    return True
                except tf.errors.OpError:  # this worker or another server is gone again
                    self.check_ps()
            waiting.wait(_ASK_S)
        return False
