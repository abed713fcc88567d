"""Rows of 1 MiB do not halt nodes with a heap of 512 MB, however they are distributed."""

from __future__ import annotations

from collections import deque
from itertools import chain

import numpy as np
import pytest

from ignite_tf_magic.client import owner_scan
from ignite_tf_magic.client.cache_scan import WHOLE_CACHE
from ignite_tf_magic.client.client import connect
from ignite_tf_magic.client.owner_scan import OwnerScan
from ignite_tf_magic.client.page_sizes import CAREFUL_ROWS, PageSizes
from ignite_tf_magic.client.regions import region_use
from ignite_tf_magic.embedded import status
from ignite_tf_magic.protocol import messages
from ignite_tf_magic.protocol.buffer import Reader
from ignite_tf_magic.protocol.messages import CacheConfig
from ignite_tf_magic.protocol.read_values import read_value
from tests.client.rows import put_all
from tests.waiting import until

MIB = np.random.default_rng(0).bytes(1 << 20)


@pytest.fixture(scope="module")
def small_nodes(tmp_path_factory):
    from ignite_tf_magic.embedded import EmbeddedOptions, Lifetime, down, ensure_up

    home = tmp_path_factory.mktemp("small-nodes")
    home.chmod(0o700)
    try:
        options = EmbeddedOptions(num_nodes=2, heap="512m", region="2g")
        yield ensure_up(options, Lifetime.UNTIL_IDLE, home=home).cluster
    finally:
        down(home)


def keys_of(cache, sizes):
    """Read the whole cache owner by owner and return all keys."""
    baseline = cache.baseline()
    scan = cache.scan(sorted(baseline.owners, key=lambda p: baseline.owners[p]), sizes, baseline)
    keys = []
    for scanned in scan.pages():
        for start in scanned.row_starts()[:-1].tolist():
            keys.append(read_value(Reader(scanned.page.rows, start)))
    return keys


def assert_alive(cluster):
    found = status(cluster.home)
    assert found is not None
    assert [node.alive for node in found.nodes] == [True] * len(cluster.nodes)


def test_one_percent_of_large_rows_clustered_together(small_nodes):
    """99 % of the rows have 100 bytes; the 1 % of 1 MiB are all in 5 of 1024 partitions."""
    large = [p + 1024 * k for p in range(500, 505) for k in range(40)]
    with connect(small_nodes.connect_options) as client:
        cache = client.create_cache(CacheConfig("CLUSTERED"))
        small = list(range(100_000, 119_800))
        put_all(cache, [(key, b"x" * 100) for key in small])
        for key in large:
            cache.put(key, MIB)
        sizes = PageSizes()
        for _ in range(2):
            found = keys_of(cache, sizes)
            assert sorted(found) == sorted([*small, *large])
        stats = cache.partition_stats()
        assert max(s.max_row_bytes for s in stats.values()) > 1 << 20
        client.destroy_cache("CLUSTERED")
    assert_alive(small_nodes)


@pytest.mark.nightly
def test_nodes_are_asked_how_full_they_are(small_nodes, monkeypatch):
    """The first reading of small rows uses large pages, but small pages if a cache of large rows shares the nodes.

    Nightly. Shorter:
    tests/client/test_page_sizes.py::test_a_region_with_room_for_larger_rows_is_read_carefully
    """
    asked = []
    scan, sweep = messages.scan, owner_scan.Sweep
    monkeypatch.setattr(messages, "scan", lambda *args: asked.append(args[2]) or scan(*args))
    monkeypatch.setattr(
        owner_scan, "Sweep", lambda *args: asked.extend(args[2].page_rows.tolist()) or sweep(*args)
    )
    with connect(small_nodes.connect_options) as client:
        until(
            lambda: max(use.used_bytes for use in region_use(client)) < 24 << 20, 60
        )  # memory of destroyed caches
        cache = client.create_cache(CacheConfig("SMALL"))
        put_all(cache, [(key, b"x" * 100) for key in range(100_000)])
        assert sorted(keys_of(cache, PageSizes())) == list(range(100_000))
        assert max(asked) > CAREFUL_ROWS
        other = client.create_cache(CacheConfig("BESIDE"))
        for key in range(200):
            other.put(key, MIB)
        asked.clear()
        assert sorted(keys_of(cache, PageSizes())) == list(range(100_000))
        assert max(asked) == CAREFUL_ROWS
        for name in ("SMALL", "BESIDE"):
            client.destroy_cache(name)


@pytest.mark.nightly
def test_a_thousand_rows_of_one_mib(small_nodes):
    """Nightly. Shorter: test_one_percent_of_large_rows_clustered_together"""
    with connect(small_nodes.connect_options) as client:
        cache = client.create_cache(CacheConfig("LARGE"))
        for key in range(1000):
            cache.put(key, MIB)
        sizes = PageSizes()
        for _ in range(2):
            assert sorted(keys_of(cache, sizes)) == list(range(1000))
        client.destroy_cache("LARGE")
    assert_alive(small_nodes)


def test_an_oversized_page_closes_the_cursor_and_goes_on_smaller(client):
    """After an oversized page, each requested page has fewer rows; every row comes exactly once."""
    cache = client.create_cache(CacheConfig("OVERSIZED"))
    partition = 7
    keys = [partition + 1024 * n for n in range(64)]
    for key in keys:
        cache.put(key, b"y" * (1 << 19))
    owner = cache.partition_map().primary_of()[partition]
    node = next(node for node in client.nodes() if node.node_id == owner)
    sizes = PageSizes()
    pages = []
    found = []
    with client.router.open_to(node) as channel:
        scan = OwnerScan(channel, cache.cache_id, deque([partition]), {}, sizes)
        for scanned in chain.from_iterable(series.pages() for series in scan.series()):
            pages.append(scanned.page.num_rows)
            found += [read_value(Reader(scanned.page.rows, s)) for s in scanned.row_starts()[:-1].tolist()]
    assert sorted(found) == keys
    assert pages[0] == 16
    assert max(pages[1:]) <= 8
    assert sizes.known()[partition].rows == 64
    client.destroy_cache("OVERSIZED")


def test_a_replicated_cache_is_read_as_a_whole(client):
    from ignite_tf_magic.protocol.ops import CacheMode

    cache = client.create_cache(CacheConfig("LARGE_EVERYWHERE", mode=CacheMode.REPLICATED))
    for key in range(50):
        cache.put(key, key)
    assert set(cache.baseline().owners) == {WHOLE_CACHE}
    assert sorted(keys_of(cache, PageSizes())) == list(range(50))
    assert cache.partition_stats()[WHOLE_CACHE].rows == 50
    client.destroy_cache("LARGE_EVERYWHERE")
