"""Following a cache on real nodes: existing rows, new rows, and changes that a stream missed."""

from __future__ import annotations

import datetime as dt
import itertools
import os
import signal
import subprocess
import sys
import threading
import uuid
from contextlib import ExitStack, closing
from decimal import Decimal
from pathlib import Path

import pytest

from ignite_tf_magic.client.client import connect
from ignite_tf_magic.client.event_stream import ClusterChanged, EventStream, FellBehind
from ignite_tf_magic.client.follow import follow
from ignite_tf_magic.client.page_sizes import PageSizes
from ignite_tf_magic.errors import CacheNotFound, ConfigError, ConnectionLost, PartitionsLost, SchemaError
from ignite_tf_magic.protocol.buffer import Reader
from ignite_tf_magic.protocol.messages import CacheConfig
from ignite_tf_magic.protocol.ops import CacheMode, EventType
from ignite_tf_magic.protocol.read_values import read_value
from ignite_tf_magic.protocol.typed_values import Int
from tests.waiting import until

ROOT = Path(__file__).parent.parent.parent
PAUSE_S = 0.5


@pytest.fixture(params=[CacheMode.PARTITIONED, CacheMode.REPLICATED], ids=["partitioned", "replicated"])
def cache(client, request):
    yield client.create_cache(CacheConfig("FOLLOWED", backups=1, mode=request.param))
    if "FOLLOWED" in client.cache_names():
        client.destroy_cache("FOLLOWED")


@pytest.fixture
def partitioned(client):
    yield client.create_cache(CacheConfig("FOLLOWED", backups=1))
    if "FOLLOWED" in client.cache_names():
        client.destroy_cache("FOLLOWED")


def rows_of(followed):
    reader = Reader(followed.page.rows)
    return [(read_value(reader), read_value(reader)) for _ in range(followed.page.num_rows)]


def take_until(pages, is_enough):
    """Collect rows until `is_enough` accepts them. Returns them in arrival order."""
    found = []
    for followed in pages:
        found += rows_of(followed)
        if is_enough(found):
            return found
    raise AssertionError(f"it ended with {found}")


def take_all(pages):
    """Collect rows until no more come."""
    found = []
    for followed in pages:
        if not followed.page.num_rows:
            return found
        found += rows_of(followed)
    raise AssertionError(f"it ended with {found}")


def test_what_is_there_comes_first_and_then_what_is_put(cache):
    there = {n: f"value {n}" for n in range(100)}
    cache.put_all(there)
    with follow(cache, pause_s=PAUSE_S) as following:
        pages = following.pages()
        assert sorted(take_all(pages)) == sorted(there.items())
        more = {n: f"value {n}" for n in range(100, 300)}
        cache.put_all(more)
        assert sorted(take_until(pages, lambda found: len(found) >= 200)) == sorted(more.items())
        assert take_all(pages) == []


def test_one_node_tells_of_all(client, partitioned):
    """One node reports the changes of all nodes, byte for byte like a scan.

    The test above would not notice a failure, because a new stream begins with a scan.
    """
    streams = [
        EventStream(client.router.open_to(node), partitioned.cache_id, 1 << 20) for node in client.nodes()
    ]
    owners = partitioned.partition_map().primary_of()
    assert len(set(owners.values())) == len(streams) == 3
    rows = {n: n * n for n in range(300)}
    partitioned.put_all(rows)
    with follow(partitioned) as following:
        scanned = set()
        for followed in following.pages():
            assert followed.event_types is None
            scanned |= {
                bytes(followed.page.rows)[at : at + 18] for at in range(0, len(followed.page.rows), 18)
            }
            if len(scanned) == 300:
                break
    for stream in streams:
        found = []
        while len(found) < 300:
            found += stream.take(300.0)
        stream.close()
        assert {event.event_type for event in found} == {EventType.CREATED}
        assert {bytes(event.key) + bytes(event.value) for event in found} == scanned
        assert len(found) == 300


def test_the_newest_value_comes_last_and_removed_rows_may_come_back(partitioned):
    partitioned.put_all({1: "a", 2: "a", 3: "a"})
    with follow(partitioned, pause_s=PAUSE_S) as following:
        pages = following.pages()
        take_all(pages)
        for value in "bcde":
            partitioned.put(1, value)
        found = take_until(pages, lambda found: found[-1:] == [(1, "e")])
        assert {key for key, _ in found} == {1}
        partitioned.remove(2)
        partitioned.put(2, "a")
        assert take_until(pages, lambda found: found) == [(2, "a")]
        following.look_again()
        assert take_all(pages) == []


