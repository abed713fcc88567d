"""The workers of a run as one group: what all of them add up to, inside and outside of graphs.

Values go round by TensorFlow's own collective operations (`tf.raw_ops.CollectiveReduceV2`), over the servers that
TF_CONFIG names. There is no strategy around it: variables are those of one process, and what is reduced, and when, is
written down where it happens. All workers must call `sum` in the same order.

TensorFlow knows an operation by its instance key, and keeps a kilobyte or two for each key until the process ends. The
key here is made of the dtype and the number of elements, so that there are few; operations with the same key are kept
apart by their order, as in `MultiWorkerMirroredStrategy`, which an ordering token guarantees within graphs.
"""

from __future__ import annotations

import atexit
import copy
import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import tensorflow as tf

from ignite_tf_magic.dataset import tf_private
from ignite_tf_magic.errors import ConfigError
from ignite_tf_magic.training.task import Place, place_of, task

_NARROW = (tf.float16, tf.bfloat16)
_GROUP_KEY = 41_001  # strategies count theirs from 1
_NUM_DTYPES = 64
_LAST_ANSWER_S = 0.2
_MAX_KEY = 2**31 - 1
_COMMUNICATION = "IGNITE_TF_COMMUNICATION"
_TOO_LATE = (
    "TensorFlow was at work before Keras was imported, so this worker cannot join the others any more. Import keras at "
    "the top of the script, before the first tensor, variable or tf.data dataset is made"
)
_NO_GPU = (
    "--communication nccl has tensors go from GPU to GPU, and TensorFlow sees none in this worker. Ask for one with "
    "--gpus 1, or leave --communication out"
)


class WorkerGroup:
    """All workers. One for a process; `connect` comes before TensorFlow does anything else.

    Not thread-safe: another thread needs a channel of its own.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self._is_connected = False
        self._key = _GROUP_KEY
        self._num_channels = 0
        self._token: Any = None
        self._lock = threading.Lock()

    def connect(self) -> None:
        """Have TensorFlow start this worker's server, which waits for nobody. A second call does nothing.

        Raises:
            ConfigError: TensorFlow has been at work already, or sees no GPU, between which tensors are to go round.
        """
        with self._lock:
            if self.place.size == 1 or self._is_connected:
                return
            if communication() == "nccl" and not tf.config.get_visible_devices("GPU"):
                raise ConfigError(_NO_GPU)
            _enable(self.place)
            # The answer to the last operation may still be on its way when it is done here; TensorFlow does not say.
            atexit.register(time.sleep, _LAST_ANSWER_S)
            self._is_connected = True

    def channel(self) -> WorkerGroup:
        """Return a way to add up beside this one, for another thread. All workers make theirs in the same order."""
        self._num_channels += 1
        beside = WorkerGroup(self.place)
        beside._key = self._key + self._num_channels
        return beside

    def sum(self, tensors: Sequence[Any]) -> list[Any]:
        """Add up tensors over all workers, position by position; to the bit the same on each of them.

        Inside a tf.function or outside. Blocks until every worker has called. One operation for each dtype; numbers of
        16 bits are added up as float32.

        Args:
            tensors: Of numbers; of the same shapes on all workers.

        Raises:
            tf.errors.OpError: A worker has gone; the rest cannot go on without it.
        """
        tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
        if self.place.size == 1 or not tensors:
            return tensors
        wide = [tf.cast(each, tf.float32) if each.dtype in _NARROW else each for each in tensors]
        sums: list[Any] = [None] * len(tensors)
        for dtype in dict.fromkeys(tensor.dtype for tensor in wide):
            places = [at for at, tensor in enumerate(wide) if tensor.dtype == dtype]
            totals = self._sum_of_one_dtype([wide[at] for at in places])
            for at, total in zip(places, totals, strict=True):
                sums[at] = tf.cast(total, tensors[at].dtype)
        return sums

    def sum_arrays(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Add up arrays over all workers, outside of graphs."""
        return [total.numpy() for total in self.sum(arrays)]

    def from_chief(self, tensors: Sequence[Any]) -> list[Any]:
        """Return the chief's values on every worker; of numbers or booleans."""
        return self.from_worker(0, tensors)

    def from_worker(self, index: int, tensors: Sequence[Any]) -> list[Any]:
        """Return one worker's values on every worker; shapes and dtypes are those of that worker everywhere."""
        tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
        if self.place.size == 1:
            return tensors
        return self.join([each if self.place.index == index else tf.zeros_like(each) for each in tensors])

    def join(self, tensors: Sequence[Any]) -> list[Any]:
        """Put together tensors of which each place is zero, or false, on all workers but one.

        Boolean, unsigned and small integers travel as int64.
        """
        numbers = [tf.cast(each, tf.int64) if _needs_cast(each.dtype) else each for each in tensors]
        sums = self.sum(numbers)
        return [tf.cast(total, each.dtype) for total, each in zip(sums, tensors, strict=True)]

    def any_true(self, condition: bool) -> bool:
        """Return whether a condition holds on any worker."""
        return sum(self.side_by_side(int(condition))) > 0

    def settle(self) -> None:
        """Wait until every worker has all that it called for so far, or has ended: then this one may end, too.

        What is on its way is fetched from this process, and would be lost with it.
        """
        with suppress(tf.errors.OpError):  # who has ended needed nothing any more
            self.side_by_side(0)

    def are_equal(self, numbers: np.ndarray) -> np.ndarray:
        """Return which numbers are the same on all workers.

        Args:
            numbers: int64[n], of the same length on all workers.

        Returns:
            bool[n], the same on all workers.
        """
        (chiefs,) = self.from_chief([tf.constant(numbers, tf.int64)])
        (num_other,) = self.sum_arrays([(chiefs.numpy() != numbers).astype(np.int64)])
        return np.asarray(num_other == 0)

    def side_by_side(self, number: int) -> tuple[int, ...]:
        """Return a number of each worker, in their order."""
        row = np.zeros(self.place.size, np.int64)
        row[self.place.index] = number
        return tuple(int(each) for each in self.sum_arrays([row])[0])

    def _sum_of_one_dtype(self, tensors: list[Any]) -> list[Any]:
        flat = [tf.reshape(each, [-1]) for each in tensors]
        total = self._reduce(flat[0] if len(flat) == 1 else tf.concat(flat, 0))
        parts = (
            [total] if len(flat) == 1 else tf.split(total, [tf.size(each) for each in flat], num=len(flat))
        )
        return [
            tf.ensure_shape(tf.reshape(part, tf.shape(each)), each.shape)
            for part, each in zip(parts, tensors, strict=True)
        ]

    def _reduce(self, flat: Any) -> Any:
        way = communication()
        if self._token is None:
            with tf.init_scope(), tf.device("CPU:0"):
                self._token = tf.Variable(0.0, trainable=False)
        # The same kind of device on every worker, whatever else it has.
        with tf.device("GPU:0" if way == "nccl" else "CPU:0"):
            return tf.raw_ops.CollectiveReduceV2(
                input=flat,
                group_size=self.place.size,
                group_key=self._key,
                instance_key=_instance_key(flat),
                ordering_token=[self._token.handle],
                merge_op="Add",
                final_op="Id",
                communication_hint=way,
            )


