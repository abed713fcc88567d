"""Bytes captured from a real node are decoded whole and byte by byte."""

from __future__ import annotations

import numpy as np
import pytest

from ignite_tf_magic.protocol import key_value, messages
from ignite_tf_magic.protocol.connection import Fault, Handshaken, Response
from ignite_tf_magic.protocol.objects import BinaryType, name_id
from ignite_tf_magic.protocol.ops import Status
from tests.protocol.capture import CACHE, VALUES
from tests.protocol.golden import decode, exchanges, greeted

BOTH_WAYS = pytest.mark.parametrize("slice_bytes", [1 << 20, 1], ids=["whole", "bytewise"])


def payload(name: str, slice_bytes: int = 1 << 20) -> memoryview:
    event = decode(name, slice_bytes)
    assert isinstance(event, Response)
    return event.payload


def known_types() -> dict[int, BinaryType]:
    found = [messages.parse_binary_type(payload(name)) for name in ("type", "type of owner")]
    return {t.type_id: t for t in found if t is not None}


@BOTH_WAYS
def test_handshake(slice_bytes):
    event = decode("handshake", slice_bytes)
    assert isinstance(event, Handshaken)
    assert 11 in event.features  # heartbeat
    assert event.node_id.version == 4


@BOTH_WAYS
@pytest.mark.parametrize("name", VALUES)
def test_every_type_of_value(name, slice_bytes):
    value = key_value.parse_value(payload(f"get {name}", slice_bytes), known_types().get)
    expected = VALUES[name]
    if isinstance(expected, np.ndarray):
        np.testing.assert_array_equal(value, expected)
        assert value.dtype == expected.dtype
    else:
        assert value == expected


@BOTH_WAYS
def test_topology_and_partitions(slice_bytes):
    topology = messages.parse_topology(payload("endpoints", slice_bytes))
    (node,) = topology.nodes
    assert "127.0.0.1" in node.addresses
    partition_map = messages.parse_partitions(payload("partitions", slice_bytes), CACHE)
    assert partition_map is not None
    assert partition_map.owners == {node.node_id: tuple(range(1024))}
    assert messages.parse_partitions(payload("partitions"), CACHE + 1) is None


@BOTH_WAYS
def test_cache_answers(slice_bytes):
    assert messages.parse_names(payload("names", slice_bytes)) == ["GOLDEN"]
    assert messages.parse_int64(payload("size", slice_bytes)) == len(VALUES) - 1
    config = messages.parse_configuration(payload("configuration", slice_bytes))
    assert (config.name, config.backups) == ("GOLDEN", 0)
    assert config.write_mode.name == "FULL_SYNC"


@BOTH_WAYS
def test_binary_type(slice_bytes):
    cat = messages.parse_binary_type(payload("type", slice_bytes))
    assert cat is not None
    assert cat.name == "Cat"
    assert list(cat.fields) == ["name", "age"]
    assert list(cat.schemas.values()) == [(name_id("name"), name_id("age"))]
    assert messages.parse_binary_type(payload("unknown type", slice_bytes)) is None


@BOTH_WAYS
def test_faults(slice_bytes):
    missing = decode("no such cache", slice_bytes)
    assert isinstance(missing, Fault)
    assert missing.status == Status.CACHE_DOES_NOT_EXIST
    gone = decode("gone cursor", slice_bytes)
    assert isinstance(gone, Fault)
    assert gone.status == Status.RESOURCE_DOES_NOT_EXIST


@BOTH_WAYS
def test_pages(slice_bytes):
    first = messages.parse_first_page(payload("first page", slice_bytes))
    rest = messages.parse_next_page(payload("next page", slice_bytes))
    assert (first.num_rows, first.has_more) == (12, True)
    assert (rest.num_rows, rest.has_more) == (len(VALUES) - 1 - 12, False)


def test_requests_are_the_captured_bytes():
    connection = greeted()
    _, sent = connection.send(messages.node_endpoints())
    assert sent == exchanges()["endpoints"].sent
