"""The captured exchanges of golden.json, and connections that have replayed them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ignite_tf_magic.protocol.connection import Connection, Event


@dataclass(frozen=True)
class Exchange:
    name: str
    sent: bytes
    received: bytes


@cache
def exchanges() -> dict[str, Exchange]:
    record = json.loads(Path(__file__).with_name("golden.json").read_text())
    found = [
        Exchange(e["name"], bytes.fromhex(e["sent"]), bytes.fromhex(e["received"]))
        for e in record["exchanges"]
    ]
    return {exchange.name: exchange for exchange in found}


def greeted() -> Connection:
    connection = Connection()
    connection.hello()
    connection.receive(exchanges()["handshake"].received)
    assert connection.next_event() is not None
    return connection


def decode(name: str, slice_bytes: int = 1 << 20) -> Event:
    """Feed a captured answer in slices. No event may come before the last slice."""
    connection = greeted() if name != "handshake" else Connection()
    if name == "handshake":
        connection.hello()
    data = exchanges()[name].received
    for start in range(0, len(data), slice_bytes):
        assert connection.next_event() is None
        connection.receive(data[start : start + slice_bytes])
    event = connection.next_event()
    assert event is not None
    assert connection.next_event() is None
    return event
