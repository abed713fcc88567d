"""Append and upsert into tables of every kind, with keys of every type; also refused and interrupted loads."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import subprocess
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from benchmarks.java_client import java_command
from ignite_tf_magic.client.all_rows import all_rows
from ignite_tf_magic.client.cache_facts import check_complete, forget, load_mark, read_facts
from ignite_tf_magic.client.client import Cache
from ignite_tf_magic.data.added_keys import CACHE as ADDED_KEYS
from ignite_tf_magic.data.additions import StatementWriter
from ignite_tf_magic.data.row_writing import PutWriter
from ignite_tf_magic.errors import (
    KeysExist,
    LoadIncomplete,
    LoadNotResumed,
    LoadNotUndone,
    RowsRefused,
    ServerError,
    SourceError,
)
from ignite_tf_magic.protocol.objects import BinaryObject
from ignite_tf_magic.protocol.times import instant_of
from ignite_tf_magic.session import open_session
from ignite_tf_magic.ui.shell.cli import main
from tests.data.test_loading import has_rows, kill_load

JAVA = Path(__file__).parents[1] / "client" / "java" / "AnnotatedRows.java"
MOMENT = np.datetime64("2024-01-01T00:00:00.123456789")


@pytest.fixture
def session(ignite, tmp_path, monkeypatch):
    monkeypatch.setenv("IGNITE_TF_HOME", str(tmp_path))
    with open_session(ignite.connect_options, report=print) as opened:
        before = set(opened.client.cache_names())
        yield opened
        for name in set(opened.client.cache_names()) - before:
            if name.removeprefix("SQL_PUBLIC_").startswith("TABLES_"):
                opened.client.destroy_cache(name)
                forget(opened.client, name)


@dataclasses.dataclass(frozen=True)
class Key:
    """The SQL types of the key columns, and four keys, each with a value per column."""

    sql: tuple[str, ...]
    keys: tuple[tuple[Any, ...], ...]

    @property
    def names(self):
        return [f"K{number}" for number in range(len(self.sql))]


KEYS = {
    "bigint": Key(("BIGINT",), ((1,), (2**62,), (-5,), (0,))),
    "int": Key(("INT",), ((1,), (2**31 - 1,), (-(2**31),), (0,))),
    "smallint": Key(("SMALLINT",), ((1,), (2**15 - 1,), (-(2**15),), (0,))),
    "tinyint": Key(("TINYINT",), ((1,), (127,), (-128,), (0,))),
    "varchar": Key(("VARCHAR",), (("a",), ("é\U0001f600",), ("",), ("a ",))),
    "char": Key(("CHAR(3)",), (("AAA",), ("B",), ("C ",), ("\U0001f600",))),
    "uuid": Key(("UUID",), tuple((uuid.UUID(int=number << 90 | number),) for number in range(1, 5))),
    "decimal": Key(
        ("DECIMAL(9, 3)",), ((Decimal("1.5"),), (Decimal("-0.125"),), (Decimal(7),), (Decimal(0),))
    ),
    "double": Key(("DOUBLE",), ((0.1,), (-1e300,), (float("inf"),), (0.0,))),
    "boolean": Key(("BOOLEAN", "INT"), ((True, 1), (False, 1), (True, 2), (False, 2))),
    "date": Key(
        ("DATE", "INT"),
        tuple((dt.date(year, 2, 28), year) for year in (1583, 1969, 2024, 9999)),
    ),
    "timestamp": Key(("TIMESTAMP",), tuple((MOMENT + number,) for number in range(4))),
    "composite": Key(
        ("TIMESTAMP", "SMALLINT", "VARCHAR(8)"),
        ((MOMENT, 1, "x"), (MOMENT + 1, 1, "x"), (MOMENT, 2, "x"), (MOMENT, 1, "y")),
    ),
    "affinity": Key(("CHAR(3)", "CHAR(30)"), (("AAA", "x"), ("AAA", "y"), ("BBB", "x"), ("BBB", "y"))),
}
# A key that is only a date, or a boolean with four values, needs another column beside it in SQL.
_JAVA = {
    "BIGINT": "java.lang.Long",
    "INT": "java.lang.Integer",
    "SMALLINT": "java.lang.Short",
    "TINYINT": "java.lang.Byte",
    "VARCHAR": "java.lang.String",
    "CHAR": "java.lang.String",
    "UUID": "java.util.UUID",
    "DECIMAL": "java.math.BigDecimal",
    "DOUBLE": "java.lang.Double",
    "BOOLEAN": "java.lang.Boolean",
    "DATE": "java.sql.Date",
    "TIMESTAMP": "java.sql.Timestamp",
}


def by_statement(session, name, key, options=(), values="V DOUBLE, N INT"):
    options = [*options, *(["AFFINITY_KEY=K0"] if name.endswith("AFFINITY") else [])]
    columns = ", ".join(f"{column} {kind}" for column, kind in zip(key.names, key.sql, strict=True))
    session.query(
        f"CREATE TABLE {name} ({columns}, {values}, PRIMARY KEY ({', '.join(key.names)})) "
        f'WITH "CACHE_NAME={name}{"".join(f",{each}" for each in options)}"'
    )


def by_wrapping(session, name, key):
    by_statement(session, name, key, ["WRAP_KEY=TRUE", f"KEY_TYPE={name}.Key", f"VALUE_TYPE={name}.Value"])


def by_unwrapped_values(session, name, key):
    by_statement(session, name, key, ["WRAP_VALUE=FALSE"], "V DOUBLE")


def by_entity(session, name, key):
    from pyignite.datatypes import prop_codes as code

    def field(column, java, is_key):
        return {
            "name": column,
            "type_name": java,
            "is_key_field": is_key,
            "is_notnull_constraint_field": False,
            "default_value": None,
            "precision": -1,
            "scale": -1,
        }

    java = [_JAVA[kind.partition("(")[0]] for kind in key.sql]
    is_single = len(java) == 1
    entity = {
        "table_name": name,
        "key_field_name": "K0" if is_single else None,
        "value_field_name": None,
        "key_type_name": java[0] if is_single else f"{name}.Key",
        "value_type_name": f"{name}.Value",
        "field_name_aliases": [{"field_name": "count", "alias": "N"}],
        "query_fields": [
            *(field(column, each, True) for column, each in zip(key.names, java, strict=True)),
            field("v", "java.lang.Double", False),
            field("count", "java.lang.Integer", False),
        ],
        "query_indexes": [],
    }
    with session.pyignite() as client:
        client.create_cache(
            {
                code.PROP_NAME: name,
                code.PROP_SQL_SCHEMA: "PUBLIC",
                code.PROP_BACKUPS_NUMBER: 1,
                code.PROP_QUERY_ENTITIES: [entity],
            }
        )


def by_load(session, name, key):
    first, _ = rows_of(key, has_count=True)
    session.load(name, first, key=key.names)
    session.client.cache(name).remove_all([at for at, _ in all_rows(session.client.cache(name))])


MAKERS = {
    "statement": by_statement,
    "wrapped": by_wrapping,
    "unwrapped": by_unwrapped_values,
    "entity": by_entity,
    "load": by_load,
}


def rows_of(key, *, has_count):
    """Return two frames that have the four keys, two rows each."""
    frames = []
    for first in (0, 2):
        columns: dict[str, Any] = {
            name: pd.Series([each[number] for each in key.keys[first : first + 2]])
            for number, name in enumerate(key.names)
        }
        columns["V"] = [first + 0.1, first + 0.6]
        if has_count:
            columns["N"] = pd.array([first, None], "Int32")
        frames.append(pd.DataFrame(columns))
    return frames


def shape(value):
    """Return the types in a key or value."""
    if isinstance(value, BinaryObject):
        return value.type_name, {name: type(each) for name, each in value.fields.items()}
    return type(value)


def plain(value):
    return instant_of(value) if isinstance(value, np.datetime64) else value


@pytest.mark.parametrize("made", MAKERS)
@pytest.mark.parametrize("of", KEYS)
def test_rows_are_added_to_every_kind_of_table(session, of, made):
    key, name = KEYS[of], f"TABLES_{made}_{of}".upper()
    MAKERS[made](session, name, key)
    first, more = rows_of(key, has_count=made != "unwrapped")
    statement = (
        f"INSERT INTO {name} ({', '.join(first.columns)}) VALUES ({', '.join('?' * len(first.columns))})"
    )
    for row in first.astype(object).where(first.notna(), None).itertuples(index=False):
        args = [each.to_numpy() if isinstance(each, pd.Timestamp) else each for each in row]
        session.query(statement, args)
    cache = session.client.cache(name)
    shapes = [shape(each) for pair in all_rows(cache) for each in pair]

    session.load(name, more, key=key.names, append=True)
    for again in (first, more):
        with pytest.raises(KeysExist):
            session.load(name, again, key=key.names, append=True)
    session.load(name, first.assign(V=[7.5, 8.5]), key=key.names, upsert=True)

    found = session.query(f"SELECT {', '.join(key.names)}, V FROM {name}").rows
    wanted = zip(key.keys, (7.5, 8.5, 2.1, 2.6), strict=True)
    assert {tuple(map(plain, row)) for row in found} == {(*map(plain, at), value) for at, value in wanted}
    assert len(found) == cache.size() == 4
    check_complete(session.client, name)
    after = [shape(each) for pair in all_rows(cache) for each in pair]
    assert [each for each in after if is_full(each) and each not in shapes] == []
    if of not in (
        "date",
        "timestamp",
        "composite",
    ):  # pyignite reads times in the client's zone and cannot read a date
        with session.pyignite() as other:
            rows = list(other.get_cache(name).scan())
        values = sorted(str(getattr(row, "V", getattr(row, "v", row))) for _, row in rows)
        assert values == ["2.1", "2.6", "7.5", "8.5"]


def is_full(of):
    return not isinstance(of, tuple) or type(None) not in of[1].values()


RULES = (
    "CREATE TABLE TABLES_RULES (ID SMALLINT PRIMARY KEY, V VARCHAR(5), C CHAR(2), D DECIMAL(4, 1), B BINARY(3), "
    "R REAL, N INT NOT NULL, O VARCHAR(9) DEFAULT 'none', L BIGINT) WITH \"CACHE_NAME=TABLES_RULES\""
)
GOOD = {
    "ID": [1, 2],
    "V": ["12345", None],
    "C": ["ab", ""],
    "D": [Decimal("123.4"), Decimal("-0.5")],
    "B": [b"123", b""],
    "R": [0.1, 3.0],
    "N": [1, 2**31 - 1],
    "O": ["set", None],
    "L": [2**63 - 1, -(2**63)],
}


@pytest.mark.parametrize(
    ("column", "values", "words"),
    [
        ("V", ["ok", "too long"], r"row 1, column 'V': it has 8 characters, and the column accepts 5"),
        ("V", ["ok", "\U0001f600" * 3], r"it has 6 characters, and the column accepts 5"),
        ("C", ["abc", "ab"], r"row 0, column 'C': it has 3 characters"),
        ("D", [Decimal("1.25"), None], r"1.25 has 2 digits behind the point, and the column accepts 1"),
        ("D", [Decimal("1234.5"), None], r"1234.5 has 5 digits, and the column accepts 4"),
        ("B", [b"1234", b"1"], r"it has 4 bytes, and the column accepts 3"),
        ("R", [1e39, 0.0], r"1e\+39 is too large for REAL"),
        ("N", pd.array([1, None], "Int64"), r"row 1, column 'N': no value, and the column is NOT NULL"),
        ("N", [1, 2**31], r"2147483648 does not fit into 32 bits"),
        ("ID", [1, 2**15], r"32768 does not fit into 16 bits"),
        ("N", ["1", "2"], r"N is VARCHAR and has to be INT.*--dtype"),
        ("N", [1.5, 2.0], r"N is DOUBLE and has to be INT"),
        ("N", ..., r"N is missing"),
        ("Z", [1, 2], r"it has no column Z"),
        ("ID", ..., r"the key of table PUBLIC.TABLES_RULES is ID|has no column 'ID'"),
    ],
)
def test_rows_that_the_table_refuses_leave_it_as_it_was(session, column, values, words):
    session.query(RULES)
    session.query("INSERT INTO TABLES_RULES (ID, N) VALUES (9, 9)")
    bad = {name: each for name, each in {**GOOD, column: values}.items() if each is not ...}
    for way in ("append", "upsert"):
        with pytest.raises(SourceError, match=words):
            session.load("TABLES_RULES", pd.DataFrame(bad), key="ID", **{way: True})
    assert session.query("SELECT ID, O FROM TABLES_RULES").rows == ((9, "none"),)
    check_complete(session.client, "TABLES_RULES")
    session.load("TABLES_RULES", pd.DataFrame(GOOD), key="ID", append=True)
    assert len(session.query("SELECT * FROM TABLES_RULES").rows) == 3


def test_a_default_stands_for_a_column_that_an_append_leaves_out(session):
    session.query(RULES)
    rows = pd.DataFrame({name: each for name, each in GOOD.items() if name != "O"})
    with pytest.raises(SourceError, match="O is missing"):  # an upsert would silently overwrite it
        session.load("TABLES_RULES", rows, key="ID", upsert=True)
    session.load("TABLES_RULES", rows, key="ID", append=True)
    assert session.query("SELECT O FROM TABLES_RULES").rows == (("none",), ("none",))


def test_columns_and_keys_are_named_as_the_table_names_them(session):
    session.query('CREATE TABLE "TABLES_q" ("id" INT, B INT, "v w" DOUBLE, PRIMARY KEY ("id", B))')
    rows = pd.DataFrame({"V W": [1, 2], "b": [1, 2], "ID": [1, 2]})
    with pytest.raises(SourceError, match="the key of table .* is .*; name these columns .*--key"):
        session.load('"TABLES_q"', rows, append=True)
    with pytest.raises(SourceError, match="id is missing"):
        session.load('"TABLES_q"', rows[["V W", "b"]], key="b", append=True)
    session.load('"TABLES_q"', rows, key=("b", "ID"), append=True)
    found = session.query('SELECT "id", B, "v w" FROM "TABLES_q" ORDER BY "id"').rows
    assert found == ((1, 1, 1.0), (2, 2, 2.0))
    session.query('DROP TABLE "TABLES_q"')


def test_a_column_without_values_has_the_type_of_the_table(session, tmp_path):
    """For example all fees are missing in a month of taxi rides, or a .csv file has an empty column."""
    name = "TABLES_EMPTY"
    session.query(f"CREATE TABLE {name} (ID BIGINT PRIMARY KEY, D DOUBLE, N INT, T TIMESTAMP, V VARCHAR)")
    (tmp_path / "rows.csv").write_text("ID,D,N,T,V\n1,,,,\n2,,,,\n")
    session.load(name, tmp_path / "rows.csv", key="ID", append=True)
    none = [None, None]
    session.load(
        name, pd.DataFrame({"ID": [3, 4], "D": none, "N": none, "T": none, "V": none}), key="ID", append=True
    )
    session.load(
        name,
        pd.DataFrame({"ID": [5], "D": [np.nan], "N": [1], "T": [pd.NaT], "V": [np.nan]}),
        key="ID",
        append=True,
    )
    found = session.query(f"SELECT ID, D, N, T, V FROM {name} ORDER BY ID").rows
    assert found == (*((key, None, None, None, None) for key in range(1, 5)), (5, None, 1, None, None))
    session.load("TABLES_EMPTY_LOADED", {"D": np.array([1.5])}, key=(), append=False)
    session.load("TABLES_EMPTY_LOADED", {"D": none}, append=True)
    assert session.query("SELECT D FROM TABLES_EMPTY_LOADED ORDER BY _KEY").rows == ((1.5,), (None,), (None,))


def test_rows_are_numbered_on_within_the_type_of_the_key(session):
    session.query('CREATE TABLE TABLES_TINY (ID TINYINT PRIMARY KEY, V INT) WITH "CACHE_NAME=TABLES_TINY"')
    session.query("INSERT INTO TABLES_TINY VALUES (125, 0)")
    with pytest.raises(SourceError, match="128 does not fit into 8 bits"):
        session.load("TABLES_TINY", {"V": [1, 2, 3]}, append=True)
    session.load("TABLES_TINY", {"V": [1, 2]}, append=True)
    assert session.query("SELECT ID, V FROM TABLES_TINY ORDER BY ID").rows == ((125, 0), (126, 1), (127, 2))


def test_lists_are_written_by_statements_too(session):
    """With a column from ALTER TABLE, the table differs from one that a load would make."""
    session.load("TABLES_LISTS", {"x": np.ones((2, 3), np.float32), "w": [["a"], ["b", "c"]]})
    session.query("ALTER TABLE TABLES_LISTS ADD COLUMN y INT")
    more = {"x": np.full((1, 3), 2, np.float32), "w": [["d", None]], "y": [5]}
    session.load("TABLES_LISTS", more, append=True)
    first, _, last = (row for _, row in sorted(all_rows(session.client.cache("TABLES_LISTS"))))
    assert [last.fields[name] if name in last.fields else last.fields[name.upper()] for name in "y"] == [5]
    assert shape(first)[1]["x"] is shape(last)[1]["x"]
    assert np.array_equal(last.fields["x"], [2, 2, 2])
    assert list(last.fields["w"]) == ["d", None]


class Died(Exception):
    pass


@pytest.fixture
def dying(monkeypatch):
    """Make a load fail in its first statement after one row, as if its process had been killed."""
    write = StatementWriter.write

    def some(self, chunk, first_key, progress, watch):
        cut = dataclasses.replace(
            chunk,
            values={name: each[:1] for name, each in chunk.values.items()},
            nulls={name: each[:1] for name, each in chunk.nulls.items()},
            keys=None if chunk.keys is None else chunk.keys[:1],
        )
        write(self, cut, first_key, progress, watch)
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(StatementWriter, "write", some)
        yield patch


DIED = pd.DataFrame(
    {"K0": [MOMENT + 1, MOMENT + 2], "K1": [1, 2], "K2": ["x", "y"], "V": [1.5, 2.5], "N": [1, 2]}
)


@pytest.fixture
def dead(session, dying):
    by_statement(session, "TABLES_DEAD", KEYS["composite"])
    session.query("INSERT INTO TABLES_DEAD VALUES (?, 1, 'x', 0.5, 0)", [MOMENT])
    with pytest.raises(Died):
        session.load("TABLES_DEAD", DIED, key=("K0", "K1", "K2"), append=True)
    dying.undo()
    with pytest.raises(LoadIncomplete, match=r"--resume.*--undo.*--accept.*allow_partial"):
        check_complete(session.client, "TABLES_DEAD")
    assert len(numbers(session)) == 2
    return session


def numbers(session):
    return [value for (value,) in session.query("SELECT N FROM TABLES_DEAD ORDER BY N").rows]


def noted(session):
    return [key for key, _ in all_rows(Cache(session.client, ADDED_KEYS)) if key.startswith("TABLES_DEAD/")]


def test_a_dead_append_is_gone_on_with(dead):
    dead.load("TABLES_DEAD", DIED, key=("K0", "K1", "K2"), resume=True)
    assert numbers(dead) == [0, 1, 2]
    check_complete(dead.client, "TABLES_DEAD")
    assert noted(dead) == []
    with pytest.raises(LoadNotUndone, match="no unfinished load"):
        dead.undo_load("TABLES_DEAD")
    assert numbers(dead) == [0, 1, 2]


def test_a_dead_append_is_undone(dead):
    assert len(noted(dead)) == 1
    ended = dead.undo_load("tables_dead")
    assert (ended.cache, ended.removed, ended.rows) == ("TABLES_DEAD", 1, 1)
    assert str(ended) == "1 rows removed from cache TABLES_DEAD; it has 1 rows and is complete"
    assert numbers(dead) == [0]
    check_complete(dead.client, "TABLES_DEAD")
    assert noted(dead) == []
    with pytest.raises(LoadNotResumed):  # it was undone, not finished
        dead.load("TABLES_DEAD", DIED, key=("K0", "K1", "K2"), resume=True)
    dead.load("TABLES_DEAD", DIED, key=("K0", "K1", "K2"), append=True)
    assert numbers(dead) == [0, 1, 2]


def test_a_dead_append_is_undone_in_a_shell(dead, ignite, monkeypatch, capsys):
    monkeypatch.setenv("IGNITE_TF_CLUSTER", ",".join(map(str, ignite.connect_options.endpoints)))
    assert main(["load", "TABLES_DEAD", "--undo", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"cache": "TABLES_DEAD", "removed": 1, "rows": 1}
    assert main(["load", "TABLES_DEAD", "--accept"]) == 1
    assert "no unfinished load" in capsys.readouterr().err


def test_a_dead_append_of_rows_that_are_put_is_undone(session, monkeypatch):
    """With many chunks of numbered rows, the undo also removes those of the last chunk begun."""
    session.load("TABLES_PUT", {"x": np.arange(5)})
    write = PutWriter.write

    def some(self, chunk, first_key, progress, watch):
        write(self, chunk, first_key, progress, watch)
        if first_key > 5:
            raise Died

    with monkeypatch.context() as patch:
        patch.setattr(PutWriter, "write", some)
        with pytest.raises(Died):
            session.load("TABLES_PUT", {"x": np.arange(200_000)}, append=True)
    assert session.client.cache("TABLES_PUT").size() == 5 + 2 * 65_536
    assert session.undo_load("TABLES_PUT").removed == 2 * 65_536
    assert session.query("SELECT COUNT(*), MAX(_KEY) FROM TABLES_PUT").rows == ((5, 4),)
    session.load("TABLES_PUT", {"x": [7]}, append=True)
    assert session.query("SELECT MAX(_KEY) FROM TABLES_PUT").rows == ((5,),)


def test_a_dead_append_is_accepted(dead):
    ended = dead.accept_load("TABLES_DEAD")
    assert (ended.removed, ended.rows) == (0, 2)
    check_complete(dead.client, "TABLES_DEAD")
    mark = load_mark(read_facts(dead.client, "TABLES_DEAD"))
    assert (mark.rows, mark.expected_rows) == (2, 2)
    assert noted(dead) == []
    with pytest.raises(LoadNotUndone):
        dead.accept_load("TABLES_DEAD")


@pytest.mark.nightly
def test_an_append_that_was_killed_is_undone(session, ignite):
    """Nightly. Shorter: test_a_dead_append_is_undone"""
    name = "TABLES_KILLED"
    session.query(
        f'CREATE TABLE {name} (ID INT PRIMARY KEY, X BIGINT, Y BINARY(64)) WITH "CACHE_NAME={name}"'
    )
    session.query(f"INSERT INTO {name} VALUES (-1, -1, NULL)")
    kill_load(session, ignite, name, 200_000, lambda: has_rows(session, name, 70_000), "append")
    written = session.client.cache(name).size() - 1
    assert session.undo_load(name).removed >= written
    assert session.query(f"SELECT ID, X FROM {name}").rows == ((-1, -1),)
    check_complete(session.client, name)


def test_a_dead_upsert_cannot_be_undone(session, dying):
    by_statement(session, "TABLES_DEAD", KEYS["int"])
    session.query("INSERT INTO TABLES_DEAD VALUES (1, 0.5, 0)")
    rows = pd.DataFrame({"K0": [1, 2], "V": [1.5, 2.5], "N": [1, 2]})
    with pytest.raises(Died):
        session.load("TABLES_DEAD", rows, key="K0", upsert=True)
    with pytest.raises(LoadIncomplete, match=r"--resume.*--accept.*cannot be undone \(--undo\)"):
        check_complete(session.client, "TABLES_DEAD")
    with pytest.raises(LoadNotUndone, match=r"replaced are gone.*--resume.*--accept"):
        session.undo_load("TABLES_DEAD")
    session.accept_load("TABLES_DEAD")
    assert numbers(session) == [1]


def test_an_append_that_the_cluster_refuses_in_the_middle_is_undone(session, monkeypatch):
    by_statement(session, "TABLES_DEAD", KEYS["int"])
    session.query("INSERT INTO TABLES_DEAD VALUES (1, 0.5, 0)")
    write = StatementWriter.write

    def refused(self, chunk, first_key, progress, watch):
        write(self, chunk, first_key, progress, watch)
        raise ServerError("query_sql_fields", 1, "the table has a rule of its own")

    monkeypatch.setattr(StatementWriter, "write", refused)
    rows = pd.DataFrame({"K0": [3, 2], "V": [1.5, 2.5], "N": [1, 2]})
    with pytest.raises(RowsRefused, match=r"a rule of its own.*as it was before: the 2 rows"):
        session.load("TABLES_DEAD", rows, key="K0", append=True)
    assert numbers(session) == [0]
    check_complete(session.client, "TABLES_DEAD")


@pytest.mark.nightly
def test_tables_that_java_has_annotated(session):
    """Nightly. Shorter: test_rows_are_added_to_every_kind_of_table"""
    endpoint = session.options.endpoints[0]
    pipe = subprocess.PIPE
    command = [*java_command(print, JAVA), f"{endpoint.host}:{endpoint.port}", "TABLES_JAVA"]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as java:
        assert java.stdout.readline() == "filled\n"
        rows = pd.DataFrame(
            {
                "COUNTRY": ["AAA", "BBB"],
                "ID": [2, 3],
                "NAME": ["n", None],
                "HOW_OLD": [5, 6],
                "BORN": pd.to_datetime(["2024-01-01", "1900-01-01"]),
                "SCORE": [0.1, 0.2],
            }
        )
        session.load("PERSON", rows, key=("ID", "COUNTRY"), append=True)
        with pytest.raises(KeysExist):
            session.load("PERSON", rows, key=("ID", "COUNTRY"), append=True)
        session.load("PERSON", rows.assign(NAME="m"), key=("ID", "COUNTRY"), upsert=True)
        told, _ = java.communicate("read\n", timeout=120)
    assert told.splitlines() == [
        "AAA 1 first 4 0 0.5",
        "AAA 2 m 5 1704067200000 0.1",
        "BBB 3 m 6 -2208988800000 0.2",
    ]
