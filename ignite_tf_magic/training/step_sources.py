"""Where the batches of steps come from that workers make: rows of their own, or whatever the chief hands them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ignite_tf_magic.dataset.portable import made_of
from ignite_tf_magic.dataset.tf_private import forget_end

Parts = Sequence[Any]  # the tensors of a batch


class StepSource(ABC):
    """Batches for workers. `StepQueue` calls with its lock held, but for `batch`.

    Attributes:
        element_spec: Of the batches; None where that is known only when Keras asks for them.
        num_done: How many batches each worker has trained, of those that it reads by itself.
    """

    element_spec: Any = None
    num_done: Sequence[int] = ()

    @property
    def num_waiting(self) -> int:
        """How many batches are there that no worker was promised."""
        return 0

    @abstractmethod
    def begin_epoch(self) -> None:
        """Begin an epoch."""

    @abstractmethod
    def has(self, worker: int) -> bool:
        """Whether a worker may ask for a batch."""

    @abstractmethod
    def take(self, worker: int) -> None:
        """Promise a worker the next batch."""

    @abstractmethod
    def batch(self, worker: int, device: str) -> Parts | None:
        """Return the batch that a worker was promised; None where its rows have come to their end. In its thread."""

    @abstractmethod
    def done(self, worker: int) -> None:
        """Note that a step was made of the batch."""

    @abstractmethod
    def lost(self, worker: int) -> None:
        """Note that the worker's process is gone, with all that it held."""

    @abstractmethod
    def ended(self, worker: int) -> None:
        """Note that a worker's rows have come to their end."""

    @abstractmethod
    def is_over(self) -> bool:
        """Whether no worker will be given any more in this epoch."""


class RowsOfWorkers(StepSource):
    """The rows that each worker reads by itself: a dataset over its own partitions, in its own process.

    Args:
        graph: Of the dataset.
        element_spec: Of its batches.
        num_workers: How many workers there are.
        goes_on: Whether an epoch begins where the one before has stopped; else each begins with the first rows.
        is_endless: Whether the rows come again and again: who takes a worker's place then begins with the first ones,
            as leaving out all that was ever read would take as long as reading it.
    """

    def __init__(
        self, graph: bytes, element_spec: Any, num_workers: int, *, goes_on: bool, is_endless: bool
    ) -> None:
        self._graph = graph
        self.element_spec = element_spec
        self._goes_on = goes_on
        self._is_endless = is_endless
        self._datasets: dict[int, Any] = {}
        self._iterators: dict[int, Any] = {}
        self._ended: set[int] = set()
        self._is_resumed = False
        self.num_done: list[int] = [0] * num_workers

    def begin_epoch(self) -> None:
        """Begin an epoch."""
        goes_on = self._is_resumed or (self._goes_on and len(self._ended) < len(self.num_done))
        self._is_resumed = False
        if not goes_on:
            self._iterators.clear()
            self._ended.clear()
            self.num_done = [0] * len(self.num_done)

    def resume(self, num_done: Sequence[int], *, in_epoch: bool) -> None:
        """Go on where each worker has trained so many batches, within an epoch or between two."""
        if len(num_done) == len(self.num_done) and (in_epoch or self._goes_on):
            self.num_done = list(num_done)
            self._is_resumed = True

    def has(self, worker: int) -> bool:
        """Whether there may be rows left."""
        return worker not in self._ended

    def take(self, worker: int) -> None:
        """Do nothing: the rows are the worker's anyway."""

    def batch(self, worker: int, device: str) -> Parts | None:
        """Have the worker read its next batch, which stays there."""
        with tf.device(device):
            try:
                element = next(self._iterator(worker))
            except StopIteration as end:
                forget_end(end)
                return None
        return list(tf.nest.flatten(element, expand_composites=True))

    def _iterator(self, worker: int) -> Any:
        if worker not in self._iterators:
            if worker not in self._datasets:
                self._datasets[worker] = made_of(self._graph, self.element_spec)
            skipped = 0 if self._is_endless else self.num_done[worker]
            dataset = self._datasets[worker]
            self._iterators[worker] = iter(dataset.skip(skipped) if skipped else dataset)
        return self._iterators[worker]

    def done(self, worker: int) -> None:
        """Count the step: who takes the worker's place begins behind it."""
        self.num_done[worker] += 1

    def lost(self, worker: int) -> None:
        """Have the dataset made again."""
        self._iterators.pop(worker, None)
        self._datasets.pop(worker, None)

    def ended(self, worker: int) -> None:
        """Let the worker rest."""
        self._ended.add(worker)

    def is_over(self) -> bool:
        """Whether all workers have read their rows."""
        return len(self._ended) == len(self.num_done)


class HandedBatches(StepSource):
    """Batches that the chief has, of data that is not Ignite's; any worker may be given any.

    Args:
        element_spec: Of the batches, if it is known.
    """

    def __init__(self, element_spec: Any) -> None:
        self.element_spec = element_spec
        self._waiting: deque[Parts] = deque()
        self._taken: dict[int, Parts] = {}
        self._is_whole = False

    @property
    def num_waiting(self) -> int:
        """How many batches are there that no worker was promised."""
        return len(self._waiting)

    def begin_epoch(self) -> None:
        """Begin an epoch."""
        self._is_whole = False

    def add(self, batch: Parts) -> None:
        """Add a batch."""
        self._waiting.append(batch)

    def end(self) -> None:
        """Say that there will be no more in this epoch."""
        self._is_whole = True

    def has(self, worker: int) -> bool:
        """Whether a batch waits."""
        del worker
        return bool(self._waiting)

    def take(self, worker: int) -> None:
        """Give the first one to a worker."""
        self._taken[worker] = self._waiting.popleft()

    def batch(self, worker: int, device: str) -> Parts | None:
        """Return what the worker was given."""
        del device
        return self._taken[worker]

    def done(self, worker: int) -> None:
        """Forget the batch."""
        del self._taken[worker]

    def lost(self, worker: int) -> None:
        """Let another worker have the batch, before all others."""
        if worker in self._taken:
            self._waiting.appendleft(self._taken.pop(worker))

    def ended(self, worker: int) -> None:
        """Do nothing: this never happens."""

    def is_over(self) -> bool:
        """Whether all batches were given and taken."""
        return self._is_whole and not self._waiting
