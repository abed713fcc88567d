"""Rows by key on real nodes: single, many, and the operations that decide between concurrent writers."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from ignite_tf_magic.client.all_rows import all_rows
from ignite_tf_magic.client.client import connect
from ignite_tf_magic.client.sql import SqlClient
from ignite_tf_magic.errors import (
    CacheNotFound,
    ConnectionLost,
    LocalProtocolError,
    RemoteProtocolError,
    ServerError,
)
from ignite_tf_magic.protocol import key_value
from ignite_tf_magic.protocol.buffer import Writer
from ignite_tf_magic.protocol.messages import CacheConfig
from ignite_tf_magic.protocol.objects import BinaryObject
from ignite_tf_magic.protocol.ops import AtomicityMode, CacheMode, Concurrency, Isolation
from ignite_tf_magic.protocol.write_values import write_value


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


@pytest.mark.parametrize(
    "look",
    [
        lambda cache, key: cache.get(key) is None,
        lambda cache, key: not cache.contains(key),
        lambda cache, key: not cache.contains_all([key]),
        lambda cache, key: not cache.remove(key),
        lambda cache, key: cache.remove_all([key]) is None,
        lambda cache, key: not cache.replace_if_equals(key, 1, 2),
    ],
)
def test_a_key_of_which_a_part_decides_is_looked_for_in_an_empty_table(ignite, client, look):
    """The node must know the key's type to find its partition."""
    key_type = f"Key{uuid.uuid4().hex}"
    columns = "a BIGINT, b BIGINT, v BIGINT, PRIMARY KEY (a, b)"
    options = f"CACHE_NAME=KEY_PARTS,AFFINITY_KEY=b,KEY_TYPE={key_type}"
    statements = SqlClient(ignite.connect_options)
    statements.query(f'CREATE TABLE KEY_PARTS ({columns}) WITH "{options}"')
    try:
        assert look(client.cache("KEY_PARTS"), BinaryObject(key_type, {"A": 1, "B": 2}))
    finally:
        statements.query("DROP TABLE KEY_PARTS")


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


def test_objects_in_lists_and_maps_announce_their_types(cache, ignite):
    cache.put(1, [BinaryObject("KvListed", {"a": np.int32(1)}), {"k": BinaryObject("KvMapped", {"b": "x"})}])
    with connect(
        ignite.connect_options
    ) as other:  # this client has not seen the types that the first one registered
        listed, mapping = other.cache(cache.name).get(1)
    assert listed.fields == {"a": 1}
    assert dict(mapping)["k"].fields == {"b": "x"}


def test_a_newer_schema_is_asked_for(cache, ignite):
    cache.put(1, BinaryObject("KvGrowing", {"a": 1}))
    with connect(ignite.connect_options) as other:
        theirs = other.cache(cache.name)
        assert theirs.get(1).fields == {"a": 1}
        cache.put(2, BinaryObject("KvGrowing", {"a": 2, "b": "new"}))
        assert theirs.get(2).fields == {"a": 2, "b": "new"}
        cache.put(3, BinaryObject("KvGrowing", {"c": None}))
        assert theirs.get_all([3])[3].fields == {"c": None}


def test_a_circle_of_objects(cache):
    fields = {"name": "a"}
    circle = BinaryObject("KvCircle", fields)
    fields["items"] = [circle]
    cache.put(1, circle)
    back = cache.get(1)
    assert back.fields["items"][0] is back


def test_an_object_without_fields_is_a_key(cache):
    cache.put(BinaryObject("KvEmpty"), "value")
    ((key, value),) = all_rows(cache)
    assert (cache.get(key), value) == ("value", "value")


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


def test_a_transaction_is_seen_whole_or_not_at_all(own_node):
    """It has its own node, because it reads outside a transaction that holds locks; see `Client.transaction`."""
    with connect(own_node.connect_options) as client:
        cache = client.create_cache(CacheConfig("SEEN", atomicity=AtomicityMode.TRANSACTIONAL))
        cache.put_all({"a": 10, "b": 0})
        with client.transaction() as transaction:
            mine = cache.within(transaction)
            mine.put("a", mine.get("a") - 1)
            mine.put_all({"b": mine.get("b") + 1, "c": 5})
            mine.remove("c")
            assert mine.get_all(["a", "b", "c"]) == {"a": 9, "b": 1}
            assert cache.get_all(["a", "b"]) == {"a": 10, "b": 0}
        assert cache.get_all(["a", "b", "c"]) == {"a": 9, "b": 1}
        with pytest.raises(LocalProtocolError, match="has ended"):
            mine.get("a")


def test_a_block_that_raises_writes_nothing(cache, client):
    with pytest.raises(ZeroDivisionError), client.transaction() as transaction:
        cache.within(transaction).put("a", 1)
        raise ZeroDivisionError
    assert cache.get("a") is None
    with client.transaction() as transaction:
        cache.within(transaction).put("a", 1)
        transaction.roll_back()
    assert cache.get("a") is None


def test_a_connection_lost_in_a_transaction_writes_nothing(cache, client):
    with pytest.raises(ConnectionLost), client.transaction() as transaction:
        cache.within(transaction).put("a", 1)
        transaction._channel._transport.close()
        cache.within(transaction).put("b", 1)
    with client.transaction(timeout_s=300) as transaction:  # the lock is free again
        cache.within(transaction).put("a", 2)
    assert cache.get_all(["a", "b"]) == {"a": 2}


def test_of_two_optimistic_writers_the_second_is_refused(cache, client):
    cache.put("a", 0)
    with pytest.raises(ServerError):
        with client.transaction(Concurrency.OPTIMISTIC, Isolation.SERIALIZABLE) as first:
            mine = cache.within(first)
            mine.put("a", mine.get("a") + 1)
            cache.put("a", 100)
    assert cache.get("a") == 100


def test_transfers_at_the_same_time_keep_the_sum(cache, ignite):
    cache.put_all({"a": 100, "b": 100})

    def transfer(number):
        with connect(ignite.connect_options) as own:
            for _ in range(10):
                with own.transaction() as transaction:
                    mine = own.cache(cache.name).within(transaction)
                    rows = {key: mine.get(key) for key in ("a", "b")}  # the fixed order prevents a deadlock
                    mine.put_all({"a": rows["a"] - number, "b": rows["b"] + number})

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(transfer, (1, 2, -1)))
    assert cache.get_all(["a", "b"]) == {"a": 80, "b": 120}


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
