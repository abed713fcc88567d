"""Tests of the mapping from nodes to hosts by the configuration. No host is contacted; nodes only provide ids."""

from __future__ import annotations

import sys
import uuid

import pytest

from ignite_tf_magic.client.client import connect
from ignite_tf_magic.client.router import Node
from ignite_tf_magic.client.sql import SqlClient
from ignite_tf_magic.errors import ConfigError
from ignite_tf_magic.runs.hosts.run_hosts import hosts_of_nodes
from ignite_tf_magic.settings.options import Config, Endpoint, HostOptions, LaunchOptions, SshConfig

BRIDGE = "172.17.0.1"  # every machine with containers has this address


def nodes(*addresses: str) -> list[Node]:
    """Return nodes with these addresses and the usual local ones. Without arguments, return one loopback-only node."""
    if not addresses:
        return [Node(uuid.UUID(int=1), (Endpoint("127.0.0.1"),))]
    return [
        Node(uuid.UUID(int=n), (Endpoint(address), Endpoint("127.0.0.1"), Endpoint(BRIDGE)))
        for n, address in enumerate(addresses, 1)
    ]


def test_what_the_configuration_adds():
    db1 = HostOptions(
        "db1", ("198.51.100.1",), ssh="db1.internal", root="/data/tf", tf_address="198.51.100.101"
    )
    config = Config(launch=LaunchOptions(python="/opt/tf/bin/python"), hosts=(db1,))
    first, second = hosts_of_nodes(config, nodes("198.51.100.1", "198.51.100.2")).records.values()
    assert (first.name, first.ssh, first.root, first.tf_address) == (
        "db1",
        "db1.internal",
        "/data/tf",
        "198.51.100.101",
    )
    assert (second.name, second.ssh) == ("198.51.100.2", "198.51.100.2")
    assert {first.python, second.python} == {"/opt/tf/bin/python"}


def test_nodes_of_this_machine_need_no_ssh_unless_all_goes_through_another():
    (here,) = hosts_of_nodes(Config(), nodes()).records.values()
    assert (here.ssh, here.python) == (None, sys.executable)
    config = Config(
        ssh=SshConfig(via="gateway"), hosts=(HostOptions("db1", node_ids=(str(uuid.UUID(int=1)),)),)
    )
    (far,) = hosts_of_nodes(config, nodes()).records.values()
    assert (far.name, far.ssh) == ("db1", "db1")


def test_an_address_that_tells_no_host_is_told():
    config = Config(hosts=(HostOptions("db1", (BRIDGE, "198.51.100.1")),))
    found = hosts_of_nodes(config, nodes("198.51.100.1", "198.51.100.2"))
    assert [host.name for host in found.records.values()] == ["db1", "198.51.100.2"]
    (warning,) = found.warnings
    assert f"[hosts.db1] of ignite-tf.toml lists {BRIDGE}" in warning


def test_a_consistent_id_tells_the_host_of_a_node(ignite):
    """The consistent id survives a restart of the node; the node id does not."""
    options = ignite.connect_options
    listed = SqlClient(options).query("SELECT NODE_ID, CONSISTENT_ID FROM SYS.NODES").rows
    wanted, consistent_id = uuid.UUID(str(listed[0][0])), str(listed[0][1])
    others = tuple(str(node) for node, _ in listed[1:])
    hosts = (HostOptions("one", node_ids=(consistent_id,)), HostOptions("others", node_ids=others))
    with connect(options) as client:
        found = hosts_of_nodes(Config(hosts=hosts), client.nodes(), options).records
        assert {node: host.name for node, host in found.items()} == {
            node.node_id: "one" if node.node_id == wanted else "others" for node in client.nodes()
        }
        through = Config(ssh=SshConfig(via="gateway"))
        with pytest.raises(ConfigError) as caught:
            hosts_of_nodes(through, client.nodes(), options)
    assert f'node_ids = ["{consistent_id}"]' in str(caught.value)
