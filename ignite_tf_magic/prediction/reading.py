"""Reads a worker's rows for a model: values as tf.data pages, and their keys separately, in the same order.

tf.data reads ahead in threads of its own, so keys wait in a queue until their rows have been predicted.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from ignite_tf_magic.client.client import Cache, Client
from ignite_tf_magic.dataset.generator import ArrayDataset
from ignite_tf_magic.dataset.paged import PagedDataset
from ignite_tf_magic.dataset.recipe import Recipe
from ignite_tf_magic.dataset.source import Source
from ignite_tf_magic.dataset.structure import page_spec, row_spec, with_ragged
from ignite_tf_magic.errors import IgniteTfError
from ignite_tf_magic.prediction.keyed_rows import keys_of
from ignite_tf_magic.protocol.columns import Column, ColumnChunk, PageDecoder, RaggedColumn
from ignite_tf_magic.protocol.layout import RowLayout
from ignite_tf_magic.protocol.page_series import PageSeries


@dataclass(frozen=True, slots=True)
class RowKeys:
    """Keys of consecutive rows of one partition."""

    partition: int
    keys: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class TakenKeys:
    """Keys of rows, and their partitions.

    Attributes:
        partitions: Partition of each row.
        finished: Partitions that have no rows after these, including partitions without any rows.
    """

    keys: list[bytes]
    partitions: NDArray[np.int32]
    finished: tuple[int, ...]


class KeyQueue:
    """A queue of keys whose rows have not been predicted yet. Thread-safe.

    Args:
        order: The partitions, in the order in which they are read.
    """

    def __init__(self, order: Sequence[int]) -> None:
        self._order = deque(order)
        self._waiting: deque[RowKeys] = deque()
        self._has_ended = False
        self._lock = threading.Lock()

    def put(self, found: RowKeys) -> None:
        """Add keys whose rows will be yielded next."""
        with self._lock:
            self._waiting.append(found)

    def end(self) -> None:
        """Record that all rows were read."""
        with self._lock:
            self._has_ended = True

    def take(self, num_rows: int) -> TakenKeys:
        """Take the keys of the next rows.

        Raises:
            IgniteTfError: Fewer keys are in the queue, or the order of their partitions is wrong.
        """
        keys: list[bytes] = []
        partitions = np.empty(num_rows, np.int32)
        finished: list[int] = []
        with self._lock:
            while len(keys) < num_rows:
                if not self._waiting:
                    raise IgniteTfError(f"{num_rows:,} rows were predicted, and {len(keys):,} were read")
                first = self._waiting.popleft()
                self._pass_to(first.partition, finished)
                count = min(num_rows - len(keys), len(first.keys))
                partitions[len(keys) : len(keys) + count] = first.partition
                keys += first.keys[:count]
                if count < len(first.keys):
                    self._waiting.appendleft(RowKeys(first.partition, first.keys[count:]))
        return TakenKeys(keys, partitions, tuple(finished))

    def rest(self) -> tuple[int, ...]:
        """Return the partitions that are finished with the last row.

        Raises:
            IgniteTfError: Some rows were read but not taken, or not all rows were read.
        """
        with self._lock:
            if self._waiting or not self._has_ended:
                num_rows = sum(len(each.keys) for each in self._waiting)
                raise IgniteTfError(
                    f"the model has left out {num_rows:,} rows, or the last ones were not read"
                )
            return tuple(self._order)

    def _pass_to(self, partition: int, finished: list[int]) -> None:
        """Add the partitions before this one to `finished`."""
        while self._order and self._order[0] != partition:
            finished.append(self._order.popleft())
        if not self._order:
            raise IgniteTfError(f"partition {partition} was read twice, or out of order")


class ReadingFailure:
    """Keeps an error of the reading, because tf.data replaces it by an error that does not show its type."""

    def __init__(self) -> None:
        self.error: Exception | None = None

    def keeping(self, pages: Iterator[Any]) -> Iterator[Any]:
        """Yield the items of `pages`, and keep an error that it raises."""
        try:
            yield from pages
        except Exception as error:
            self.error = error
            raise


def rows_of(
    client: Client, source: Source, partitions: Sequence[int], keys: KeyQueue, failure: ReadingFailure
) -> Any:
    """Return the rows of partitions as a dataset of {"key": ..., "val": ...}, to be iterated once.

    Args:
        client: The client to read with.
        source: The cache.
        partitions: The partitions, in reading order.
        keys: Receives the keys of rows before the rows are yielded.
        failure: Keeps an error that ends the reading.
    """
    layout = source.layout
    if layout is None:
        raise IgniteTfError(f"cache {source.cache!r} has no rows to find its fields from")
    spec = row_spec(layout)

    def read() -> Iterator[Any]:
        return failure.keeping(_pages(client, source, layout, partitions, keys))

    def pages(*_: Any) -> Any:
        return with_ragged(ArrayDataset(read, page_spec(spec)), spec).with_options(options)

    options = tf.data.Options()
    options.autotune.enabled = (
        False  # as in `IgniteDataset`: an iterator would wait for the autotuner when it ends
    )
    return PagedDataset(Recipe(pages))


def _pages(
    client: Client, source: Source, layout: RowLayout, partitions: Sequence[int], keys: KeyQueue
) -> Iterator[Any]:
    """Yield chunks of rows, after adding their keys to the queue."""
    decoder, scan = (
        PageDecoder(layout),
        Cache(client, source.cache).scan(partitions, source.sizes, source.baseline),
    )
    chunk = ColumnChunk(layout, source.chunk_rows)
    waiting: list[RowKeys] = []
    try:
        for scanned in scan.pages():
            found, series = keys_of(scanned.page, scanned.row_starts()), PageSeries([scanned.page])
            while found:
                before = chunk.num_rows
                decoder.decode(series, chunk)
                taken = chunk.num_rows - before
                waiting.append(RowKeys(scanned.partition, found[:taken]))
                found = found[taken:]
                if not chunk.free_rows:
                    yield _page(layout, chunk, waiting, keys)
                    chunk, waiting = ColumnChunk(layout, source.chunk_rows), []
        if chunk.num_rows:
            yield _page(layout, chunk, waiting, keys)
        keys.end()
    finally:
        scan.close()


def _page(layout: RowLayout, chunk: ColumnChunk, waiting: Sequence[RowKeys], keys: KeyQueue) -> Any:
    for each in waiting:
        keys.put(each)
    return tf.nest.flatten(layout.arranged(_arrays(column) for column in chunk.columns()))


def _arrays(column: Column) -> Any:
    return column.arrays if isinstance(column, RaggedColumn) else column
