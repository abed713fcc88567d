"""Writes rows into a cache chunk by chunk, and records the progress in the cache's load mark."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import numpy as np

from ignite_tf_magic.client.cache_facts import LoadMark, change_mark
from ignite_tf_magic.client.client import Cache
from ignite_tf_magic.client.load import Progress, put_rows
from ignite_tf_magic.client.regions import RegionWatch
from ignite_tf_magic.client.router import wait_for
from ignite_tf_magic.client.row_counts import counted_now, note_count
from ignite_tf_magic.data.checked_rows import CheckedRows
from ignite_tf_magic.data.columns import Columns
from ignite_tf_magic.data.load_options import LoadProgress
from ignite_tf_magic.data.row_types import RowTypes
from ignite_tf_magic.errors import LoadNotResumed, RowsLost
from ignite_tf_magic.protocol.affinity import partitions_of_hashes
from ignite_tf_magic.runs.hosts.topology import topology_of

_RECOUNT_S = 2.0


class ChunkWriter(Protocol):
    """Writes chunks of rows into one cache."""

    def write(self, chunk: Columns, first_key: int, progress: Progress, watch: RegionWatch) -> None:
        """Write a chunk, replacing rows with the same keys. Blocks until all of it is written.

        Args:
            chunk: The rows.
            first_key: Number of the first row, if rows have no keys.
            progress: Receives the number of rows of each confirmed request.
            watch: Checks before each request that the nodes have room.
        """

    def partitions(self, chunk: Columns, first_key: int) -> set[int] | None:
        """Return the partitions of the rows of a chunk; None if the client cannot compute them."""


class PutWriter:
    """Puts rows into a cache that a load has created."""

    def __init__(self, cache: Cache, types: RowTypes) -> None:
        self._cache, self._types = cache, types
        known = cache.partition_map()
        self._num_partitions = known.num_partitions if known.partitioned and known.default_affinity else None

    def write(self, chunk: Columns, first_key: int, progress: Progress, watch: RegionWatch) -> None:
        """See `ChunkWriter`."""
        put_rows(self._cache, self._types.encoder(chunk, first_key), progress, watch)

    def partitions(self, chunk: Columns, first_key: int) -> set[int] | None:
        """See `ChunkWriter`."""
        if self._num_partitions is None:
            return None
        hashes = self._types.encoder(chunk, first_key).key_hashes()
        return set(map(int, np.unique(partitions_of_hashes(hashes, self._num_partitions))))


class RowWriting:
    """Writes the rows of a source into one cache, and tracks how many are written."""

    def __init__(self, rows: CheckedRows, progress: LoadProgress | None, times: int = 1) -> None:
        self.rows, self.times = rows, times
        self._progress = progress
        self._done = 0

    def advance(self, more: int) -> None:
        """Count more rows as written, and report the progress."""
        self._done += more
        if self._progress:
            self._progress(self._done // self.times, self.rows.num_rows)

    def write(
        self, cache: Cache, writer: ChunkWriter, mark: LoadMark, watch: RegionWatch
    ) -> tuple[LoadMark, set[int] | None]:
        """Write the rows that the mark does not record as written yet.

        Returns:
            The new mark, and the partitions of all rows; None if the client cannot compute these.
        """
        filled: set[int] | None = set()
        first, begun_at = 0, mark.rows
        for chunk in self.rows.chunks():
            first_key = mark.first_key + first
            partitions = writer.partitions(chunk, first_key)
            filled = None if filled is None or partitions is None else filled | partitions
            first += len(chunk)
            if first <= begun_at:
                self.advance(len(chunk))
                continue
            writer.write(chunk, first_key, self.advance, watch)
            if first < self.rows.num_rows:
                mark, old = replace(mark, rows=first), mark
                change_mark(cache.client, cache.name, old, mark)
        return mark, filled


def check_same(cache: str, mark: LoadMark, rows: CheckedRows) -> None:
    """Refuse to resume a load of other rows.

    Raises:
        LoadNotResumed: The load had other rows.
    """
    if mark.source != rows.digest:
        raise LoadNotResumed(
            f"the load of cache {cache!r} that {mark.by} began had other rows than {rows.name}: their columns, types, "
            "number or some of the rows differ. Give the same source with the same options, or load again: --replace"
        )


def count_rows(cache: Cache, filled: set[int] | frozenset[int] | None, wanted: int, backups: int) -> None:
    """Count the rows after a load, and store the count for readers of the cache.

    Raises:
        RowsLost: Rows were lost with a node meanwhile.
    """
    client = cache.client
    nodes = client.nodes()
    rows = wait_for(lambda: size if (size := cache.size()) >= wanted else None, _RECOUNT_S)
    if rows is None:
        evidence = f"but {wanted:,} were written: a node left with some, as the cache keeps {backups} backups"
        raise RowsLost(cache.name, cache.size(), evidence)
    count = counted_now("a load", rows, (node.node_id for node in nodes), topology_of(nodes), filled)
    note_count(client, cache.name, count)
