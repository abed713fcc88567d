"""Columns read as text keep what a number would lose, wherever the rows are read."""

from __future__ import annotations

import datetime as dt
import decimal

import numpy as np
import pytest
import tensorflow as tf

import ignite_tf_magic
from ignite_tf_magic import IgniteDataset
from ignite_tf_magic.client.sql import SqlClient
from ignite_tf_magic.dataset.array_batches import batches
from ignite_tf_magic.errors import ConfigError, SchemaError
from ignite_tf_magic.protocol.messages import CacheConfig, QueryEntity, QueryField
from ignite_tf_magic.protocol.objects import BinaryObject, BinaryType, name_id
from ignite_tf_magic.protocol.typed_values import EnumValue, Timestamp
from ignite_tf_magic.session import open_session

ENUM = "TextState"
AS_TEXT = ["price", "state", "seen"]


def put_type(client, names):
    client.types.put(BinaryType(name_id(ENUM), ENUM, {}, {}, enum_names=dict(enumerate(names))))


@pytest.fixture
def cache(ignite, client):
    """Prices with trailing zeros, alternating states, and times in the year 1."""
    put_type(client, ["NEW", "SENT"])
    made = client.create_cache(CacheConfig("TEXTS_READ"))
    made.put_all(
        {
            number: BinaryObject(
                "TextRow",
                {
                    "price": decimal.Decimal(f"{10**20 + number}.50"),
                    "state": EnumValue.of(number % 2, name_id(ENUM)),
                    "seen": Timestamp.of(-62_135_596_800_000 + number, 1),
                    "n": number,
                },
            )
            for number in range(100)
        }
    )
    yield made
    client.destroy_cache("TEXTS_READ")


def expected(number):
    return {
        "price": f"{10**20 + number}.50".encode(),
        "state": (b"NEW", b"SENT")[number % 2],
        "seen": f"0001-01-01T00:00:00.{number:03d}000001".encode(),
        "n": number,
    }


@pytest.mark.parametrize("read_by", ["caller", "worker"])
def test_texts_are_read_in_both_ways(ignite, cache, read_by):
    ignite_tf_magic.register()
    port = ignite.nodes[0].port
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"a time in val.seen.*as_text=\['seen'\]"):
        IgniteDataset("TEXTS_READ", port=port).arrays()
    rows = IgniteDataset("TEXTS_READ", port=port, as_text=AS_TEXT, read_by=read_by)
    assert rows.element_spec["val"]["state"] == tf.TensorSpec([], tf.string)
    found = {int(row["key"]): row["val"] for row in rows.as_numpy_iterator()}
    assert found == {number: expected(number) for number in range(100)}


def test_batches_have_them_too(ignite, cache):
    found = {}
    for batch in batches("TEXTS_READ", 30, port=ignite.nodes[0].port, as_text=AS_TEXT):
        for at, key in enumerate(batch["key"].tolist()):
            found[key] = {name: column[at] for name, column in batch["val"].items()}
    assert found == {number: expected(number) for number in range(100)}


def test_a_name_that_came_later_is_learnt(ignite, cache, client):
    rows = IgniteDataset("TEXTS_READ", port=ignite.nodes[0].port, fields=["state"], as_text=["state"])
    cache.put(100, BinaryObject("TextRow", {"state": EnumValue.of(2, name_id(ENUM))}))
    with pytest.raises(
        Exception, match=r"field val\.state: the cluster has no name for the value 2 of the enum TextState"
    ):
        rows.arrays()
    put_type(client, ["NEW", "SENT", "LOST"])
    assert sorted(set(rows.arrays()["val"]["state"].tolist())) == [b"LOST", b"NEW", b"SENT"]


def test_of_a_table_with_a_condition_and_without_rows(ignite):
    statements, port = SqlClient(ignite.connect_options), ignite.nodes[0].port
    statements.query(
        "CREATE TABLE TEXT_TABLE (id BIGINT PRIMARY KEY, price DECIMAL(30, 3), day DATE, at TIMESTAMP) "
        'WITH "CACHE_NAME=TEXT_TABLE"'
    )
    try:
        empty = IgniteDataset("TEXT_TABLE", port=port, as_text=["PRICE", "DAY", "AT"])
        rows = {1: "1.250", 2: "123456789012345678901234567.125"}
        for number, price in rows.items():
            at = dt.datetime(number, 1, 1, 1, 2, 3)
            values = (number, decimal.Decimal(price), dt.date(2000 + number, 1, 31), at)
            statements.query("INSERT INTO TEXT_TABLE VALUES (?, ?, ?, ?)", values)
        for dataset in (
            empty,
            IgniteDataset(
                "TEXT_TABLE", port=port, as_text=["PRICE", "DAY", "AT"], where="id > ?", where_args=[0]
            ),
        ):
            found = {int(row["key"]): row["val"] for row in dataset.as_numpy_iterator()}
            assert {number: row["PRICE"] for number, row in found.items()} == {
                number: price.encode() for number, price in rows.items()
            }
            assert [found[number]["DAY"] for number in (1, 2)] == [b"2001-01-31", b"2002-01-31"]
            assert found[2]["AT"] == b"0002-01-01T01:02:03.000000000"
        assert empty.element_spec == dataset.element_spec
    finally:
        statements.query("DROP TABLE TEXT_TABLE")


def test_an_enum_of_which_no_value_was_seen_has_its_names(ignite, client):
    put_type(client, ["NEW", "SENT"])
    entity = QueryEntity("TEXT_EMPTY", "java.lang.Long", "TextEmpty", (QueryField("n", "java.lang.Long"),))
    made = client.create_cache(CacheConfig("TEXT_EMPTY", query_entities=(entity,)))
    try:
        row = BinaryObject("TextEmpty", {"n": 5, "state": EnumValue.of(1, name_id(ENUM))})
        made.put(1, row)
        made.remove(1)
        rows = IgniteDataset("TEXT_EMPTY", port=ignite.nodes[0].port, fields=["state"], as_text=["state"])
        with pytest.raises(SchemaError, match="as_text names the field 'stat', and there is none"):
            IgniteDataset("TEXT_EMPTY", port=ignite.nodes[0].port, as_text=["stat"])
        made.put(1, row)
        assert list(rows.as_numpy_iterator()) == [{"key": 1, "val": {"state": b"SENT"}}]
    finally:
        client.destroy_cache("TEXT_EMPTY")


def test_packed_rows_have_what_they_were_packed_with(ignite):
    with open_session(ignite.connect_options, report=print) as session:
        session.load("TEXT_PACKED", {"x": np.arange(5)}, packed=True)
        try:
            with pytest.raises(ConfigError, match="as_text="):
                IgniteDataset("TEXT_PACKED", port=ignite.nodes[0].port, as_text=["x"])
        finally:
            session.client.destroy_cache("TEXT_PACKED")


def test_names_are_a_list(ignite):
    with pytest.raises(ConfigError, match="as_text='price': write a list"):
        IgniteDataset("TEXTS_READ", port=ignite.nodes[0].port, as_text="price")
