"""Large rows in flight from several nodes: every row arrives, even if connections break or a node dies."""

from __future__ import annotations

import os
import signal
import threading
import uuid

import pytest

from ignite_tf_magic.client import pipeline as pipeline_module
from ignite_tf_magic.client.all_rows import all_rows
from ignite_tf_magic.client.client import connect
from ignite_tf_magic.client.pipeline import Pipeline, Routes
from ignite_tf_magic.client.regions import region_use
from ignite_tf_magic.errors import RemoteProtocolError, ServerError
from ignite_tf_magic.protocol.messages import CacheConfig

SIZE = 100_000


def rows(number):
    return {uuid.uuid4(): os.urandom(SIZE) for _ in range(number)}


@pytest.fixture
def cache(client):
    made = client.create_cache(CacheConfig("PIPES", backups=1, read_from_backup=False))
    yield made
    client.destroy_cache("PIPES")


@pytest.fixture
def pipeline(cache):
    with Pipeline(cache, Routes(cache)) as opened:
        yield opened


def write_all(pipeline, written):
    pipeline.finish([pipeline.write(key, value) for key, value in written.items()])


def read_all(pipeline, keys):
    spaces = {key: bytearray(SIZE) for key in keys}
    tickets = [pipeline.read(key, memoryview(space)) for key, space in spaces.items()]
    pipeline.finish(tickets)
    return {t.key: bytes(spaces[t.key]) for t in tickets if t.found}


def test_rows_go_to_and_come_from_all_nodes(cache, pipeline):
    written = rows(40)
    write_all(pipeline, written)
    assert read_all(pipeline, written) == written
    assert cache.size() == 40
    assert len(pipeline._channels) == 3
    assert dict(all_rows(cache, 7)) == written


def test_what_is_not_there_is_not_found(pipeline):
    space = bytearray(b"?" * 5)
    ticket = pipeline.read(uuid.uuid4(), memoryview(space))
    assert not ticket.done
    pipeline.finish([ticket])
    assert (ticket.done, ticket.found, space) == (True, False, b"?????")


def test_answers_in_another_order_than_asked(pipeline):
    written = rows(9)
    write_all(pipeline, written)
    spaces = {key: bytearray(SIZE) for key in written}
    tickets = [pipeline.read(key, memoryview(space)) for key, space in spaces.items()]
    for ticket in reversed(tickets):
        pipeline.finish([ticket])
        assert spaces[ticket.key] == written[ticket.key]


def test_a_part_of_a_row(pipeline):
    (key, value), *_ = rows(1).items()
    write_all(pipeline, {key: value})
    space = bytearray(10)
    pipeline.finish([pipeline.read(key, memoryview(space), skip=500)])
    assert space == value[500:510]


def test_a_row_of_another_size_is_told(pipeline):
    (key, value), *_ = rows(1).items()
    write_all(pipeline, {key: value})
    with pytest.raises(RemoteProtocolError, match=f"has {SIZE} bytes, 0 to {SIZE + 1} were asked for"):
        pipeline.finish([pipeline.read(key, memoryview(bytearray(SIZE + 1)))])


def test_broken_connections_are_opened_again(pipeline):
    written = rows(12)
    write_all(pipeline, written)
    for break_before in (True, False):
        if break_before:
            break_all(pipeline)
        spaces = {key: bytearray(SIZE) for key in written}
        tickets = [pipeline.read(key, memoryview(space)) for key, space in spaces.items()]
        if not break_before:
            break_all(pipeline)
        pipeline.finish(tickets)
        assert spaces == written
    more = rows(12)
    tickets = [pipeline.write(key, value) for key, value in more.items()]
    break_all(pipeline)
    pipeline.finish(tickets)
    assert read_all(pipeline, more) == more


def break_all(pipeline):
    assert pipeline._channels
    for channel in pipeline._channels.values():
        channel.close()


def test_a_cache_that_is_gone_is_told_at_once(client, monkeypatch):
    monkeypatch.setattr(pipeline_module, "RETRY_S", 0.0)
    cache = client.create_cache(CacheConfig("PIPES_GONE"))
    with Pipeline(cache, Routes(cache)) as pipeline:
        write_all(pipeline, rows(2))
        client.destroy_cache("PIPES_GONE")
        with pytest.raises((ServerError, LookupError)):
            write_all(pipeline, rows(1))


def test_a_pipeline_that_is_closed_early_gives_no_late_answers(cache):
    written = rows(6)
    with Pipeline(cache, Routes(cache)) as pipeline:
        write_all(pipeline, written)
    spaces = {key: bytearray(SIZE) for key in written}
    with Pipeline(cache, Routes(cache)) as pipeline:
        for key, space in spaces.items():
            pipeline.read(key, memoryview(space))
    with Pipeline(cache, Routes(cache)) as pipeline:
        assert read_all(pipeline, written) == written
    assert all(space == bytes(SIZE) for space in spaces.values())


def test_memory_use_is_told_for_each_node(client, cache):
    before = region_use(client)
    assert len(before) == 3
    assert all(0 < use.used_bytes < use.max_bytes for use in before)
    with Pipeline(cache, Routes(cache)) as pipeline:
        write_all(pipeline, rows(100))
    grown = sum(use.used_bytes for use in region_use(client)) - sum(use.used_bytes for use in before)
    assert grown > 10_000_000, "two copies of 10 MB"


@pytest.mark.faults
def test_a_node_dies_with_rows_under_way(own_nodes):
    with connect(own_nodes.connect_options) as client:
        cache = client.create_cache(CacheConfig("PIPES", backups=1, read_from_backup=False))
        written = rows(300)
        victim = own_nodes.nodes[1]
        with Pipeline(cache, Routes(cache)) as pipeline:
            tickets = []
            for number, (key, value) in enumerate(written.items()):
                if number == 100:
                    killer = threading.Thread(target=os.kill, args=(victim.pid, signal.SIGKILL))
                    killer.start()
                tickets.append(pipeline.write(key, value))
                if len(tickets) > 8:
                    pipeline.finish([tickets.pop(0)])
            pipeline.finish(tickets)
            killer.join()
            assert cache.size() == 300
            assert read_all(pipeline, written) == written
