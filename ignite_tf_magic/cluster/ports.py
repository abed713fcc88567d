"""Ports of this machine for TensorFlow's servers, kept free for a run."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from ignite_tf_magic.config import Endpoint

LOOPBACK = "127.0.0.1"


@contextmanager
def reserved_ports(num_ports: int) -> Iterator[tuple[Endpoint, ...]]:
    """Find ports that are free on all interfaces, where TensorFlow listens, and keep them until the end.

    A server that shares ports (SO_REUSEPORT, which TF_GRPC_REUSE_PORT asks for) and belongs to the same
    user can listen on one all the same; anybody else finds it taken. Where the system has no such sharing,
    the ports are only known to have been free.
    """
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(num_ports)]
        for each in sockets:
            if hasattr(socket, "SO_REUSEPORT"):
                each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            each.bind(("", 0))
        ports = [each.getsockname()[1] for each in sockets]
        if not hasattr(socket, "SO_REUSEPORT"):
            held.close()
        yield tuple(Endpoint(LOOPBACK, port) for port in ports)


def is_listening(endpoint: Endpoint) -> bool:
    """Try whether something accepts connections there."""
    try:
        socket.create_connection((endpoint.host, endpoint.port), timeout=0.2).close()
    except OSError:
        return False
    return True
