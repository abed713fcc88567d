"""Rows of other clients: pyignite's dates, lists with nulls, unregistered types, and columns never set."""

from __future__ import annotations

import datetime as dt
from collections import OrderedDict

import numpy as np
import pytest
from pyignite import GenericObjectMeta
from pyignite.datatypes import IntObject, ObjectArrayObject, String

from ignite_tf_magic import IgniteDataset, batches
from ignite_tf_magic.errors import SchemaError

MOMENT = dt.datetime(2020, 1, 1, 0, 0, 1)
NANOS, MILLIS_OF_DAY = 1_577_836_801_000_000_000, 1_577_836_800_000


def read(node, name, **options):
    (batch,) = batches(name, 1000, **options, **node)
    return batch


@pytest.mark.parametrize("writers", ["ppp", "sss", "lll", "pslpsl", "s" * 400 + "p"])
def test_one_instant_is_one_number_whoever_wrote_it_and_however_it_is_read(clients, writers):
    """pyignite writes a java.util.Date; SQL arguments and literals are written as a Timestamp."""
    session, pyignite, node = clients
    list(pyignite.sql("DROP TABLE IF EXISTS MOMENTS"))
    list(pyignite.sql("CREATE TABLE MOMENTS (ID INT PRIMARY KEY, T TIMESTAMP, D DATE)"))
    for key, writer in enumerate(writers):
        if writer == "p":
            row = [key, MOMENT, dt.datetime(2020, 1, 1)]
            list(pyignite.sql("INSERT INTO MOMENTS VALUES (?, ?, ?)", query_args=row))
        elif writer == "s":
            session.query("INSERT INTO MOMENTS VALUES (?, ?, ?)", [key, MOMENT, MOMENT.date()])
        else:
            session.query(f"INSERT INTO MOMENTS VALUES ({key}, '2020-01-01 00:00:01', '2020-01-01')")
    for options in ({}, {"fields": ["T", "D"]}, {"where": "ID >= 0"}):
        values = read(node, "MOMENTS", **options)["val"]
        assert set(values["T"].tolist()) == {NANOS}
        assert set(values["D"].tolist()) == {MILLIS_OF_DAY}
    selected = IgniteDataset.from_sql("SELECT T, D FROM MOMENTS", **node)
    assert {(int(row["T"]), int(row["D"])) for row in selected} == {(NANOS, MILLIS_OF_DAY)}
    session.pack("MOMENTS", "MOMENTS_PACKED", replace=True)
    assert set(read(node, "MOMENTS_PACKED")["val"]["T"].tolist()) == {NANOS}


def test_columns_that_no_row_has_set_are_there_and_null(clients):
    session, _, node = clients
    session.query("DROP TABLE IF EXISTS UNSET")
    session.query("CREATE TABLE UNSET (ID BIGINT PRIMARY KEY, A INT, B DOUBLE, C VARCHAR)")
    session.query("INSERT INTO UNSET (ID, C) VALUES (1, 'x')")
    values = read(node, "UNSET")["val"]
    assert {name: column.tolist() for name, column in values.items() if name != "B"} == {
        "A": [0],
        "A_is_null": [True],
        "C": [b"x"],
    }
    assert np.isnan(values["B"]).all()
    assert read(node, "UNSET", fields=["A"], fill={"A": -1})["val"]["A"].tolist() == [-1]
    names = {"key", "A", "B", "C"}
    assert {column.name for column in session.columns("UNSET").columns} == names
    assert {column.name for column in session.profile("UNSET").columns} == names
    assert set(session.sample("UNSET", 1).columns) == names


def test_columns_that_were_added_and_dropped(clients):
    """ALTER TABLE does not change the configuration of a cache."""
    session, _, node = clients
    session.query("DROP TABLE IF EXISTS ALTERED")
    session.query("CREATE TABLE ALTERED (ID INT PRIMARY KEY, A INT, GONE INT)")
    session.query("ALTER TABLE ALTERED ADD COLUMN (B DOUBLE, C INT)")
    session.query("ALTER TABLE ALTERED DROP COLUMN GONE")
    names = {"key", "A", "B", "C"}
    assert {column.name for column in session.columns("ALTERED").columns} == names
    session.query("INSERT INTO ALTERED (ID, A, B) VALUES (1, 2, 3.5)")
    assert set(session.sample("ALTERED", 1).columns) == names
    assert {column.name for column in session.profile("ALTERED").columns} == names
    assert {name: column.tolist() for name, column in read(node, "ALTERED")["val"].items()} == {
        "A": [2],
        "B": [3.5],
        "C": [0],
        "C_is_null": [True],
    }
    columns = {column.name: column.sql_column for column in session.columns("ALTERED").columns}
    assert columns == {"key": "ID", "A": "A", "B": "B", "C": "C"}
    assert read(node, "ALTERED", fields=["b"])["val"]["B"].tolist() == [3.5]


def test_a_null_in_a_list_that_is_the_whole_value_is_known(clients):
    _, pyignite, node = clients
    cache = pyignite.get_or_create_cache("LISTS_WITH_NULLS")
    cache.put(1, (-1, [(1, IntObject), None, (3, IntObject)]), value_hint=ObjectArrayObject)
    values = read(node, "LISTS_WITH_NULLS")["val"]
    assert [values["items"][0].tolist(), values["null_items"][0].tolist()] == [
        [1, 0, 3],
        [False, True, False],
    ]


def test_keys_of_a_type_that_nobody_registered_are_left_out_with_the_reason(clients):
    """pyignite registers only the types of values."""
    session, pyignite, node = clients
    schema = OrderedDict([("id", IntObject), ("text", String)])
    key_type = GenericObjectMeta("Unregistered", (), {}, type_name="UnregisteredKey", schema=schema)
    cache = pyignite.get_or_create_cache("UNREGISTERED_KEYS")
    for n in range(10):
        cache.put(key_type(id=n, text=str(n)), float(n))
    with pytest.warns(UserWarning, match="left out: key; key has objects of binary type 0x.*not registered"):
        batch = read(node, "UNREGISTERED_KEYS")
    assert sorted(batch["val"].tolist()) == [float(n) for n in range(10)]
    columns = {column.name: column for column in session.columns("UNREGISTERED_KEYS").columns}
    assert columns["key"].type == "object of an unknown type"
    assert columns["val"].dtype == "float64"
    cache = pyignite.get_or_create_cache("ONLY_UNREGISTERED")
    cache.put(key_type(id=1, text="a"), 1.0)
    with pytest.raises(SchemaError, match="fields names the field 'id'"):
        read(node, "ONLY_UNREGISTERED", fields=["id"])
