"""A worker's rows for a model: their values as pages of tf.data, and aside from these their keys, in the same order.

tf.data reads ahead, in threads of its own; so keys wait in a queue until their rows have been predicted.
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
    """Keys of rows that follow one another in one partition."""

    partition: int
    keys: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class TakenKeys:
    """Keys of rows, and where these lie.

    Attributes:
        partitions: Of each row.
        finished: Partitions of which these are the last rows, or in which there are none.
    """

    keys: list[bytes]
    partitions: NDArray[np.int32]
    finished: tuple[int, ...]


class KeyQueue:
    """Keys that wait for their rows. Thread-safe.

    Args:
        order: The partitions, in the order in which they are read.
    """

    def __init__(self, order: Sequence[int]) -> None:
        self._order = deque(order)
        self._waiting: deque[RowKeys] = deque()
        self._has_ended = False
        self._lock = threading.Lock()

    def put(self, found: RowKeys) -> None:
        """Add keys whose rows are about to be given."""
        with self._lock:
            self._waiting.append(found)

    def end(self) -> None:
        """Note that all rows are there."""
        with self._lock:
            self._has_ended = True

    def take(self, num_rows: int) -> TakenKeys:
        """Take the keys of the next rows.

        Raises:
            IgniteTfError: There are not so many, or they come in another order than the partitions.
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
            IgniteTfError: Rows were read that nobody has taken.
        """
        with self._lock:
            if self._waiting or not self._has_ended:
                num_rows = sum(len(each.keys) for each in self._waiting)
                raise IgniteTfError(
                    f"the model has left out {num_rows:,} rows, or the last ones were not read"
                )
            return tuple(self._order)

    def _pass_to(self, partition: int, finished: list[int]) -> None:
        """Note the partitions in front of one as finished."""
        while self._order and self._order[0] != partition:
            finished.append(self._order.popleft())
        if not self._order:
            raise IgniteTfError(f"partition {partition} was read a second time, or not in its turn")


class ReadingFailure:
    """Keeps what a reading raised: tf.data turns it into an error of its own, which does not tell its kind."""

    def __init__(self) -> None:
        self.error: Exception | None = None

    def keeping(self, pages: Iterator[Any]) -> Iterator[Any]:
        """Yield the same, and keep what it raises."""
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
        client: Reads.
        source: The cache.
        partitions: In this order.
        keys: Gets the keys of the rows before these are given.
        failure: Gets what ends the reading.
    """
    layout = source.layout
    if layout is None:
        raise IgniteTfError(f"cache {source.cache!r} holds no rows to tell what they look like")
    spec = row_spec(layout)

    def read() -> Iterator[Any]:
        return failure.keeping(_pages(client, source, layout, partitions, keys))

    def pages(*_: Any) -> Any:
        return with_ragged(ArrayDataset(read, page_spec(spec)), spec).with_options(options)

    options = tf.data.Options()
    options.autotune.enabled = False  # as `IgniteDataset`: it is awaited when an iterator ends
    return PagedDataset(Recipe(pages))


def _pages(
    client: Client, source: Source, layout: RowLayout, partitions: Sequence[int], keys: KeyQueue
) -> Iterator[Any]:
    """Yield chunks of rows; their keys are in the queue before."""
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
