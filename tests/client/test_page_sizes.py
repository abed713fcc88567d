"""The rule that bounds the bytes of a page although Ignite counts rows."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ignite_tf_magic.client.page_sizes import (
    CAREFUL_ROWS,
    HARMLESS_BYTES,
    IN_FLIGHT_BYTES,
    MAX_PAGE_ROWS,
    PAGE_BYTES,
    PageSizes,
    PartitionStats,
)
from ignite_tf_magic.protocol.sweep import UNREAD

HERE, ELSEWHERE = uuid.UUID(int=1), uuid.UUID(int=2)
STATS = st.builds(PartitionStats, st.integers(0, 10**6), st.integers(1, 1 << 24))


def test_an_unknown_partition_is_read_carefully_and_alone():
    sizes = PageSizes()
    assert sizes.page_rows(5) == CAREFUL_ROWS
    assert sizes.page_bytes(5) == IN_FLIGHT_BYTES


def test_large_rows_seen_anywhere_make_unknown_partitions_smaller():
    sizes = PageSizes()
    sizes.saw(1, 1 << 20)
    assert sizes.page_rows(5) == 4
    sizes.saw(1, 1 << 30)
    assert sizes.page_rows(5) == 1


def test_no_more_rows_than_were_seen_are_asked_for_where_all_are_alike():
    sizes = PageSizes()
    sizes.note_region(HERE, HARMLESS_BYTES + 900_000, 1000)
    for seen, rows in ((4, CAREFUL_ROWS), (60, 64), (100, 164), (5000, MAX_PAGE_ROWS)):
        sizes.saw(seen, 100)
        assert sizes.page_rows(5, HERE) == rows
    assert sizes.page_bytes(5, HERE) == MAX_PAGE_ROWS * 100
    sizes.saw(1, 1 << 14)
    assert sizes.page_rows(5, HERE) == PAGE_BYTES // (4 << 14)


@pytest.mark.parametrize("used_bytes", [100 << 20, 0], ids=["room for large rows", "unknown"])
def test_a_region_with_room_for_larger_rows_is_read_carefully(used_bytes):
    sizes = PageSizes()
    sizes.saw(5000, 100)
    sizes.note_region(HERE, used_bytes, 5000)
    for node in (HERE, ELSEWHERE, None):
        assert sizes.page_rows(5, node) == CAREFUL_ROWS
        assert sizes.page_bytes(5, node) == IN_FLIGHT_BYTES
        assert not sizes.unread_are_one_page(node)
        assert sizes.one_page_each([5], node) is None


def test_partitions_that_were_read_tell_how_many_rows_others_have():
    sizes = PageSizes()
    sizes.note_region(HERE, HARMLESS_BYTES + 900_000, 1000)
    sizes.saw(700, 100)
    assert sizes.lacks(ELSEWHERE, range(9)) and not sizes.lacks(HERE, range(9))
    for partition in range(8):
        assert sizes.one_page_each(range(20), HERE) is None
        sizes.finished(partition, PartitionStats(50 + partition, 100))
    expected = sizes.one_page_each(range(6, 10), HERE)
    assert expected.rows.tolist() == [56, 57, UNREAD, UNREAD]
    assert expected.num_bytes.tolist() == [5600, 5700, 5700, 5700]
    assert expected.page_rows.tolist() == [MAX_PAGE_ROWS, MAX_PAGE_ROWS, 700, 700]
    assert sizes.one_page_each(range(20), ELSEWHERE) is None
    sizes.finished(8, PartitionStats(600, 100))
    assert (
        sizes.one_page_each(range(20), HERE) is None
    )  # other partitions may have as many rows, plus a quarter


@given(st.dictionaries(st.integers(0, 50), STATS, min_size=1), st.integers(1, 5000))
def test_a_page_of_known_rows_stays_within_the_bound(known, limit):
    sizes = PageSizes(limit, known)
    for partition, stats in known.items():
        rows = sizes.page_rows(partition)
        assert 1 <= rows <= limit
        assert rows == 1 or rows * stats.max_row_bytes <= PAGE_BYTES
        assert sizes.page_bytes(partition) <= max(PAGE_BYTES, stats.max_row_bytes)
        assert not PageSizes.is_oversized(rows, stats.max_row_bytes)


def test_small_known_rows_use_the_largest_page():
    assert PageSizes(known={1: PartitionStats(10**6, 60)}).page_rows(1) == MAX_PAGE_ROWS