def _instance_key(flat: Any) -> Any:
    """Return the key of sums of so many elements of this dtype: TensorFlow refuses another shape for the same key."""
    kind = flat.dtype.as_datatype_enum
    if flat.shape[0] is not None:
        return (flat.shape[0] * _NUM_DTYPES + kind) % _MAX_KEY
    return tf.cast((tf.size(flat, tf.int64) * _NUM_DTYPES + kind) % _MAX_KEY, tf.int32)


def communication() -> str:
    """Return how tensors go round, as the run was asked to: "auto", "ring" or "nccl"."""
    return os.environ.get(_COMMUNICATION, "auto")


def _needs_cast(dtype: Any) -> bool:
    return bool(dtype.is_bool or dtype.is_unsigned or dtype in (tf.int8, tf.int16))


def _enable(place: Place) -> None:
    """Let TensorFlow of this process reach that of the others, as `MultiWorkerMirroredStrategy` does.

    Without its coordination service: a script that trains nothing together must not be bound so.
    """
    leader = "/job:worker/replica:0/task:0"
    cluster = tf.train.ClusterSpec({"worker": list(place.addresses)})
    try:
        with tf_private.connecting(leader, (f"/job:worker/task:{place.index}",)) as context:
            session = copy.deepcopy(context.config)
            session.experimental.collective_group_leader = leader
            server = tf.train.ServerDef(
                cluster=cluster.as_cluster_def(),
                default_session_config=session,
                job_name="worker",
                task_index=place.index,
                protocol="grpc",
            )
            context.enable_collective_ops(server)
    except RuntimeError:
        raise ConfigError(_TOO_LATE) from None


def as_array(value: Any) -> np.ndarray:
    """Return a tensor, variable, array or number as an array.

    NumPy by itself cannot: a bfloat16 tensor without dimensions gives it a number that it does not know.
    """
    return np.asarray(value.numpy() if hasattr(value, "numpy") else value)


_groups: dict[str, WorkerGroup] = {}


def worker_group() -> WorkerGroup:
    """Return the group of this process."""
    return _groups.setdefault("own", WorkerGroup(place_of(task())))
