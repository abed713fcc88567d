"""Tests of the majority check, which uses the addresses that nodes list: two sides of a split may never both act."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ignite_tf_magic.client.client import connect
from ignite_tf_magic.client.router import Node
from ignite_tf_magic.errors import ConnectionFailed
from ignite_tf_magic.protocol.messages import CacheConfig
from ignite_tf_magic.runs.hosts.counting import count_cache
from ignite_tf_magic.runs.hosts.run_hosts import hosts_by_record, hosts_of_nodes
from ignite_tf_magic.runs.hosts.topology import ClusterSnapshot, connect_to_majority, listed_by, topology_of
from ignite_tf_magic.runs.record import HostRecord
from ignite_tf_magic.settings.options import Config, Endpoint, HostOptions

LOOPBACK, DOCKER, BRIDGE = "127.0.0.1", "172.17.0.1", "192.168.122.1"
DB = ("10.0.0.1", "10.0.0.2", "10.0.0.3")
TOPOLOGY = tuple(f"{address}:10800" for address in DB)


def node(*listed: str, dialled: str | None = None, port: int = 10800) -> Node:
    """Return a node that answered at an address, or at none. It has a new id, as after each start."""
    endpoints = tuple(Endpoint(address, port) for address in listed)
    if dialled is None:
        return Node(uuid.uuid4(), endpoints)
    good = Endpoint(dialled, port)
    ordered = tuple(dict.fromkeys((good, *endpoints)))
    return Node(uuid.uuid4(), ordered, None if good in endpoints else good)


def servers(**dialled: str) -> list[Node]:
    """Return nodes of three machines without localHost. Each lists addresses common to all machines, then its own."""
    names = ("db1", "db2", "db3")
    return [
        node(LOOPBACK, DOCKER, address, BRIDGE, dialled=dialled.get(name))
        for name, address in zip(names, DB, strict=True)
    ]


def sees_most(topology: Sequence[str], nodes: Iterable[Node]) -> bool:
    return ClusterSnapshot(nodes=listed_by(nodes)).has_majority_of(topology)


@pytest.mark.parametrize("dialled", [LOOPBACK, "localhost", "db1", "10.0.0.1", DOCKER, None])
def test_nodes_are_told_by_what_no_other_lists_however_they_were_reached(dialled):
    assert topology_of(servers(db1=dialled) if dialled else servers()) == TOPOLOGY


def test_the_address_that_answered_is_preferred_of_several():
    nodes = [node(LOOPBACK, f"10.0.0.{i}", f"10.9.0.{i}", dialled=f"10.9.0.{i}") for i in (1, 2, 3)]
    assert topology_of(nodes) == ("10.9.0.1:10800", "10.9.0.2:10800", "10.9.0.3:10800")
    assert topology_of([node(LOOPBACK, "db1", "10.0.0.1", dialled="db1")]) == ("10.0.0.1:10800",)
    assert topology_of([node(LOOPBACK, DOCKER, "10.0.0.1")]) == ("10.0.0.1:10800",)


def test_nodes_of_one_machine_are_told_by_their_ports():
    nodes = [node(LOOPBACK, port=port) for port in (10800, 10801, 10802)]
    topology = topology_of(nodes)
    assert topology == ("127.0.0.1:10800", "127.0.0.1:10801", "127.0.0.1:10802")
    assert [sees_most(topology, nodes[:n]) for n in range(4)] == [False, False, True, True]


@pytest.mark.parametrize("dialled", [LOOPBACK, "db1", None])
def test_in_a_split_only_the_larger_side_acts(dialled):
    db1, db2, db3 = servers(db1=dialled) if dialled else servers()
    topology = topology_of([db1, db2, db3])
    assert not any(sees_most(topology, [alone]) for alone in (db1, db2, db3))
    assert all(sees_most(topology, side) for side in ([db1, db2], [db2, db3], [db1, db3]))


def test_the_loopback_of_another_machine_is_not_counted():
    """This also holds if a record contains the loopback address, as records of earlier versions do."""
    topology = ("10.0.0.2:10800", "10.0.0.3:10800", "127.0.0.1:10800")
    _, db2, db3 = servers()
    assert not sees_most(topology, [db2])
    assert not sees_most(topology, [db2, node(LOOPBACK, "10.0.0.4")])
    assert sees_most(topology, [db2, db3])


def test_nodes_that_were_started_again_count_and_others_see_them_by_other_ways():
    topology = topology_of(servers(db1="db1", db2="db2", db3="db3"))
    # new ids, and one node was reached by another name
    assert sees_most(topology, servers(db2="localhost")[1:])
    strangers = [node(LOOPBACK, DOCKER, f"10.0.0.{i}", BRIDGE) for i in (4, 5, 6)]
    assert not sees_most(topology, [*strangers, servers()[0]])


@pytest.mark.parametrize("listed", [(LOOPBACK,), (LOOPBACK, "172.17.0.2")])
def test_nodes_that_cannot_be_told_apart_count_once_each(listed):
    nodes = [node(*listed) for _ in range(3)]
    topology = topology_of(nodes)
    assert [sees_most(topology, nodes[:n]) for n in range(4)] == [False, False, True, True]
    two = topology_of(nodes[:2])
    assert not sees_most(two, nodes[:1])  # this node could be either of the two
    assert sees_most(two, nodes[:2])


def test_a_node_that_lists_what_two_had_stands_for_one_of_them():
    assert not sees_most(("10.0.0.1:10800", "10.0.0.2:10800"), [node("10.0.0.2")])
    assert not sees_most(TOPOLOGY, [node("10.0.0.1", "10.0.0.2")])
    assert sees_most(TOPOLOGY, [node("10.0.0.1", "10.0.0.2"), node("10.0.0.1")])  # the second is the first


anything = st.lists(
    st.tuples(
        st.lists(
            st.sampled_from([LOOPBACK, "localhost", DOCKER, BRIDGE, *DB, "c1"]), min_size=1, unique=True
        ),
        st.sampled_from([None, LOOPBACK, "db", *DB]),
        st.sampled_from([10800, 10801]),
        st.booleans(),
    ),
    min_size=1,
    max_size=7,
)


@given(anything)
def test_whatever_nodes_list_no_two_sides_have_a_majority_and_the_whole_has(drawn):
    nodes = [node(*listed, dialled=dialled, port=port) for listed, dialled, port, _ in drawn]
    topology = topology_of(nodes)
    assert len(topology) == len(nodes)
    assert sees_most(topology, nodes)
    sides = [
        [n for n, (*_, is_left) in zip(nodes, drawn, strict=True) if is_left is side]
        for side in (True, False)
    ]
    assert not all(sees_most(topology, side) for side in sides)


# On real nodes.


@pytest.fixture
def numbers(client):
    """The name of a cache that has rows."""
    cache = client.get_or_create_cache(CacheConfig(name="MAJORITIES"))
    cache.put(1, 1)
    yield "MAJORITIES"
    client.destroy_cache("MAJORITIES")


def test_what_was_dialled_is_not_what_others_look_for(ignite, numbers):
    listed = tuple(sorted(map(str, ignite.connect_options.endpoints)))
    dialled = tuple(Endpoint("localhost", each.port) for each in ignite.connect_options.endpoints)
    for endpoint in dialled:
        with connect(replace(ignite.connect_options, endpoints=(endpoint,))) as client:
            found = count_cache(client, numbers)
            (reached,) = [each for each in client.nodes() if each.dialled]
        assert found.topology == listed
        assert (reached.dialled, reached.listed) == (endpoint, (Endpoint("127.0.0.1", endpoint.port),))


def test_a_node_that_was_reached_by_another_name_is_seen_by_the_other_side(own_node):
    (endpoint,) = own_node.connect_options.endpoints
    named = replace(own_node.connect_options, endpoints=(Endpoint("localhost", endpoint.port),))
    with connect(named) as client:
        topology = topology_of(client.nodes())
    with connect_to_majority(own_node.connect_options, topology) as client:
        assert len(client.nodes()) == 1
    with pytest.raises(ConnectionFailed, match="each with a part"):
        connect_to_majority(own_node.connect_options, ("127.0.0.1:1", "127.0.0.1:2", str(endpoint)))


# Matching nodes with the hosts of a record.


def named(hosts: Sequence[HostRecord], *nodes: Node) -> list[str]:
    found = hosts_by_record(hosts, nodes)
    return [found[each.node_id].name for each in nodes]


def test_nodes_on_loopback_are_on_the_only_host_that_has_no_address():
    embedded = [node(LOOPBACK, port=port) for port in (10800, 10801)]
    here, db1 = HostRecord("localhost"), HostRecord("db1", ssh="db1", addresses=("10.0.0.1",))
    assert named([here], *embedded) == ["localhost", "localhost"]
    assert named([here, db1], *embedded, servers()[0]) == ["localhost", "localhost", "db1"]
    assert named([here], *servers()) == list(DB)  # on machines that are not in the record
    assert named([here, HostRecord("other")], *embedded) == [
        LOOPBACK,
        LOOPBACK,
    ]  # could be either of the two hosts


def test_nodes_that_only_the_configuration_tells_are_told_by_the_record():
    nodes = [node(LOOPBACK, "172.17.0.2") for _ in range(3)]
    hosts = tuple(
        HostOptions(f"db{number}", node_ids=(str(each.node_id),), ssh=f"db{number}")
        for number, each in enumerate(nodes, 1)
    )
    records = hosts_of_nodes(Config(hosts=hosts), nodes).records
    assert [record.nodes for record in records.values()] == [(str(each.node_id),) for each in nodes]
    assert named(list(records.values()), *nodes) == ["db1", "db2", "db3"]
    assert {record.addresses for record in records.values()} == {()}
    again = node(LOOPBACK, "172.17.0.2")  # a new id means another node
    assert named(list(records.values()), again) == ["172.17.0.2"]


def test_an_address_of_two_hosts_tells_neither():
    nodes = [node(LOOPBACK, "10.0.0.1", port=port) for port in (10800, 10801)]
    hosts = tuple(HostOptions(f"half{n}", node_ids=(str(each.node_id),)) for n, each in enumerate(nodes))
    records = hosts_of_nodes(Config(hosts=hosts), nodes).records
    assert named(list(records.values()), *nodes) == ["half0", "half1"]
    again = node(LOOPBACK, "10.0.0.1")
    assert named(list(records.values()), again) == ["10.0.0.1"]


def test_records_need_no_ids_of_nodes_whose_addresses_tell():
    records = hosts_of_nodes(Config(), servers()).records
    assert {record.nodes for record in records.values()} == {()}
    assert named(list(records.values()), *servers()) == list(DB)  # after a restart, with new ids


def test_an_address_that_others_have_come_to_list_gives_way_to_ones_own():
    """For example after a container engine was started on a second machine."""
    hosts = [
        HostRecord(f"db{i}", addresses=(f"192.168.200.{i}", *([BRIDGE] if i == 1 else []))) for i in (1, 2)
    ]
    nodes = [node(BRIDGE, LOOPBACK, f"192.168.200.{i}") for i in (1, 2)]
    assert named(hosts, *nodes) == ["db1", "db2"]
    assert named([HostRecord("db1", addresses=(LOOPBACK,))], node(LOOPBACK, "10.0.0.2")) == ["10.0.0.2"]
