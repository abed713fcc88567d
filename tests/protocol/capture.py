"""Captures golden.json: requests and answers of a real node, byte for byte.

    make golden

Rerun it only when the protocol changes; the file contains the node's version.
"""

from __future__ import annotations

import datetime as dt
import json
import tempfile
import uuid
from pathlib import Path

import numpy as np

from ignite_tf_magic.client.client import connect
from ignite_tf_magic.client.transport import open_transport
from ignite_tf_magic.embedded import EmbeddedOptions, Lifetime, down, ensure_up
from ignite_tf_magic.protocol import key_value, messages
from ignite_tf_magic.protocol.connection import Connection
from ignite_tf_magic.protocol.messages import CacheConfig, Request
from ignite_tf_magic.protocol.objects import BinaryObject, name_id
from ignite_tf_magic.settings.options import Endpoint

GOLDEN = Path(__file__).with_name("golden.json")
CACHE = messages.cache_id("GOLDEN")
VALUES = {
    "null": None,
    "byte": np.int8(-5),
    "short": np.int16(-300),
    "int": np.int32(7),
    "long": -(1 << 40),
    "float": np.float32(0.5),
    "double": -2.25,
    "char": np.uint16(ord("Z")),
    "bool": True,
    "text": "grüße, 世界",
    "uuid": uuid.UUID("01234567-89ab-cdef-0123-456789abcdef"),
    "timestamp": dt.datetime(2024, 2, 29, 12, 30, 15, 123456),
    "bytes": b"\x00\x7f\x80\xff",
    "shorts": np.array([1, -1], np.int16),
    "ints": np.array([1, -1, 2], np.int32),
    "longs": np.array([1 << 40], np.int64),
    "floats": np.array([0.5, -0.5], np.float32),
    "doubles": np.array([], np.float64),
    "bools": np.array([True, False]),
    "object": BinaryObject("Cat", {"name": "Tom", "age": np.int32(3)}),
    "nested": BinaryObject(
        "Owner", {"cat": BinaryObject("Cat", {"name": "Kit", "age": np.int32(1)}), "id": 9}
    ),
}


class Recorder:
    """A connection whose traffic is recorded."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.transport = open_transport(endpoint, None, 10.0)
        self.connection = Connection()
        self.exchanges: list[dict[str, str]] = []
        self._exchange("handshake", self.connection.hello())

    def ask(self, name: str, request: Request) -> bytes:
        _, data = self.connection.send(request)
        return self._exchange(name, data)

    def _exchange(self, name: str, sent: bytes) -> bytes:
        self.transport.send(sent)
        raw = b""
        while (event := self.connection.next_event()) is None:
            space = self.connection.get_buffer()
            size = self.transport.receive_into(space)
            raw += bytes(space[:size])
            self.connection.received(size)
        self.exchanges.append({"name": name, "sent": sent.hex(), "received": raw.hex()})
        return bytes(getattr(event, "payload", b""))


def main() -> None:
    home = Path(tempfile.mkdtemp())
    cluster = ensure_up(EmbeddedOptions(num_nodes=1, heap="256m"), Lifetime.UNTIL_DOWN, home=home).cluster
    try:
        GOLDEN.write_text(json.dumps(capture(cluster.connect_options), indent=1) + "\n")
    finally:
        down(home)


def capture(options: object) -> dict[str, object]:
    with connect(options) as client:  # type: ignore[arg-type]
        cache = client.create_cache(CacheConfig("GOLDEN"))
        for name, value in VALUES.items():
            if value is not None:
                cache.put(name, value)
        recorder = Recorder(options.endpoints[0])  # type: ignore[attr-defined]
        recorder.ask("endpoints", messages.node_endpoints())
        recorder.ask("heartbeat", messages.heartbeat())
        recorder.ask("names", messages.cache_names())
        recorder.ask("partitions", messages.partitions(CACHE))
        recorder.ask("configuration", messages.cache_configuration(CACHE))
        recorder.ask("size", messages.size(CACHE))
        recorder.ask("type", messages.get_binary_type(name_id("Cat")))
        recorder.ask("type of owner", messages.get_binary_type(name_id("Owner")))
        recorder.ask("unknown type", messages.get_binary_type(12345))
        for name in VALUES:
            recorder.ask(f"get {name}", key_value.get(CACHE, name))
        recorder.ask("no such cache", key_value.get(messages.cache_id("NOPE"), "x"))
        page = messages.parse_first_page(memoryview(recorder.ask("first page", messages.scan(CACHE, -1, 12))))
        assert page.cursor is not None and page.has_more
        recorder.ask("next page", messages.next_page(page.cursor))
        recorder.ask("gone cursor", messages.next_page(page.cursor))
    return {"ignite": EmbeddedOptions().resolved_version(), "exchanges": recorder.exchanges}


if __name__ == "__main__":
    main()
