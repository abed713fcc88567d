"""The profile of a cache on real nodes: computed by the cluster, from a sample, and by pandas, and compared."""

from __future__ import annotations

import datetime as dt
import math
from collections import Counter
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest

from ignite_tf_magic.client.cache_facts import forget, mark_loading
from ignite_tf_magic.errors import CacheNotFound, QueryError, SchemaError
from ignite_tf_magic.profiling import column_profiles
from ignite_tf_magic.profiling.profile import make_profile
from ignite_tf_magic.protocol.messages import CacheConfig, QueryEntity, QueryField
from ignite_tf_magic.protocol.objects import BinaryObject
from ignite_tf_magic.protocol.ops import CacheMode
from ignite_tf_magic.session import open_session

ROWS = 600
MOMENT = np.datetime64("2024-01-02T03:04:05.123456789")
COLUMNS = {
    "ID": "INT PRIMARY KEY",
    "I": "INT",
    "L": "BIGINT",
    "NEAR": "BIGINT",
    "X": "DOUBLE",
    "F": "REAL",
    "FEW": "DOUBLE",
    "INF": "DOUBLE",
    "D": "DECIMAL(40, 2)",
    "B": "BOOLEAN",
    "V": "VARCHAR",
    "C": "VARCHAR",
    "DA": "DATE",
    "TS": "TIMESTAMP",
    "TI": "TIME",
    "EMPTY": "INT",
}


def rows():
    chance = np.random.default_rng(5)
    for i in range(ROWS):
        yield [
            i,
            None if i % 9 == 0 else i % 4,
            int(chance.integers(-(2**62), 2**62)),
            2**60 + i % 97,
            float("nan") if i % 11 == 0 else None if i % 13 == 0 else float(chance.normal()),
            float(np.float32(chance.normal())),
            (0.5, float("nan"), None, -1.25)[i % 4],
            math.inf if i == 7 else i / 7,
            Decimal(f"{12345678901234567890123456789012345 + i * 100}.67"),
            None if i % 10 == 0 else i % 3 == 0,
            f"text {i}",
            ("cat", "dog", "Übel")[i % 5 % 3],
            dt.date(1931, 5, 6) + dt.timedelta(days=i % 400),
            MOMENT + np.timedelta64(i * 1013, "ns"),
            dt.time(i % 24, i % 60, 5),
            None,
        ]


VALUES = dict(zip(COLUMNS, zip(*rows(), strict=True), strict=True))


@pytest.fixture(scope="module")
def session(ignite):
    with open_session(ignite.connect_options, report=print) as opened:
        yield opened


@pytest.fixture(scope="module")
def table(session):
    """A table with a column of each kind."""
    columns = ", ".join(f"{name} {sql_type}" for name, sql_type in COLUMNS.items())
    session.query(f'CREATE TABLE KINDS({columns}) WITH "backups=1"')
    marks = f"({', '.join('?' * len(COLUMNS))})"
    listed = list(rows())
    for first in range(0, ROWS, 100):
        some = listed[first : first + 100]
        given = [value for row in some for value in row]
        session.query(f"INSERT INTO KINDS VALUES {', '.join([marks] * len(some))}", given)
    yield "SQL_PUBLIC_KINDS"
    session.query("DROP TABLE KINDS")


def by_name(profile):
    return {column.name: column for column in profile.columns}


@pytest.fixture(scope="module")
def of_server(session, table):
    return session.profile(table, num_rows=100)


@pytest.fixture(scope="module")
def of_rows(session, table):
    return session.profile(table, num_rows=ROWS)


@pytest.fixture(params=["of_server", "of_rows"])
def profile(request):
    """The profile, once computed by the cluster over all rows, once computed here from the rows."""
    return request.getfixturevalue(request.param)


def test_which_way_was_taken(of_server, of_rows):
    assert (of_server.is_whole, of_server.table) == (False, "PUBLIC.KINDS")
    assert (of_rows.is_whole, of_rows.table, of_rows.num_sampled) == (True, None, ROWS)
    assert not any(column.estimated for column in of_rows.columns)
    assert of_server.num_sampled == 100
    assert of_server.num_read_partitions >= 8


