"""Tests of SQL on real nodes: every type in both directions, the limit, and helpful errors."""

from __future__ import annotations

import datetime as dt
import signal
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest

from ignite_tf_magic.client.sql import SqlClient
from ignite_tf_magic.client.sql_result import Column
from ignite_tf_magic.errors import ConfigError, ConnectionFailed, QueryError
from ignite_tf_magic.serialization.sql_text import with_engine
from ignite_tf_magic.settings.options import ConnectOptions, Endpoint
from tests.waiting import until

TYPES = {
    "B": "BOOLEAN",
    "T": "TINYINT",
    "L": "BIGINT",
    "D": "DOUBLE",
    "N": "DECIMAL(40, 2)",
    "V": "VARCHAR",
    "DA": "DATE",
    "TI": "TIME",
    "TS": "TIMESTAMP",
    "U": "UUID",
    "X": "VARBINARY",
}
ROW = {
    "B": True,
    "T": -3,
    "L": 2**62,
    "D": 2.5,
    "N": Decimal("12345678901234567890123456789012345.67"),
    "V": "ä",
    "DA": dt.date(1931, 5, 6),
    "TI": dt.time(3, 4, 5),
    "TS": np.datetime64("2024-01-02T03:04:05.123456000"),
    "U": uuid.UUID(int=7),
    "X": b"\x00\xff",
}


@pytest.fixture
def sql(ignite):
    return SqlClient(ignite.connect_options)


@pytest.fixture
def typed_table(sql):
    columns = ", ".join(f"{name} {sql_type}" for name, sql_type in TYPES.items())
    sql.query(f"CREATE TABLE TYPED(ID INT PRIMARY KEY, {columns})")
    marks = ", ".join("?" * len(ROW))
    given = ["03:04:05" if name == "TI" else value for name, value in ROW.items()]
    sql.query(f"INSERT INTO TYPED VALUES(1, {marks})", given)
    sql.query("INSERT INTO TYPED(ID) VALUES(2)")
    yield "TYPED"
    sql.query("DROP TABLE TYPED")


def test_every_type_comes_back_as_it_was_bound(sql, typed_table):
    result = sql.query("SELECT * FROM TYPED ORDER BY ID")
    assert result.rows == ((1, *ROW.values()), (2, *[None] * len(ROW)))
    kinds = "integer boolean integer integer float decimal text date time timestamp uuid binary"
    assert [column.kind for column in result.columns] == kinds.split()
    assert not result.truncated


def test_data_frame_is_typed_and_keeps_nulls(sql, typed_table):
    frame = sql.query("SELECT * FROM TYPED ORDER BY ID").to_pandas()
    assert {name: str(dtype) for name, dtype in frame.dtypes.items()} == {
        "ID": "Int64",
        "B": "boolean",
        "T": "Int64",
        "L": "Int64",
        "D": "float64",
        "N": "object",
        "V": "string",
        "DA": "datetime64[s]",
        "TI": "object",
        "TS": "datetime64[ns, UTC]",
        "U": "object",
        "X": "object",
    }
    assert frame.loc[0, "L"] == 2**62
    assert frame.loc[0, "DA"] == pd.Timestamp("1931-05-06")
    assert frame.loc[1, ["B", "T", "D", "DA", "TS", "X"]].isna().all()


def test_result_without_rows_keeps_its_columns(sql, typed_table):
    result = sql.query("SELECT ID, V FROM TYPED WHERE ID > 5")
    assert result.columns == (Column("ID", "integer"), Column("V", "text"))
    assert [str(dtype) for dtype in result.to_pandas().dtypes] == ["Int64", "string"]
    assert len(result) == 0
    assert result.rows == ()


