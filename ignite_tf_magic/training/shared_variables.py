"""The variables of a training on parameter servers, beside those of the model in the chief's process.

Floats lie on the servers, and steps change them there, while others do. A whole number is a count, or the state of a
generator of random numbers: what a step adds to it is added on the server, and once more here, where a step that is
made again counts once. So at the end of an epoch it is exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf


class SharedVariables:
    """Variables of a model and of its optimizers, each on one parameter server. Used in one thread.

    Args:
        own: The variables of this process, as TensorFlow's own.
        devices: Of the parameter servers; the next variable goes to the one that holds least.
    """

    def __init__(self, own: Sequence[Any], devices: Sequence[str]) -> None:
        self._own = list(own)
        self._counts: dict[int, np.ndarray] = {}
        self._settings: dict[int, np.ndarray] = {}
        loads = dict.fromkeys(devices, 0)
        self._shared = []
        for variable in self._own:
            device = min(loads, key=lambda each: loads[each])
            loads[device] += math.prod(variable.shape)
            dtype = tf.int64 if is_count(variable) else variable.dtype
            with tf.device(device):
                self._shared.append(tf.Variable(tf.cast(variable.read_value(), dtype), trainable=False))
        self.counts = [at for at, each in enumerate(self._own) if is_count(each)]

    def __len__(self) -> int:
        return len(self._own)

    def shared(self, at: int) -> Any:
        """Return one as it is on its server; counts are int64 there."""
        return self._shared[at]

    def own(self, at: int) -> Any:
        """Return one as it is in this process."""
        return self._own[at]

    def push(self) -> None:
        """Give the servers what this process has. No step is under way."""
        for at, (own, shared) in enumerate(zip(self._own, self._shared, strict=True)):
            value = own.numpy()
            shared.assign(value.astype(np.int64) if at in self.counts else value)
            self._note(at, value)

    def push_settings(self) -> None:
        """Give the servers those single numbers that callbacks have changed here, as a learning rate."""
        for at, known in self._settings.items():
            value = self._own[at].numpy()
            if value != known:
                self._shared[at].assign(value)
                self._settings[at] = value

    def add(self, deltas: Sequence[np.ndarray]) -> None:
        """Count what a step has added to the counts, in their order."""
        for at, delta in zip(self.counts, deltas, strict=True):
            self._counts[at] = self._counts[at] + delta

    def pull(self, *, is_settled: bool) -> None:
        """Give this process what the servers have; of counts, what steps were told to have added.

        Args:
            is_settled: Whether no step is under way: then the servers' counts are set right, too.
        """
        for at, (own, shared) in enumerate(zip(self._own, self._shared, strict=True)):
            if at not in self.counts:
                value = shared.numpy()
                self._note(at, value)
            else:
                value = self._counts[at].astype(own.dtype.as_numpy_dtype)
                if is_settled:
                    shared.assign(self._counts[at])
            own.assign(value)

    def _note(self, at: int, value: np.ndarray) -> None:
        if at in self.counts:
            self._counts[at] = value.astype(np.int64)
        elif not value.ndim and self._own[at].dtype.is_floating:
            self._settings[at] = value


def is_count(variable: Any) -> bool:
    """Whether steps add to a variable what no other step may take away."""
    return bool(variable.dtype.is_integer)
