"""Who listens where on this machine, as /proc/net/tcp and tcp6 tell."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from contextlib import suppress

import psutil


def listeners(pids: Iterable[int]) -> set[tuple[str, int]]:
    """Return (address, port) of all sockets at which processes, and those below them, listen."""
    trees = [[parent, *parent.children(recursive=True)] for parent in map(psutil.Process, pids)]
    found = set()
    for process in (each for tree in trees for each in tree):
        with suppress(psutil.NoSuchProcess):
            for connection in process.net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    found.add((connection.laddr.ip, connection.laddr.port))
    return found


def is_loopback(text: str) -> bool:
    """Tell whether an address is for this machine alone, also one of IPv4 within IPv6."""
    address = ipaddress.ip_address(text)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def accepts(address: str, port: int) -> bool:
    """Try to connect."""
    try:
        socket.create_connection((address, port), 10).close()
    except ConnectionRefusedError:
        return False
    return True
