"""Connects pyignite, Apache's Python client, for caches of any configuration and values of any type.

pyignite's bytes travel over a channel of this package. So TLS, credentials, tunnels and errors are the same as for
every other connection. pyignite is slow, takes times as local to the client's time zone, and ends strings at U+0000.
Rows and SQL do not use it.
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
    """Connect a `pyignite.Client`. The block's end closes it. For one thread.

    Raises:
        ConnectionFailed: No node could be reached.
        ServerError: A node refused a request.
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
    """The connection that pyignite needs, made from a channel: takes a request frame and returns the answer frame."""

    alive = True

    def __init__(self, client: Any, channel: Channel) -> None:
        self.client = client
        self.protocol_context = client.protocol_context
        self._channel = channel

    def request(self, frame: bytes | bytearray) -> bytes:
        _, operation, query_id = _REQUEST_HEAD.unpack_from(frame)
        payload = self._channel.call(Request(operation, bytes(frame[_REQUEST_HEAD.size :])), bytes)
        return _ANSWER_HEAD.pack(_ANSWER_HEAD.size - 4 + len(payload), query_id, 0) + payload