@pytest.mark.parametrize("name", COLUMNS)
def test_numbers_are_those_of_pandas(profile, name):
    column = by_name(profile)["key" if name == "ID" else name]
    values = VALUES[name]
    there = [value for value in values if value is not None]
    nans = [value for value in there if isinstance(value, float) and math.isnan(value)]
    kept = [value for value in there if not (isinstance(value, float) and math.isnan(value))]
    assert (column.num_rows, column.num_nulls) == (ROWS, ROWS - len(there))
    assert column.num_nans == len(nans)
    assert column.num_infinite == sum(isinstance(v, float) and math.isinf(v) for v in kept)
    if column.kind != "null":
        assert column.num_distinct == pd.Series(kept, dtype=object).nunique()
    if kept and column.kind != "boolean":
        assert (column.least, column.greatest) == (min(kept), max(kept))
    if column.kind in ("integer", "float", "decimal") and kept and not column.num_infinite:
        exact = [float(value - kept[0]) for value in kept]
        assert column.std == pytest.approx(pd.Series(exact).std(), rel=1e-9)
        if column.kind == "decimal":
            assert abs(Fraction(column.mean) - sum(map(Fraction, kept)) / ROWS) < Fraction(1, 10**20)
        else:
            assert column.mean == pytest.approx(sum(kept) / len(kept), rel=1e-12, abs=1e-12)
    if column.kind == "boolean":
        assert column.mean == pd.Series(kept, dtype=bool).mean()


@pytest.mark.parametrize("name", ["I", "B", "C"])
def test_classes(profile, name):
    column = by_name(profile)[name]
    expected = Counter(value for value in VALUES[name] if value is not None)
    assert {each.value: each.count for each in column.classes} == expected
    assert column.imbalance == max(expected.values()) / min(expected.values())
    assert "classes" not in column.estimated


def test_few_values_are_counted_on_the_cluster_and_many_are_not(of_server):
    columns = by_name(of_server)
    for name in ("I", "FEW", "B", "C"):
        assert columns[name].estimated == frozenset(), name
    for name in ("key", "L", "X", "V", "TS"):
        assert columns[name].estimated == {"quantiles", "histogram"}, name


@pytest.mark.parametrize("name", ["L", "X", "F", "FEW", "INF", "D", "DA", "TS", "TI", "I"])
def test_quantiles_are_those_of_numpy(of_rows, name):
    kept = [v for v in VALUES[name] if v is not None and v == v]
    ordered = sorted(kept)
    for percent, found in by_name(of_rows)[name].quantiles.items():
        place = np.quantile(np.arange(len(ordered)), percent / 100, method="inverted_cdf")
        assert found == ordered[int(place)]


def test_the_cluster_and_the_rows_say_the_same(of_server, of_rows):
    assert (of_server.rows, of_server.nodes, of_server.backups) == (ROWS, of_rows.nodes, 1)
    of_sample = {"quantiles", "histogram", "num_distinct"}
    for ours, theirs in zip(of_rows.columns, of_server.columns, strict=True):
        assert theirs.estimated <= of_sample
        alike = {name: getattr(theirs, name) for name in theirs.estimated}
        if ours.std is not None:
            assert theirs.std == pytest.approx(ours.std, rel=1e-9)
            alike |= {"std": theirs.std}
        if isinstance(ours.mean, float):
            assert theirs.mean == pytest.approx(ours.mean, rel=1e-12, abs=1e-12)
            alike |= {"mean": theirs.mean}
        if theirs.kind != "null" and ours.kind == "null":
            alike |= {"kind": theirs.kind, "type": theirs.type, "num_distinct": theirs.num_distinct}
        assert replace(ours, **alike, estimated=theirs.estimated) == theirs


def test_rows_of_nodes_and_partitions(session, table, of_server, of_rows):
    assert sum(node.rows for node in of_server.nodes) == ROWS
    assert sum(node.num_partitions for node in of_server.nodes) == 1024
    counts = [each.rows for each in session.client.cache(table).partition_stats().values()]
    skew = of_rows.partitions
    assert (skew.num_counted, skew.num_empty) == (1024, counts.count(0))
    assert (skew.least, skew.greatest) == (min(counts), max(counts))
    assert of_server.partitions.num_counted == of_server.num_read_partitions