@pytest.mark.parametrize("of", ["pandas", "arrow", "polars"])
def test_types_of_columns_do_not_depend_on_the_rows(sql, typed_table, of):
    names = ", ".join(["ID", *(name for name in TYPES if name != "U")])  # a UUID is declared as bytes

    def types(where):
        found = getattr(sql.query(f"SELECT {names} FROM TYPED WHERE {where}"), f"to_{of}")()
        return [str(each) for each in (found.schema.types if of == "arrow" else found.dtypes)]

    assert types("ID = 1") == types("ID = 2") == types("ID IN (1, 2)") == types("ID > 5")


def test_arrow_and_polars_hold_what_rows_do(sql, typed_table):
    result = sql.query("SELECT * FROM TYPED ORDER BY ID")
    table, frame = result.to_arrow(), result.to_polars()
    expected = [1, *(str(value) if name == "U" else value for name, value in ROW.items())]
    moment = list(ROW).index("TS") + 1
    expected[moment] = pd.Timestamp(expected[moment], tz="UTC")
    assert list(table.to_pylist()[0].values()) == expected
    assert set(table.to_pylist()[1].values()) == {2, None}
    expected[moment] = expected[moment].to_pydatetime()
    expected[list(ROW).index("N") + 1] = str(ROW["N"])
    assert frame.rows()[0] == tuple(expected)
    assert str(table.schema.field("N").type) == "decimal256(40, 2)"


def test_an_interrupted_statement_ends_on_the_cluster(sql):
    import polars  # noqa: F401  its SIGINT handler lets a plain recv continue after a signal

    heavy = "SELECT COUNT(*) FROM SYSTEM_RANGE(1, 100000) A, SYSTEM_RANGE(1, 100000) B WHERE A.X * B.X = 7"
    running = "SELECT COUNT(*) FROM SYS.SQL_QUERIES WHERE SQL = ?"

    def interrupt():
        until(lambda: sql.query(running, [heavy]).rows == ((1,),), what="the statement to run")
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    with ThreadPoolExecutor() as threads:
        interrupting = threads.submit(interrupt)
        with pytest.raises(KeyboardInterrupt):
            sql.query(heavy)
        interrupting.result()
    until(lambda: sql.query(running, [heavy]).rows == ((0,),), what="the statement to be gone")


def test_progress_tells_the_rows_that_have_come(sql):
    told = []
    sql.query("SELECT X FROM SYSTEM_RANGE(1, 3000)", progress=told.append)
    assert told == [1024, 2048, 3000]


@pytest.mark.parametrize(
    "statement",
    ["SELECT 'SELECT' AS X", "WITH T AS (SELECT 1) SELECT 'SELECT' AS X FROM T", "(select 'SELECT')"],
)
def test_an_engine_is_asked_by_its_name(sql, statement):
    """The nodes of these tests have a single engine and refuse every name. The hint must say so."""
    with pytest.raises(
        QueryError, match=r"specified engine: calcite\n(.|\n)*have one SQL engine: leave --engine out"
    ):
        sql.query(with_engine(statement, "calcite"))


def test_an_engine_is_for_statements_that_ask():
    assert with_engine("-- SELECT 1\nselect 2", "h2") == "-- SELECT 1\nselect /*+ QUERY_ENGINE('h2') */ 2"
    with pytest.raises(ConfigError, match="SELECT"):
        with_engine('DELETE FROM "SELECT"', "h2")


def test_repeated_column_names_survive(sql):
    frame = sql.query("SELECT 1 AS X, 'a' AS X").to_pandas()
    assert frame.columns.tolist() == ["X", "X"]
    assert frame.iloc[0].tolist() == [1, "a"]


@pytest.mark.parametrize(("limit", "rows", "truncated"), [(9, 9, True), (10, 10, False), (None, 10, False)])
def test_limit_tells_whether_there_is_more(sql, limit, rows, truncated):
    result = sql.query("SELECT X FROM SYSTEM_RANGE(1, 10)", limit=limit)
    assert [row[0] for row in result.rows] == list(range(1, rows + 1))
    assert result.truncated is truncated


