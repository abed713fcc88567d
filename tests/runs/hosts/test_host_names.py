from __future__ import annotations

import itertools
import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ignite_tf_magic.errors import ConfigError
from ignite_tf_magic.runs.hosts.host_names import LOCAL, ThisMachine, name_hosts
from ignite_tf_magic.settings.options import Endpoint, HostOptions

A, B, C, D = (uuid.UUID(int=number) for number in range(1, 5))
LOOPBACK = ("127.0.0.1", "0:0:0:0:0:0:0:1%lo")
DOCKER = "172.17.0.1"
OURS = ThisMachine(("10.0.0.9", DOCKER, "fe80::9"))


def node(*addresses: str, port: int = 10800) -> tuple[Endpoint, ...]:
    return tuple(Endpoint(address, port) for address in (*LOOPBACK, *addresses))


def names(found) -> dict[uuid.UUID, str]:
    return {node: host.name for node, host in found.hosts.items()}


def ssh(found) -> list[object]:
    return [host.ssh_name for host in found.hosts.values()]


def test_each_real_address_is_a_host_and_what_all_have_is_none():
    nodes = {A: node("10.0.0.1", DOCKER), B: node("10.0.0.2", DOCKER), C: node("10.0.0.3", DOCKER)}
    found = name_hosts(nodes, here=OURS)
    assert names(found) == {A: "10.0.0.1", B: "10.0.0.2", C: "10.0.0.3"}
    assert ssh(found) == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
    assert found.hosts[A].addresses == ("10.0.0.1",)
    assert found.warnings == ()


def test_nodes_with_a_common_real_address_are_on_one_host():
    nodes = {
        A: node("10.0.0.1", DOCKER),
        B: node("10.0.0.1", DOCKER, port=10801),
        C: node("10.0.0.2", DOCKER),
        D: node("10.0.0.1", port=10802),
    }
    found = name_hosts(nodes)
    assert names(found) == {A: "10.0.0.1", B: "10.0.0.1", C: "10.0.0.2", D: "10.0.0.1"}
    assert found.hosts[A] == found.hosts[B] == found.hosts[D]


def test_ipv6_addresses_that_come_and_go_do_not_part_a_host():
    nodes = {A: node("10.0.0.1", "fd00::aaaa"), B: node("10.0.0.1", "fd00::bbbb", port=10801)}
    found = name_hosts(nodes)
    assert set(names(found).values()) == {"10.0.0.1"}
    assert found.hosts[A].addresses == ("10.0.0.1", "fd00::aaaa", "fd00::bbbb")


def test_hosts_with_ipv6_only():
    found = name_hosts({A: node("fd00::1", "fe80::1%eth0"), B: node("fd00::2", "fe80::1%eth0")})
    assert ssh(found) == ["fd00::1", "fd00::2"]


def test_one_address_and_port_of_two_nodes_is_no_place():
    nodes = {A: node("172.17.0.2"), B: node("172.17.0.2"), C: node("10.0.0.3")}
    with pytest.raises(ConfigError) as caught:
        name_hosts(nodes)
    text = str(caught.value)
    assert "2 Ignite node(s)" in text
    assert f'[hosts.host1]\nnode_ids = ["{A}"]\nssh = "HOST1"' in text
    assert "lists 127.0.0.1, ::1, 172.17.0.2" in text
    assert str(C) not in text
    assert "consistent id stays" in text


def test_what_the_error_says_to_write_helps():
    nodes = {A: node("172.17.0.2"), B: node()}
    with pytest.raises(ConfigError) as caught:
        name_hosts({**nodes, C: node("172.17.0.2")}, consistent_ids={A: "alpha", B: "beta", C: "gamma"})
    assert 'node_ids = ["alpha"]' in str(caught.value)
    assert "after its restart" not in str(caught.value)
    tables = (
        HostOptions("one", node_ids=("alpha",), ssh="s1", python="py", root="/r", tf_address="10.9.9.9"),
        HostOptions("two", node_ids=(str(B),)),
        HostOptions("gamma"),
    )
    found = name_hosts(
        {**nodes, C: node("172.17.0.2")}, tables, consistent_ids={A: "alpha", B: "beta", C: "gamma"}
    )
    assert ssh(found) == ["s1", "two", "gamma"]
    one = found.hosts[A]
    assert (one.name, one.python, one.root, one.tf_address) == ("one", "py", "/r", "10.9.9.9")


def test_docker_s_bridge_here_and_there_does_not_make_a_node_ours():
    found = name_hosts({A: node("10.0.0.1", DOCKER)}, here=OURS)
    assert ssh(found) == ["10.0.0.1"]


def test_a_node_at_an_address_of_ours_is_local():
    nodes = {A: node("10.0.0.9", DOCKER), B: node("10.0.0.1", DOCKER)}
    found = name_hosts(nodes, here=OURS)
    assert ssh(found) == [LOCAL, "10.0.0.1"]
    assert names(found)[A] == "10.0.0.9"