def test_what_a_slow_reader_has_no_room_for_is_looked_for_later(partitioned):
    rows = dict.fromkeys(range(2000), "x" * 1000)
    with follow(partitioned, pause_s=PAUSE_S, room_bytes=20_000) as following:
        pages = following.pages()
        take_all(pages)
        for first in range(0, 2000, 100):
            partitioned.put_all(dict(itertools.islice(rows.items(), first, first + 100)))
        until(lambda: following._stream.end)
        assert isinstance(following._stream.end, FellBehind)
        assert following._stream._waiting_bytes <= 20_000 + 64 * 1100
        assert sorted(take_all(pages)) == sorted(rows.items())
        assert following.num_streams > 1


def test_rows_put_while_it_looks_through_come_once(partitioned):
    whole = {n: "there" if n < 400 else "new" for n in range(900)}
    partitioned.put_all(dict.fromkeys(range(500), "there"))
    with follow(partitioned, pause_s=PAUSE_S) as following:
        pages = following.pages()
        found = rows_of(next(pages))
        partitioned.put_all(dict.fromkeys(range(400, 900), "new"))
        found += take_until(pages, lambda more: {**dict(found), **dict(more)} == whole)
        found += take_all(pages)
    assert dict(found) == whole
    assert len(found) == len(set(found))


def test_a_cache_that_is_made_anew_is_followed_on_and_one_that_is_gone_is_an_error(client, partitioned):
    with follow(partitioned, pause_s=PAUSE_S) as following:
        pages = following.pages()
        take_all(pages)
        client.destroy_cache("FOLLOWED")
        client.create_cache(CacheConfig("FOLLOWED", backups=1)).put(7, "new")
        assert take_until(pages, lambda found: found) == [(7, "new")]
        assert isinstance(following.last_end, ClusterChanged)
        client.destroy_cache("FOLLOWED")
        with pytest.raises(CacheNotFound):
            take_until(pages, lambda found: False)


def test_it_goes_on_after_a_key(own_node):
    """It has its own node: caches made by other tests end the stream, and the cache is scanned again."""
    with connect(own_node.connect_options) as client:
        cache = client.create_cache(CacheConfig("FOLLOWED"))
        cache.put_all(dict.fromkeys(range(1, 101), "x"))
        with follow(cache, after=60, pause_s=PAUSE_S) as following:
            pages = following.pages()
            assert sorted(key for key, _ in take_all(pages)) == list(range(61, 101))
            cache.put(101, "x")
            assert take_until(pages, lambda found: found) == [(101, "x")]
            assert following.resume_after == 60
            following.look_again()
            take_all(pages)
            assert following.resume_after == 101
            cache.put("text", "x")
            with pytest.raises(SchemaError, match="text"):
                take_until(pages, lambda found: False)


def test_what_is_forgotten_comes_again_and_nothing_is_missing(partitioned, monkeypatch):
    monkeypatch.setattr("ignite_tf_magic.client.remembered_rows._RECENT_ROWS", 50)
    partitioned.put_all(dict.fromkeys(range(300), "x"))
    with follow(partitioned, pause_s=PAUSE_S, most_remembered=100) as following:
        pages = following.pages()
        assert {key for key, _ in take_all(pages)} == set(range(300))
        assert following.has_forgotten
        partitioned.put(300, "x")
        following.look_again()
        assert 300 in {key for key, _ in take_all(pages)}


def test_closing_ends_it_from_another_thread(partitioned):
    following = follow(partitioned)
    found = []
    thread = threading.Thread(target=lambda: found.extend(following.pages()))
    thread.start()
    until(lambda: following.num_streams)
    following.close()
    thread.join(300)
    assert not thread.is_alive() and found == []
    assert not [each for each in threading.enumerate() if each.name == "follow"]


PUT_ROWS = """
import sys, time
from ignite_tf_magic.client.client import connect
from ignite_tf_magic.settings.options import ConnectOptions, Endpoint
from ignite_tf_magic.errors import ConnectionFailed, ConnectionLost, ServerError

count, ports = int(sys.argv[1]), sys.argv[2:]
endpoints = tuple(Endpoint("127.0.0.1", int(port)) for port in ports)
with connect(ConnectOptions(endpoints=endpoints)) as client:
    for first in range(0, count, 50):
        while True:
            try:
                client.cache("FOLLOWED").put_all({n: f"value {n}" for n in range(first, first + 50)})
                break
            except (ConnectionFailed, ConnectionLost, ServerError):
                time.sleep(0.2)
"""


def start_writer(cluster, count):
    """Put rows from another process, 50 at a time."""
    ports = [str(node.port) for node in cluster.nodes]
    command = [sys.executable, "-c", PUT_ROWS, str(count), *ports]
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)})


def kill(cluster, client, teller, *, is_it):
    """Send SIGKILL to the node that reports changes (`is_it`) or to another one."""
    node = next(node for node in client.nodes() if (node.node_id == teller) == is_it)
    victim = next(n for n in cluster.nodes if n.port == node.endpoints[0].port)
    os.kill(victim.pid, signal.SIGKILL)


