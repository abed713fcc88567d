from __future__ import annotations

import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ignite_tf_magic.errors import PlacementError
from ignite_tf_magic.placement import place

NODES = [uuid.UUID(int=number) for number in range(6)]


@st.composite
def clusters(draw):
    num_nodes = draw(st.integers(1, 6))
    num_partitions = draw(st.integers(1, 80))
    owner = draw(st.lists(st.integers(0, num_nodes - 1), min_size=num_partitions, max_size=num_partitions))
    sizes = st.one_of(st.integers(0, 3), st.integers(0, 1000), st.just(100_000))
    rows = dict(enumerate(draw(st.lists(sizes, min_size=num_partitions, max_size=num_partitions))))
    hosts = {node: draw(st.sampled_from(["a", "b", "c"])) for node in NODES[:num_nodes]}
    owners = {node: [p for p in rows if owner[p] == index] for index, node in enumerate(NODES[:num_nodes])}
    filled = sum(1 for count in rows.values() if count)
    return owners, rows, hosts, draw(st.integers(1, max(1, filled)))


@settings(deadline=None)
@given(clusters())
def test_every_partition_is_read_exactly_once(cluster):
    owners, rows, _, num_workers = cluster
    found = place(*cluster)
    assert [each.worker for each in found] == list(range(num_workers))
    read = [partition for each in found for partition in each.partitions]
    assert sorted(read) == sorted(partition for partitions in owners.values() for partition in partitions)
    for each in found:
        assert each.rows == sum(rows[partition] for partition in each.partitions)
        assert list(each.partitions) == sorted(each.partitions)


@settings(deadline=None)
@given(clusters())
def test_workers_are_balanced_and_none_is_without_rows(cluster):
    _, rows, _, num_workers = cluster
    loads = [each.rows for each in place(*cluster)]
    bound = 1.05 * sum(rows.values()) / num_workers + max(rows.values())
    assert max(loads) <= bound
    assert all(loads) or not sum(rows.values())


@settings(deadline=None)
@given(clusters())
def test_a_worker_runs_on_the_host_of_its_node(cluster):
    owners, rows, hosts, _ = cluster
    owner = {partition: node for node, partitions in owners.items() for partition in partitions}
    for each in place(*cluster):
        assert each.host in hosts.values()
        local = [p for p in each.partitions if hosts[owner[p]] == each.host]
        assert each.local_rows == sum(rows[p] for p in local)
        if each.local_rows:
            assert hosts[each.node] == each.host


@settings(deadline=None)
@given(clusters())
def test_the_same_cluster_gives_the_same_placement(cluster):
    assert place(*cluster) == place(*cluster)


@given(st.integers(1, 6), st.integers(10, 40), st.integers(50, 60))
def test_even_data_is_read_where_it_is(num_nodes, per_node, rows_each):
    nodes = NODES[:num_nodes]
    owners = {node: range(i * per_node, (i + 1) * per_node) for i, node in enumerate(nodes)}
    rows = dict.fromkeys(range(num_nodes * per_node), rows_each)
    hosts = {node: f"host-{i}" for i, node in enumerate(nodes)}
    for each in place(owners, rows, hosts, num_nodes):
        assert each.local_rows == each.rows
        assert each.partitions == tuple(owners[each.node])


def test_on_one_host_each_worker_reads_one_node_where_that_costs_nothing():
    owners = {NODES[0]: range(30), NODES[1]: range(30, 60), NODES[2]: range(60, 90)}
    found = place(owners, dict.fromkeys(range(90), 10), dict.fromkeys(owners, "localhost"), 3)
    assert {each.node: each.partitions for each in found} == {n: tuple(p) for n, p in owners.items()}


def test_balance_comes_before_place():
    owners = {NODES[0]: [0, 1, 2, 3], NODES[1]: [4]}
    rows = {0: 100, 1: 100, 2: 100, 3: 100, 4: 1}
    found = place(owners, rows, {NODES[0]: "a", NODES[1]: "b"}, 2)
    assert sorted(each.rows for each in found) == [200, 201]


def test_hosts_without_a_worker_are_read_from_others():
    owners = {node: [index] for index, node in enumerate(NODES)}
    hosts = {node: f"host-{index}" for index, node in enumerate(NODES)}
    (only,) = place(owners, dict.fromkeys(range(6), 5), hosts, 1)
    assert only.partitions == (0, 1, 2, 3, 4, 5)
    assert only.local_rows == 5


def test_an_empty_cache_needs_one_worker():
    (only,) = place({NODES[0]: [0, 1]}, {}, {NODES[0]: "a"}, 1)
    assert only.partitions == (0, 1)
    assert only.rows == 0


def test_more_workers_than_partitions_with_rows():
    owners = {NODES[0]: [0, 1, 2, 3]}
    with pytest.raises(PlacementError, match=r"4 workers .* only 3 partitions .* at most 3"):
        place(owners, {0: 1, 1: 1, 2: 5}, {NODES[0]: "a"}, 4)


@pytest.mark.parametrize("num_workers", [0, -1])
def test_no_workers(num_workers):
    with pytest.raises(PlacementError, match="at least one"):
        place({NODES[0]: [0]}, {0: 1}, {NODES[0]: "a"}, num_workers)


def test_no_partitions():
    with pytest.raises(PlacementError, match="no node owns"):
        place({NODES[0]: []}, {}, {NODES[0]: "a"}, 1)


def test_two_owners_of_one_partition():
    with pytest.raises(PlacementError, match="two primary owners"):
        place({NODES[0]: [0], NODES[1]: [0]}, {0: 1}, {NODES[0]: "a", NODES[1]: "a"}, 1)
