"""Lists the sockets on which processes of this machine listen."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from contextlib import suppress

import psutil


def listeners(pids: Iterable[int]) -> set[tuple[str, int]]:
    """Return (address, port) of each TCP socket on which these processes or their descendants listen."""
    trees = [[parent, *parent.children(recursive=True)] for parent in map(psutil.Process, pids)]
    found = set()
    for process in (each for tree in trees for each in tree):
        with suppress(psutil.NoSuchProcess):
            for connection in process.net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    found.add((connection.laddr.ip, connection.laddr.port))
    return found


def is_loopback(text: str) -> bool:
    """Return whether an address is a loopback address, also if it is IPv4 mapped into IPv6."""
    address = ipaddress.ip_address(text)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def accepts(address: str, port: int) -> bool:
    """Return whether a server accepts connections at this address."""
    try:
        socket.create_connection((address, port), 10).close()
    except ConnectionRefusedError:
        return False
    return True
