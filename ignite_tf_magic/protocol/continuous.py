"""Continuous queries: a node tells, without being asked again, of each change of a cache's rows on any node.

Source: Ignite's IEP-50, "Thin Client Continuous Queries", and the behaviour of Ignite 2.17.0.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from ignite_tf_magic.errors import RemoteProtocolError
from ignite_tf_magic.protocol.buffer import Reader
from ignite_tf_magic.protocol.messages import KEEP_BINARY, Request
from ignite_tf_magic.protocol.objects import skip_value
from ignite_tf_magic.protocol.ops import EventType, Operation, TypeCode

_QUERY = struct.Struct("<ibiqbb")
_LEAST_EVENT_BYTES = 4  # a key, two values and the type, of one byte each


class RowEvent(NamedTuple):
    """What happened to one row, which is still encoded.

    Attributes:
        key: Its encoded key.
        value: Its encoded value; null when the row was removed or has expired.
    """

    event_type: EventType
    key: memoryview
    value: memoryview

    @property
    def is_row(self) -> bool:
        """Whether the row is there after it."""
        return self.event_type in (EventType.CREATED, EventType.UPDATED)


def continuous_query(cache: int, page_rows: int, interval_ms: int) -> Request:
    """Subscribe to the changes of a cache; answer: `messages.parse_int64`, the id that notifications carry.

    `messages.close_cursor` ends it, and so does the end of the connection.

    Args:
        cache: Its id.
        page_rows: Each node tells of so many changes at once,
        interval_ms: or of fewer after this time; without it the last ones of a node would wait for more. 0 is for ever.
    """
    payload = _QUERY.pack(cache, KEEP_BINARY, page_rows, interval_ms, True, TypeCode.NULL)
    return Request(Operation.QUERY_CONTINUOUS, payload)


def parse_events(payload: memoryview) -> list[RowEvent]:
    """Read a notification of a continuous query.

    Raises:
        RemoteProtocolError: It is truncated or corrupted.
    """
    reader = Reader(payload)
    events = [_event(reader) for _ in range(reader.count(_LEAST_EVENT_BYTES))]
    if reader.remaining:
        raise RemoteProtocolError(
            f"corrupted notification: {reader.remaining} bytes behind its {len(events)} events"
        )
    return events


def _event(reader: Reader) -> RowEvent:
    key = _encoded(reader)
    skip_value(reader)  # the value before
    value = _encoded(reader)
    number = reader.int8()
    if number not in tuple(EventType):
        raise RemoteProtocolError(f"corrupted notification: event type {number}")
    return RowEvent(EventType(number), key, value)


def _encoded(reader: Reader) -> memoryview:
    start = reader.position
    skip_value(reader)
    return reader.view[start : reader.position]
