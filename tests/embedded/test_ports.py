from __future__ import annotations

import re
import socket

from ignite_tf_magic.embedded import nodes
from ignite_tf_magic.embedded.nodes import choose_ports, configure_node, move_nodes, write_ports
from ignite_tf_magic.embedded.options import EmbeddedOptions, Lifetime
from ignite_tf_magic.embedded.record import EmbeddedCluster, EmbeddedNode


def test_ports_are_free_and_all_different():
    found = [port for each in choose_ports(4) for port in (each.client, each.discovery, each.communication)]
    assert len(set(found)) == 12
    for port in found:
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", port))


def test_clusters_that_start_at_once_need_not_want_the_same_ports():
    chosen = [each.client for _ in range(3) for each in choose_ports(3, is_contended=True)]
    first = [each.client for each in choose_ports(3)]
    assert len({*chosen, *first}) > 9, "nine of about 9,000, and three that are the first ones"


def test_a_port_on_which_somebody_listens_is_passed_over(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(nodes, "FIRST_CLIENT_PORT", port)
        monkeypatch.setattr(nodes, "_LAST_CLIENT_PORT", port + 100)
        assert all(port < each.client <= port + 100 for each in choose_ports(2))


def test_nodes_that_move_together_get_ports_of_their_own(tmp_path):
    """No node listens yet, so the system reports each port as free."""
    options = EmbeddedOptions(num_nodes=3)
    ports = choose_ports(3)
    for index in range(3):
        configure_node(tmp_path, options, index, ports)
    nodes_there = tuple(
        EmbeddedNode(index, "127.0.0.1", each.client, None, tmp_path / "log", alive=False)
        for index, each in enumerate(ports)
    )
    peers = tuple((each.discovery, each.communication) for each in ports)
    cluster = EmbeddedCluster(
        tmp_path, "id", nodes_there, Lifetime.UNTIL_IDLE, 60.0, True, {}, "Java", 0.0, peers
    )
    moved = move_nodes(cluster, [0, 2])
    assert moved.nodes[1] == cluster.nodes[1]
    assert moved.nodes[0].port != moved.nodes[2].port
    assert len({port for pair in moved.peer_ports for port in pair}) == 6
    write_ports(moved, [0, 2])
    again = move_nodes(moved, [1])
    write_ports(again, [1])
    for index, now in ((0, moved), (2, moved), (1, again)):
        config = (tmp_path / f"node-{index}" / "config.xml").read_text()
        assert f'value="{now.nodes[index].port}"' in config
        # The configuration lists the current ports of nodes that moved earlier.
        assert re.findall(r">127.0.0.1:(\d+)<", config) == [str(discovery) for discovery, _ in now.peer_ports]
