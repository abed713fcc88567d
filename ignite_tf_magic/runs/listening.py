"""Whether a server of a run is there. Standard library only, as workers begin with it."""

from __future__ import annotations

import os
import socket

from ignite_tf_magic.runs.loopback import TUNNEL


def listens(address: str, timeout_s: float) -> bool:
    """Tell whether anybody listens at "host:port"; a host of IPv6 may stand in brackets."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout_s) as there:
            return not os.environ.get(TUNNEL) or _stays(there)
    except OSError:
        return False


def _stays(there: socket.socket) -> bool:
    """Tell whether a connection lasts: a tunnel takes any, and ends it when nobody listens at its other end.

    Servers of TensorFlow speak first, so this seldom waits.
    """
    try:
        return there.recv(1) != b""
    except TimeoutError:
        return True
