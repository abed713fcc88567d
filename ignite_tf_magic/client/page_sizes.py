"""Page sizes in rows, chosen so that bytes stay bounded although Ignite counts only rows.

A node builds a page on its Java heap, with rows of any size; 32 MiB under way halted a node with a heap
of 512 MB, 16 MiB did not. The rule:

- A partition that was read before is asked for in pages of 4 MiB by its largest row, several partitions
  at a time, 8 MiB under way in all.
- A partition never read is asked for in pages of 16 rows, one page under way at a time; a page that turns
  out larger than the bound makes the reader close the cursor and go on with fewer rows.
- Where a node's data regions hold no more than rows like those seen would take, there are no large rows
  anywhere: partitions never read are asked for by four times the largest row seen, and by no more rows at
  once than were seen so far.

The bound that remains: 16 rows of whatever size, on the first reading of a partition; later, rows that
grew after they were measured; and in such regions what `_MOST_UNSEEN` lets pass.
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
HARMLESS_BYTES = 4 * PAGE_BYTES  # in one page; empty partitions take as much of a region
CAREFUL_ROWS = 16
MAX_PAGE_ROWS = 1024
# By how much bytes of a region for each row may exceed the largest row seen, for all rows to be alike: eight times,
# beside what Ignite keeps for each row. A region that holds other caches, too, may exceed it, and is read carefully.
_MOST_UNSEEN, _ROW_OVERHEAD_BYTES = 8, 512
_UNSEEN_MARGIN = 4
# So many partitions read to their end tell how many rows the others have, but for a part.
_TELLING_PARTITIONS, _MORE_ROWS = 8, 1.25


@dataclass(frozen=True, slots=True)
class PartitionStats:
    """What reading a partition showed: its rows, and the largest of them in bytes on the wire."""

    rows: int
    max_row_bytes: int


class PageSizes:
    """What is known of a cache's partitions. Shared by the threads that read them.

    Args:
        max_page_rows: Upper limit for the rows of a page.
        known: What an earlier reading showed.
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
        """Return what is known so far."""
        return dict(self._known)

    def lacks(self, node: uuid.UUID, partitions: Collection[int]) -> bool:
        """Tell whether it would help to know how full a node is, before these partitions of it are read."""
        unread = len(partitions) - sum(partition in self._known for partition in partitions)
        return unread > _TELLING_PARTITIONS and node not in self._region_row_bytes

    def note_region(self, node: uuid.UUID, used_bytes: int, node_rows: float) -> None:
        """Note what a node's data regions hold, in bytes; 0 where it does not tell.

        Args:
            node: The node.
            used_bytes: Of all its regions.
            node_rows: Rows of the cache there, copies included.
        """
        unseen = max(0, used_bytes - HARMLESS_BYTES) if used_bytes else math.inf
        self._region_row_bytes[node] = unseen / max(node_rows, 1)

    def page_rows(self, partition: int, node: uuid.UUID | None = None) -> int:
        """Rows to ask a node for at once in this partition."""
        stats = self._known.get(partition)
        if stats is None:
            return self._unread_rows(node)
        return max(1, min(self._max_page_rows, self._fitting(stats.max_row_bytes)))

    def _unread_rows(self, node: uuid.UUID | None) -> int:
        """Rows to ask a node for at once in a partition that was not read."""
        rows = min(CAREFUL_ROWS, self._fitting(self._largest_row_bytes))
        if self._are_alike(node):
            rows = max(rows, min(self._num_seen, self._fitting(_UNSEEN_MARGIN * self._largest_row_bytes)))
        return max(1, min(self._max_page_rows, rows))

    def _are_alike(self, node: uuid.UUID | None) -> bool:
        """Tell whether a node's regions have no room for rows that are much larger than those seen."""
        row_bytes = self._region_row_bytes.get(node, math.inf) if node else math.inf
        most = _MOST_UNSEEN * self._largest_row_bytes + _ROW_OVERHEAD_BYTES
        return self._num_seen >= CAREFUL_ROWS and row_bytes <= most

    def page_bytes(self, partition: int, node: uuid.UUID | None = None) -> int:
        """Bytes to reckon with for one page of this partition; all that is allowed where nothing is known."""
        stats = self._known.get(partition)
        if stats is not None:
            return min(stats.rows, self.page_rows(partition)) * stats.max_row_bytes
        return self._unread_rows(node) * self._largest_row_bytes if self._are_alike(node) else IN_FLIGHT_BYTES

    def unread_are_one_page(self, node: uuid.UUID | None) -> bool:
        """Tell whether a node's partitions that were not read are most likely one page each."""
        is_told = len(self._known) >= _TELLING_PARTITIONS and self._are_alike(node)
        return is_told and _MORE_ROWS * self._most_rows <= self._unread_rows(node)

    def one_page_each(self, partitions: Sequence[int], node: uuid.UUID | None = None) -> Expected | None:
        """Tell what to expect of a node's partitions if each is one page, or most likely is, else None."""
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
        """Tell whether a node's unread partitions would still be asked for by so many rows."""
        return int(expected.page_rows[expected.rows == UNREAD].max(initial=0)) <= self._unread_rows(node)

    def saw(self, num_rows: int, max_row_bytes: int) -> None:
        """Note rows and the largest of them, so that partitions not yet read are asked for accordingly."""
        self._num_seen += num_rows
        self._largest_row_bytes = max(self._largest_row_bytes, max_row_bytes)

    def finished(self, partition: int, stats: PartitionStats) -> None:
        """Note what a partition read to its end showed."""
        self._known[partition] = stats
        self._most_rows = max(self._most_rows, stats.rows)

    def learn(self, known: Mapping[int, PartitionStats]) -> None:
        """Take over what others have measured, of partitions that were not read here."""
        for partition, stats in known.items():
            self._known.setdefault(partition, stats)

    @staticmethod
    def _fitting(row_bytes: int) -> int:
        return PAGE_BYTES // row_bytes if row_bytes else MAX_PAGE_ROWS

    @staticmethod
    def is_oversized(page_rows: int, max_row_bytes: int) -> bool:
        """Whether further pages of that many such rows would break the bound."""
        return page_rows > 1 and page_rows * max_row_bytes > PAGE_BYTES
