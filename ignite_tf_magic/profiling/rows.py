"""Reads rows of a cache: a few from many partitions, or a random sample.

Ignite returns the rows of a partition in the order of their keys' hashes. So the first rows of partitions are a biased
sample: if the keys are numbers, they are the rows with the smallest keys. Estimates are therefore made from whole
partitions, chosen at random.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from ignite_tf_magic.client.cache_scan import Baseline
from ignite_tf_magic.client.client import Cache
from ignite_tf_magic.client.page_sizes import MAX_PAGE_ROWS, PageSizes, PartitionStats
from ignite_tf_magic.client.scanned_pages import ScannedPage
from ignite_tf_magic.protocol.objects import FindType
from ignite_tf_magic.protocol.row_fields import RowFields, read_row

_Row = TypeVar("_Row")

_SPREAD = 24
_SMALL_CACHE_ROWS = 4096
_MIN_PARTITIONS = 8
_PARTITIONS_AT_ONCE = 16
# A sample reads at most this many bytes, because rows may be large.
MAX_READ_BYTES = 256 * 1024 * 1024


@dataclass(slots=True)
class RowSample:
    """Rows that were chosen at random.

    Attributes:
        rows: The rows, in no particular order.
        num_read: Number of rows that they were chosen from.
        read_bytes: Encoded size of the rows that were read.
        num_read_partitions: Number of partitions that were read completely.
        read_from: Description of what was read: "11 of 1,024 partitions".
        rows_of: Number of rows by partition, for the partitions whose number is known.
        is_whole: Whether the rows are all rows of the cache.
        is_cut: Whether reading stopped at the size limit. Then only the first rows of the last partition were read.
    """

    rows: list[RowFields] = field(default_factory=list)
    num_read: int = 0
    read_bytes: int = 0
    num_read_partitions: int = 0
    read_from: str = ""
    rows_of: dict[int, int] = field(default_factory=dict)
    is_whole: bool = False
    is_cut: bool = False

    @property
    def row_bytes(self) -> float:
        """Mean encoded size of a row in bytes."""
        return self.read_bytes / max(self.num_read, 1)


def first_rows(
    cache: Cache, baseline: Baseline, num_rows: int, max_bytes: int = MAX_READ_BYTES
) -> list[bytes]:
    """Return encoded rows, taken in turns from as many partitions as rows are requested, up to 24.

    Args:
        cache: The cache to read.
        baseline: Owners of its partitions.
        num_rows: Maximum number of rows.
        max_bytes: Reading stops after this many bytes.

    Raises:
        PartitionsLost, ConnectionFailed, ServerError: The rows cannot be read.
    """
    partitions = sorted(baseline.owners)
    num_spread = min(_SPREAD, num_rows)
    spread = partitions[:: max(1, len(partitions) // num_spread)]
    if baseline.size <= max(num_rows, _SMALL_CACHE_ROWS):
        ordered = dict.fromkeys((*_by_owner(baseline, spread), *_by_owner(baseline, partitions)))
        small = _rows_of_small(cache, baseline, list(ordered), num_rows, max_bytes)
        return in_turns(list(small.values()), num_rows)
    share = -(-num_rows // num_spread)
    found: dict[int, list[bytes]] = {}
    for partition in dict.fromkeys((*spread, *partitions)):
        found[partition] = _first_of(cache, baseline, partition, share)
        is_enough = len(list(filter(None, found.values()))) >= num_spread and _count(found) >= num_rows
        if is_enough or _count_bytes(found) > max_bytes:
            break
    if _count(found) < num_rows and _count_bytes(found) <= max_bytes:  # only few partitions have rows
        for partition in filter(found.get, found):
            found[partition] = _first_of(cache, baseline, partition, num_rows)
    return in_turns(list(found.values()), num_rows)


def _count(rows: dict[int, list[bytes]]) -> int:
    return sum(map(len, rows.values()))


def _count_bytes(rows: dict[int, list[bytes]]) -> int:
    return sum(len(row) for of_one in rows.values() for row in of_one)


def _rows_of_small(
    cache: Cache, baseline: Baseline, partitions: Sequence[int], num_rows: int, max_bytes: int
) -> dict[int, list[bytes]]:
    """Read the partitions of a small cache, many of which may be empty, in one scan until there are enough rows."""
    found: dict[int, list[bytes]] = {}
    read_bytes = 0
    scan = cache.scan(partitions, PageSizes(), baseline)
    try:
        for page in scan.pages():
            found.setdefault(page.partition, []).extend(rows_of_page(page))
            read_bytes += len(page.page.rows)
            is_enough = len(found) > min(_SPREAD, num_rows) and _count(found) >= num_rows
            if is_enough or read_bytes > max_bytes:
                break
    finally:
        scan.close()
    return found


def _first_of(cache: Cache, baseline: Baseline, partition: int, num_rows: int) -> list[bytes]:
    rows: list[bytes] = []
    scan = cache.scan([partition], PageSizes(num_rows), baseline)
    try:
        for page in scan.pages():
            rows += rows_of_page(page)
            if len(rows) >= num_rows:
                break
    finally:
        scan.close()
    return rows[:num_rows]


def in_turns(found: Sequence[list[_Row]], num_rows: int) -> list[_Row]:
    """Take the first row of each list, then the second of each, and so on, until there are enough."""
    turns = max(map(len, found), default=0)
    taken = [rows[turn] for turn in range(turns) for rows in found if turn < len(rows)]
    return taken[:num_rows]


def draw_rows(cache: Cache, baseline: Baseline, num_rows: int, find_type: FindType) -> RowSample:
    """Choose rows at random from whole partitions, which are also chosen at random. Repeated calls choose the same.

    Reads at least eight partitions that have rows, and about 256 MiB at most.

    Raises:
        PartitionsLost, ConnectionFailed, ServerError: The rows cannot be read.
    """
    chance = random.Random(cache.cache_id)  # noqa: S311  not for secrets
    partitions = sorted(baseline.owners)
    chance.shuffle(partitions)
    is_small = baseline.size <= num_rows
    if is_small:
        partitions = _by_owner(baseline, partitions)
    largest = max(map(len, first_rows(cache, baseline, _SPREAD)), default=0)
    drawing = _Drawing(partitions, None if is_small else num_rows, chance)
    scan = cache.scan(partitions, _expected_sizes(partitions, largest), baseline)
    try:
        for page in scan.pages():
            if not drawing.take(page):
                break
        else:
            drawing.end()
    finally:
        scan.close()
    return drawing.drawn(find_type)


def _expected_sizes(partitions: Sequence[int], largest_row_bytes: int) -> PageSizes:
    """Return page sizes that are as large as these rows allow from the first page; larger rows reduce them again."""
    if not largest_row_bytes:
        return PageSizes()
    expected = PartitionStats(MAX_PAGE_ROWS + 1, 2 * largest_row_bytes)
    return PageSizes(known=dict.fromkeys(partitions, expected))


class _Drawing:
    """Takes pages of one partition after the other, and keeps a random sample of their rows."""

    def __init__(self, partitions: Sequence[int], num_rows: int | None, chance: random.Random) -> None:
        self.sample = RowSample()
        self._kept: list[bytes] = []
        self._partitions, self._num_rows, self._chance = partitions, num_rows, chance
        self._done = 0
        self._rows_of_current = 0

    def take(self, page: ScannedPage) -> bool:
        """Take a page unless there are enough rows; return whether more pages are needed."""
        while self._partitions[self._done] != page.partition:
            self._finish()
        sample = self.sample
        num_filled = sum(map(bool, sample.rows_of.values()))
        is_enough = self._num_rows is not None and sample.num_read >= self._num_rows
        if is_enough and num_filled >= _MIN_PARTITIONS and not self._rows_of_current:
            return False
        self._keep(page)
        self._rows_of_current += page.page.num_rows
        sample.read_bytes += len(page.page.rows)
        sample.is_cut = sample.read_bytes > MAX_READ_BYTES
        return not sample.is_cut

    def end(self) -> None:
        """Record that all partitions were read completely."""
        while self._done < len(self._partitions):
            self._finish()
        self.sample.is_whole = len(self._kept) == self.sample.num_read

    def drawn(self, find_type: FindType) -> RowSample:
        """Return the sample."""
        sample = self.sample
        sample.rows = [read_row(memoryview(row), find_type) for row in self._kept]
        sample.num_read_partitions = len(sample.rows_of)
        if len(self._partitions) > 1:
            sample.read_from = f"{sample.num_read_partitions:,} of {len(self._partitions):,} partitions"
        return sample

    def _finish(self) -> None:
        self.sample.rows_of[self._partitions[self._done]] = self._rows_of_current
        self._rows_of_current = 0
        self._done += 1

    def _keep(self, page: ScannedPage) -> None:
        """Keep each row of a page with the same probability, and at most `num_rows` in all."""
        sample = self.sample
        for row in rows_of_page(page):
            sample.num_read += 1
            if self._num_rows is None or len(self._kept) < self._num_rows:
                self._kept.append(row)
            elif (place := self._chance.randrange(sample.num_read)) < self._num_rows:
                self._kept[place] = row


def rows_of_page(page: ScannedPage) -> Iterator[bytes]:
    """Copy the rows of a page, one by one."""
    starts = page.row_starts().tolist()
    for start, end in itertools.pairwise(starts):
        yield bytes(page.page.rows[start:end])


def _by_owner(baseline: Baseline, partitions: Sequence[int]) -> list[int]:
    """Sort partitions by owner, so that fewer connections are needed."""
    rank = {owner: at for at, owner in enumerate(dict.fromkeys(baseline.owners[p] for p in partitions))}
    return sorted(partitions, key=lambda partition: rank[baseline.owners[partition]])
