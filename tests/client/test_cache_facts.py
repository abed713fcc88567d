"""Facts recorded about caches survive concurrent writers, and separate finished loads from others."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from ignite_tf_magic.client.cache_facts import (
    CACHE,
    LoadState,
    check_complete,
    forget,
    load_mark,
    mark_complete,
    mark_loading,
    read_facts,
    update_facts,
)
from ignite_tf_magic.client.client import connect
from ignite_tf_magic.errors import LoadIncomplete
from ignite_tf_magic.protocol.messages import CacheConfig, cache_id


@pytest.fixture
def numbers(client):
    cache = client.create_cache(CacheConfig("FACTS_NUMBERS"))
    yield cache
    client.destroy_cache(cache.name)
    forget(client, cache.name)


def test_reading_creates_nothing(own_nodes):
    with connect(own_nodes.connect_options) as alone:
        assert read_facts(alone, "NOPE") == {}
        check_complete(alone, "NOPE")
        forget(alone, "NOPE")
        assert alone.cache_names() == []


def test_a_load_is_incomplete_until_its_end(client, numbers):
    check_complete(client, numbers.name)
    mark = mark_loading(client, numbers.name, 2)
    numbers.put(1, 1)
    with pytest.raises(LoadIncomplete, match=r"has 1 of the 2 rows.*--replace.*--allow-partial") as caught:
        check_complete(client, numbers.name)
    assert (caught.value.rows, caught.value.expected_rows) == (1, 2)
    mark_complete(client, numbers.name, mark, 2)
    check_complete(client, numbers.name)
    facts = read_facts(client, numbers.name)
    assert facts["cache_id"] == cache_id(numbers.name)
    assert load_mark(facts).state is LoadState.COMPLETE


def test_the_end_of_an_earlier_load_does_not_complete_a_later_one(client, numbers):
    earlier = mark_loading(client, numbers.name, 1)
    mark_loading(client, numbers.name, 5)
    mark_complete(client, numbers.name, earlier, 1)
    with pytest.raises(LoadIncomplete):
        check_complete(client, numbers.name)


def test_keys_of_others_stay_when_writers_collide(client, numbers):
    def note(number):
        update_facts(client, numbers.name, lambda facts: {**facts, f"key {number}": number})

    mark = mark_loading(client, numbers.name, 1)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(note, range(40)))
    mark_complete(client, numbers.name, mark, 1)
    facts = read_facts(client, numbers.name)
    assert {facts[f"key {number}"] for number in range(40)} == set(range(40))


def test_what_cannot_be_read_is_nothing(client, numbers):
    mark_loading(client, numbers.name, 1)
    client.cache(CACHE).put(numbers.name, "{no JSON")
    assert read_facts(client, numbers.name) == {}
    update_facts(client, numbers.name, lambda facts: {**facts, "load": {"state": "of a later version"}})
    assert load_mark(read_facts(client, numbers.name)) is None
    check_complete(client, numbers.name)
