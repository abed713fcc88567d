"""Continuous queries: one node reports all changes of a cache's rows, on whichever node they happen.

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
    """A change of one row, whose key and value are still encoded.

    Attributes:
        key: The encoded key.
        value: The encoded value; an encoded null if the row was removed or has expired.
    """

    event_type: EventType
    key: memoryview
    value: memoryview

    @property
    def is_row(self) -> bool:
        """Whether the row exists after the event."""
        return self.event_type in (EventType.CREATED, EventType.UPDATED)


def continuous_query(cache: int, page_rows: int, interval_ms: int) -> Request:
    """Build a request that subscribes to the changes of a cache.

    `messages.parse_int64` reads the answer: the id that notifications carry. `messages.close_cursor` or the end of the
    connection ends the subscription.

    Args:
        cache: Id of the cache.
        page_rows: Number of changes that a node collects before it sends them.
        interval_ms: Milliseconds after which a node sends the changes it has, even if they are fewer. 0 means never:
            the last changes of a node then wait for more.
    """
    payload = _QUERY.pack(cache, KEEP_BINARY, page_rows, interval_ms, True, TypeCode.NULL)
    return Request(Operation.QUERY_CONTINUOUS, payload)


def parse_events(payload: memoryview) -> list[RowEvent]:
    """Return the events in a notification of a continuous query.

    Raises:
        RemoteProtocolError: The notification is truncated or corrupted.
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
    skip_value(reader)  # the old value
    value = _encoded(reader)
    number = reader.int8()
    if number not in tuple(EventType):
        raise RemoteProtocolError(f"corrupted notification: event type {number}")
    return RowEvent(EventType(number), key, value)


def _encoded(reader: Reader) -> memoryview:
    start = reader.position
    skip_value(reader)
    return reader.view[start : reader.position]
