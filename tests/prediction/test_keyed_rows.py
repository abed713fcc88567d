"""Rows under another cache's keys: key bytes stay identical for any type, and values are those of the columns."""

from __future__ import annotations

import datetime as dt
import decimal
import uuid

import numpy as np
import pytest

from ignite_tf_magic.client.cache_scan import Baseline
from ignite_tf_magic.client.load import put_rows
from ignite_tf_magic.client.page_sizes import PageSizes
from ignite_tf_magic.prediction.keyed_rows import KeyedRows, keys_of
from ignite_tf_magic.protocol.affinity import encoded, partition_of_key, partitions_of_hashes
from ignite_tf_magic.protocol.encode import RowEncoder
from ignite_tf_magic.protocol.messages import CacheConfig
from ignite_tf_magic.protocol.objects import BinaryObject

KEYS = [
    *(7, -(2**62), "a key", "", True, 1.5, uuid.UUID(int=5), decimal.Decimal("-12.340"), b"bytes"),
    *(np.int32(7), np.int8(-7), dt.time(1, 2, 3), dt.datetime(2024, 2, 29, 1, 2, 3, 456789)),
    *(dt.date(2024, 2, 29), BinaryObject("KeyedKey", {"shop": "x", "day": 3})),
]


@pytest.mark.parametrize("column", [np.array([5, 6]), np.array(["é", "longer"], object)])
def test_the_values_are_those_of_the_simple_encoder(column):
    """Once with a fixed row length, once with a varying one."""
    columns = {"number": np.array([1.5, np.nan], np.float32), "other": column}
    keys = np.array([10, 300])
    found = KeyedRows("KeyedValue", columns, [encoded(int(key)) for key in keys], np.zeros(2, np.int32))
    plain = RowEncoder("KeyedValue", columns, keys)
    for index in ([0, 1], [1], [1, 0]):
        assert found.encode(np.array(index, np.intp)) == bytes(plain.encode(np.array(index, np.intp)))
    assert found.binary_type == plain.binary_type


def test_partitions_lead_to_themselves():
    for num_partitions in (1024, 1000, 7, 65_000):
        partitions = np.arange(min(num_partitions, 1 << 16), dtype=np.int32)
        rows = KeyedRows("KeyedValue", {"x": partitions}, [b"\x01\x00"] * len(partitions), partitions)
        assert np.array_equal(partitions_of_hashes(rows.key_hashes(), num_partitions), partitions)


def test_keys_of_all_types_are_those_of_the_other_cache(client):
    source = client.get_or_create_cache(CacheConfig("KEYED_SOURCE", backups=1))
    target = client.get_or_create_cache(CacheConfig("KEYED_TARGET", backups=1))
    try:
        for number, key in enumerate(KEYS):
            source.put(key, number)
        baseline: Baseline = source.baseline()
        scan = source.scan(sorted(baseline.owners), PageSizes(), baseline)
        for scanned in scan.pages():
            keys = keys_of(scanned.page, scanned.row_starts())
            partitions = np.full(len(keys), scanned.partition, np.int32)
            columns = {"place": np.arange(len(keys)), "part": partitions}
            assert put_rows(target, KeyedRows("KeyedPlace", columns, keys, partitions)) == len(keys)
        assert target.size() == source.size() == len(KEYS)
        for key in KEYS:
            found = target.get(key)
            assert found is not None, key
            if type(key) not in (dt.date, float):  # their hashes are not computed here
                assert found.fields["part"] == partition_of_key(key, 1024)
        stats = target.partition_stats()
        assert {p: s.rows for p, s in source.partition_stats().items()} == {
            p: s.rows for p, s in stats.items()
        }
    finally:
        client.destroy_cache("KEYED_SOURCE")
        client.destroy_cache("KEYED_TARGET")
