"""The columns and first rows of a cache on real nodes: with and without a SQL table, and with differing rows."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest

from ignite_tf_magic.dataset.options import ReadOptions
from ignite_tf_magic.dataset.source import open_source
from ignite_tf_magic.errors import CacheNotFound
from ignite_tf_magic.protocol import key_value, messages
from ignite_tf_magic.protocol.affinity import partitions_of_hashes
from ignite_tf_magic.protocol.buffer import Writer
from ignite_tf_magic.protocol.messages import CacheConfig, QueryEntity, QueryField
from ignite_tf_magic.protocol.objects import BinaryObject, java_hash
from ignite_tf_magic.protocol.ops import TypeCode
from ignite_tf_magic.protocol.write_values import write_value
from ignite_tf_magic.session import open_session
from ignite_tf_magic.ui.cache_views import (
    columns_as_json,
    columns_view,
    sample_as_json,
    sample_view,
    short_text,
)
from ignite_tf_magic.ui.render import size_text


@pytest.fixture(scope="module")
def session(ignite):
    with open_session(ignite.connect_options, report=print) as opened:
        yield opened


@pytest.fixture
def new_cache(session):
    """Return a function that makes caches, which are removed after the test."""
    made = []

    def make(name, rows=None, **config):
        cache = session.client.create_cache(CacheConfig(name, **config))
        made.append(name)
        for key, value in (rows or {}).items():
            cache.put(key, value)
        return cache

    yield make
    for name in made:
        session.client.destroy_cache(name)


@pytest.fixture
def loaded(session):
    """Load a frame into a cache, and return the frame."""
    number = np.arange(3000)
    frame = pd.DataFrame(
        {
            "label": number.astype(np.int32) % 10,
            "weight": np.where(number % 7 == 0, np.nan, number / 3),
            "text": [f"text {i}" for i in number],
            "moment": np.datetime64("2024-01-02T03:04:05.123456789") + number,
            "big": 2**60 + number,
        }
    )
    session.load("LOOKED_AT", frame, replace=True)
    yield frame
    session.client.destroy_cache("LOOKED_AT")


def by_name(found):
    return {column.name: column for column in found.columns}


def test_columns_of_a_loaded_frame(session, ignite, loaded):
    found = session.columns("LOOKED_AT")
    assert (found.rows, found.num_looked_at, found.table) == (3000, 256, "PUBLIC.LOOKED_AT")
    assert [column.name for column in found.columns] == ["key", *loaded.columns]
    assert [column.type for column in found.columns] == [
        "long",
        "int",
        "double",
        "string",
        "timestamp",
        "long",
    ]
    assert [c.sql_column for c in found.columns] == ["ID", "LABEL", "WEIGHT", "TEXT", "MOMENT", "BIG"]
    assert [column.is_key for column in found.columns] == [True, *[False] * 5]
    assert found.notes == ()
    layout = open_source(ReadOptions("LOOKED_AT", connect=ignite.connect_options)).layout
    expected = {leaf.path[-1]: ("string" if leaf.is_text else str(leaf.dtype)) for leaf in layout.leaves()}
    assert {column.name: column.dtype for column in found.columns} == expected


def test_columns_without_a_table(session, new_cache):
    rows = {
        i: BinaryObject(
            "Animal",
            {
                "name": f"n{i}",
                "picture": np.zeros(12, np.uint8),
                "path": np.zeros(i % 3, np.float32),
                "owner": BinaryObject("Owner", {"age": np.int16(i), "nick": None if i < 3 else "x"}),
            },
        )
        for i in range(9)
    }
    new_cache("ANIMALS", rows)
    found = session.columns("ANIMALS")
    columns = by_name(found)
    assert found.table is None
    assert list(columns) == ["key", "name", "picture", "path", "owner.age", "owner.nick"]
    assert (columns["picture"].type, columns["picture"].dtype, columns["picture"].shape) == (
        "byte array",
        "uint8",
        (12,),
    )
    assert (columns["path"].dtype, columns["path"].shape) == ("float32", (None,))
    assert columns["owner.age"].dtype == "int16"
    assert found.row_bytes == session.profile("ANIMALS").row_bytes, "all nine were looked at"
    assert f"; about {size_text(round(9 * found.row_bytes))}" in columns_view(found).text
    assert (columns["owner.nick"].num_nulls, columns["owner.nick"].num_rows) == (3, 9)
    assert "float32[?]" in columns_view(found).text
    assert json.loads(json.dumps(columns_as_json(found)))["columns"][3]["shape"] == [None]


def test_an_object_that_is_null_in_some_rows_is_its_fields(session, new_cache):
    inner = BinaryObject("Inner", {"x": 5})
    new_cache("HALVES", {i: BinaryObject("Half", {"inner": inner if i % 2 else None}) for i in range(6)})
    column = by_name(session.columns("HALVES"))["inner.x"]
    assert (column.type, column.num_nulls, column.num_rows) == ("long", 3, 6)
    assert {row[1] for row in session.sample("HALVES", 6).rows} == {5, None}


@pytest.mark.parametrize(
    ("value", "stored", "dtype"),
    [
        (np.int32(4), "int", "int32"),
        (2.5, "double", "float64"),
        ("text", "string", "string"),
        (True, "boolean", "bool"),
        (uuid.UUID(int=5), "uuid", "string"),
        (np.arange(3, dtype=np.int64), "long array", "int64"),
    ],
)
def test_columns_of_plain_values(session, new_cache, value, stored, dtype):
    new_cache("PLAIN", {"a": value, "b": value})
    found = session.columns("PLAIN")
    assert [(each.name, each.type, each.dtype) for each in found.columns] == [
        ("key", "string", "string"),
        ("val", stored, dtype),
    ]


def test_rows_of_several_types_are_counted_each(session, new_cache):
    rows = {i: BinaryObject("Cat", {"lives": 9}) for i in range(6)}
    rows |= {i: BinaryObject("Dog", {"tricks": 2, "lives": "one"}) for i in range(6, 8)} | {8: "a fish"}
    new_cache("ZOO", rows)
    found = session.columns("ZOO")
    assert [(kind.value_type, kind.num_rows) for kind in found.kinds] == [
        ("Cat", 6),
        ("Dog", 2),
        ("string", 1),
    ]
    columns = by_name(found)
    assert (columns["lives"].num_rows, columns["lives"].num_nulls) == (8, 0)
    assert sorted(columns["lives"].type.split(" or ")) == ["long", "string"]
    assert (columns["tricks"].num_rows, columns["val"].num_rows) == (2, 1)
    assert "binary object and string were found" in found.notes[0]
    assert "2 of 9" in columns_view(found).text
    assert len(session.sample("ZOO", 20).rows) == 9


def test_an_empty_cache_tells_what_its_table_declares(session, new_cache):
    fields = (QueryField("ID", "java.lang.Long", is_key=True), QueryField("LABEL", "java.lang.Integer"))
    entity = QueryEntity("HOLLOW", "java.lang.Long", "Hollow", fields, "ID")
    new_cache("HOLLOW", sql_schema="PUBLIC", query_entities=(entity,))
    found = session.columns("HOLLOW")
    assert [(each.name, each.type, each.dtype) for each in found.columns] == [
        ("key", "long", "int64"),
        ("LABEL", "int", "int32"),
    ]
    assert "has no rows" in found.notes[0]
    new_cache("VOID")
    assert session.columns("VOID").columns == ()
    assert "its columns are unknown" in columns_view(session.columns("VOID")).text
    assert session.sample("VOID").rows == ()


def java_serialised(class_name):
    """Return the stand-in bytes of a value serialized by Java: the hash of its class name, then its data."""
    return b"f" + java_hash(class_name).to_bytes(4, "little", signed=True) + bytes(20)


def put_java_serialised(session, cache, names):
    """Write objects with a field serialized by Java. A node does not inspect it."""
    rows = Writer()
    for number, name in enumerate(names):
        value, body = Writer(), java_serialised(name)
        held = BinaryObject("Holder", {"held": body})
        session.client.types.announce(held)
        write_value(value, held)
        as_bytes = bytes([TypeCode.BYTE_ARRAY]) + len(body).to_bytes(4, "little")
        as_java = bytes([TypeCode.OPTIMIZED]) + len(body).to_bytes(4, "little")
        write_value(rows, number)
        rows.raw(bytes(value.data).replace(as_bytes, as_java))
    request = key_value.put_encoded(cache.cache_id, len(names), rows.data)
    session.client.router.call(request, messages.parse_nothing)


def test_what_java_has_serialised_is_named(session, new_cache):
    cache = new_cache("SERIALISED")
    put_java_serialised(session, cache, ["java.util.Locale", "java.util.Locale", "com.example.Nobody"])
    types = set(by_name(session.columns("SERIALISED"))["held"].type.split(" or "))
    nobody = f"class {java_hash('com.example.Nobody') & 0xFFFFFFFF:#010x}"
    assert types == {"java.util.Locale, serialised by Java", f"{nobody}, serialised by Java"}
    assert len(session.sample("SERIALISED").rows) == 3
    profile = session.profile("SERIALISED")
    assert [(column.kind, column.num_nulls) for column in profile.columns] == [("integer", 0), ("java", 0)]
    assert "column held holds" in profile.notes[0]
    assert "java.util.Locale, serialised by Java" in profile.notes[0]


def test_a_cache_that_is_not_there(session, loaded):
    for ask in (session.columns, session.sample):
        with pytest.raises(CacheNotFound, match="LOOKED_AT"):
            ask("LOOKED_TA")


def test_a_sample_has_exact_rows_of_many_partitions(session, loaded):
    sample = session.sample("LOOKED_AT", 10)
    assert (len(sample.rows), sample.total_rows) == (10, 3000)
    keys = [row[0] for row in sample.rows]
    assert len(set(partitions_of_hashes(np.array(keys), 1024).tolist())) == 10
    expected = loaded.iloc[keys]
    frame = sample.to_pandas()
    assert frame["key"].tolist() == keys
    for name in loaded.columns:
        got, wanted = frame[name].reset_index(drop=True), expected[name].reset_index(drop=True)
        assert got.isna().tolist() == wanted.isna().tolist(), name
        assert got.dropna().tolist() == wanted.dropna().tolist(), name
    assert str(frame["moment"].dtype) == "datetime64[ns]"


@pytest.mark.parametrize("num_rows", [1, 7, 100, 2999, 5000])
def test_a_sample_has_as_many_rows_as_wanted_each_once(session, loaded, num_rows):
    rows = session.sample("LOOKED_AT", num_rows).rows
    assert len({row[0] for row in rows}) == len(rows) == min(num_rows, 3000)


def test_a_sample_of_large_caches_goes_round_few_full_partitions(session, new_cache):
    cache = new_cache("LOPSIDED")
    cache.put_all({number * 1024: number for number in range(6000)})  # keys of few partitions
    rows = session.sample("LOPSIDED", 300).rows
    assert len({key for key, _ in rows}) == len(rows) == 300
    assert {key // 1024 for key, _ in rows} == {value for _, value in rows}


def test_values_keep_all_their_digits(session):
    session.query(
        "CREATE TABLE DIGITS_OF(ID INT PRIMARY KEY, D DECIMAL(40, 2), TS TIMESTAMP, DA DATE, TI TIME)"
    )
    try:
        row = [Decimal("12345678901234567890123456789.01"), np.datetime64("2024-01-02T03:04:05.123456789")]
        row += [dt.date(1931, 5, 6), dt.time(3, 4, 5)]
        session.query("INSERT INTO DIGITS_OF VALUES(1, ?, ?, ?, '03:04:05')", row[:3])
        session.query("INSERT INTO DIGITS_OF(ID) VALUES(2)")
        rows = {key: rest for key, *rest in session.sample("SQL_PUBLIC_DIGITS_OF").rows}
        assert rows == {1: row, 2: [None] * 4}
        columns = by_name(session.columns("SQL_PUBLIC_DIGITS_OF"))
        assert {name: column.num_nulls for name, column in columns.items()} == {
            "key": 0,
            **dict.fromkeys(["D", "TS", "DA", "TI"], 1),
        }
    finally:
        session.query("DROP TABLE DIGITS_OF")


def test_rows_are_shown_short_and_told_whole(session, new_cache):
    new_cache("PICTURES_LOOKED_AT", {0: BinaryObject("Picture", {"pixels": np.arange(784, dtype=np.uint8)})})
    sample = session.sample("PICTURES_LOOKED_AT")
    assert re_lines(sample_view(sample)) == ["key  pixels", "0    uint8[784] 0 1 2 3 4 5 6 7 8 ..."]
    assert sample_as_json(sample)[0]["pixels"] == (np.arange(784) % 256).tolist()
    assert sample.to_pandas()["pixels"][0].tolist() == (np.arange(784) % 256).tolist()
    assert sample.to_pandas(short_text)["pixels"][0].startswith("uint8[784] 0 1")


def re_lines(view):
    return [line.rstrip() for line in view.text.splitlines()]
