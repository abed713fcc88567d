"""Variant `drain`: receives the bytes of all pages into one buffer per connection and ignores them.

This is the upper limit for any reader of these pages. The requests are those of `client.owner_scan`: partition by
partition from their owners, with the page sizes that a reader uses once it knows the partitions, and with the same
limits for data in flight; one connection and one thread per owner. Connections stay open.
"""

from __future__ import annotations

import socket
import struct
import uuid
from collections import deque
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from benchmarks.process import Stopwatch, serve, task_of_this_process
from ignite_tf_magic.client.client import Cache, connect
from ignite_tf_magic.client.owner_scan import SWEPT_PAGES
from ignite_tf_magic.client.page_sizes import IN_FLIGHT_BYTES, PageSizes
from ignite_tf_magic.client.router import Node
from ignite_tf_magic.protocol import messages
from ignite_tf_magic.protocol.connection import Connection
from ignite_tf_magic.protocol.messages import Request
from ignite_tf_magic.protocol.ops import ResponseFlag
from ignite_tf_magic.settings.options import ConnectOptions, Endpoint

_BUFFER_BYTES = 4 * 1024 * 1024
_LENGTH = struct.Struct("<i")
_HEAD = struct.Struct("<iqh")
_TOPOLOGY_BYTES = 12
_FIRST_PAGE = struct.Struct("<qi")
_NEXT_PAGE = struct.Struct("<i")
_MOST_HEAD_BYTES = _HEAD.size + _TOPOLOGY_BYTES + _FIRST_PAGE.size


@dataclass(slots=True)
class _Cursor:
    reserved_bytes: int
    cursor_id: int | None = None


@dataclass(frozen=True, slots=True)
class _Opening:
    """The request that opens a partition's cursor, and the expected bytes of a page."""

    request: Request
    page_bytes: int


class OwnerDrain:
    """One connection to one node, and the partitions to read there."""

    def __init__(self, node: Node, openings: list[_Opening]) -> None:
        self._openings = openings
        self._stream = socket.create_connection((node.endpoints[0].host, node.endpoints[0].port))
        self._stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = Connection()
        self._stream.sendall(self._connection.hello())
        while self._connection.next_event() is None:
            self._connection.received(self._stream.recv_into(self._connection.get_buffer()))
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._waiting: deque[_Opening] = deque()
        self._asked: dict[int, _Cursor] = {}
        self._reserved_bytes = 0

    def drain(self) -> int:
        """Read all partitions once. Returns the number of rows."""
        self._waiting = deque(self._openings)
        self._open_more()
        buffer, rows, filled, remaining = self._buffer, 0, 0, 0
        cursor = _Cursor(0)
        while self._asked or remaining:
            end = filled + self._stream.recv_into(buffer[filled:])
            if end == filled:
                raise ConnectionError("the node closed the connection")
            at = filled = 0
            while at < end:
                if not remaining:
                    if not self._has_head(at, end):
                        break
                    cursor, num_rows, head_bytes, remaining = self._read_head(at)
                    rows += num_rows
                    at += head_bytes
                taken = min(remaining, end - at)
                at += taken
                remaining -= taken
                if not remaining:
                    self._page_ended(cursor, has_more=bool(buffer[at - 1]))
            filled = end - at
            buffer[:filled] = buffer[at:end]
        return rows

    def _has_head(self, at: int, end: int) -> bool:
        if end - at < _LENGTH.size:
            return False
        (length,) = _LENGTH.unpack_from(self._buffer, at)
        return end - at >= min(_LENGTH.size + int(length), _MOST_HEAD_BYTES)

    def _read_head(self, at: int) -> tuple[_Cursor, int, int, int]:
        """Return a page's cursor, its rows, the bytes before the first row, and the bytes from there on."""
        length, request_id, flags = _HEAD.unpack_from(self._buffer, at)
        if flags & ResponseFlag.ERROR:
            raise ConnectionError("the node refused a request")
        inside = at + _HEAD.size + (_TOPOLOGY_BYTES if flags & ResponseFlag.TOPOLOGY_CHANGED else 0)
        cursor = self._asked.pop(request_id)
        if cursor.cursor_id is None:
            cursor.cursor_id, num_rows = _FIRST_PAGE.unpack_from(self._buffer, inside)
            inside += _FIRST_PAGE.size
        else:
            (num_rows,) = _NEXT_PAGE.unpack_from(self._buffer, inside)
            inside += _NEXT_PAGE.size
        return cursor, num_rows, inside - at, _LENGTH.size + length - (inside - at)

    def _page_ended(self, cursor: _Cursor, *, has_more: bool) -> None:
        if has_more and cursor.cursor_id is not None:
            self._ask(cursor, messages.next_page(cursor.cursor_id))
            return
        self._reserved_bytes -= cursor.reserved_bytes
        self._open_more()

    def _open_more(self) -> None:
        while self._waiting:
            page_bytes = self._waiting[0].page_bytes
            full = len(self._asked) >= SWEPT_PAGES or self._reserved_bytes + page_bytes > IN_FLIGHT_BYTES
            if full and self._asked:
                return
            self._reserved_bytes += page_bytes
            self._ask(_Cursor(page_bytes), self._waiting.popleft().request)

    def _ask(self, cursor: _Cursor, request: Request) -> None:
        request_id, data = self._connection.send(request)
        self._asked[request_id] = cursor
        self._stream.sendall(data)


def owners_of(cache: Cache, sizes: PageSizes, part: Collection[int] | None = None) -> list[OwnerDrain]:
    """Connect to each owner of a cache's partitions, or of some of them."""
    groups: dict[uuid.UUID, list[_Opening]] = {}
    for partition, owner in sorted(cache.partition_map().primary_of().items()):
        if part is not None and partition not in part:
            continue
        request = messages.scan(cache.cache_id, partition, sizes.page_rows(partition))
        groups.setdefault(owner, []).append(_Opening(request, sizes.page_bytes(partition)))
    nodes = {node.node_id: node for node in cache.client.nodes()}
    return [OwnerDrain(nodes[owner], openings) for owner, openings in groups.items()]


def main(task: dict[str, Any]) -> None:
    """Serve the harness."""
    with connect(ConnectOptions((Endpoint(task["host"], task["port"]),))) as client:
        cache = client.cache(task["cache"])
        owners = owners_of(cache, PageSizes(known=cache.partition_stats()), task.get("part"))
    with ThreadPoolExecutor(len(owners)) as pool:

        def one_pass(watch: Stopwatch) -> int:
            with watch:
                return sum(pool.map(OwnerDrain.drain, owners))

        serve(one_pass, task["num_rows"], {})


if __name__ == "__main__":
    main(task_of_this_process())