@pytest.fixture
def without_table(session):
    """A cache of objects. The first rows of its partitions have the smallest keys."""
    cache = session.client.create_cache(CacheConfig("NO_TABLE"))
    for first in range(0, 6000, 500):
        cache.put_all(
            {
                i: BinaryObject("Seen", {"number": i, "pixels": np.full(4, i % 7, np.uint8)})
                for i in range(first, first + 500)
            }
        )
    yield "NO_TABLE"
    session.client.destroy_cache("NO_TABLE")


def test_what_a_sample_tells_is_marked(session, without_table):
    profile = session.profile(without_table, num_rows=500)
    assert (profile.rows, profile.is_whole, profile.table) == (6000, False, None)
    number = by_name(profile)["number"]
    assert number.num_rows == 500
    assert {"num_nulls", "num_distinct", "least", "mean", "quantiles"} <= number.estimated
    assert number.least < 600
    assert number.greatest > 5400
    assert number.mean == pytest.approx(3000, rel=0.15)
    pixels = by_name(profile)["pixels"]
    assert (pixels.kind, pixels.least, pixels.greatest) == ("array", 0, 6)
    assert session.profile(without_table, num_rows=500) == profile
    whole = session.profile(without_table)
    assert by_name(whole)["number"].mean == 2999.5
    assert by_name(whole)["pixels"].mean == pytest.approx(np.mean([i % 7 for i in range(6000)]))


def test_items_that_were_left_out_are_told(session, without_table, monkeypatch):
    monkeypatch.setattr(column_profiles, "_MAX_ITEMS", 400)
    profile = session.profile(without_table)
    columns = by_name(profile)
    assert profile.is_whole
    assert columns["number"].estimated == frozenset()
    assert {"mean", "least", "histogram"} <= columns["pixels"].estimated
    assert sum(columns["pixels"].histogram.counts) == 400


def test_a_load_that_was_not_finished_is_told(session, without_table):
    mark_loading(session.client, without_table, 7000)
    try:
        profile = session.profile(without_table, num_rows=500)
        assert any("6,000 of the 7,000 rows" in note for note in profile.notes), profile.notes
    finally:
        forget(session.client, without_table)


def test_where_sql_refuses_a_sample_serves(session, table):
    def refuse(statement, args=()):
        raise QueryError("the cluster refused the statement: no SQL here")

    profile = make_profile(session.client, refuse, print, table, (), 100)
    assert "no SQL here" in profile.notes[0]
    assert all("num_nulls" in column.estimated for column in profile.columns)

    def refuse_sums(statement, args=()):
        return refuse(statement) if "SUM" in statement else session.query(statement, args)

    profile = make_profile(session.client, refuse_sums, print, table, (), 100)
    assert "no SQL here" in profile.notes[0]
    columns = by_name(profile)
    assert columns["L"].num_rows == 100
    assert "mean" in columns["L"].estimated
    assert columns["I"].num_rows == ROWS


def test_columns_are_chosen_by_either_name(session, table):
    profile = session.profile(table, ["c", "ID", "C"], num_rows=100)
    assert [column.name for column in profile.columns] == ["C", "key"]
    with pytest.raises(
        SchemaError, match="names the field 'EMTPY', and there is none; did you mean EMPTY. There are: "
    ):
        session.profile(table, ["EMTPY"], num_rows=100)
    with pytest.raises(
        SchemaError, match="names the field 'zzzzzz', and there is none; there are: .*, I, .*, key"
    ):
        session.profile(table, ["zzzzzz"], num_rows=100)
    with pytest.raises(CacheNotFound, match="SQL_PUBLIC_KINDS"):
        session.profile("SQL_PUBLIC_KIND")
    for ask in (session.profile, session.columns, session.sample):
        with pytest.raises(CacheNotFound, match="did you mean 'KINDS'"):
            ask("kind_s")


