"""Apache's own Python client, pyignite, for what ours does not do: caches of any configuration, values of any type.

Its bytes travel over a channel of ours, so that TLS, credentials, tunnels and errors are those of every other
connection. It is slow, takes times for the client's zone, and ends strings at U+0000: rows and SQL go without it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ignite_tf_magic.client.channel import Channel, open_any_channel
from ignite_tf_magic.protocol.messages import Request
from ignite_tf_magic.protocol.ops import PROTOCOL_VERSION
from ignite_tf_magic.settings.options import ConnectOptions

_REQUEST_HEAD = struct.Struct("<ihq")
_ANSWER_HEAD = struct.Struct("<iqh")


@contextmanager
def pyignite_client(options: ConnectOptions) -> Iterator[Any]:
    """Connect a `pyignite.Client`; closed with the block. For one thread.

    Raises:
        ConnectionFailed: No node could be reached.
        ServerError: A node refused what was asked for.
    """
    import pyignite
    from pyignite.connection.bitmask_feature import BitmaskFeature
    from pyignite.connection.protocol_context import ProtocolContext

    with open_any_channel(options) as channel:
        client = pyignite.Client(partition_aware=False)
        client.protocol_context = ProtocolContext(PROTOCOL_VERSION, BitmaskFeature(0))
        client._nodes.append(_Wire(client, channel))
        yield client


class _Wire:
    """What pyignite needs of a connection, made of a channel: its frames in, frames back."""

    alive = True

    def __init__(self, client: Any, channel: Channel) -> None:
        self.client = client
        self.protocol_context = client.protocol_context
        self._channel = channel

    def request(self, frame: bytes | bytearray) -> bytes:
        _, operation, query_id = _REQUEST_HEAD.unpack_from(frame)
        payload = self._channel.call(Request(operation, bytes(frame[_REQUEST_HEAD.size :])), bytes)
        return _ANSWER_HEAD.pack(_ANSWER_HEAD.size - 4 + len(payload), query_id, 0) + payload
