"""Rows by their keys, on real nodes: one and many, and the operations that decide between writers."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from ignite_tf_magic.client.client import connect
from ignite_tf_magic.errors import CacheNotFound, RemoteProtocolError
from ignite_tf_magic.protocol import key_value
from ignite_tf_magic.protocol.buffer import Writer
from ignite_tf_magic.protocol.messages import CacheConfig
from ignite_tf_magic.protocol.objects import BinaryObject, write_value
from ignite_tf_magic.protocol.ops import AtomicityMode, CacheMode


@pytest.fixture(params=[CacheMode.PARTITIONED, CacheMode.REPLICATED], ids=["partitioned", "replicated"])
def cache(client, request):
    config = CacheConfig(
        "KEY_VALUE",
        backups=1,
        mode=request.param,
        atomicity=AtomicityMode.TRANSACTIONAL,
        read_from_backup=False,
    )
    yield client.create_cache(config)
    client.destroy_cache("KEY_VALUE")


def test_one_row(cache):
    cache.put("a", b"\x00\xff" * 10)
    assert cache.get("a") == b"\x00\xff" * 10
    assert cache.get("b") is None
    assert cache.contains("a") and not cache.contains("b")
    assert cache.remove("a") and not cache.remove("a")
    assert cache.size() == 0


def test_many_rows(cache):
    rows = {f"key {n}": b"x" * n for n in range(500)}
    cache.put_all(rows)
    assert cache.size() == 500
    assert cache.get_all([*rows, "not there"]) == rows
    cache.remove_all([*list(rows)[:499], "not there"])
    assert cache.get_all(rows) == {"key 499": b"x" * 499}
    assert cache.get_all([]) == {}
    cache.put_all({})


def test_keys_of_several_types(cache):
    rows = {1: "long", "1": "text", uuid.UUID(int=7): "uuid"}
    cache.put_all(rows)
    assert cache.get_all(rows) == rows


def test_objects_announce_their_types(cache):
    first = BinaryObject("KvCat", {"name": "Tom", "lives": np.int32(9)})
    cache.put_all({1: first})
    assert cache.put_if_absent(2, BinaryObject("KvDog", {"name": "Rex"}))
    assert cache.get_all([1])[1].fields["name"] == "Tom"
    assert cache.get(2).type_name == "KvDog"


def test_put_if_absent_writes_once(cache):
    assert cache.put_if_absent("k", 1)
    assert not cache.put_if_absent("k", 2)
    assert cache.get("k") == 1


def test_replace_if_equals_compares(cache):
    assert not cache.replace_if_equals("k", b"old", b"new")
    cache.put("k", b"old")
    assert not cache.replace_if_equals("k", b"other", b"new")
    assert cache.replace_if_equals("k", b"old", b"new")
    assert cache.get("k") == b"new"


def test_writers_that_compare_and_set_lose_no_update(cache, ignite):
    cache.put("counter", 0)

    def count(_):
        with connect(ignite.connect_options) as own:
            mine = own.cache(cache.name)
            for _ in range(25):
                while True:
                    seen = mine.get("counter")
                    if mine.replace_if_equals("counter", seen, seen + 1):
                        break

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(count, range(4)))
    assert cache.get("counter") == 100


def test_only_one_of_many_creates(cache, ignite):
    def create(number):
        with connect(ignite.connect_options) as own:
            return own.cache(cache.name).put_if_absent("lock", number)

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(create, range(4))) == [False, False, False, True]


def test_a_cache_that_is_gone(client):
    cache = client.create_cache(CacheConfig("GONE"))
    client.destroy_cache("GONE")
    for ask in (lambda: cache.get_all([1]), lambda: cache.put_if_absent(1, 2), lambda: cache.remove_all([1])):
        with pytest.raises(CacheNotFound):
            ask()


def test_truncated_rows_are_refused():
    writer = Writer().int32(2)
    for value in ("k", 1, "l", 2):
        write_value(writer, value)
    whole = bytes(writer.data)
    assert key_value.parse_rows(memoryview(whole)) == [("k", 1), ("l", 2)]
    for end in range(len(whole)):
        with pytest.raises(RemoteProtocolError):
            key_value.parse_rows(memoryview(whole[:end]))
