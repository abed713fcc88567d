"""The sweep returns the same rows as the general scan, even after rows have changed."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from ignite_tf_magic.client import owner_scan as scan_module
from ignite_tf_magic.client.owner_scan import OwnerScan
from ignite_tf_magic.client.page_sizes import PageSizes, PartitionStats
from ignite_tf_magic.protocol.messages import CacheConfig
from tests.client.rows import put_all


@pytest.fixture
def cache(client):
    cache = client.create_cache(CacheConfig("SWEPT", backups=1))
    put_all(cache, [(key, np.int32(key % 7)) for key in range(3000)])
    yield cache
    client.destroy_cache("SWEPT")


def scanned_rows(cache, sizes):
    """Return all rows as (partition, bytes), in arrival order, owner by owner."""
    baseline = cache.baseline()
    scan = cache.scan(sorted(range(1024), key=lambda p: baseline.owners[p]), sizes, baseline)
    found = []
    for scanned in scan.pages():
        starts = scanned.row_starts().tolist()
        found += [(scanned.partition, bytes(scanned.page.rows[a:b])) for a, b in itertools.pairwise(starts)]
    return found


def in_general(cache, monkeypatch, sizes):
    with monkeypatch.context() as patch:
        patch.setattr(scan_module, "library", lambda: None)
        return scanned_rows(cache, sizes)


@pytest.fixture
def known(cache):
    return PageSizes(known=cache.partition_stats())


@pytest.fixture
def sweeps(monkeypatch):
    """Count the series that were read by a sweep."""
    counted = []
    original = OwnerScan._swept
    monkeypatch.setattr(OwnerScan, "_swept", lambda *args: counted.append(1) or original(*args))
    return counted


def test_both_ways_give_the_same_rows_in_the_same_order(cache, known, sweeps, monkeypatch):
    slow = in_general(cache, monkeypatch, known)
    assert not sweeps
    assert scanned_rows(cache, known) == slow
    assert sweeps
    assert len(slow) == 3000


@pytest.fixture
def alike(client):
    """Sizes without measurements, on nodes known to have no room for large rows."""
    sizes = PageSizes()
    for node in client.nodes():
        sizes.note_region(node.node_id, 1, 1)
    return sizes


@pytest.mark.parametrize("partition", [3, 500, 1023])
def test_partitions_that_were_never_read_are_swept_where_rows_are_alike(
    cache, alike, sweeps, monkeypatch, partition
):
    """One partition has many more rows than the others."""
    cache.put_all({partition + 1024 * n: np.int32(n) for n in range(3, 600)})
    slow = in_general(cache, monkeypatch, PageSizes())
    assert not sweeps
    assert scanned_rows(cache, alike) == slow
    assert sweeps
    stats = alike.known()
    assert stats == cache.partition_stats()
    sweeps.clear()
    assert scanned_rows(cache, alike) == slow
    assert sweeps


def test_a_sweep_of_unread_partitions_ends_where_rows_are_larger_than_those_seen(
    cache, alike, sweeps, monkeypatch
):
    owners = cache.baseline().owners
    mine = [p for p in range(1024) if owners[p] == owners[0]]
    for partition in mine[30:40]:
        cache.put(partition + 1024 * 3, b"x" * (1 << 19))
    expected = []
    original = scan_module.Sweep

    def sweep(library, cache_id, wanted, *args):
        expected.append(wanted)
        return original(library, cache_id, wanted, *args)

    with monkeypatch.context() as patch:
        patch.setattr(scan_module, "Sweep", sweep)
        found = scanned_rows(cache, alike)
    assert sweeps
    assert found == in_general(cache, monkeypatch, PageSizes())
    # Pages requested later are small enough that rows of this size stay below 4 MiB per page.
    late = [each for each in expected if set(mine[60:]) & set(each.partitions.tolist())]
    assert [int(each.page_rows.max()) for each in late[1:]] == [7] * (len(late) - 1) and late[1:]


def test_the_order_asked_for_holds_wherever_the_partitions_lie(cache, known):
    baseline = cache.baseline()
    order = [p for p in range(1023, -1, -1) if p % 5]
    for sizes in (known, PageSizes()):
        found = [page.partition for page in cache.scan(order, sizes, baseline).pages() if page.page.num_rows]
        assert list(dict.fromkeys(found)) == order


def test_rows_added_changed_and_removed_since_the_partitions_were_measured(cache, known, monkeypatch):
    partition = 5
    for n in range(3, 40):
        cache.put(partition + 1024 * n, np.int32(n))
    for key in range(6, 60):
        cache.remove(key)
    cache.put(700, b"x" * 5000)
    assert scanned_rows(cache, known) == in_general(cache, monkeypatch, PageSizes())
    stats = known.known()
    assert stats[700].max_row_bytes > 5000
    assert stats[partition].rows == len([k for k in range(partition, partition + 1024 * 40, 1024) if k != 0])
    assert stats[6].rows == 2


@pytest.mark.parametrize("grown", [0, 1023, 400])
def test_a_partition_that_no_longer_fits_a_page_is_read_in_the_general_way(cache, sweeps, monkeypatch, grown):
    """The page size is 4 rows: the three rows of most partitions fit, eleven do not."""
    known = PageSizes(4, {p: PartitionStats(3, 14) for p in range(1024)})
    for n in range(3, 11):
        cache.put(grown + 1024 * n, np.int32(n))
    for _ in range(2):
        assert scanned_rows(cache, known) == in_general(cache, monkeypatch, PageSizes())
    assert known.known()[grown].rows == 11 - (grown > 3000 % 1024)
    assert bool(sweeps) is True
