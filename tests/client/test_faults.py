"""A node dies during a read: with backups every row comes once, else an error names the lost partitions."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from ignite_tf_magic.client.channel import open_channel
from ignite_tf_magic.client.client import connect
from ignite_tf_magic.client.load import put_rows, table_config
from ignite_tf_magic.client.page_sizes import PageSizes
from ignite_tf_magic.client.router import Router
from ignite_tf_magic.embedded import Lifetime, ensure_up, status
from ignite_tf_magic.errors import ConnectionFailed, IgniteTfError, PartitionsLost
from ignite_tf_magic.protocol.buffer import Reader
from ignite_tf_magic.protocol.encode import RowEncoder
from ignite_tf_magic.protocol.read_values import read_value
from tests.waiting import until

pytestmark = pytest.mark.faults
ROWS = 20_000


@pytest.fixture
def loaded(own_nodes):
    """Three nodes with one cache that keeps a backup and one without backups."""
    with connect(own_nodes.connect_options) as client:
        for name, backups in (("SAFE", 1), ("BARE", 0)):
            encoder = RowEncoder(name, {"x": np.arange(ROWS, dtype=np.int32)}, np.arange(ROWS))
            put_rows(client.create_cache(table_config(name, encoder, backups)), encoder)
        yield own_nodes, client


def kill(cluster, client, node_id):
    """Send SIGKILL to the node with that id. Returns its index."""
    port = next(n.endpoints[0].port for n in client.nodes() if n.node_id == node_id)
    node = next(n for n in cluster.nodes if n.port == port)
    os.kill(node.pid, signal.SIGKILL)
    return node.index


def keys_on(page):
    return [read_value(Reader(page.page.rows, start)) for start in page.row_starts()[:-1].tolist()]


def first_reading(cache):
    """Return sizes of a first reading: short pages, several per partition."""
    return PageSizes(4)


def later_reading(cache):
    """Return sizes of measured partitions, which are swept with one page each."""
    return PageSizes(known=cache.partition_stats())


@pytest.mark.smoke
@pytest.mark.parametrize("sizes_of", [first_reading, pytest.param(later_reading, marks=pytest.mark.nightly)])
def test_with_a_backup_every_row_arrives_once(loaded, sizes_of):
    cluster, client = loaded
    cache = client.cache("SAFE")
    sizes = sizes_of(cache)
    baseline = cache.baseline()
    victim = baseline.owners[0]
    order = sorted(baseline.owners, key=lambda p: (baseline.owners[p] != victim, p))
    found, partitions = [], []
    for number, page in enumerate(cache.scan(order, sizes, baseline).pages()):
        found += keys_on(page)
        partitions.append(page.partition)
        if number == 40:
            kill(cluster, client, victim)
    assert len(found) == ROWS
    assert sorted(found) == list(range(ROWS))
    assert list(dict.fromkeys(partitions)) == order


@pytest.mark.nightly
def test_a_partition_cut_in_the_middle_is_not_doubled(loaded):
    """The page size is 1, so the kill hits a partition from which some rows were already delivered.

    Nightly. Shorter: test_with_a_backup_every_row_arrives_once
    """
    cluster, client = loaded
    cache = client.cache("SAFE")
    baseline = cache.baseline()
    victim = baseline.owners[0]
    mine = [p for p, node in baseline.owners.items() if node == victim][:40]
    found = []
    for number, page in enumerate(cache.scan(mine, PageSizes(1), baseline).pages()):
        found += keys_on(page)
        if number == 25:
            kill(cluster, client, victim)
    stats = cache.partition_stats(mine)
    assert len(found) == len(set(found)) == sum(s.rows for s in stats.values())


@pytest.mark.parametrize("sizes_of", [first_reading, pytest.param(later_reading, marks=pytest.mark.nightly)])
def test_without_backups_the_lost_partitions_are_named(loaded, sizes_of):
    cluster, client = loaded
    cache = client.cache("BARE")
    sizes = sizes_of(cache)
    baseline = cache.baseline()
    victim = baseline.owners[0]
    theirs = {p for p, node in baseline.owners.items() if node == victim}
    order = sorted(baseline.owners, key=lambda p: (baseline.owners[p] != victim, p))
    read = set()
    with pytest.raises(PartitionsLost) as caught:
        for number, page in enumerate(cache.scan(order, sizes, baseline).pages()):
            read.add(page.partition)
            if number == 40:
                kill(cluster, client, victim)
    lost = set(caught.value.partitions)
    assert lost
    assert lost <= theirs
    assert theirs - lost <= read
    assert "backups" in str(caught.value)


@pytest.mark.nightly
def test_a_dataset_refuses_a_second_pass_over_fewer_rows(loaded):
    """Nightly. Shorter:
    tests/dataset/test_records.py::test_rows_lost_between_making_and_reading_are_noticed
    """
    import tensorflow as tf

    from ignite_tf_magic import IgniteDataset

    cluster, client = loaded
    where = {"host": "127.0.0.1", "port": cluster.nodes[0].port}
    bare, safe = (IgniteDataset(name, **where).batch(1000) for name in ("BARE", "SAFE"))
    for dataset in (bare, safe):
        assert sum(int(b["key"].shape[0]) for b in dataset) == ROWS
    owners = client.cache("BARE").baseline().owners
    first = client.router.control_node_id()
    kill(cluster, client, next(node for node in owners.values() if node != first))
    assert sum(int(b["key"].shape[0]) for b in safe) == ROWS
    with pytest.raises(tf.errors.OpError, match="PartitionsLost.*lost partitions"):
        sum(int(b["key"].shape[0]) for b in bare)


def restart(cluster, index):
    """Kill a node and start it again with the same ports and disk."""
    os.kill(cluster.nodes[index].pid, signal.SIGKILL)
    until(lambda: status(cluster.home).deaths(), 60)
    return ensure_up(home=cluster.home).cluster


def read_while_nodes_restart(cluster, client, cache, rounds=1):
    """Read a cache while its nodes are restarted one after the other. Returns the keys that were read."""
    baseline = cache.baseline()
    scan = cache.scan(sorted(baseline.owners), PageSizes(4), baseline)
    keys, restarts = [], [index for _ in range(rounds) for index in range(len(cluster.nodes))]
    for number, page in enumerate(scan.pages(), 1):
        keys += keys_on(page)
        if restarts and number % 100 == 0:
            cluster = restart(cluster, restarts.pop(0))
    assert not restarts
    return keys


@pytest.mark.parametrize("num_nodes", [2, pytest.param(3, marks=pytest.mark.nightly)])
def test_nodes_that_restart_one_after_the_other_lose_no_row_on_disk(new_cluster, num_nodes):
    """Each restarted node has a new id, so more node ids have left than there are backups.

    Nightly. Shorter: the same with two nodes
    """
    cluster = new_cluster(num_nodes=num_nodes, persist=True)
    with connect(cluster.connect_options) as client:
        encoder = RowEncoder("ON_DISK", {"x": np.arange(ROWS, dtype=np.int32)}, np.arange(ROWS))
        put_rows(client.create_cache(table_config("ON_DISK", encoder, 1)), encoder)
        cache = client.cache("ON_DISK")
        assert cache.is_on_disk()
        assert sorted(read_while_nodes_restart(cluster, client, cache)) == list(range(ROWS))
        if num_nodes == 2:
            return
        baseline = cache.baseline()
        scan = cache.scan(sorted(baseline.owners), PageSizes(4), baseline)
        pages = scan.pages()
        next(pages)
        for node in status(cluster.home).nodes[:2]:
            os.kill(node.pid, signal.SIGKILL)
        with pytest.raises(IgniteTfError, match="no reachable owner of partitions|the cluster reports"):
            list(pages)


def test_a_node_killed_during_the_load_loses_no_row(loaded):
    """Nightly. Shorter: test_a_load_waits_for_a_node_that_is_listed_though_it_does_not_answer"""
    cluster, client = loaded
    encoder = RowEncoder("LATE", {"x": np.zeros((60_000, 100), np.uint8)}, np.arange(60_000))
    cache = client.create_cache(table_config("LATE", encoder, 1))
    victim = next(n for n in client.nodes() if n.node_id != client.router.control_node_id()).node_id
    started = threading.Event()
    killer = threading.Thread(target=lambda: (started.wait(300), kill(cluster, client, victim)))
    killer.start()
    put_rows(cache, encoder, lambda rows: started.set())
    killer.join()
    assert cache.size() == 60_000


@pytest.mark.nightly
def test_a_node_that_is_starting_is_not_there_yet(own_nodes):
    """A starting node listens before it joins the others, and rejects clients until then.

    Nightly. No shorter one: only a node that is starting gives this answer.
    """
    options = own_nodes.connect_options
    victim, endpoint = own_nodes.nodes[1], options.endpoints[1]
    os.kill(victim.pid, signal.SIGKILL)
    reasons, is_back = set(), threading.Event()

    def knock():
        while not is_back.is_set():
            try:
                open_channel(endpoint, options, None).close()
                is_back.wait(0.01)
            except ConnectionFailed as error:
                reasons.add(str(error))

    with ThreadPoolExecutor() as threads:
        knocking = threads.submit(knock)
        try:
            ensure_up(None, Lifetime.UNTIL_IDLE, home=own_nodes.home)
        finally:
            is_back.set()
        knocking.result()
    assert any("the Ignite node is starting" in reason for reason in reasons), reasons


def test_a_load_waits_for_a_node_that_is_listed_though_it_does_not_answer(ignite, monkeypatch):
    """A killed node stays listed until the others notice. Here it answers again after some attempts."""
    refused = []
    open_to = Router.open_to

    def refuse(router, node):
        if node.node_id == victim and len(refused) < 20:
            refused.append(node)
            raise ConnectionFailed("connection refused")
        return open_to(router, node)

    with connect(ignite.connect_options) as client:
        victim = client.nodes()[0].node_id
        monkeypatch.setattr(Router, "open_to", refuse)
        encoder = RowEncoder("WAITING", {"x": np.arange(ROWS, dtype=np.int32)}, np.arange(ROWS))
        cache = client.create_cache(table_config("WAITING", encoder, 0))
        assert put_rows(cache, encoder) == ROWS
        assert len(refused) == 20
        assert cache.size() == ROWS
        client.destroy_cache("WAITING")
