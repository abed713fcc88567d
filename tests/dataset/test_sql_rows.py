"""Rows of a SELECT as a dataset: each worker reads its own, and queries that cannot be split are refused."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from itertools import chain

import keras
import numpy as np
import pytest
import tensorflow as tf

import ignite_tf_magic
from ignite_tf_magic import IgniteDataset
from ignite_tf_magic.client.sql import SqlClient
from ignite_tf_magic.errors import ConfigError, EmptyCache, QueryError, SchemaError

ROWS = 2000


@pytest.fixture(scope="module")
def sales(ignite, fill_cache):
    random = np.random.default_rng(2)
    return fill_cache(
        ignite,
        "SALES_ROWS",
        {
            "price": random.integers(1, 100, ROWS).astype(np.float64),
            "amount": random.integers(0, 9, ROWS).astype(np.int32),
            "shop": np.array([f"shop {n % 7}" for n in range(ROWS)], object),
        },
    )


@pytest.fixture(scope="module")
def query(ignite):
    return SqlClient(ignite.connect_options).query


def test_expressions_and_conditions_are_those_of_sql(sales, query):
    columns = "price * amount AS total, UPPER(shop) AS shop, amount"
    statement = f"SELECT {columns} FROM SALES_ROWS WHERE price > ? ORDER BY price"
    dataset = IgniteDataset.from_sql(statement, [50], **sales.where())
    assert {name: spec.dtype for name, spec in dataset.element_spec.items()} == {
        "TOTAL": tf.float64,
        "SHOP": tf.string,
        "amount": tf.int32,
    }
    expected = sorted(query(statement, [50]).rows)
    found = [tuple(row.values()) for row in dataset.as_numpy_iterator()]
    assert sorted((total, shop.decode(), amount) for total, shop, amount in found) == expected
    batched = [batch["amount"].numpy().tolist() for batch in dataset.shuffle(100, seed=1).batch(64)]
    assert sorted(chain.from_iterable(batched)) == sorted(row[2] for row in expected)
    assert all(len(batch) == 64 for batch in batched[:-1])
    total = dataset.map(lambda row: row["TOTAL"] + 1).reduce(np.float64(0), lambda found, one: found + one)
    assert float(total) == sum(row[0] + 1 for row in expected)


@pytest.mark.filterwarnings("ignore:Your input ran out of data")  # the number of rows is unknown
def test_all_columns_and_a_fit(sales):
    dataset = IgniteDataset.from_sql("SELECT * FROM SALES_ROWS", **sales.where())
    assert set(dataset.element_spec) >= {"price", "amount", "shop"}
    assert sum(1 for _ in dataset) == ROWS
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    rows = IgniteDataset.from_sql("SELECT price / 100 AS x, amount AS y FROM SALES_ROWS", **sales.where())
    history = model.fit(
        rows.map(lambda row: (row["X"][None], row["Y"])).batch(100), epochs=2, verbose=0, shuffle=False
    )
    assert len(history.history["loss"]) == 2


def test_nulls_and_types(query, ignite):
    where = {"host": "127.0.0.1", "port": ignite.nodes[0].port}
    query("CREATE TABLE SOME_NULLS (ID BIGINT PRIMARY KEY, A INT, B DOUBLE, D DATE, T TIMESTAMP, N DECIMAL)")
    try:
        with pytest.raises(EmptyCache, match="returns no rows now"):
            IgniteDataset.from_sql("SELECT A FROM SOME_NULLS", **where)
        for n in range(20):
            day = dt.date(2026, 1, 1 + n)
            values = [n, None if n % 3 else n, None if n % 2 else n / 4, day, np.datetime64(n, "s"), n]
            query("INSERT INTO SOME_NULLS VALUES (?, ?, ?, ?, ?, ?)", values)
        with pytest.raises(SchemaError, match="Z is null in all rows"):
            IgniteDataset.from_sql("SELECT A, NULL AS Z FROM SOME_NULLS", **where)
        rows = IgniteDataset.from_sql("SELECT ID, A, B, T, N, D FROM SOME_NULLS WHERE ID < 10", **where)
        found = {int(row["ID"]): row for row in rows.as_numpy_iterator()}
        assert set(found) == set(range(10))
        for n, row in found.items():
            assert bool(row["A_is_null"]) == bool(n % 3) and int(row["A"]) == (0 if n % 3 else n)
            assert np.isnan(row["B"]) if n % 2 else row["B"] == n / 4
            assert row["T"] == n * 10**9 and row["N"] == n
        query(
            "INSERT INTO SOME_NULLS (ID, T, N) VALUES (?, ?, ?)",
            [99, np.datetime64("2400-01-01"), Decimal("1.10")],
        )
        text = "SELECT CAST(T AS VARCHAR) AS T, CAST(N AS VARCHAR) AS N FROM SOME_NULLS WHERE ID = 99"
        (row,) = IgniteDataset.from_sql(text, **where).as_numpy_iterator()
        assert row["T"].startswith(b"2400-01-01 00:00:00") and row["N"] == b"1.10"
        with pytest.raises(SchemaError, match="has a time in val.T outside"):
            list(ignite_tf_magic.batches("SOME_NULLS", 8, where="ID = 99", **where))
    finally:
        query("DROP TABLE SOME_NULLS")


def test_a_replicated_table(query, ignite):
    where = {"host": "127.0.0.1", "port": ignite.nodes[0].port}
    query('CREATE TABLE COPIED (ID BIGINT PRIMARY KEY, A INT) WITH "TEMPLATE=REPLICATED"')
    try:
        for n in range(30):
            query("INSERT INTO COPIED VALUES (?, ?)", [n, n * 2])
        rows = IgniteDataset.from_sql("SELECT ID, A + 1 AS B FROM COPIED WHERE A > ?", [19], **where)
        assert sorted((int(row["ID"]), int(row["B"])) for row in rows) == [
            (n, 2 * n + 1) for n in range(10, 30)
        ]
        rows = IgniteDataset("COPIED", where="A > ?", where_args=[19], **where)
        assert sorted(int(row["key"]) for row in rows) == list(range(10, 30))
        for of_all in ("COUNT(*) AS N", "SUM(A) AS N", "DISTINCT A"):
            with pytest.raises(ConfigError, match="not a plain SELECT"):
                IgniteDataset.from_sql(f"SELECT {of_all} FROM COPIED", **where)
    finally:
        query("DROP TABLE COPIED")


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT shop, SUM(price) AS s FROM SALES_ROWS GROUP BY shop",
        "SELECT COUNT(*) AS n FROM SALES_ROWS",
        "SELECT MAX(price) AS m FROM SALES_ROWS WHERE amount > 3",
        "SELECT DISTINCT shop FROM SALES_ROWS",
        "SELECT price FROM SALES_ROWS ORDER BY price LIMIT 10",
        "SELECT TOP 10 price FROM SALES_ROWS",
        "SELECT price FROM SALES_ROWS FETCH FIRST 3 ROWS ONLY",
        "SELECT price FROM SALES_ROWS WHERE amount IN (SELECT amount FROM SALES_ROWS)",
        "SELECT a.price FROM SALES_ROWS a JOIN SALES_ROWS b ON a._KEY = b._KEY",
        "SELECT a.price FROM SALES_ROWS a, SALES_ROWS b",
        "SELECT price FROM SALES_ROWS UNION ALL SELECT price FROM SALES_ROWS",
        "SELECT price FROM (SELECT DISTINCT price FROM SALES_ROWS)",
        "SELECT ROWNUM AS n, price FROM SALES_ROWS",
        "SELECT price FROM SALES_ROWS WHERE ROWNUM < 5",
        "SELECT 1 AS one",
        "VALUES (1)",
    ],
)
def test_what_is_made_of_all_rows_is_refused(sales, statement):
    with pytest.raises((ConfigError, QueryError), match="not a plain SELECT|refused"):
        IgniteDataset.from_sql(statement, **sales.where())


@pytest.mark.parametrize(
    ("statement", "args", "error", "words"),
    [
        ("SELECT prize FROM SALES_ROWS", (), QueryError, "(?s)not found.*PRICE"),
        ("SELECT price FROM NO_SUCH_TABLE", (), QueryError, "not found"),
        ("SELECT price FROM SALES_ROWS WHERE price > ?", (), QueryError, "parameters"),
        (
            "SELECT price FROM SALES_ROWS WHERE _KEY = 1 AND _KEY = 2",
            (),
            EmptyCache,
            "can never return a row",
        ),
        ("SELECT price, price FROM SALES_ROWS", (), ConfigError, "two columns .* are called 'price'"),
        ("SELECT price FROM SALES_ROWS; DROP TABLE SALES_ROWS", (), (ConfigError, QueryError), "."),
        ("DELETE FROM SALES_ROWS", (), (ConfigError, QueryError), "."),
        ("", (), (ConfigError, QueryError), "."),
    ],
)
def test_wrong_statements(sales, query, statement, args, error, words):
    with pytest.raises(error, match=words):
        IgniteDataset.from_sql(statement, args, **sales.where())
    assert query("SELECT COUNT(*) FROM SALES_ROWS").rows == ((ROWS,),)


def test_functions_that_look_like_aggregates_are_none(sales):
    statement = (
        "SELECT ABS(price) AS p, 'COUNT(' || shop || ' LIMIT' AS s FROM SALES_ROWS WHERE shop <> 'GROUP BY'"
    )
    rows = list(IgniteDataset.from_sql(statement, **sales.where()).as_numpy_iterator())
    assert len(rows) == ROWS and rows[0]["S"].startswith(b"COUNT(shop")


def test_workers_have_the_rows_of_their_partitions(sales, as_worker):
    shares = [list(range(300)), list(range(300, 1024))]
    found = []
    for worker in (0, 1):
        as_worker(worker, shares, cache=sales.name)
        dataset = IgniteDataset.from_sql("SELECT _KEY AS k, amount FROM SALES_ROWS WHERE amount > 3")
        assert dataset.is_shared
        sizes = [len(batch["K"]) for batch in dataset.batch(64)]
        mine = [int(row["K"]) for row in dataset]
        assert set(sizes[:-1]) == {32} and sum(sizes) == len(mine)
        assert set(mine) == {int(row["key"]) for row in IgniteDataset(sales.name, where="amount > 3")}
        found += mine
        every = dataset.arrays(assigned=False)["K"].tolist()
        assert sorted(every) == np.flatnonzero(sales.columns["amount"] > 3).tolist()
        whole = IgniteDataset.from_sql("SELECT amount FROM SALES_ROWS", assigned=False)
        assert sum(1 for _ in whole) == ROWS
    assert sorted(found) == np.flatnonzero(sales.columns["amount"] > 3).tolist()
