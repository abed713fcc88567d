"""Truncated and corrupted answers raise RemoteProtocolError: they never hang and never raise anything else."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ignite_tf_magic.errors import HandshakeError, RemoteProtocolError
from ignite_tf_magic.protocol import key_value, messages
from ignite_tf_magic.protocol.connection import Connection, Fault, Handshaken, Response, parse_frame
from tests.protocol.golden import exchanges
from tests.protocol.test_golden import CACHE, known_types

TYPES = known_types()
PARSERS = {
    "endpoints": messages.parse_topology,
    "names": messages.parse_names,
    "partitions": lambda data: messages.parse_partitions(data, CACHE),
    "configuration": messages.parse_configuration,
    "size": messages.parse_int64,
    "type": messages.parse_binary_type,
    "first page": messages.parse_first_page,
    "next page": messages.parse_next_page,
    **{
        name: lambda data: key_value.parse_value(data, TYPES.get)
        for name in exchanges()
        if name[:4] == "get "
    },
}


def read(name: str, frame: bytes) -> None:
    event = parse_frame(memoryview(frame))
    if isinstance(event, Response):
        PARSERS[name](event.payload)


@pytest.mark.parametrize("name", PARSERS)
def test_every_truncation_raises(name):
    frame = exchanges()[name].received[4:]
    read(name, frame)
    for size in range(len(frame)):
        if name == "first page" and size > 30:
            break  # Rows are cut out without parsing; the walkers check them.
        if name == "next page" and size > 20:
            break
        with pytest.raises(RemoteProtocolError):
            read(name, frame[:size])


@given(st.sampled_from(sorted(PARSERS)), st.data())
@settings(max_examples=400, deadline=None)
def test_corruption_never_raises_anything_else(name, data):
    frame = bytearray(exchanges()[name].received[4:])
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(RemoteProtocolError):
        read(name, bytes(frame))


@given(st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_garbage_instead_of_a_handshake(data):
    connection = Connection()
    connection.hello()
    try:
        connection.receive(data)
        event = connection.next_event()
    except (RemoteProtocolError, HandshakeError):
        return
    assert event is None or isinstance(event, Handshaken)


@pytest.mark.parametrize(
    "greeting",
    [
        b"HTTP/1.1 400 Bad Request\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\x15\x03\x03\x00\x02\x02\x46",
        b"\x00" * 8,
    ],
)
def test_other_protocols_are_recognised(greeting):
    connection = Connection()
    connection.hello()
    connection.receive(greeting)
    with pytest.raises(RemoteProtocolError, match="does not speak Ignite"):
        connection.next_event()


def test_a_broken_connection_sends_nothing_more():
    connection = Connection()
    connection.hello()
    connection.receive(b"garbage!")
    with pytest.raises(RemoteProtocolError):
        connection.next_event()
    from ignite_tf_magic.errors import LocalProtocolError

    with pytest.raises(LocalProtocolError):
        connection.send(messages.heartbeat())


def test_a_fault_keeps_the_servers_words():
    event = parse_frame(memoryview(exchanges()["no such cache"].received[4:]))
    assert isinstance(event, Fault)
    assert "exist" in event.message
