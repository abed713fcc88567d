"""Partitions of keys equal those that the servers compute."""

from __future__ import annotations

import uuid

import numpy as np
import pytest

from ignite_tf_magic.client.page_sizes import PageSizes
from ignite_tf_magic.errors import LocalProtocolError
from ignite_tf_magic.protocol.affinity import (
    hashes_of_integers,
    key_hash,
    partition_of_key,
    partitions_of_hashes,
)
from ignite_tf_magic.protocol.buffer import Reader
from ignite_tf_magic.protocol.messages import CacheConfig
from ignite_tf_magic.protocol.read_values import read_value

KEYS = [
    *(np.int32(n) for n in (0, 1, -1, 70_000, -(1 << 31))),
    *(1 << 40, -(1 << 62), 12345678901),
    *("", "key", "grüße", "x" * 100),
    *(uuid.UUID(int=n) for n in (1, 1 << 100, (1 << 128) - 1)),
    True,
    False,
    np.int16(-300),
    np.int8(-5),
    b"bytes",
]


def test_the_servers_put_every_key_where_we_say(client):
    cache = client.create_cache(CacheConfig("AFFINITY"))
    for key in KEYS:
        cache.put(key, 1)
    baseline = cache.baseline()
    for key in KEYS:
        partition = partition_of_key(key, 1024)
        found = []
        for page in cache.scan([partition], PageSizes(), baseline).pages():
            found += [read_value(Reader(page.page.rows, start)) for start in page.row_starts()[:-1].tolist()]
        plain = key.item() if isinstance(key, np.generic) else key
        assert plain in found, f"{key!r} is not in partition {partition}"
    client.destroy_cache("AFFINITY")


def test_vectorised_equals_one_by_one():
    keys = np.random.default_rng(1).integers(-(1 << 63), 1 << 63, 1000)
    hashes = hashes_of_integers(keys)
    assert hashes.tolist() == [key_hash(int(key)) for key in keys]
    for partitions in (1024, 1000, 7):
        vector = partitions_of_hashes(hashes, partitions)
        assert vector.tolist() == [partition_of_key(int(key), partitions) for key in keys]
        assert vector.min() >= 0
        assert vector.max() < partitions


def test_keys_of_unknown_affinity():
    with pytest.raises(LocalProtocolError, match="affinity of a key of type list"):
        key_hash([])
