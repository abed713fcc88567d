"""Provides the batches for steps on workers: each worker's own rows, or batches that the chief hands out."""

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
    """A source of batches for workers. `StepQueue` holds its lock in all calls except `batch`.

    Attributes:
        element_spec: The spec of the batches, or None if it is known only when Keras requests them.
        num_done: The number of trained batches of each worker, if workers read their own rows.
    """

    element_spec: Any = None
    num_done: Sequence[int] = ()

    @property
    def num_waiting(self) -> int:
        """The number of batches not assigned to a worker yet."""
        return 0

    @abstractmethod
    def begin_epoch(self) -> None:
        """Begin an epoch."""

    @abstractmethod
    def has(self, worker: int) -> bool:
        """Return whether a worker may get a batch."""

    @abstractmethod
    def take(self, worker: int) -> None:
        """Assign the next batch to a worker."""

    @abstractmethod
    def batch(self, worker: int, device: str) -> Parts | None:
        """Return the batch assigned to a worker, or None if its rows have ended. Called in the worker's thread."""

    @abstractmethod
    def done(self, worker: int) -> None:
        """Note that the step with the worker's batch is finished."""

    @abstractmethod
    def lost(self, worker: int) -> None:
        """Note that the worker's process is gone, with all its data."""

    @abstractmethod
    def ended(self, worker: int) -> None:
        """Note that a worker's rows have ended."""

    @abstractmethod
    def is_over(self) -> bool:
        """Return whether no worker will get another batch in this epoch."""


class RowsOfWorkers(StepSource):
    """A source in which each worker reads its own rows: a dataset over its partitions, in its process.

    Args:
        graph: The serialized graph of the dataset.
        element_spec: The spec of its batches.
        num_workers: The number of workers.
        goes_on: Whether an epoch begins where the previous one stopped; otherwise each begins with the first rows.
        is_endless: Whether the rows repeat forever. A worker's replacement then begins with the first rows, because
            skipping all rows read so far would take as long as reading them.
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
        """Resume, within an epoch or between two, after the given number of trained batches of each worker."""
        if len(num_done) == len(self.num_done) and (in_epoch or self._goes_on):
            self.num_done = list(num_done)
            self._is_resumed = True

    def has(self, worker: int) -> bool:
        """Return whether the worker may have rows left."""
        return worker not in self._ended

    def take(self, worker: int) -> None:
        """Do nothing, because the worker reads its own rows."""

    def batch(self, worker: int, device: str) -> Parts | None:
        """Make the worker read its next batch. The tensors stay on the worker."""
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
        """Count the batch. A replacement of the worker begins after it."""
        self.num_done[worker] += 1

    def lost(self, worker: int) -> None:
        """Discard the worker's dataset and iterator, so that they are made again."""
        self._iterators.pop(worker, None)
        self._datasets.pop(worker, None)

    def ended(self, worker: int) -> None:
        """Give the worker no more batches in this epoch."""
        self._ended.add(worker)

    def is_over(self) -> bool:
        """Return whether all workers have read all their rows."""
        return len(self._ended) == len(self.num_done)


class HandedBatches(StepSource):
    """A source of batches from the chief. Any worker may get any batch.

    Args:
        element_spec: The spec of the batches, or None if it is not known yet.
    """

    def __init__(self, element_spec: Any) -> None:
        self.element_spec = element_spec
        self._waiting: deque[Parts] = deque()
        self._taken: dict[int, Parts] = {}
        self._is_whole = False

    @property
    def num_waiting(self) -> int:
        """The number of batches not assigned to a worker yet."""
        return len(self._waiting)

    def begin_epoch(self) -> None:
        """Begin an epoch."""
        self._is_whole = False

    def add(self, batch: Parts) -> None:
        """Add a batch."""
        self._waiting.append(batch)

    def end(self) -> None:
        """Note that this epoch has no more batches."""
        self._is_whole = True

    def has(self, worker: int) -> bool:
        """Return whether a batch is waiting."""
        del worker
        return bool(self._waiting)

    def take(self, worker: int) -> None:
        """Assign the first waiting batch to a worker."""
        self._taken[worker] = self._waiting.popleft()

    def batch(self, worker: int, device: str) -> Parts | None:
        """Return the batch assigned to the worker."""
        del device
        return self._taken[worker]

    def done(self, worker: int) -> None:
        """Forget the batch."""
        del self._taken[worker]

    def lost(self, worker: int) -> None:
        """Put the worker's batch back in front of all waiting batches."""
        if worker in self._taken:
            self._waiting.appendleft(self._taken.pop(worker))

    def ended(self, worker: int) -> None:
        """Do nothing; this is never called."""

    def is_over(self) -> bool:
        """Return whether all batches of the epoch have been added and assigned."""
        return self._is_whole and not self._waiting