def test_names_are_no_part_of_statements(session):
    session.query(
        'CREATE TABLE "Odd; name"("i d" INT PRIMARY KEY, "a; DROP TABLE KINDS --" INT, "select" BIGINT, "ORDER" INT)'
    )
    session.query('CREATE TABLE "GROUP"("FROM" INT PRIMARY KEY, "WHERE" INT)')
    try:
        for i in range(60):
            session.query('INSERT INTO "Odd; name" VALUES(?, ?, ?, ?)', [i, i % 2, 2**62 - i, i % 3])
            session.query('INSERT INTO "GROUP" VALUES(?, ?)', [i, 5 * i])
        profile = session.profile("SQL_PUBLIC_Odd; name", num_rows=10)
        columns = by_name(profile)
        assert profile.notes == ()
        assert [each.count for each in columns["a; DROP TABLE KINDS --"].classes] == [30, 30]
        assert (columns["select"].least, columns["select"].greatest) == (2**62 - 59, 2**62)
        assert columns["ORDER"].num_rows == 60
        profile = session.profile("SQL_PUBLIC_GROUP", num_rows=10)
        assert profile.notes == ()
        assert by_name(profile)["WHERE"].greatest == 295
        assert sum(node.rows for node in profile.nodes) == 60
    finally:
        session.query('DROP TABLE "Odd; name"')
        session.query('DROP TABLE "GROUP"')


def test_rows_that_a_table_does_not_see_are_told(session):
    fields = (QueryField("X", "java.lang.Long"), QueryField("UNSEEN", "java.lang.Integer"))
    entity = QueryEntity("PARTLY", "java.lang.Long", "Partly", fields)
    config = CacheConfig("PARTLY", sql_schema="PUBLIC", query_entities=(entity,))
    cache = session.client.create_cache(config)
    try:
        cache.put_all({i: BinaryObject("Partly", {"X": i}) for i in range(200)})
        cache.put_all({i: BinaryObject("Other", {"y": i}) for i in range(200, 300)})
        profile = session.profile("PARTLY", num_rows=100)
        columns = by_name(profile)
        assert (columns["X"].num_rows, columns["X"].greatest) == (200, 199)
        assert (columns["UNSEEN"].num_rows, columns["UNSEEN"].num_nulls) == (200, 200)
        assert "num_nulls" in columns["y"].estimated
        assert any("SQL counted 200 rows, and the cache has 300" in note for note in profile.notes)
        assert sum(node.rows for node in profile.nodes) == 300
    finally:
        session.client.destroy_cache("PARTLY")


def test_a_replicated_cache(session):
    cache = session.client.create_cache(CacheConfig("EVERYWHERE", mode=CacheMode.REPLICATED))
    try:
        for first in range(0, 6000, 500):
            cache.put_all({i: BinaryObject("Copy", {"x": i}) for i in range(first, first + 500)})
        assert session.columns("EVERYWHERE").num_looked_at == 256
        assert len({row[0] for row in session.sample("EVERYWHERE", 20).rows}) == 20
        column = by_name(session.profile("EVERYWHERE", num_rows=400))["x"]
        assert (column.num_rows, "mean" in column.estimated) == (400, True)
        assert column.mean == pytest.approx(3000, rel=0.15)
        profile = session.profile("EVERYWHERE")
        assert (by_name(profile)["x"].mean, profile.partitions, profile.nodes) == (2999.5, None, ())
    finally:
        session.client.destroy_cache("EVERYWHERE")


def test_rows_of_several_types_and_none(session):
    cache = session.client.create_cache(CacheConfig("SEVERAL"))
    try:
        empty = session.profile("SEVERAL")
        assert (empty.rows, empty.columns) == (0, ())
        cache.put_all({i: BinaryObject("A", {"x": i, "y": 1}) for i in range(20)})
        cache.put_all({i: BinaryObject("B", {"x": "text"}) for i in range(20, 30)})
        cache.put(99, 5.5)
        found = by_name(session.profile("SEVERAL"))
        assert (found["x"].kind, found["x"].num_rows, found["x"].mean) == ("mixed", 30, None)
        assert (found["y"].num_rows, found["val"].num_rows, found["val"].mean) == (20, 1, 5.5)
        assert [kind.num_rows for kind in session.profile("SEVERAL").kinds] == [20, 10, 1]
    finally:
        session.client.destroy_cache("SEVERAL")
