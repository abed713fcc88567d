"""Adds up values over the workers of a run, inside and outside of graphs.

The values travel through TensorFlow's own collective operations (`tf.raw_ops.CollectiveReduceV2`), over the servers
that TF_CONFIG names. No strategy is involved: variables belong to one process, and each reduction is an explicit call.
All workers must call `sum` in the same order.

TensorFlow identifies an operation by its instance key, and keeps a kilobyte or two for each key until the process ends.
To keep the keys few, this module derives them from the dtype and the number of elements. Operations with the same key
are told apart by their order, as in `MultiWorkerMirroredStrategy`. An ordering token guarantees the order in graphs.
"""

from __future__ import annotations

import atexit
import copy
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import tensorflow as tf

from ignite_tf_magic.dataset import tf_private
from ignite_tf_magic.errors import ConfigError
from ignite_tf_magic.training.task import Place, place_of, task

_NARROW = (tf.float16, tf.bfloat16)
_GROUP_KEY = 41_001  # far from the keys of strategies, which start at 1
_NUM_DTYPES = 64
_LAST_ANSWER_S = 0.2
_LARGE_BYTES = 1 << 20
_MAX_KEY = 2**31 - 1
_COMMUNICATION = "IGNITE_TF_COMMUNICATION"
_TOO_LATE = (
    "TensorFlow was used before Keras was imported, so this worker can no longer join the others. Import "
    "keras at the top of the script, before the first tensor, variable or tf.data dataset is made"
)
_NO_GPU = (
    "--communication nccl sends tensors from GPU to GPU, but TensorFlow finds no GPU in this worker. "
    "Request one with --gpus 1, or leave --communication out"
)