def test_a_node_that_answered_at_an_address_of_ours_is_local_though_addresses_have_changed():
    nodes = {A: node("10.0.0.9", "10.8.0.2")}
    assert ssh(name_hosts(nodes, here=OURS)) == ["10.8.0.2"]
    reached = ThisMachine(OURS.addresses, {A: "10.0.0.9"})
    assert ssh(name_hosts(nodes, here=reached)) == [LOCAL]


def test_the_embedded_cluster_is_local():
    nodes = {A: node(), B: node(port=10801), C: node(port=10802)}
    found = name_hosts(nodes, here=ThisMachine(OURS.addresses, {A: "127.0.0.1"}))
    assert names(found) == dict.fromkeys(nodes, "localhost")
    assert set(ssh(found)) == {LOCAL}
    with pytest.raises(ConfigError, match="3 Ignite node"):
        name_hosts(nodes, here=OURS)


def test_loopback_through_a_tunnel_makes_nothing_local():
    nodes = {A: node("10.0.0.1"), B: node("10.0.0.2")}
    found = name_hosts(nodes, here=ThisMachine(OURS.addresses, {A: "127.0.0.1", B: "localhost"}))
    assert ssh(found) == ["10.0.0.1", "10.0.0.2"]
    with pytest.raises(ConfigError, match="1 Ignite node"):
        name_hosts({**nodes, C: node()}, here=ThisMachine(OURS.addresses, {A: "127.0.0.1"}))


def test_ssh_goes_where_the_client_got_through_and_the_name_does_not_change_with_it():
    nodes = {A: node("10.0.0.1", "192.168.7.1"), B: node("10.0.0.2", "192.168.7.2")}
    found = name_hosts(nodes, here=ThisMachine((), {A: "192.168.7.1", B: "db2.example"}))
    assert ssh(found) == ["192.168.7.1", "db2.example"]
    assert names(found) == names(name_hosts(nodes)) == {A: "10.0.0.1", B: "10.0.0.2"}
    assert found.hosts[B].addresses == ("db2.example", "10.0.0.2", "192.168.7.2")


def test_one_proxy_in_front_of_several_hosts_is_none_of_them():
    nodes = {A: (*node("10.0.0.1"), Endpoint("proxy", 1)), B: (*node("10.0.0.2"), Endpoint("proxy", 2))}
    found = name_hosts(nodes, here=ThisMachine((), {A: "proxy", B: "proxy"}))
    assert ssh(found) == ["10.0.0.1", "10.0.0.2"]


def test_a_container_whose_port_is_published_is_known_by_where_it_answers():
    found = name_hosts({A: node("172.17.0.2")}, here=ThisMachine((), {A: "10.0.0.1"}))
    assert ssh(found) == ["10.0.0.1"]


def test_names_of_hosts_come_last_and_shared_ones_not_at_all():
    nodes = {A: node("localhost", "db1", "host", "10.0.0.1"), B: node("DB2", "host", "10.0.0.2")}
    found = name_hosts(nodes)
    assert [host.addresses for host in found.hosts.values()] == [("10.0.0.1", "db1"), ("10.0.0.2", "db2")]


def test_configured_by_address_or_by_a_name_that_is_one():
    nodes = {A: node("10.0.0.1", DOCKER), B: node("10.0.0.2", DOCKER), C: node("10.0.0.2", port=10801)}
    tables = (HostOptions("db1", addresses=("10.0.0.1",), ssh="gate1"), HostOptions("10.0.0.2", python="py"))
    found = name_hosts(nodes, tables, OURS)
    assert names(found) == {A: "db1", B: "10.0.0.2", C: "10.0.0.2"}
    assert ssh(found) == ["gate1", "10.0.0.2", "10.0.0.2"]
    assert found.hosts[C].python == "py"


def test_an_address_that_several_machines_have_is_not_the_host_s_though_it_is_configured():
    nodes = {A: node("172.18.0.1"), B: node("172.18.0.1"), C: node("10.0.0.3")}
    tables = (
        HostOptions("one", addresses=("172.18.0.1", "10.0.0.1"), node_ids=(str(A),)),
        HostOptions("two", node_ids=(str(B),)),
    )
    assert [host.addresses for host in name_hosts(nodes, tables).hosts.values()] == [
        ("10.0.0.1",),
        (),
        ("10.0.0.3",),
    ]


def test_nodes_beside_a_configured_one_are_on_its_host():
    nodes = {A: node("10.0.0.1", port=10801), B: node("10.0.0.1"), C: node("10.0.0.2")}
    found = name_hosts(nodes, (HostOptions("db1", node_ids=(str(B),)),))
    assert names(found) == {A: "db1", B: "db1", C: "10.0.0.2"}


