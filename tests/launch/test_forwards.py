"""Tests of ports that lead between hosts: one is a real sshd on this machine, the other this machine itself."""

from __future__ import annotations

import hashlib
import os
import socket
import threading
import time
from contextlib import ExitStack, suppress

import pytest

from ignite_tf_magic.errors import HostRefused, HostUnreachable
from ignite_tf_magic.launch.forwards import HostForwards, LocalEnd, SshEnd
from ignite_tf_magic.launch.jobs import LinkTimeouts
from ignite_tf_magic.launch.ssh import SshTransport
from tests.launch.sshd import Sshd
from tests.waiting import until

CHUNK = 1 << 16


class Elsewhere(LocalEnd):
    """Stands for another host. It maps each port to a different one, because both hosts share this machine."""

    def __init__(self, inner, port: int) -> None:
        self._inner = inner
        self._port = port

    def connected(self, port):
        return self._inner.connected(self._port)


def ssh_end(server: Sshd) -> SshEnd:
    return SshEnd(SshTransport("box", server.options), LinkTimeouts())


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.fixture
def target():
    """A server that has not accepted any connection yet."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        server.settimeout(30)
        yield server


@pytest.fixture(params=["by ssh to here", "from here by ssh", "by ssh to ssh"])
def led(request, box, target):
    """A port that leads to the target, for each kind of route between hosts."""
    there, here = ssh_end(box), LocalEnd()
    at = here if request.param.startswith("from here") else there
    inner = there if request.param.endswith("ssh") else here
    port = free_port()
    with HostForwards(at) as forwards:
        forwards.lead({port: Elsewhere(inner, target.getsockname()[1])})
        yield port
    until(lambda: not box.sessions(), what="the end of all ssh connections")


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), 30)


def send(to: socket.socket, data: bytes) -> threading.Thread:
    """Send all data in a thread, then close only this direction."""

    def work() -> None:
        to.sendall(data)
        to.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def digest_to_the_end(source: socket.socket) -> str:
    found = hashlib.sha256()
    while data := source.recv(CHUNK):
        found.update(data)
    return found.hexdigest()


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def accept(target: socket.socket) -> socket.socket:
    accepted, _ = target.accept()
    accepted.settimeout(60)
    return accepted


def test_many_bytes_both_ways_at_once(led, target):
    there, back = os.urandom(20_000_000), os.urandom(15_000_000)
    with connect(led) as near, accept(target) as far:
        near.settimeout(60)
        sending = [send(near, there), send(far, back)]
        found: dict[str, str] = {}
        reading = threading.Thread(target=lambda: found.update(far=digest_to_the_end(far)))
        reading.start()
        found["near"] = digest_to_the_end(near)
        for thread in (*sending, reading):
            thread.join()
    assert found == {"far": digest(there), "near": digest(back)}


def test_a_side_that_has_said_all_still_hears(led, target):
    with connect(led) as near, accept(target) as far:
        near.sendall(b"question")
        near.shutdown(socket.SHUT_WR)
        assert digest_to_the_end(far) == digest(b"question")
        far.sendall(b"answer")
        far.shutdown(socket.SHUT_WR)
        assert digest_to_the_end(near) == digest(b"answer")


def test_who_is_connected_to_speaks_first(led, target):
    """HTTP/2 servers do this. No byte may be lost while the connection is being set up."""
    for _ in range(20):
        with connect(led) as near, accept(target) as far:
            far.sendall(b"settings")
            assert near.recv(8) == b"settings"


def test_many_connections_at_once(led, target):
    with ExitStack() as opened:
        near = [opened.enter_context(connect(led)) for _ in range(40)]
        for number, each in enumerate(near):
            each.sendall(number.to_bytes(4, "big"))
        for _ in near:
            far = opened.enter_context(accept(target))
            far.sendall(far.recv(4))
        assert [int.from_bytes(each.recv(4), "big") for each in near] == list(range(40))


def test_a_slow_reader_holds_the_writer_back(led, target):
    """Data that the reader does not read must not pile up in this process."""
    with connect(led) as near, accept(target) as far:
        near.setblocking(False)
        num_sent, silent_since = 0, time.monotonic()
        while time.monotonic() - silent_since < 1:
            try:
                num_sent += near.send(bytes(CHUNK))
                silent_since = time.monotonic()
            except BlockingIOError:
                time.sleep(0.01)
            assert num_sent < 64 << 20
        near.setblocking(True)
        near.shutdown(socket.SHUT_WR)
        assert digest_to_the_end(far) == digest(bytes(num_sent))


def test_the_end_of_one_side_that_is_killed_is_the_end_of_the_other(led, target):
    with connect(led) as near, accept(target) as far:
        near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        # Closes with RST, like a process that was killed with unread bytes.
        near.close()
        with suppress(ConnectionResetError):
            assert far.recv(1) == b""


def test_where_nobody_listens_yet_a_connection_ends_and_later_ones_succeed(box):
    port, there = free_port(), free_port()
    with HostForwards(ssh_end(box)) as forwards:
        forwards.lead({port: Elsewhere(ssh_end(box), there)})
        with connect(port) as near:
            assert near.recv(1) == b""
        with socket.create_server(("127.0.0.1", there)) as late, connect(port) as near, accept(late) as far:
            far.sendall(b"there")
            assert near.recv(5) == b"there"


def test_only_what_is_wanted_is_listened_at(box, target):
    first, second = free_port(), free_port()
    to = Elsewhere(LocalEnd(), target.getsockname()[1])
    with HostForwards(ssh_end(box)) as forwards:
        forwards.lead({first: to})
        with connect(first) as near, accept(target) as far:
            forwards.lead({first: to, second: to})
            far.sendall(b"still there")
            assert near.recv(11) == b"still there"
            forwards.lead({second: to})
            assert forwards.leads == {second: to}
            assert near.recv(1) == b""
        with pytest.raises(ConnectionRefusedError):
            connect(first)
        connect(second).close()
    with pytest.raises(ConnectionRefusedError):
        connect(second)


def test_nobody_reaches_it_by_another_address(box, target):
    port = free_port()
    with HostForwards(ssh_end(box)) as forwards:
        forwards.lead({port: LocalEnd()})
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port), 30)


def test_a_lost_link_ends_connections_and_is_led_anew(box, target):
    port, to = free_port(), Elsewhere(LocalEnd(), target.getsockname()[1])
    with HostForwards(ssh_end(box)) as forwards:
        forwards.lead({port: to})
        with connect(port) as near, accept(target) as far:
            box.kill_sessions()
            assert near.recv(1) == b""
            assert far.recv(1) == b""
        until(lambda: not forwards.leads)
        forwards.lead({port: to})
        with connect(port) as near, accept(target) as far:
            near.sendall(b"again")
            assert far.recv(5) == b"again"


def test_a_link_to_the_target_that_is_lost_is_made_again_by_the_next_connection(box, target):
    port = free_port()
    with HostForwards(LocalEnd()) as forwards:
        forwards.lead({port: Elsewhere(ssh_end(box), target.getsockname()[1])})
        for _ in range(2):
            with connect(port) as near, accept(target) as far:
                far.sendall(b"there")
                assert near.recv(5) == b"there"
                box.kill_sessions()
                assert near.recv(1) == b""


def test_an_sshd_that_forwards_nothing_is_told(tmp_path):
    server = Sshd(tmp_path / "closed")
    config = server.sshd_config.read_text().replace("AllowTcpForwarding yes", "AllowTcpForwarding no")
    server.sshd_config.write_text(config)
    port = free_port()
    with server, HostForwards(ssh_end(server)) as forwards:
        with pytest.raises(
            HostRefused, match=rf"'box': .*listen at 127.0.0.1:{port}.*AllowTcpForwarding yes"
        ):
            forwards.lead({port: LocalEnd()})
        assert forwards.leads == {}
        with pytest.raises(HostRefused, match=rf"connect to 127.0.0.1:{port}.*AllowTcpForwarding yes"):
            forwards.check(port)
        until(lambda: not server.sessions(), what="the end of all ssh connections")


def test_an_sshd_that_forwards_passes_the_check(box, target):
    for end in (ssh_end(box), LocalEnd()):
        with HostForwards(end) as forwards:
            forwards.check(free_port())
            forwards.check(target.getsockname()[1])


def test_a_port_that_is_taken_is_told_and_the_others_are_led(box, target):
    taken, free = target.getsockname()[1], free_port()
    with HostForwards(LocalEnd()) as forwards:
        with pytest.raises(OSError, match="in use"):
            forwards.lead({taken: LocalEnd(), free: LocalEnd()})
        assert list(forwards.leads) == [free]


def test_a_host_that_cannot_be_reached_is_told(server):
    with HostForwards(ssh_end(server)) as forwards, pytest.raises(HostUnreachable, match="refused"):
        forwards.lead({free_port(): LocalEnd()})