def test_limit_is_kept_by_the_server(sql):
    """Fetching a billion rows would exceed the test's time limit."""
    result = sql.query("SELECT X FROM SYSTEM_RANGE(1, 1000000000)", limit=3000)
    assert len(result.rows) == 3000
    assert result.truncated


def test_more_rows_than_a_page(sql):
    result = sql.query("SELECT X FROM SYSTEM_RANGE(1, 5000)")
    assert sum(row[0] for row in result.rows) == 5000 * 5001 // 2


def test_bound_argument_is_a_value_and_never_sql(sql, typed_table):
    evil = "x' OR '1'='1"
    assert sql.query("SELECT ID FROM TYPED WHERE V = ?", [evil]).rows == ()
    assert sql.query("SELECT ?", [evil]).rows == ((evil,),)


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        (np.int32(5), 5),
        (np.float32(1.5), 1.5),
        (np.bool_(True), True),
        (dt.datetime(2024, 1, 2, 3, 4, 5, 123456), np.datetime64("2024-01-02T03:04:05.123456")),
        (pd.Timestamp("2024-01-02"), np.datetime64("2024-01-02")),
        (None, None),
        (2**63 - 1, 2**63 - 1),
    ],
)
def test_arguments_of_other_types(sql, argument, expected):
    assert sql.query("SELECT ?", [argument]).rows == ((expected,),)


@pytest.mark.parametrize(("argument", "words"), [(2**63, "64-bit"), ([1], "list"), (1j, "complex")])
def test_arguments_without_a_form(sql, argument, words):
    with pytest.raises(QueryError, match=words):
        sql.query("SELECT ?", [argument])


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("SELEC 1", ["Syntax error", "    SELEC 1"]),
        ("SELECT * FROM NOPE", ['"NOPE" not found', "SYS.TABLES"]),
        ("SELECT ?", ["expected=1, actual=0"]),
        ("SELECT 1; SELECT 2", ["Multiple statements"]),
        ("", ["no SQL statement in ''"]),
        ("-- nothing", ["no SQL statement"]),
    ],
)
def test_refusals(sql, statement, words):
    with pytest.raises(QueryError) as caught:
        sql.query(statement)
    for word in words:
        assert word in str(caught.value)
    assert "SQL statement:\n" not in str(caught.value)


def test_near_names_are_told(sql, typed_table):
    sql.query('CREATE TABLE "kitten"(ID INT PRIMARY KEY, "Name" VARCHAR)')
    try:
        for statement, words in [
            ("SELECT * FROM TYPD", "Did you mean TYPED?"),
            ("SELECT * FROM KITTEN", 'Did you mean "kitten"?'),
            ('SELECT NAME FROM "kitten"', 'Did you mean "Name"?'),
            ("SELECT T.TSS FROM TYPED T", "Did you mean TS"),
        ]:
            with pytest.raises(QueryError) as caught:
                sql.query(statement)
            assert words in str(caught.value)
    finally:
        sql.query('DROP TABLE "kitten"')


def test_second_endpoint_is_used_when_the_first_is_gone(ignite):
    options = ignite.connect_options
    both = ConnectOptions((Endpoint("127.0.0.1", 1), *options.endpoints), options.username, options.password)
    assert SqlClient(both).query("SELECT 1").rows == ((1,),)


def test_nobody_there():
    with pytest.raises(ConnectionFailed, match=r"127\.0\.0\.1:1"):
        SqlClient(ConnectOptions((Endpoint("127.0.0.1", 1),))).query("SELECT 1")


def test_nothing_reaches_stderr(sql, capfd):
    with pytest.raises(QueryError):
        sql.query("SELECT * FROM NOPE")
    with pytest.raises(ConnectionFailed):
        SqlClient(ConnectOptions((Endpoint("127.0.0.1", 1),))).query("SELECT 1")
    assert capfd.readouterr() == ("", "")
