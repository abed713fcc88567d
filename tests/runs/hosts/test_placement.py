from __future__ import annotations

import random
import uuid
from collections import Counter

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ignite_tf_magic.errors import PlacementError
from ignite_tf_magic.runs.hosts.placement import explain, place

NODES = [uuid.UUID(int=number) for number in range(6)]


@st.composite
def clusters(draw):
    num_nodes = draw(st.integers(1, 6))
    num_partitions = draw(st.integers(1, 40))
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


@st.composite
def restricted(draw):
    """Draw a cluster on which some hosts run no workers and others only a few. The requested workers always fit."""
    owners, rows, hosts, _ = draw(clusters())
    names = sorted(set(hosts.values()))
    usable = draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    limits = draw(st.dictionaries(st.sampled_from(names), st.integers(0, 9)))
    room = sum(limits.get(host, 99) for host in usable)
    filled = sum(1 for count in rows.values() if count)
    assume(room)
    num_workers = draw(st.integers(1, min(room, max(1, filled))))
    return (owners, rows, hosts, num_workers), usable, limits


@settings(deadline=None, max_examples=50)
@given(restricted())
def test_only_usable_hosts_get_workers_and_only_as_many_as_have_room(case):
    cluster, usable, limits = case
    owners, rows, _, num_workers = cluster
    found = place(*cluster, usable_hosts=usable, max_workers_by_host=limits)
    assert len(found) == num_workers
    for host, count in Counter(each.host for each in found).items():
        assert host in usable
        assert count <= limits.get(host, count)
    read = [partition for each in found for partition in each.partitions]
    assert sorted(read) == sorted(partition for partitions in owners.values() for partition in partitions)
    loads = [each.rows for each in found]
    assert sum(loads) == sum(rows.values())
    assert max(loads) <= 1.05 * sum(loads) / num_workers + max(rows.values())
    assert all(loads) or not sum(loads)
    assert found == place(*cluster, usable_hosts=reversed(usable), max_workers_by_host=limits)


@settings(deadline=None, max_examples=50)
@given(restricted())
def test_a_worker_knocks_at_a_node_of_its_own_host(case):
    cluster, usable, limits = case
    for each in place(*cluster, usable_hosts=usable, max_workers_by_host=limits):
        assert cluster[2][each.node] == each.host


@settings(deadline=None, max_examples=50)
@given(restricted())
def test_a_host_s_workers_read_what_it_holds_before_anything_else(case):
    """A host reads all its rows, or its workers' full shards, up to the size of one partition per worker."""
    cluster, usable, limits = case
    owners, rows, hosts, num_workers = cluster
    found = place(*cluster, usable_hosts=usable, max_workers_by_host=limits)
    held, local, seats = Counter(), Counter(), Counter()
    for node, partitions in owners.items():
        held[hosts[node]] += sum(rows[partition] for partition in partitions)
    for each in found:
        local[each.host] += each.local_rows
        seats[each.host] += 1
    even, largest = sum(rows.values()) / num_workers, max(rows.values())
    for host, count in seats.items():
        assert local[host] >= min(held[host], count * even) - (count + num_workers) * largest


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 1 << 32), st.integers(2, 12), st.integers(2, 6), st.sets(st.integers(0, 5)))
def test_more_is_read_locally_than_by_dealing_partitions_out_in_turn(seed, num_workers, num_hosts, excluded):
    """On realistic caches: Ignite's default of 1024 partitions, unevenly spread and of different sizes."""
    rng = random.Random(seed)
    nodes = NODES[:num_hosts]
    hosts = {node: f"host-{i}" for i, node in enumerate(nodes)}
    usable = [name for i, name in enumerate(hosts.values()) if i not in excluded]
    assume(usable)
    owner = rng.choices(nodes, [rng.randint(1, 9) for _ in nodes], k=1024)
    owners = {node: [p for p in range(1024) if owner[p] == node] for node in nodes}
    rows = {p: rng.randint(0, 2000) for p in range(1024)}
    found = place(owners, rows, hosts, num_workers, usable_hosts=usable)
    in_turn = sum(rows[p] for p in rows if hosts[owner[p]] == found[p % num_workers].host)
    local = sum(each.local_rows for each in found)
    assert local >= in_turn
    possible = sum(rows[p] for p in rows if hosts[owner[p]] in usable)
    seats = Counter(each.host for each in found)
    even = sum(rows.values()) / num_workers
    by_host = Counter()
    for p in rows:
        by_host[hosts[owner[p]]] += rows[p]
    best = sum(min(by_host[host], count * even) for host, count in seats.items())
    assert best * 0.97 <= local <= possible


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


def three_hosts(per_host: int = 8):
    owners = {node: range(i * per_host, (i + 1) * per_host) for i, node in enumerate(NODES[:3])}
    hosts = dict(zip(owners, ("a", "b", "c"), strict=True))
    return owners, dict.fromkeys(range(3 * per_host), 10), hosts


def test_a_host_without_workers_is_read_by_the_others_evenly():
    found = place(*three_hosts(), 2, usable_hosts={"a", "c"})
    assert [(each.host, each.rows, each.local_rows) for each in found] == [("a", 120, 80), ("c", 120, 80)]


def test_what_a_host_without_workers_would_get_goes_to_hosts_with_few():
    owners = {NODES[0]: range(40), NODES[1]: [40], NODES[2]: range(50, 90)}
    rows = dict.fromkeys([*range(41), *range(50, 90)], 10)
    found = place(owners, rows, dict(zip(NODES, "abc", strict=False)), 4, usable_hosts="ab")
    assert [each.host for each in found] == ["a", "a", "b", "b"]