@pytest.mark.faults
@pytest.mark.parametrize("victim", [pytest.param("tells", marks=pytest.mark.nightly), "another"])
def test_no_row_is_missing_when_a_node_is_killed_while_rows_are_put(own_nodes, victim):
    with connect(own_nodes.connect_options) as client:
        cache = client.create_cache(CacheConfig("FOLLOWED", backups=1))
        found, killed, ends = [], False, set()
        with follow(cache, pause_s=PAUSE_S) as following, start_writer(own_nodes, 5000) as writer:
            for followed in following.pages():
                found += rows_of(followed)
                ends.add(type(following.last_end))
                if len(found) >= 1000 and not killed:
                    kill(own_nodes, client, following.node_id, is_it=victim == "tells")
                    killed = True
                if killed and len(ends) > 1 and len(dict(found)) == 5000:
                    break
        assert writer.returncode == 0
        assert dict(found) == {n: f"value {n}" for n in range(5000)}
        assert len(found) == 5000
        assert (ConnectionLost if victim == "tells" else ClusterChanged) in ends


@pytest.mark.faults
@pytest.mark.nightly
def test_rows_that_are_gone_with_their_node_are_told(own_nodes):
    """Nightly. Shorter: tests/client/test_faults.py::test_without_backups_the_lost_partitions_are_named"""
    with connect(own_nodes.connect_options) as client:
        cache = client.create_cache(CacheConfig("BARE"))
        cache.put_all({n: n for n in range(100)})
        with follow(cache, pause_s=PAUSE_S) as following:
            pages = following.pages()
            take_all(pages)
            kill(own_nodes, client, following.node_id, is_it=False)
            with pytest.raises(PartitionsLost, match="backups"):
                take_until(pages, lambda found: False)


# --- by partition -----------------------------------------------------------------------------------------------


def keys_by_partition(cache):
    found = {}
    baseline = cache.baseline()
    with closing(cache.scan(sorted(baseline.owners), PageSizes(), baseline)) as scan:
        for scanned in scan.pages():
            reader = Reader(scanned.page.rows)
            for _ in range(scanned.page.num_rows):
                found.setdefault(scanned.partition, []).append(read_value(reader))
                read_value(reader)
    return found


KEYS = {
    "longs": [*range(-50, 150), 2**40, -(2**63)],
    "ints": [Int(n) for n in range(-100, 100)],
    "text": [f"key {n}" for n in range(200)],
    "uuids": [uuid.UUID(int=n << 64 | 7 * n) for n in range(200)],
    "mixed": [*range(100), *(f"key {n}" for n in range(100))],
}


@pytest.mark.parametrize(
    "kind",
    [pytest.param(each, marks=() if each == next(iter(KEYS)) else pytest.mark.nightly) for each in KEYS],
)
def test_rows_of_some_partitions_there_or_to_come(partitioned, kind):
    keys = KEYS[kind]
    partitioned.put_all(dict.fromkeys(keys[::2], "there"))
    halves = [range(0, 1024, 2), range(1, 1024, 2)]
    with ExitStack() as closing:
        both = [
            closing.enter_context(follow(partitioned, partitions=half, pause_s=PAUSE_S)) for half in halves
        ]
        pages = [following.pages() for following in both]
        found = [take_all(each) for each in pages]
        partitioned.put_all(dict.fromkeys(keys[1::2], "came"))
        found = [before + take_all(each) for before, each in zip(found, pages, strict=True)]
    by_partition = keys_by_partition(partitioned)
    for half, rows in zip(halves, found, strict=True):
        assert sorted((key for key, _ in rows), key=str) == sorted(
            (key for partition in half for key in by_partition.get(partition, ())), key=str
        )
    assert {value for rows in found for _, value in rows} == {"there", "came"}


@pytest.mark.parametrize("key", [Decimal(1), True, dt.date(2026, 1, 1)])
def test_the_partition_of_a_key_that_nobody_knows_here(partitioned, key):
    with follow(partitioned, partitions=range(1024), pause_s=PAUSE_S) as following:
        pages = following.pages()
        take_all(pages)
        partitioned.put(key, 1)
        with pytest.raises(SchemaError, match=r"by partition.*row with key.*Follow all partitions"):
            take_all(pages)


def test_a_replicated_cache_has_no_partitions_to_follow(client):
    cache = client.create_cache(CacheConfig("FOLLOWED", mode=CacheMode.REPLICATED))
    try:
        with follow(cache, partitions=[1]) as following, pytest.raises(ConfigError, match="is replicated"):
            next(following.pages())
    finally:
        client.destroy_cache("FOLLOWED")


def test_a_partition_that_there_is_not(partitioned):
    with (
        follow(partitioned, partitions=[1024]) as following,
        pytest.raises(ConfigError, match="no partition 1024"),
    ):
        next(following.pages())
