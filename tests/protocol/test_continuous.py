"""Messages of continuous queries, without a node."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from ignite_tf_magic.errors import RemoteProtocolError
from ignite_tf_magic.protocol.affinity import encoded
from ignite_tf_magic.protocol.connection import Notification, Response
from ignite_tf_magic.protocol.continuous import continuous_query, parse_events
from ignite_tf_magic.protocol.objects import BinaryObject
from ignite_tf_magic.protocol.ops import EventType, Operation, ResponseFlag
from tests.protocol.golden import greeted

CAT = BinaryObject("Cat", {"name": "Tom", "age": np.int32(3)})
EVENTS = [
    (1, None, CAT, EventType.CREATED),
    ("two", CAT, b"\x00\x01", EventType.UPDATED),
    (3, CAT, None, EventType.REMOVED),
    (4, "old", None, EventType.EXPIRED),
]


def payload(events=EVENTS):
    parts = [encoded(k) + encoded(old) + encoded(v) + struct.pack("<b", t) for k, old, v, t in events]
    return struct.pack("<i", len(parts)) + b"".join(parts)


def frame(resource, flags, body):
    return struct.pack("<iqh", 10 + len(body), resource, flags) + body


def test_a_query_asks_for_changes_of_a_cache():
    request = continuous_query(-7, 64, 50)
    assert request.operation == Operation.QUERY_CONTINUOUS
    assert request.payload == struct.pack("<ibiqbb", -7, 1, 64, 50, 1, 101)


@pytest.mark.parametrize("slice_bytes", [1 << 20, 1], ids=["whole", "bytewise"])
def test_a_notification_stands_among_answers(slice_bytes):
    connection = greeted()
    told = frame(77, ResponseFlag.NOTIFICATION, struct.pack("<h", 2007) + payload())
    found = []
    data = frame(5, 0, b"answer") + told + frame(6, 0, b"")
    for start in range(0, len(data), slice_bytes):
        connection.receive(data[start : start + slice_bytes])
        while (event := connection.next_event()) is not None:
            found.append(event._replace(payload=bytes(event.payload)))
    notification = Notification(77, Operation.QUERY_CONTINUOUS_EVENT_NOTIFICATION, payload())
    assert found == [Response(5, b"answer"), notification, Response(6, b"")]


def test_a_notification_may_say_that_the_query_failed():
    connection = greeted()
    words = struct.pack("<hi", 2007, 1) + encoded("out of luck")
    connection.receive(frame(77, ResponseFlag.NOTIFICATION | ResponseFlag.ERROR, words))
    event = connection.next_event()
    assert isinstance(event, Notification)
    assert (event.resource, event.status, event.message) == (77, 1, "out of luck")


def test_events_keep_the_bytes_of_rows():
    events = parse_events(memoryview(payload()))
    expected = [(encoded(k), encoded(v), t, v is not None) for k, _, v, t in EVENTS]
    assert [(e.key, e.value, e.event_type, e.is_row) for e in events] == expected


def test_corrupted_events_are_refused():
    good = payload()
    for size in range(len(good)):
        with pytest.raises(RemoteProtocolError):
            parse_events(memoryview(good[:size]))
    for bad in (good + b"\x00", payload([(1, None, 2, 9)])):
        with pytest.raises(RemoteProtocolError):
            parse_events(memoryview(bad))
