"""Writes a worker's outputs in a thread of its own, and records which partitions are done."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from ignite_tf_magic.client.client import Cache, Client
from ignite_tf_magic.client.load import put_rows, region_watch
from ignite_tf_magic.closing import Closing
from ignite_tf_magic.prediction.job import PredictionJob
from ignite_tf_magic.prediction.keyed_rows import KeyedRows
from ignite_tf_magic.prediction.outputs import Columns
from ignite_tf_magic.prediction.progress import note
from ignite_tf_magic.prediction.reading import TakenKeys

_BLOCK_ROWS, _BLOCK_BYTES = 16_384, 8 << 20
_NOTE_INTERVAL_S = 1.0

Block = list[tuple[Columns, TakenKeys]]


class OutputWriter(Closing):
    """Writes outputs batch by batch in a thread. An error of that thread is raised by the next call.

    Args:
        client: The cluster.
        job: The prediction.
        make: Creates the cache from the first outputs; returns the name of its values' type.
    """

    def __init__(self, client: Client, job: PredictionJob, make: Callable[[Columns], str]) -> None:
        self._client, self._job, self._make = client, job, make
        self._watch = region_watch(client)
        self._block: Block = []
        self._type_name: str | None = None
        self._done: set[int] = set()
        self._told_at = time.monotonic()
        self._pool = ThreadPoolExecutor(1, "write-outputs")
        self._under_way: Future[None] | None = None

    def close(self) -> None:
        """Wait for the block that is being written; discard the outputs that are not being written yet."""
        self._pool.shutdown()

    def add(self, columns: Columns, keys: TakenKeys) -> None:
        """Queue outputs; they are written in blocks."""
        if self._block and _form(self._block[0][0]) != _form(columns):
            self._send()
        self._block.append((columns, keys))
        rows = sum(len(each.keys) for _, each in self._block)
        num_bytes = rows * sum(column[:1].nbytes for column in columns.values())
        is_late = time.monotonic() - self._told_at > _NOTE_INTERVAL_S
        if rows >= _BLOCK_ROWS or num_bytes >= _BLOCK_BYTES or is_late:
            self._send()

    def finish(self, rest: Iterable[int]) -> None:
        """Write the remaining outputs, and record the last partitions as done.

        Args:
            rest: Partitions that are done after this.
        """
        self._send()
        self._await()
        self._done.update(rest)
        self._note()

    def _send(self) -> None:
        self._await()
        block, self._block = self._block, []
        if block:
            self._under_way = self._pool.submit(self._write, block)

    def _await(self) -> None:
        future, self._under_way = self._under_way, None
        if future is not None:
            future.result()

    def _write(self, block: Block) -> None:
        first = block[0][0]
        if self._type_name is None:
            self._type_name = self._make(first)
        columns = {name: np.concatenate([each[name] for each, _ in block]) for name in first}
        keys = [key for _, each in block for key in each.keys]
        partitions = np.concatenate([each.partitions for _, each in block])
        rows = KeyedRows(self._type_name, columns, keys, partitions)
        put_rows(Cache(self._client, self._job.target), rows, watch=self._watch)
        self._done.update(*(each.finished for _, each in block))
        if time.monotonic() - self._told_at > _NOTE_INTERVAL_S:
            self._note()

    def _note(self) -> None:
        note(self._client, self._job.target, self._job.mark, done=self._done)
        self._done.clear()
        self._told_at = time.monotonic()


def _form(columns: Columns) -> list[tuple[str, str, tuple[int, ...]]]:
    return [(name, column.dtype.str, column.shape[1:]) for name, column in columns.items()]
