"""The rule that bounds bytes although Ignite counts rows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ignite_tf_magic.client.page_sizes import (
    CAREFUL_ROWS,
    IN_FLIGHT_BYTES,
    MAX_PAGE_ROWS,
    PAGE_BYTES,
    PageSizes,
    PartitionStats,
)

STATS = st.builds(PartitionStats, st.integers(0, 10**6), st.integers(1, 1 << 24))


def test_an_unknown_partition_is_read_carefully_and_alone():
    sizes = PageSizes()
    assert sizes.page_rows(5) == CAREFUL_ROWS
    assert sizes.page_bytes(5) == IN_FLIGHT_BYTES


def test_large_rows_seen_anywhere_make_unknown_partitions_smaller():
    sizes = PageSizes()
    sizes.saw_row(1 << 20)
    assert sizes.page_rows(5) == 4
    sizes.saw_row(1 << 30)
    assert sizes.page_rows(5) == 1


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