class WorkerGroup:
    """All workers of a run. A process has one group, and calls `connect` before it uses TensorFlow otherwise.

    Not thread-safe: another thread needs a channel of its own.

    Args:
        place: The workers, and which of them this process is.
        key: TensorFlow's key of the group, the same for all of its workers.
        way: How tensors are exchanged ("auto", "ring" or "nccl"). None means the run's --communication option.
    """

    def __init__(self, place: Place, *, key: int = _GROUP_KEY, way: str | None = None) -> None:
        self.place = place
        self._is_connected = False
        self._key, self._way = key, way
        self._num_channels = 0
        self._token: Any = None
        self._lock = threading.Lock()
        self.on_sum: Callable[[], None] | None = None  # called before each operation outside of graphs

    def connect(self) -> None:
        """Set up this worker's TensorFlow server. It does not wait for others. A second call does nothing.

        Raises:
            ConfigError: TensorFlow has already run operations, or the run uses NCCL and TensorFlow sees no GPU.
        """
        with self._lock:
            if self.place.size == 1 or self._is_connected:
                return
            if communication() == "nccl" and not tf.config.get_visible_devices("GPU"):
                raise ConfigError(_NO_GPU)
            _enable(self.place)
            # When the last operation is done here, its result may still be in transit. TensorFlow does not report that.
            atexit.register(time.sleep, _LAST_ANSWER_S)
            self._is_connected = True

    def channel(self) -> WorkerGroup:
        """Return a group for another thread's sums. All workers must create theirs in the same order."""
        self._num_channels += 1
        return WorkerGroup(self.place, key=self._key + self._num_channels, way=self._way)

    def sum(self, tensors: Sequence[Any]) -> list[Any]:
        """Add up tensors elementwise over all workers.

        The results are the same bit for bit on each worker. Works inside and outside of a tf.function. Blocks until
        every worker has called. There is one operation for each dtype. 16-bit floats are added up as float32.

        Args:
            tensors: Numeric tensors, with the same shapes on all workers.

        Raises:
            tf.errors.OpError: A worker is gone. The others cannot continue without it.
        """
        tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
        if self.place.size == 1 or not tensors:
            return tensors
        packed = _Packed(tensors)
        return packed.unpacked([self._reduce(flat) for flat in packed.flat])

    def weighted_means(self, tensors: Sequence[Any], along: Any, weight_at: int) -> tuple[list[Any], Any]:
        """Average tensors over all workers, weighted by worker, in few operations.

        The tensors of a worker with weight 0 count for nothing, even if they are NaN. If all weights are 0, the
        averages are 0.

        Args:
            tensors: Floating-point tensors, with the same shapes on all workers.
            along: float32[n] with a static n, which the same operations add up.
            weight_at: The index in `along` of this worker's weight.

        Returns:
            The averages, and the sums of `along`.
        """
        packed, count = _Packed([*tensors, along], _LARGE_BYTES), along.shape[0]
        sums = []
        for flat in packed.flat:
            weighted = tf.math.multiply_no_nan(flat, tf.cast(along[weight_at], flat.dtype))
            if flat is packed.flat[-1]:
                ends = tf.range(tf.size(flat) - count, tf.size(flat))[:, tf.newaxis]
                weighted = tf.tensor_scatter_nd_update(weighted, ends, along)
            sums.append(self._reduce(weighted))
        total = tf.ensure_shape(sums[-1][-count:], [count])
        means = [tf.math.divide_no_nan(each, tf.cast(total[weight_at], each.dtype)) for each in sums]
        return packed.unpacked(means)[:-1], total

    def sum_arrays(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Add up arrays over all workers, outside of graphs."""
        return [total.numpy() for total in self.sum(arrays)]

    def from_chief(self, tensors: Sequence[Any]) -> list[Any]:
        """Return the chief's tensors on every worker. They are numbers or booleans."""
        return self.from_worker(0, tensors)

    def from_worker(self, index: int, tensors: Sequence[Any]) -> list[Any]:
        """Return one worker's tensors on every worker. All workers must pass its shapes and dtypes."""
        tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
        if self.place.size == 1:
            return tensors
        return self.join([each if self.place.index == index else tf.zeros_like(each) for each in tensors])

    def join(self, tensors: Sequence[Any]) -> list[Any]:
        """Merge tensors in which each element is zero, or false, on all workers but one.

        Booleans, unsigned and small integers are sent as int64.
        """
        numbers = [tf.cast(each, tf.int64) if _needs_cast(each.dtype) else each for each in tensors]
        sums = self.sum(numbers)
        return [tf.cast(total, each.dtype) for total, each in zip(sums, tensors, strict=True)]

    def any_true(self, condition: bool) -> bool:
        """Return whether a condition holds on any worker."""
        return sum(self.side_by_side(int(condition))) > 0

    def settle(self) -> None:
        """Wait until this process may end: every other worker has its results so far, or has ended.

        Workers fetch results in transit from this process, and would lose them if it ended.
        """
        with suppress(tf.errors.OpError):  # a worker that has ended needs no more results
            self.side_by_side(0)

    def are_equal(self, numbers: np.ndarray) -> np.ndarray:
        """Return, for each number, whether it is the same on all workers.

        Args:
            numbers: int64[n], of the same length on all workers.

        Returns:
            bool[n], the same on all workers.
        """
        (chiefs,) = self.from_chief([tf.constant(numbers, tf.int64)])
        (num_other,) = self.sum_arrays([(chiefs.numpy() != numbers).astype(np.int64)])
        return np.asarray(num_other == 0)

    def side_by_side(self, number: int) -> tuple[int, ...]:
        """Return the numbers that the workers pass, in the order of the workers."""
        row = np.zeros(self.place.size, np.int64)
        row[self.place.index] = number
        return tuple(int(each) for each in self.sum_arrays([row])[0])

    def _reduce(self, flat: Any) -> Any:
        if self.on_sum is not None and tf.executing_eagerly():
            self.on_sum()
        way = self._way or communication()
        if self._token is None:
            with tf.init_scope(), tf.device("CPU:0"):
                self._token = tf.Variable(0.0, trainable=False)
        # Use the same kind of device on every worker, whatever other devices it has.
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


class _Packed:
    """Tensors concatenated into one vector for each dtype. 16-bit floats become float32.

    Args:
        tensors: The tensors.
        large_bytes: A tensor of at least this size gets a vector of its own, because packing it takes longer than one
            more operation.

    Attributes:
        flat: The vectors to add up, in this order. Large tensors come first, in reverse order, because the gradients of
            the last layers are ready first. The last vector holds the last small tensor.
    """

    def __init__(self, tensors: Sequence[Any], large_bytes: int | None = None) -> None:
        self._tensors = tensors
        large: list[tuple[Any, list[int]]] = []
        small: dict[Any, list[int]] = {}
        for at, tensor in enumerate(tensors):
            dtype = tf.float32 if tensor.dtype in _NARROW else tensor.dtype
            if large_bytes is not None and (tensor.shape.num_elements() or 0) * dtype.size >= large_bytes:
                large.insert(0, (dtype, [at]))
            else:
                small[dtype] = [*small.pop(dtype, []), at]
        self._packs = [*large, *small.items()]
        self.flat = [self._joined(dtype, places) for dtype, places in self._packs]

    def _joined(self, dtype: Any, places: Sequence[int]) -> Any:
        parts = [tf.reshape(tf.cast(self._tensors[at], dtype), [-1]) for at in places]
        return parts[0] if len(parts) == 1 else tf.concat(parts, 0)

    def unpacked(self, flat: Sequence[Any]) -> list[Any]:
        """Return the values of such vectors as tensors in the form of the packed ones."""
        found: list[Any] = [None] * len(self._tensors)
        for (_, places), vector in zip(self._packs, flat, strict=True):
            sizes = [_size_of(self._tensors[at]) for at in places]
            parts = [vector] if len(places) == 1 else tf.split(vector, sizes, num=len(sizes))
            for at, part in zip(places, parts, strict=True):
                found[at] = _shaped_like(self._tensors[at], part)
        return found


def _size_of(tensor: Any) -> Any:
    return tensor.shape.num_elements() if tensor.shape.is_fully_defined() else tf.size(tensor)


def _shaped_like(tensor: Any, flat: Any) -> Any:
    values = tf.cast(flat, tensor.dtype)
    if tensor.shape.is_fully_defined():
        return tf.reshape(values, tensor.shape)
    return tf.ensure_shape(tf.reshape(values, tf.shape(tensor)), tensor.shape)


def _instance_key(flat: Any) -> Any:
    """Return the key for sums of this size and dtype. TensorFlow refuses another shape for the same key."""
    kind = flat.dtype.as_datatype_enum
    if flat.shape[0] is not None:
        return (flat.shape[0] * _NUM_DTYPES + kind) % _MAX_KEY
    return tf.cast((tf.size(flat, tf.int64) * _NUM_DTYPES + kind) % _MAX_KEY, tf.int32)


def communication() -> str:
    """Return how the run exchanges tensors: "auto", "ring" or "nccl"."""
    return os.environ.get(_COMMUNICATION, "auto")


def _needs_cast(dtype: Any) -> bool:
    return bool(dtype.is_bool or dtype.is_unsigned or dtype in (tf.int8, tf.int16))


def _enable(place: Place) -> None:
    """Connect TensorFlow in this process to the other workers, as `MultiWorkerMirroredStrategy` does.

    The strategy's coordination service is left out: it would also tie workers whose script trains no common model.
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

    NumPy alone cannot convert a scalar bfloat16 tensor, whose value has a type that NumPy does not know.
    """
    return np.asarray(value.numpy() if hasattr(value, "numpy") else value)


_groups: dict[str, WorkerGroup] = {}


def worker_group() -> WorkerGroup:
    """Return the group of this process."""
    return _groups.setdefault("own", WorkerGroup(place_of(task())))
