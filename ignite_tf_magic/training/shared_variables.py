"""Keeps the variables of a training on parameter servers in sync with those of the chief's model.

Floats are on the servers, and concurrent steps change them there. An integer is a count, or the state of a random
number generator. A step's increment of an integer is added on the server, and again in the chief from the step's
report. Only the chief counts a repeated step once, so its value is exact at the end of an epoch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf


class SharedVariables:
    """The variables of a model and its optimizers, each on one parameter server. Used in one thread.

    Args:
        own: The variables of this process, as `tf.Variable`.
        devices: The devices of the parameter servers. Each variable goes to the server with the fewest elements so far.
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
        """Return the variable of that number on its server. Counts are int64 there."""
        return self._shared[at]

    def own(self, at: int) -> Any:
        """Return the variable of that number in this process."""
        return self._own[at]

    def push(self) -> None:
        """Copy this process's values to the servers. No step may be running."""
        for at, (own, shared) in enumerate(zip(self._own, self._shared, strict=True)):
            value = own.numpy()
            shared.assign(value.astype(np.int64) if at in self.counts else value)
            self._note(at, value)

    def push_settings(self) -> None:
        """Copy scalars that callbacks have changed in this process, such as a learning rate, to the servers."""
        for at, known in self._settings.items():
            value = self._own[at].numpy()
            if value != known:
                self._shared[at].assign(value)
                self._settings[at] = value

    def add(self, deltas: Sequence[np.ndarray]) -> None:
        """Add a step's increments to the counts in this process, in their order."""
        for at, delta in zip(self.counts, deltas, strict=True):
            self._counts[at] = self._counts[at] + delta

    def pull(self, *, is_settled: bool) -> None:
        """Copy the servers' values to this process; counts come from the steps' reports instead.

        Args:
            is_settled: Whether no step is running. Then the servers' counts are corrected, too.
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
    """Return whether a variable is an integer, to which steps add without overwriting each other's increments."""
    return bool(variable.dtype.is_integer)
