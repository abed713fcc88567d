"""Tests that workers know their number of rows, and that counting reads hardly any rows."""

from __future__ import annotations

import numpy as np
import pytest

from ignite_tf_magic.client import owner_scan
from ignite_tf_magic.client.cache_facts import forget, read_facts
from ignite_tf_magic.client.cache_scan import Baseline
from ignite_tf_magic.client.row_counts import counted_now, evidence_of_loss, last_count, note_count
from ignite_tf_magic.client.transport import SocketTransport
from ignite_tf_magic.protocol.affinity import hashes_of_integers, partitions_of_hashes
from ignite_tf_magic.protocol.messages import CacheConfig
from ignite_tf_magic.runs.hosts import counting
from ignite_tf_magic.runs.hosts.counting import count_cache
from ignite_tf_magic.runs.record import HostRecord, RunSpec
from ignite_tf_magic.runs.supervision.counted_plans import plan_counted
from ignite_tf_magic.runs.supervision.planning import LaunchFacts
from ignite_tf_magic.session import open_session
from tests.client.rows import put_all

ROWS = 20_000
PADDING = b"x" * 100


@pytest.fixture(scope="module")
def tables(ignite):
    """Three caches: one with a SQL table, one without, and one whose rows lie in a few partitions."""
    with open_session(ignite.connect_options, report=print) as session:
        client = session.client
        columns = {"n": np.arange(ROWS), "padding": np.array([PADDING.decode()] * ROWS)}
        session.load("COUNT_TABLE", columns)
        plain = client.create_cache(CacheConfig("COUNT_PLAIN", backups=1))
        put_all(plain, [(key, PADDING) for key in range(ROWS)])
        gathered = client.create_cache(CacheConfig("COUNT_GATHERED"))
        keys = np.arange(500 * ROWS)
        keys = keys[partitions_of_hashes(hashes_of_integers(keys), 1024) < 3][:ROWS]
        put_all(gathered, [(key, PADDING) for key in keys.tolist()])
        forget(client, "COUNT_TABLE")  # as if another client had filled it
        yield client
        for name in ("COUNT_TABLE", "COUNT_PLAIN", "COUNT_GATHERED"):
            client.destroy_cache(name)


def planned(client, name, num_workers):
    cache = count_cache(client, name)
    hosts = {node: HostRecord(f"host-{number}") for number, node in enumerate(sorted(cache.nodes, key=str))}
    return cache, plan_counted(client, RunSpec(name, num_workers), LaunchFacts(cache, hosts))


def rows_of(client, name, partitions):
    return sum(each.rows for each in client.cache(name).partition_stats(partitions).values())


@pytest.mark.parametrize("num_workers", [1, 2, 3, 5])
@pytest.mark.parametrize("name", ["COUNT_TABLE", "COUNT_PLAIN", "COUNT_GATHERED"])
def test_each_worker_is_told_the_rows_that_it_reads(tables, name, num_workers):
    forget(tables, name)
    is_gathered = name == "COUNT_GATHERED"
    cache, plan = planned(tables, name, min(num_workers, 3) if is_gathered else num_workers)
    owners = cache.partition_map.primary_of()
    nodes = {str(node.endpoints[0]): node_id for node_id, node in cache.nodes.items()}
    if not all(seat.is_counted for seat in plan.seats):  # see session/test_uncounted_shares
        assert name == "COUNT_PLAIN" and num_workers not in (1, 3)
        assert sum(seat.rows for seat in plan.seats) == ROWS
        return
    for seat, row in zip(plan.seats, plan.rows, strict=True):
        assert seat.rows == row.rows == rows_of(tables, name, seat.partitions)
        local = [p for p in seat.partitions if owners[p] == nodes[seat.node]]
        assert seat.local_rows == rows_of(tables, name, local)
        assert is_gathered or seat.rows <= 1.3 * ROWS / len(plan.seats)
    assert sum(seat.rows for seat in plan.seats) == ROWS
    assert sum(row.rows_share for row in plan.rows) == pytest.approx(1)


@pytest.mark.parametrize(
    ("name", "num_workers"), [("COUNT_TABLE", 5), ("COUNT_PLAIN", 3), ("COUNT_PLAIN", 5)]
)
def test_no_row_crosses_the_network_for_it_but_a_few(tables, monkeypatch, name, num_workers):
    """Without a SQL table: with a worker per node, nodes report the counts; otherwise each worker counts its rows."""
    forget(tables, name)
    read, received = [], []
    scan, receive = owner_scan.OwnerScan.__init__, SocketTransport.receive_into
    monkeypatch.setattr(owner_scan.OwnerScan, "__init__", lambda *args: read.append(args) or scan(*args))

    def counted(self, space):
        received.append(receive(self, space))
        return received[-1]

    monkeypatch.setattr(SocketTransport, "receive_into", counted)
    _, plan = planned(tables, name, num_workers)
    assert sum(seat.rows for seat in plan.seats) == ROWS
    assert not read
    assert sum(received) < ROWS * len(PADDING) / 10


def test_rows_that_few_keys_gather_are_shared_out_alike_each_time(tables):
    forget(tables, "COUNT_GATHERED")
    for _ in range(2):  # the second time, the row count is already stored
        _, plan = planned(tables, "COUNT_GATHERED", 3)
        assert all(seat.is_counted and seat.rows for seat in plan.seats)
        assert last_count(read_facts(tables, "COUNT_GATHERED")).filled == {0, 1, 2}


def test_what_was_counted_of_few_rows_says_nothing_of_many(tables, monkeypatch):
    """Planning does not read a cache only because it grew since the last count."""
    forget(tables, "COUNT_PLAIN")
    nodes = [node.node_id for node in tables.nodes()]
    note_count(tables, "COUNT_PLAIN", counted_now("a test", 50, nodes, (), range(50)))
    monkeypatch.setattr(counting, "_read", None)
    _, plan = planned(tables, "COUNT_PLAIN", 3)
    assert sum(seat.rows for seat in plan.seats) == ROWS


def test_lost_rows_are_told_from_removed_ones_without_partitions(tables):
    """A count that comes from the nodes does not list the filled partitions. With many rows, all were filled."""
    forget(tables, "COUNT_PLAIN")
    planned(tables, "COUNT_PLAIN", 2)
    count = last_count(read_facts(tables, "COUNT_PLAIN"))
    assert (count.rows, count.filled) == (ROWS, None)
    owners = tables.cache("COUNT_PLAIN").partition_map().primary_of()
    gone = Baseline("COUNT_PLAIN", owners, frozenset(), 0, 0)
    fewer = dict.fromkeys(owners, 9)
    assert evidence_of_loss(count, gone, fewer) == ""
    assert "1 partitions have no rows" in evidence_of_loss(count, gone, {**fewer, 5: 0})
