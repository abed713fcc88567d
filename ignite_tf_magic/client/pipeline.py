"""Reads and writes large rows at their owners, with several requests pending at a time."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable
from typing import Any

from ignite_tf_magic.client.channel import Channel, payload_of
from ignite_tf_magic.client.client import Cache
from ignite_tf_magic.client.router import Node
from ignite_tf_magic.closing import Closing
from ignite_tf_magic.errors import ConnectionFailed, ConnectionLost, RemoteProtocolError, ServerError
from ignite_tf_magic.protocol import key_value
from ignite_tf_magic.protocol.affinity import PartitionMap, partition_of_key
from ignite_tf_magic.protocol.messages import Request
from ignite_tf_magic.protocol.ops import Status, TypeCode

RETRY_S = 40.0
_PAUSE_S = 0.2
_ARRAY_HEAD_BYTES = 5
_PERMANENT = {Status.CACHE_DOES_NOT_EXIST, Status.SECURITY_VIOLATION, Status.AUTH_FAILED}


class Routes:
    """Maps each key of a cache to the node that holds it. Thread-safe. Reads the map again after `forget`."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._known: tuple[PartitionMap, dict[int, uuid.UUID], dict[uuid.UUID, Node]] | None = None

    def forget(self) -> None:
        """Drop the map, because the cluster has changed."""
        self._known = None

    def node_of(self, key: Any) -> Node:
        """Return the node of a key's primary copy, or any node if the owner is unknown.

        Raises:
            ConnectionFailed: No node answers.
        """
        known = self._known
        if known is None:
            nodes = {node.node_id: node for node in self._cache.client.nodes()}
            partition_map = self._cache.partition_map()
            known = self._known = partition_map, partition_map.primary_of(), nodes
        partition_map, owners, nodes = known
        first = next(iter(nodes.values()))
        if not (partition_map.partitioned and partition_map.default_affinity and owners):
            return first
        owner = owners.get(partition_of_key(key, partition_map.num_partitions))
        return nodes.get(owner, first) if owner else first


class Ticket:
    """A pending read or write. Once it is `done`, `space` and `found` hold the result."""

    __slots__ = ("done", "found", "key", "request", "skip", "space")

    def __init__(self, key: Any, request: Request, space: memoryview | None, skip: int) -> None:
        self.key = key
        self.request = request
        self.space = space
        self.skip = skip
        self.done = False
        self.found = True


class Pipeline(Closing):
    """Sends requests for single byte[] rows to their owners at once, and waits for each on request.

    For one thread at a time. Requests that a lost node had not answered are repeated at another node, for up to 40 s.
    """

    def __init__(self, cache: Cache, routes: Routes) -> None:
        self._cache = cache
        self._routes = routes
        self._channels: dict[uuid.UUID, Channel] = {}
        self._under_way: dict[Channel, dict[int, Ticket]] = {}

    def close(self) -> None:
        """Hand the connections back to the router; close those with pending requests."""
        for channel, tickets in self._under_way.items():
            if tickets:
                channel.close()
            else:
                self._cache.client.router.give_back(channel)
        self._channels.clear()
        self._under_way.clear()

    def read(self, key: Any, space: memoryview, skip: int = 0) -> Ticket:
        """Request a row's bytes from `skip` on. They are put into `space` and must fill it."""
        return self._send(Ticket(key, key_value.get(self._cache.cache_id, key), space, skip))

    def write(self, key: Any, value: bytes | bytearray | memoryview) -> Ticket:
        """Write a row. Writing it twice must do no harm."""
        return self._send(Ticket(key, key_value.put(self._cache.cache_id, key, value), None, 0))

    def finish(self, tickets: Iterable[Ticket]) -> None:
        """Wait for requests. Afterwards `Ticket.found` tells whether a row to read exists.

        Raises:
            ServerError: A node refused a request.
            ConnectionFailed: No node answered for 40 s.
        """
        for ticket in tickets:
            while not ticket.done:
                self._receive(ticket)

    def _send(self, ticket: Ticket) -> Ticket:
        try:
            channel = self._channel(self._routes.node_of(ticket.key))
            self._under_way[channel][channel.submit(ticket.request)] = ticket
        except (ConnectionLost, ConnectionFailed):
            self._routes.forget()
            return ticket
        try:
            channel.flush()
        except ConnectionLost:
            self._drop(channel)
        return ticket

    def _channel(self, node: Node) -> Channel:
        channel = self._channels.get(node.node_id)
        if channel is None:
            channel = self._cache.client.router.open_to(node)
            self._channels[node.node_id] = channel
            self._under_way[channel] = {}
        return channel

    def _receive(self, ticket: Ticket) -> None:
        channel = next((c for c, waiting in self._under_way.items() if ticket in waiting.values()), None)
        if channel is None:
            self._repeat(ticket)
            return
        try:
            answer = channel.next_answer()
        except ConnectionLost:
            self._drop(channel)
            return
        answered = self._under_way[channel].pop(answer.request_id)
        try:
            _take(answered, payload_of(answer, answered.request))
        except ServerError as error:
            if error.status in _PERMANENT:
                answered.done = True
                raise
            self._routes.forget()

    def _drop(self, channel: Channel) -> None:
        """Drop a broken connection. `finish` repeats its pending requests."""
        channel.close()
        self._routes.forget()
        del self._under_way[channel]
        self._channels = {node: other for node, other in self._channels.items() if other is not channel}

    def _repeat(self, ticket: Ticket) -> None:
        deadline = time.monotonic() + RETRY_S
        while not ticket.done:
            try:
                self._cache.client.cache_call(
                    self._cache.name, ticket.request, lambda payload: _take(ticket, payload)
                )
            except (ConnectionLost, ConnectionFailed, ServerError) as error:
                permanent = isinstance(error, ServerError) and error.status in _PERMANENT
                if permanent or time.monotonic() > deadline:
                    ticket.done = True
                    raise
                time.sleep(_PAUSE_S)


def _take(ticket: Ticket, payload: memoryview) -> None:
    """Parse an answer: nothing for a write; byte[] or null for a read."""
    ticket.done = True
    if ticket.space is None:
        return
    if payload[0] == TypeCode.NULL:
        ticket.found = False
        return
    start = _ARRAY_HEAD_BYTES + ticket.skip
    part = payload[start : start + len(ticket.space)]
    if payload[0] != TypeCode.BYTE_ARRAY or len(part) != len(ticket.space):
        raise RemoteProtocolError(
            f"row {ticket.key} has {len(payload) - _ARRAY_HEAD_BYTES} bytes, "
            f"{ticket.skip} to {ticket.skip + len(ticket.space)} were asked for"
        )
    ticket.space[:] = part