def test_several_workers_on_the_only_host_that_is_left():
    found = place(*three_hosts(), 5, usable_hosts=["b"])
    assert {each.host for each in found} == {"b"}
    assert sum(each.local_rows for each in found) == 80


def test_workers_on_a_host_that_holds_nothing_of_the_cache():
    owners, rows, hosts = three_hosts()
    found = place(owners, rows, {**hosts, NODES[3]: "d"}, 2, usable_hosts=["d"])
    assert {(each.host, each.node, each.local_rows) for each in found} == {("d", NODES[3], 0)}
    everywhere = place(owners, rows, {**hosts, NODES[3]: "d"}, 3, usable_hosts="abcd")
    assert [each.host for each in everywhere] == ["a", "b", "c"]


def test_room_for_workers():
    found = place(*three_hosts(), 4, max_workers_by_host={"a": 0, "b": 1, "c": 9})
    assert [each.host for each in found] == ["b", "c", "c", "c"]
    with pytest.raises(PlacementError, match=r"4 workers .* room for 3 \(a for 0, b for 1, c for 2\)"):
        place(*three_hosts(), 4, max_workers_by_host={"a": 0, "b": 1, "c": 2})


def test_what_no_local_worker_can_take_goes_only_where_there_is_room():
    found = place(*three_hosts(per_host=2), 5, usable_hosts="ab", max_workers_by_host={"a": 1})
    assert [each.host for each in found] == ["a", "b", "b", "b", "b"]


def test_a_partition_larger_than_a_share_is_read_where_it_is():
    owners = {NODES[0]: range(101), NODES[1]: [101]}
    rows = {0: 200, **dict.fromkeys(range(1, 101), 1), 101: 10}
    found = place(owners, rows, dict(zip(NODES, "ab", strict=False)), 2, max_workers_by_host={"a": 1, "b": 1})
    assert [(each.host, each.rows, each.local_rows) for each in found] == [("a", 200, 200), ("b", 110, 10)]


def test_no_worker_is_without_rows_where_all_would_fit_into_fewer():
    owners = {NODES[0]: [0], NODES[1]: [1, 2]}
    hosts = dict(zip(NODES, "ab", strict=False))
    found = place(owners, {0: 1000, 1: 1, 2: 1}, hosts, 3, max_workers_by_host={"b": 1})
    assert sorted((each.host, each.rows) for each in found) == [("a", 1), ("a", 1000), ("b", 1)]


def test_hosts_that_do_not_exist():
    with pytest.raises(PlacementError, match=r"no node .* host 'host-bb'; its hosts are a, b, c"):
        place(*three_hosts(), 1, usable_hosts=["a", "host-bb"])
    owners, rows, _ = three_hosts()
    with pytest.raises(PlacementError, match="did you mean 'host-b'"):
        place(
            owners,
            rows,
            dict(zip(owners, ("host-a", "host-b", "x"), strict=True)),
            1,
            usable_hosts=["host-bb"],
        )
    with pytest.raises(PlacementError, match=r"none of the cluster's hosts \(a, b, c\)"):
        place(*three_hosts(), 1, usable_hosts=[])


def test_the_table_says_who_reads_what_and_how_much_over_the_network():
    owners, rows, hosts = three_hosts(per_host=4)
    found = place(owners, rows, hosts, 2, usable_hosts=["a", "b"])
    first, second = explain(found, 100)
    assert (first.worker, first.host, first.node, second.host) == (0, "a", NODES[0], "b")
    assert first.partitions == "0-3,8,10"
    assert (first.num_partitions, first.rows, first.rows_share) == (6, 60, 0.5)
    assert first.num_bytes == 60 * 100
    assert first.local_bytes_share == pytest.approx(4 / 6)


def test_the_table_of_an_empty_cache():
    owners, hosts = {NODES[0]: [0, 1], NODES[1]: []}, dict.fromkeys(NODES[:2], "a")
    (row,) = explain(place(owners, {}, hosts, 1), 0)
    assert (row.rows, row.rows_share, row.num_bytes, row.local_bytes_share) == (0, 1.0, 0, 1.0)


@settings(deadline=None, max_examples=50)
@given(restricted())
def test_the_table_adds_up(case):
    (owners, rows, hosts, num_workers), usable, limits = case
    found = place(owners, rows, hosts, num_workers, usable_hosts=usable, max_workers_by_host=limits)
    table = explain(found, 7)
    assert sum(row.num_partitions for row in table) == len(rows)
    assert sum(row.num_bytes for row in table) == 7 * sum(rows.values())
    assert sum(row.rows_share for row in table) == pytest.approx(1)
    for row, each in zip(table, found, strict=True):
        assert row.local_bytes_share * each.rows == pytest.approx(each.local_rows if each.rows else 0)


def test_many_workers_and_partitions_take_no_time_worth_mentioning():
    rng = random.Random(1)
    owners = {uuid.UUID(int=i): range(i * 40, i * 40 + 40) for i in range(100)}
    hosts = {node: f"h{i % 50}" for i, node in enumerate(owners)}
    rows = {p: rng.randint(1, 9999) for p in range(4000)}
    found = place(owners, rows, hosts, 400, usable_hosts=[f"h{i}" for i in range(40)])
    assert max(each.rows for each in found) <= 1.05 * sum(rows.values()) / 400 + 9999
