"""Checks whether a run's server listens. Standard library only, because workers use it at their start."""

from __future__ import annotations

import os
import socket

from ignite_tf_magic.runs.loopback import TUNNEL


def listens(address: str, timeout_s: float) -> bool:
    """Return whether a server listens at "host:port"; an IPv6 host may be in brackets."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout_s) as there:
            return not os.environ.get(TUNNEL) or _stays(there)
    except OSError:
        return False


def _stays(there: socket.socket) -> bool:
    """Return whether a connection lasts.

    A tunnel accepts any connection and closes it if nothing listens at its other end. TensorFlow's servers send first,
    so this seldom waits.
    """
    try:
        return there.recv(1) != b""
    except TimeoutError:
        return True
