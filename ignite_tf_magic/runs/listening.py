"""Whether a server of a run is there. Standard library only, as workers begin with it."""

from __future__ import annotations

import socket


def listens(address: str, timeout_s: float) -> bool:
    """Tell whether anybody listens at "host:port"; a host of IPv6 may stand in brackets."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout_s).close()
    except OSError:
        return False
    return True
