"""Rows of a cache to look at: a few of many partitions, or a fair sample.

In Ignite the rows of a partition stand in the order of their keys' hashes. So the first rows of partitions are no fair
sample: where the keys are numbers, they are the rows with the smallest. What estimates are made of is whole partitions,
chosen at random.
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
# What a sample reads at most; rows may be large.
MAX_READ_BYTES = 256 * 1024 * 1024


@dataclass(slots=True)
class RowSample:
    """Rows that were chosen at random.

    Attributes:
        rows: In no order.
        num_read: How many rows they were chosen from.
        read_bytes: Of those, as they are encoded.
        num_read_partitions: Partitions that were read to their ends.
        read_from: What was read, in words: "11 of 1,024 partitions".
        rows_of: Partition -> its rows, of the partitions of which that is known then.
        is_whole: The rows are all rows of the cache.
        is_cut: There was too much to read even of few partitions: what was read of the last are its first rows.
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
        """Mean size of a row as it is encoded."""
        return self.read_bytes / max(self.num_read, 1)


def first_rows(
    cache: Cache, baseline: Baseline, num_rows: int, max_bytes: int = MAX_READ_BYTES
) -> list[bytes]:
    """Return rows of as many partitions as there are rows wanted, up to 24, in turns; encoded.

    Args:
        cache: Where from.
        baseline: Who has its partitions.
        num_rows: So many, if there are.
        max_bytes: With so many the rest is left out.

    Raises:
        PartitionsLost, ConnectionFailed, ServerError: They cannot be read.
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
    if _count(found) < num_rows and _count_bytes(found) <= max_bytes:  # few partitions have rows
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
    """Read the partitions of a cache most of which may be empty, all by one scan, until there is enough."""
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
    """Take the first of each, then the second of each, and so on, until there are enough."""
    turns = max(map(len, found), default=0)
    taken = [rows[turn] for turn in range(turns) for rows in found if turn < len(rows)]
    return taken[:num_rows]


def draw_rows(cache: Cache, baseline: Baseline, num_rows: int, find_type: FindType) -> RowSample:
    """Choose rows at random out of whole partitions, which are chosen at random; the same ones each time.

    Reads at least eight partitions that have rows, and about 256 MiB at most.

    Raises:
        PartitionsLost, ConnectionFailed, ServerError: They cannot be read.
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
    """Have pages as large as these rows allow from the first one on; larger rows make them smaller again."""
    if not largest_row_bytes:
        return PageSizes()
    expected = PartitionStats(MAX_PAGE_ROWS + 1, 2 * largest_row_bytes)
    return PageSizes(known=dict.fromkeys(partitions, expected))


class _Drawing:
    """Takes pages of partitions, one partition after the other, and keeps rows of them at random."""

    def __init__(self, partitions: Sequence[int], num_rows: int | None, chance: random.Random) -> None:
        self.sample = RowSample()
        self._kept: list[bytes] = []
        self._partitions, self._num_rows, self._chance = partitions, num_rows, chance
        self._done = 0
        self._rows_of_current = 0

    def take(self, page: ScannedPage) -> bool:
        """Take a page, unless there is enough; tells whether more is wanted."""
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
        """Note that all partitions were read to their ends."""
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
        """Keep each row with the same chance, and not more of them than wanted."""
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
    """Order partitions owner after owner, as fewer connections are needed then."""
    rank = {owner: at for at, owner in enumerate(dict.fromkeys(baseline.owners[p] for p in partitions))}
    return sorted(partitions, key=lambda partition: rank[baseline.owners[partition]])
