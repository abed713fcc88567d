"""Page sizes in rows, chosen so that bytes stay bounded although Ignite counts only rows.

A node builds a page on its Java heap, with rows of any size; 32 MiB under way halted a node with a heap
of 512 MB, 16 MiB did not. The rule:

- A partition that was read before is asked for in pages of 4 MiB by its largest row, several partitions
  at a time, 8 MiB under way in all.
- A partition never read is asked for in pages of 16 rows, one page under way at a time; a page that turns
  out larger than the bound makes the reader close the cursor and go on with fewer rows.

The bound that remains: 16 rows of whatever size, on the first reading of a partition; later, rows that
grew after they were measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ignite_tf_magic.protocol.lazy_numpy import np
from ignite_tf_magic.protocol.sweep import Expected

PAGE_BYTES = 4 * 1024 * 1024
IN_FLIGHT_BYTES = 2 * PAGE_BYTES
CAREFUL_ROWS = 16
MAX_PAGE_ROWS = 1024


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

    def known(self) -> dict[int, PartitionStats]:
        """Return what is known so far."""
        return dict(self._known)

    def page_rows(self, partition: int) -> int:
        """Rows to ask for at once in this partition."""
        stats = self._known.get(partition)
        if stats is None:
            return max(1, min(CAREFUL_ROWS, self._max_page_rows, self._fitting(self._largest_row_bytes)))
        return max(1, min(self._max_page_rows, self._fitting(stats.max_row_bytes)))

    def page_bytes(self, partition: int) -> int:
        """Bytes to reckon with for one page of this partition; all that is allowed where nothing is known."""
        stats = self._known.get(partition)
        if stats is None:
            return IN_FLIGHT_BYTES
        return min(stats.rows, self.page_rows(partition)) * stats.max_row_bytes

    def one_page_each(self, partitions: Sequence[int]) -> Expected | None:
        """Tell what to expect of partitions if all were read before and each is one page, else None."""
        known = [self._known.get(partition) for partition in partitions]
        if not all(known):
            return None
        rows = np.array([stats.rows for stats in known if stats], np.int64)
        largest = np.array([stats.max_row_bytes for stats in known if stats], np.int64)
        page_rows = np.clip(PAGE_BYTES // np.maximum(largest, 1), 1, self._max_page_rows)
        if (rows > page_rows).any():
            return None
        return Expected(np.array(partitions, np.int64), rows, rows * largest, page_rows)

    def saw_row(self, max_row_bytes: int) -> None:
        """Note the largest row of a page, so that partitions not yet read are asked for accordingly."""
        self._largest_row_bytes = max(self._largest_row_bytes, max_row_bytes)

    def finished(self, partition: int, stats: PartitionStats) -> None:
        """Note what a partition read to its end showed."""
        self._known[partition] = stats

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
