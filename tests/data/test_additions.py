"""Appends to an existing cache, resumed loads, and rows that cannot be represented."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from ignite_tf_magic.client.cache_facts import (
    check_complete,
    forget,
    load_mark,
    new_mark,
    read_facts,
    spare_name,
    update_facts,
)
from ignite_tf_magic.client.row_counts import last_count
from ignite_tf_magic.errors import (
    CacheExists,
    CacheNotFound,
    ConfigError,
    KeysExist,
    LoadIncomplete,
    LoadNotResumed,
    SourceError,
)
from ignite_tf_magic.session import open_session
from tests.data.test_loading import has_rows, kill_load

CACHE = "ADDED"
ROWS = 300_000


@pytest.fixture
def session(ignite, tmp_path, monkeypatch):
    monkeypatch.setenv("IGNITE_TF_HOME", str(tmp_path))
    with open_session(ignite.connect_options, report=print) as opened:
        yield opened
        for name in opened.client.cache_names():
            if name.startswith(CACHE):
                opened.client.destroy_cache(name)
                forget(opened.client, name)
        opened.query("DROP TABLE IF EXISTS ADDED_SQL")


def rows_of(session, columns="_KEY, x", cache=CACHE):
    return list(session.query(f"SELECT {columns} FROM {cache} ORDER BY _KEY").rows)


def test_rows_are_numbered_on(session):
    session.load(CACHE, {"x": [5, 6]})
    outcome = session.load(CACHE, {"x": [7, 8, 9]}, append=True)
    assert outcome.rows == 3
    assert rows_of(session) == [(0, 5), (1, 6), (2, 7), (3, 8), (4, 9)]
    check_complete(session.client, CACHE)
    mark = load_mark(read_facts(session.client, CACHE))
    assert (mark.rows, mark.expected_rows) == (5, 5)
    assert session.caches()[[cache.name for cache in session.caches()].index(CACHE)].expected_rows is None


def test_keys_that_are_there_are_refused_or_written_over(session):
    session.load(CACHE, {"k": [1, 2], "x": [10, 20]}, key="k")
    with pytest.raises(KeysExist, match=r"nothing was written; the first: 2\..*--upsert"):
        session.load(CACHE, {"k": [3, 2], "x": [30, 21]}, key="k", append=True)
    assert rows_of(session) == [(1, 10), (2, 20)]
    check_complete(session.client, CACHE)
    session.load(CACHE, {"k": [3, 2], "x": [30, 21]}, key="k", upsert=True)
    assert rows_of(session) == [(1, 10), (2, 21), (3, 30)]
    session.load(CACHE, {"k": [4], "x": [40]}, key="k", append=True)
    assert rows_of(session)[-1] == (4, 40)
    with pytest.raises(SourceError, match="needs keys"):
        session.load(CACHE, {"x": [1]}, upsert=True)
    with pytest.raises(ConfigError, match="replace or append"):
        session.load(CACHE, {"x": [1]}, replace=True, append=True)


def test_keys_of_several_columns_are_told_apart(session):
    first = [{"a": 1, "b": "x", "v": 0}, {"a": 1, "b": "y", "v": 1}]
    session.load(CACHE, first, key=("a", "b"))
    with pytest.raises(KeysExist, match=r"\(1, 'y'\)"):
        session.load(CACHE, [{"a": 1, "b": "y", "v": 2}], key=("a", "b"), append=True)
    with pytest.raises(KeysExist, match=r"\('y', 1\)"):
        session.load(CACHE, first[1:], key=("b", "a"), append=True)
    session.load(CACHE, [{"a": 1, "b": "y", "v": 1}], key=("b", "a"), upsert=True)
    session.load(CACHE, [{"a": 2, "b": "y", "v": 2}], key=("a", "b"), append=True)
    assert session.query(f"SELECT v FROM {CACHE} ORDER BY v").rows == ((0,), (1,), (2,))


def test_nobody_notes_partitions_of_keys_of_which_a_part_decides(session):
    session.query(
        "CREATE TABLE ADDED_SQL (a BIGINT, b BIGINT, v BIGINT, PRIMARY KEY (a, b)) "
        'WITH "CACHE_NAME=ADDED_SQL,AFFINITY_KEY=b"'
    )
    rows = {"A": np.arange(100), "B": np.full(100, 7), "V": np.arange(100)}
    with pytest.raises(SourceError, match="the key of table PUBLIC.ADDED_SQL is .*: --key [AB] --key [AB]$"):
        session.load("ADDED_SQL", rows, append=True)
    session.load("ADDED_SQL", rows, key=("A", "B"), append=True)
    assert sorted(session.query("SELECT v FROM ADDED_SQL").rows) == [(v,) for v in range(100)]
    cache = session.client.cache("ADDED_SQL")
    assert sum(size.rows > 0 for size in cache.partition_stats().values()) == 1
    counted = last_count(read_facts(session.client, "ADDED_SQL"))
    assert (counted.rows, counted.filled) == (100, None)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"x": [1], "z": [1]}, ["no column z", "Y is missing"]),
        ({"x": [1.5], "y": ["a"]}, ["x is DOUBLE and has to be BIGINT"]),
        ({"x": [1]}, ["Y is missing"]),
        ({"x'; DROP TABLE ADDED; --": [1], "y": ["a"]}, ["no column x'; DROP TABLE ADDED; --"]),
    ],
)
def test_columns_that_do_not_fit_leave_the_cache(session, columns, words):
    session.load(CACHE, {"x": [1], "y": ["a"]})
    for way in ("append", "upsert"):
        with pytest.raises(SourceError) as caught:
            session.load(CACHE, columns, **{way: True})
        assert all(word in str(caught.value) for word in [*words, "nothing was written"])
    assert rows_of(session, "_KEY, x, y") == [(0, 1, "a")]
    check_complete(session.client, CACHE)


def test_names_are_no_statements(session):
    evil = 'x) VALUES (1); DROP TABLE "ADDED'
    session.load(CACHE, {evil: [1]})
    assert session.query(f'SELECT "x) VALUES (1); DROP TABLE _ADDED" FROM {CACHE}').rows == ((1,),)
    session.load(CACHE, {"a; DROP TABLE ADDED; --": ["'; DROP TABLE ADDED; --"]}, replace=True)
    session.load(CACHE, {"a; DROP TABLE ADDED; --": ["it's"]}, append=True)
    values = session.query(f'SELECT "a; DROP TABLE ADDED; --" FROM {CACHE} ORDER BY _KEY').rows
    assert values == (("'; DROP TABLE ADDED; --",), ("it's",))


def test_a_table_of_sql_gets_rows(session):
    session.query(
        'CREATE TABLE ADDED_SQL (id BIGINT PRIMARY KEY, n BIGINT, d DATE) WITH "CACHE_NAME=ADDED_SQL"'
    )
    session.query("INSERT INTO ADDED_SQL VALUES (7, 1, DATE '2024-01-01')")
    day = pd.Timestamp("2024-01-02").date()
    session.load("ADDED_SQL", {"n": np.array([2], np.int16), "d": np.array([day], object)}, append=True)
    assert rows_of(session, "id, n, d", "ADDED_SQL")[-1] == (8, 2, day)
    assert session.query("SELECT COUNT(*) FROM ADDED_SQL WHERE d = DATE '2024-01-02'").rows == ((1,),)


def test_what_is_not_there_and_what_is_not_whole_gets_no_rows(session):
    with pytest.raises(CacheNotFound):
        session.load(CACHE, {"x": [1]}, append=True)
    session.load(CACHE, {"x": [1]})
    with pytest.raises(CacheExists, match="--append"):
        session.load(CACHE, {"x": [1]})
    with pytest.raises(LoadNotResumed, match="no unfinished load"):
        session.load(CACHE, {"x": [2]}, resume=True)
    update_facts(
        session.client, CACHE, lambda facts: {**facts, "load": {**facts["load"], "state": "loading"}}
    )
    with pytest.raises(LoadIncomplete, match="--resume"):
        session.load(CACHE, {"x": [1]}, append=True)


def loaded(rows):
    """Return the columns that the loader of `kill_load` loads."""
    return {"x": np.arange(rows), "y": np.zeros((rows, 64), np.uint8)}


def is_whole(session, rows=ROWS):
    check_complete(session.client, CACHE)
    return counted(session) == (rows, rows, 0, rows - 1)


def counted(session):
    """Return the number of rows, of distinct values, and the smallest and largest value."""
    (found,) = session.query(f"SELECT COUNT(*), MIN(x), MAX(x) FROM {CACHE}").rows
    ((different,),) = session.query(f"SELECT COUNT(*) FROM (SELECT DISTINCT x FROM {CACHE})").rows
    return (found[0], different, *found[1:])


def test_killed_loads_are_gone_on_with(session, ignite):
    chance = random.Random()
    for _ in range(2):
        there = session.client.cache(CACHE).size() if CACHE in session.client.cache_names() else 0
        least = chance.randint(there, max(there, ROWS // 2)) + 1
        kill_load(session, ignite, CACHE, ROWS, lambda least=least: has_rows(session, CACHE, least), "resume")
        with pytest.raises(LoadIncomplete):
            check_complete(session.client, CACHE)
    with pytest.raises(LoadNotResumed, match=r"other rows than the given dict.*--replace"):
        session.load(CACHE, loaded(ROWS - 1), resume=True)
    told = []
    session.load(CACHE, loaded(ROWS), resume=True, progress=lambda rows, of: told.append((rows, of)))
    assert told[-1] == (ROWS, ROWS)
    assert is_whole(session)
    session.load(CACHE, loaded(ROWS), resume=True)  # nothing is left to load
    assert is_whole(session)


@pytest.mark.nightly
def test_a_killed_addition_is_gone_on_with(session, ignite):
    """Nightly. Shorter: test_killed_loads_are_gone_on_with"""
    session.load(CACHE, {"x": np.arange(-5, 0), "y": np.zeros((5, 64), np.uint8)})
    kill_load(session, ignite, CACHE, ROWS, lambda: has_rows(session, CACHE, 70_000), "append")
    with pytest.raises(LoadIncomplete):
        session.load(CACHE, loaded(ROWS), append=True)
    session.load(CACHE, loaded(ROWS), resume=True)
    assert counted(session) == (ROWS + 5, ROWS + 5, -5, ROWS - 1)
    assert session.query(f"SELECT MAX(_KEY) FROM {CACHE}").rows == ((ROWS + 4,),)
    check_complete(session.client, CACHE)


@pytest.mark.nightly
def test_a_killed_replacement_is_gone_on_with(session, ignite):
    """Nightly. Shorter: test_killed_loads_are_gone_on_with"""
    session.load(CACHE, {"x": [1]})
    spare = spare_name(CACHE)
    kill_load(session, ignite, CACHE, ROWS, lambda: has_rows(session, spare, 1), "replace")
    session.load(CACHE, loaded(ROWS), resume=True)
    assert is_whole(session)
    assert spare not in session.client.cache_names()


def test_two_loads_into_one_cache(session):
    session.load(CACHE, {"x": [1]})

    def another(*_):
        mark = replace(new_mark(1), by="another")
        update_facts(session.client, CACHE, lambda facts: {**facts, "load": {**vars_of(mark)}})

    with pytest.raises(LoadIncomplete, match="which another began"):
        session.load(CACHE, {"x": np.arange(200_000)}, append=True, progress=another)


def vars_of(mark):
    return {name: getattr(mark, name) for name in mark.__slots__}


BAD = {"n": np.array([1, 2**70, 3, "4"], object), "s": np.array(["a", "b", "c\ud800", "d"], object)}


def test_rows_without_a_form_stop_a_load_or_are_left_out(session, tmp_path):
    with pytest.raises(SourceError) as caught:
        session.load(CACHE, BAD)
    for word in (
        "3 rows of the given dict",
        "row 1, column 'n'",
        "64 bits",
        "row 2, column 's'",
        "surrogate",
        "--rejects",
    ):
        assert word in str(caught.value)
    assert CACHE not in session.client.cache_names()
    outcome = session.load(CACHE, BAD, rejects=tmp_path / "bad.jsonl")
    assert (outcome.rows, outcome.rejected) == (1, 3)
    assert "3 rows cannot be stored in a cache and were left out" in str(outcome)
    assert rows_of(session, "_KEY, n, s") == [(0, 1, "a")]
    rejected = [json.loads(line) for line in (tmp_path / "bad.jsonl").read_text().splitlines()]
    assert [(each["row"], each["column"]) for each in rejected] == [(1, "n"), (2, "s"), (3, "n")]
    assert rejected[2]["values"] == {"s": "d"}


def test_lines_without_a_form_are_left_out(session, tmp_path):
    (tmp_path / "l.jsonl").write_text(
        '{"x": 1}\n[1]\n{"x": "two"}\n{"x": 3\n{"x": 18446744073709551616}\n{"x": 5}\n'
    )
    outcome = session.load(CACHE, tmp_path / "l.jsonl", rejects=tmp_path / "bad.jsonl")
    assert (outcome.rows, outcome.rejected) == (2, 4)
    assert rows_of(session) == [(0, 1), (1, 5)]
    (tmp_path / "c.csv").write_text('x,y\n1,2\n1,2,3\n"4\n5",6\n7,8\n')
    text = {"x": "int"}
    with pytest.raises(SourceError, match=r"'x'.*line 3: 3 values, where 2 are expected"):
        session.load(CACHE, tmp_path / "c.csv", text=text_format(text), replace=True)
    session.load(
        CACHE, tmp_path / "c.csv", text=text_format(text), replace=True, rejects=tmp_path / "bad.jsonl"
    )
    assert rows_of(session, "x, y") == [(1, 2), (7, 8)]


def text_format(kinds):
    from ignite_tf_magic.session import TextFormat

    return TextFormat(kinds=kinds)


def test_rows_without_a_key_have_no_form(session):
    table = pa.table({"k": pa.array([1, None, 3]), "x": [1, 2, 3]})
    with pytest.raises(SourceError, match="row 1, column 'k': no value, and it is the key"):
        session.load(CACHE, table, key="k")
