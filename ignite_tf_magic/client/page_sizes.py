"""Chooses page sizes in rows so that their bytes stay bounded. Ignite itself counts only rows.

A node builds a page on its Java heap, with rows of any size. 32 MiB of pending pages halted a node with a heap of
512 MB; 16 MiB did not. The rules:

- A partition that was read before is read in pages of 4 MiB, computed from its largest row. Several partitions are
  read at a time, with 8 MiB pending in all.
- A partition never read is read in pages of 16 rows, with one page pending at a time. If a page turns out larger than
  the bound, the reader closes the cursor and continues with fewer rows.
- If a node's data regions hold no more than rows of the sizes seen would need, there are no large rows anywhere. Then
  the page size for partitions never read assumes rows up to four times the largest row seen. It is at most the number
  of rows seen so far.

The remaining risk: 16 rows of any size, on the first read of a partition; later, rows that grew after they were
measured; and in such regions the row sizes that `_MOST_UNSEEN` allows.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ignite_tf_magic.protocol.lazy_numpy import np
from ignite_tf_magic.protocol.sweep import UNREAD, Expected

PAGE_BYTES = 4 * 1024 * 1024
IN_FLIGHT_BYTES = 2 * PAGE_BYTES
HARMLESS_BYTES = 4 * PAGE_BYTES  # in one page; empty partitions use as much of a region
CAREFUL_ROWS = 16
MAX_PAGE_ROWS = 1024
# A region shows that all rows are similar if its bytes per row are at most this many times the largest row seen, plus
# Ignite's overhead per row. A region with other caches may exceed that; it is then read in small pages.
_MOST_UNSEEN, _ROW_OVERHEAD_BYTES = 8, 512
_UNSEEN_MARGIN = 4
# Once this many partitions are read to their end, no other is assumed to have more than _MORE_ROWS times as many rows.
_TELLING_PARTITIONS, _MORE_ROWS = 8, 1.25


@dataclass(frozen=True, slots=True)
class PartitionStats:
    """Measurements of a partition: its rows, and the bytes of the largest on the wire."""

    rows: int
    max_row_bytes: int


class PageSizes:
    """The known sizes of a cache's partitions. Shared by the threads that read them.

    Args:
        max_page_rows: Upper limit for the rows of a page.
        known: Measurements from an earlier read.
    """

    def __init__(
        self, max_page_rows: int = MAX_PAGE_ROWS, known: Mapping[int, PartitionStats] | None = None
    ) -> None:
        self._max_page_rows = max(1, max_page_rows)
        self._known = dict(known or {})
        self._largest_row_bytes = max((stats.max_row_bytes for stats in self._known.values()), default=0)
        self._most_rows = max((stats.rows for stats in self._known.values()), default=0)
        self._num_seen = 0
        self._region_row_bytes: dict[uuid.UUID, float] = {}

    def known(self) -> dict[int, PartitionStats]:
        """Return the measurements so far."""
        return dict(self._known)

    def lacks(self, node: uuid.UUID, partitions: Collection[int]) -> bool:
        """Return whether a node's fill level would help before these partitions of it are read."""
        unread = len(partitions) - sum(partition in self._known for partition in partitions)
        return unread > _TELLING_PARTITIONS and node not in self._region_row_bytes

    def note_region(self, node: uuid.UUID, used_bytes: int, node_rows: float) -> None:
        """Record the size of a node's data regions in bytes; 0 if the node does not report it.

        Args:
            node: The node.
            used_bytes: Used bytes of all its regions.
            node_rows: Number of the cache's rows on the node, including backup copies.
        """
        unseen = max(0, used_bytes - HARMLESS_BYTES) if used_bytes else math.inf
        self._region_row_bytes[node] = unseen / max(node_rows, 1)

    def page_rows(self, partition: int, node: uuid.UUID | None = None) -> int:
        """Return the number of rows to request at once from this partition of a node."""
        stats = self._known.get(partition)
        if stats is None:
            return self._unread_rows(node)
        return max(1, min(self._max_page_rows, self._fitting(stats.max_row_bytes)))

    def _unread_rows(self, node: uuid.UUID | None) -> int:
        """Return the number of rows to request at once from an unread partition of a node."""
        rows = min(CAREFUL_ROWS, self._fitting(self._largest_row_bytes))
        if self._are_alike(node):
            rows = max(rows, min(self._num_seen, self._fitting(_UNSEEN_MARGIN * self._largest_row_bytes)))
        return max(1, min(self._max_page_rows, rows))

    def _are_alike(self, node: uuid.UUID | None) -> bool:
        """Return whether a node's regions are too small for rows that are much larger than those seen."""
        row_bytes = self._region_row_bytes.get(node, math.inf) if node else math.inf
        most = _MOST_UNSEEN * self._largest_row_bytes + _ROW_OVERHEAD_BYTES
        return self._num_seen >= CAREFUL_ROWS and row_bytes <= most

    def page_bytes(self, partition: int, node: uuid.UUID | None = None) -> int:
        """Return the expected bytes of one page of this partition; the whole allowance if nothing is known."""
        stats = self._known.get(partition)
        if stats is not None:
            return min(stats.rows, self.page_rows(partition)) * stats.max_row_bytes
        return self._unread_rows(node) * self._largest_row_bytes if self._are_alike(node) else IN_FLIGHT_BYTES

    def unread_are_one_page(self, node: uuid.UUID | None) -> bool:
        """Return whether each unread partition of a node is most likely one page."""
        is_told = len(self._known) >= _TELLING_PARTITIONS and self._are_alike(node)
        return is_told and _MORE_ROWS * self._most_rows <= self._unread_rows(node)

    def one_page_each(self, partitions: Sequence[int], node: uuid.UUID | None = None) -> Expected | None:
        """Return what to expect of partitions that are one page each, or most likely are; None if one is not."""
        of_unread = (
            PartitionStats(UNREAD, self._largest_row_bytes) if self.unread_are_one_page(node) else None
        )
        stats = [self._known.get(partition, of_unread) for partition in partitions]
        if not all(stats):
            return None
        rows = np.array([each.rows for each in stats if each], np.int64)
        largest = np.array([each.max_row_bytes for each in stats if each], np.int64)
        page_rows = np.clip(PAGE_BYTES // np.maximum(largest, 1), 1, self._max_page_rows)
        is_unread = rows == UNREAD
        page_rows[is_unread] = self._unread_rows(node)
        if (rows > page_rows).any():
            return None
        num_bytes = np.where(is_unread, self._most_rows, rows) * largest
        return Expected(np.array(partitions, np.int64), rows, num_bytes, page_rows)

    def are_apt(self, expected: Expected, node: uuid.UUID) -> bool:
        """Return whether the page size expected for a node's unread partitions is still allowed."""
        return int(expected.page_rows[expected.rows == UNREAD].max(initial=0)) <= self._unread_rows(node)

    def saw(self, num_rows: int, max_row_bytes: int) -> None:
        """Record a number of rows and their largest size. They determine the page size of unread partitions."""
        self._num_seen += num_rows
        self._largest_row_bytes = max(self._largest_row_bytes, max_row_bytes)

    def finished(self, partition: int, stats: PartitionStats) -> None:
        """Record the measurements of a partition that was read to its end."""
        self._known[partition] = stats
        self._most_rows = max(self._most_rows, stats.rows)

    def learn(self, known: Mapping[int, PartitionStats]) -> None:
        """Add the measurements of other readers, for partitions not measured here."""
        for partition, stats in known.items():
            self._known.setdefault(partition, stats)

    @staticmethod
    def _fitting(row_bytes: int) -> int:
        return PAGE_BYTES // row_bytes if row_bytes else MAX_PAGE_ROWS

    @staticmethod
    def is_oversized(page_rows: int, max_row_bytes: int) -> bool:
        """Return whether further pages of that many such rows would exceed the bound."""
        return page_rows > 1 and page_rows * max_row_bytes > PAGE_BYTES
