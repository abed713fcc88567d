from __future__ import annotations

import socket

from ignite_tf_magic.embedded import nodes
from ignite_tf_magic.embedded.nodes import choose_ports


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
