"""Hands a job from a relay to the shim of a parked process, and on to that process: one message with descriptors.

The path of the sockets' directory may be too long for a socket's address, so addresses use a descriptor of the
directory. Linux only.
"""

from __future__ import annotations

import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from socket import socket as Socket  # noqa: N812 - the module itself is imported where it is used: that takes a while
    from typing import Any

HAND_OVER_S = 10.0  # both sides are on one host, which may be busy
_FIRST_BYTES = 1 << 16
_MOST_DESCRIPTORS = 8


def listen_in(folder: str, name: str) -> Socket:
    """Return a socket that listens under a name in a directory."""
    import socket

    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        listener.bind(f"/proc/self/fd/{directory}/{name}")
        listener.listen(8)
    finally:
        os.close(directory)
    return listener


def connect_in(folder: str, name: str) -> Socket | None:
    """Connect to a name in a directory; return None if no process of this user listens there."""
    import socket

    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(HAND_OVER_S)
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        connection.connect(f"/proc/self/fd/{directory}/{name}")
        if peer_uid(connection) == os.getuid():
            return connection
    except OSError:
        pass
    finally:
        os.close(directory)
    connection.close()
    return None


def peer_uid(connection: Socket) -> int:
    """Return the user id of the process at the other end."""
    import array
    import socket

    found = array.array("i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return found[1]


def send(connection: Socket, message: dict[str, Any], descriptors: Sequence[int]) -> None:
    """Send a message with copies of descriptors. The stream ends after this one message."""
    import array
    import socket

    data = json.dumps(message).encode()
    with_them = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
    num_sent = connection.sendmsg([data], with_them)
    connection.sendall(data[num_sent:])
    connection.shutdown(socket.SHUT_WR)


def receive(connection: Socket) -> tuple[dict[str, Any] | None, list[int]]:
    """Return a message and its descriptors. The message is None if none arrives complete."""
    import array
    import socket

    descriptors = array.array("i")
    space = socket.CMSG_SPACE(_MOST_DESCRIPTORS * descriptors.itemsize)
    pieces = []
    try:
        data, ancillary, _, _ = connection.recvmsg(_FIRST_BYTES, space, socket.MSG_CMSG_CLOEXEC)
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
        while data:
            pieces.append(data)
            data = connection.recv(_FIRST_BYTES)
        return json.loads(b"".join(pieces)), list(descriptors)
    except (OSError, ValueError):
        for descriptor in descriptors:
            os.close(descriptor)
        return None, []