def test_configuration_may_part_what_addresses_join():
    nodes = {A: node("10.0.0.1"), B: node("10.0.0.1", port=10801)}
    found = name_hosts(nodes, (HostOptions("x", node_ids=(str(A),)), HostOptions("y", node_ids=(str(B),))))
    assert names(found) == {A: "x", B: "y"}


def test_configuration_may_join_what_addresses_part():
    nodes = {A: node("172.18.0.2"), B: node("172.18.0.3")}
    found = name_hosts(nodes, (HostOptions("box", addresses=("172.18.0.2", "172.18.0.3"), ssh="local"),))
    assert found.hosts[A] == found.hosts[B]
    assert ssh(found) == [LOCAL, LOCAL]


def test_configured_addresses_that_several_machines_have_are_passed_over():
    nodes = {A: node("10.0.0.1", DOCKER), B: node("10.0.0.2", DOCKER)}
    found = name_hosts(nodes, (HostOptions("db1", addresses=("10.0.0.1", DOCKER, "127.0.0.1")),))
    assert names(found) == {A: "db1", B: "10.0.0.2"}
    assert [DOCKER in text and "db1" in text for text in found.warnings] == [False, True]


def test_loopback_addresses_of_their_own_are_hosts_where_the_configuration_says_so():
    """As in the test bed without root: one sshd on each address 127.0.1.x."""
    nodes = {A: (Endpoint("127.0.1.1"),), B: (Endpoint("127.0.1.2"),)}
    tables = (
        HostOptions("bed1", addresses=("127.0.1.1",), ssh="bed1"),
        HostOptions("bed2", addresses=("127.0.1.2",), ssh="bed2"),
    )
    found = name_hosts(nodes, tables, ThisMachine(OURS.addresses, {A: "127.0.1.1"}))
    assert ssh(found) == ["bed1", "bed2"]
    assert found.hosts[A].addresses == ("127.0.1.1",)
    without_ssh = tuple(HostOptions(each.name, each.addresses) for each in tables)
    assert set(ssh(name_hosts(nodes, without_ssh, ThisMachine((), {A: "127.0.1.1"})))) == {LOCAL}


def test_a_configured_host_that_is_this_machine_needs_no_ssh():
    tables = (HostOptions("db1", addresses=("10.0.0.9",), ssh="db1"),)
    found = name_hosts({A: node("10.0.0.9")}, tables, OURS)
    assert (names(found)[A], ssh(found)) == ("db1", [LOCAL])


def test_two_tables_for_one_node():
    tables = (HostOptions("x", addresses=("10.0.0.1",)), HostOptions("y", addresses=("10.1.0.1",)))
    with pytest.raises(ConfigError, match=r"\[hosts.x\] and \[hosts.y\].* both match Ignite node"):
        name_hosts({A: node("10.0.0.1", "10.1.0.1")}, tables)


# Properties on realistic clusters: hosts with real addresses, the same bridge address on every host, several nodes
# each.


@st.composite
def worlds(draw):
    num_hosts = draw(st.integers(1, 5))
    bridged = draw(st.lists(st.booleans(), min_size=num_hosts, max_size=num_hosts))
    nodes, host_of = {}, {}
    for host, has_bridge in enumerate(bridged):
        own = [f"10.0.0.{host + 1}", *([f"192.168.0.{host + 1}"] if draw(st.booleans()) else [])]
        shared = [DOCKER, "172.18.0.1"] if has_bridge else []
        for number in range(draw(st.integers(1, 3))):
            each = uuid.UUID(int=100 * (host + 1) + number)
            temporary = [f"fd00::{host}:{number}"] if draw(st.booleans()) else []
            addresses = draw(st.permutations([*own, *shared, *temporary]))
            nodes[each], host_of[each] = node(*addresses, port=10800 + number), host
    return nodes, host_of, draw(st.sampled_from([None, *range(num_hosts)]))


@settings(deadline=None)
@given(worlds())
def test_hosts_are_found_as_they_are(world):
    nodes, host_of, ours = world
    own = () if ours is None else next(n for n, host in host_of.items() if host == ours)
    here = ThisMachine([e.host for e in nodes[own]] if own else ("10.0.0.99", DOCKER, "127.0.0.1"))
    found = name_hosts(nodes, here=here)
    assert set(found.hosts) == set(nodes)
    for a, b in itertools.combinations(nodes, 2):
        assert (found.hosts[a] == found.hosts[b]) == (host_of[a] == host_of[b])
        assert (found.hosts[a].name == found.hosts[b].name) == (host_of[a] == host_of[b])
    for each, host in found.hosts.items():
        assert (host.ssh_name is LOCAL) == (host_of[each] == ours)
    assert names(name_hosts(dict(reversed(nodes.items())), here=here)) == names(found)
