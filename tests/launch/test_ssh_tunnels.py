from __future__ import annotations

import os
import socket
import socketserver
import threading

import pytest

from ignite_tf_magic.errors import HostError, HostUnreachable
from ignite_tf_magic.launch.tunnels import Tunnel
from tests.launch.sshd import Sshd
from tests.waiting import until


class Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        while data := self.request.recv(65536):
            self.request.sendall(data)


@pytest.fixture
def echo_port():
    with socketserver.ThreadingTCPServer(("127.0.1.3", 0), Echo) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def talk(tunnel: Tunnel, port: int, data: bytes) -> bytes:
    with tunnel.connect("127.0.1.3", port, 20) as there:
        sender = threading.Thread(target=there.sendall, args=(data,))
        sender.start()
        back = b""
        while len(back) < len(data) and (piece := there.recv(1 << 16)):
            back += piece
        sender.join()
        return back


def test_bytes_go_both_ways_and_again_after_the_link_broke(box, echo_port):
    tunnel = Tunnel("box", box.options)
    data = os.urandom(3_000_000)
    assert talk(tunnel, echo_port, data) == data
    with tunnel.connect("127.0.1.3", echo_port, 20) as there:
        assert box.sessions()
        box.kill_sessions()
        assert there.recv(1) == b""
    assert talk(tunnel, echo_port, b"again") == b"again"


def test_the_ssh_connection_ends_with_the_last_one_through_it(box, echo_port):
    tunnel = Tunnel("box", box.options)
    with tunnel.connect("127.0.1.3", echo_port, 20):
        assert box.sessions()
    until(lambda: not box.sessions())


def test_the_end_of_the_target_is_the_end_of_the_connection(box):
    with socket.create_server(("127.0.1.3", 0)) as server:
        with Tunnel("box", box.options).connect(*server.getsockname(), 20) as there:
            accepted, _ = server.accept()
            accepted.sendall(b"last words")
            accepted.close()
            assert there.recv(100) == b"last words"
            assert there.recv(100) == b""


def test_a_target_that_does_not_answer_is_told(box):
    with pytest.raises(OSError, match="box cannot reach it: .*refused"):
        Tunnel("box", box.options).connect("127.0.1.3", 1, 20)
    until(lambda: not box.sessions())


def test_an_ssh_host_that_cannot_be_used_is_told(server):
    with pytest.raises(HostUnreachable, match="refused"):
        Tunnel("box", server.options).connect("127.0.1.3", 1, 20)


def test_an_ssh_host_that_forwards_nothing_is_told(tmp_path, echo_port):
    server = Sshd(tmp_path / "closed", extra="")
    config = server.sshd_config.read_text().replace("AllowTcpForwarding yes", "AllowTcpForwarding no")
    server.sshd_config.write_text(config)
    with server, pytest.raises(HostError, match="AllowTcpForwarding yes"):
        Tunnel("box", server.options).connect("127.0.1.3", echo_port, 20)
