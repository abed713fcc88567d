"""Times in every way in and out of a cluster: UTC in any client zone, years 1 to 9999, never silently wrong."""

from __future__ import annotations

import datetime as dt
import time
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest

from ignite_tf_magic.client.client import connect
from ignite_tf_magic.client.sql import SqlClient
from ignite_tf_magic.errors import LocalProtocolError, QueryError
from ignite_tf_magic.protocol.messages import CacheConfig
from ignite_tf_magic.session import open_session

UTC = dt.timezone.utc
NEW_YORK = ZoneInfo("America/New_York")
# When clocks go forward, an hour is missing; when they go back, an hour comes twice.
MOMENTS = [
    "2024-07-01T12:00:00.123456789",
    "2024-03-10T02:30:00",
    "2024-03-10T07:30:00",
    "2024-11-03T05:30:00",
    "2024-11-03T06:30:00",
    "1969-12-31T23:59:59.999999999",
    "1883-11-18T17:00:00",
    "1677-09-21T00:12:43.999",
    "1677-09-21T00:12:44",
    "2262-04-11T23:47:16",
    "2262-04-11T23:47:17.5",
    "0001-01-01",
    "1582-10-10",
    "9999-12-31",
    "9999-12-31T23:59:59.999999",
]


@pytest.fixture(params=["UTC", "America/New_York", "Asia/Kolkata"])
def zone(request, monkeypatch):
    """The time zone of this process."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


@pytest.fixture(scope="module")
def cache(ignite):
    """A cache with a timestamp for each moment, put as datetime64."""
    with connect(ignite.connect_options) as client:
        made = client.create_cache(CacheConfig("MOMENTS"))
        made.put_all({np.int32(at): np.datetime64(moment) for at, moment in enumerate(MOMENTS)})
        SqlClient(ignite.connect_options).query(
            "CREATE TABLE MOMENT_TABLE(ID INT PRIMARY KEY, TS TIMESTAMP, DA DATE, TI TIME)"
        )
        yield made
        SqlClient(ignite.connect_options).query("DROP TABLE MOMENT_TABLE")
        client.destroy_cache("MOMENTS")


@pytest.fixture
def sql(ignite, cache):
    client = SqlClient(ignite.connect_options)
    yield client
    client.query("DELETE FROM MOMENT_TABLE")


def test_key_value_there_and_back(zone, cache):
    for at, moment in enumerate(MOMENTS):
        expected = np.datetime64(moment).astype("M8[us]").item()
        assert cache.get(np.int32(at)) == expected


def test_aware_times_are_put_in_utc(zone, cache):
    noon = dt.datetime(2024, 7, 1, 12, tzinfo=NEW_YORK)
    for value in (noon, pd.Timestamp(noon), dt.datetime(2024, 7, 1, 16), np.datetime64("2024-07-01T16")):
        cache.put("noon", value)
        assert cache.get("noon") == dt.datetime(2024, 7, 1, 16)
    assert cache.remove("noon")


@pytest.mark.parametrize("nothing", [np.datetime64("NaT"), pd.NaT])
def test_no_time_is_null(cache, sql, nothing):
    assert sql.query("SELECT ?", [nothing]).rows == ((None,),)
    sql.query("INSERT INTO MOMENT_TABLE(ID, TS) VALUES(1, ?)", [nothing])
    assert sql.query("SELECT TS FROM MOMENT_TABLE").rows == ((None,),)


def test_sql_there_and_back(zone, sql):
    for at, moment in enumerate(MOMENTS):
        sql.query("INSERT INTO MOMENT_TABLE(ID, TS) VALUES(?, ?)", [at, np.datetime64(moment)])
    rows = sql.query("SELECT TS FROM MOMENT_TABLE ORDER BY ID").rows
    assert [str(value).rstrip("0").rstrip(".") for (value,) in rows] == [
        str(np.datetime64(moment).astype("M8[ns]" if 1678 <= int(moment[:4]) <= 2261 else "M8[us]"))
        .rstrip("0")
        .rstrip(".")
        for moment in MOMENTS
    ]
    for at, moment in enumerate(MOMENTS):
        found = sql.query("SELECT ID FROM MOMENT_TABLE WHERE TS = ?", [np.datetime64(moment)]).rows
        assert found == ((at,),), moment


def test_what_sql_reads_is_what_was_put(zone, cache, ignite):
    """An instant reads the same by key and by SQL, whichever way it was written."""
    client = SqlClient(ignite.connect_options)
    client.query(
        'CREATE TABLE PUT_HERE(ID INT PRIMARY KEY, TS TIMESTAMP) WITH "CACHE_NAME=PUT_HERE,WRAP_VALUE=false"'
    )
    try:
        here = cache.client.cache("PUT_HERE")
        here.put(np.int32(1), dt.datetime(2024, 7, 1, 12))
        client.query("INSERT INTO PUT_HERE VALUES(2, ?)", [dt.datetime(2024, 7, 1, 12)])
        client.query("INSERT INTO PUT_HERE VALUES(3, TIMESTAMP '2024-07-01 12:00:00')")
        client.query("INSERT INTO PUT_HERE VALUES(4, ?)", [dt.datetime(2024, 7, 1, 8, tzinfo=NEW_YORK)])
        assert {value for (value,) in client.query("SELECT TS FROM PUT_HERE").rows} == {
            np.datetime64("2024-07-01T12", "ns")
        }
        assert {here.get(np.int32(key)) for key in (1, 2, 3, 4)} == {dt.datetime(2024, 7, 1, 12)}
    finally:
        client.query("DROP TABLE PUT_HERE")


@pytest.mark.parametrize("fold", [0, 1])
def test_an_hour_that_comes_twice_is_told_apart(zone, sql, fold):
    moment = dt.datetime(2024, 11, 3, 1, 30, fold=fold, tzinfo=NEW_YORK)
    expected = np.datetime64(moment.astimezone(UTC).replace(tzinfo=None), "ns")
    assert sql.query("SELECT ?", [moment]).rows == ((expected,),)
    assert sql.query("SELECT ?", [pd.Timestamp(moment)]).rows == ((expected,),)


def test_dates_and_times_of_day(zone, sql):
    for at, date in enumerate(
        [dt.date(2024, 3, 10), dt.date(1931, 5, 6), dt.date(1, 1, 1), dt.date(9999, 12, 31)]
    ):
        sql.query("INSERT INTO MOMENT_TABLE(ID, DA, TI) VALUES(?, ?, ?)", [at, date, dt.time(23, 59, 58)])
        assert sql.query("SELECT DA, TI FROM MOMENT_TABLE WHERE DA = ?", [date]).rows == (
            (date, dt.time(23, 59, 58)),
        )
    frame = sql.query("SELECT DA, TI FROM MOMENT_TABLE ORDER BY ID").to_pandas()
    assert [str(value) for value in frame["DA"].to_numpy().astype("M8[D]")] == [
        "2024-03-10",
        "1931-05-06",
        "0001-01-01",
        "9999-12-31",
    ]
    assert len(sql.query("SELECT ID FROM MOMENT_TABLE WHERE TI = ?", [dt.time(23, 59, 58)]).rows) == 4


def test_frames_are_coarser_where_nanoseconds_do_not_reach(zone, sql):
    sql.query(
        "INSERT INTO MOMENT_TABLE(ID, TS) VALUES(1, ?)", [np.datetime64("2024-07-01T12:00:00.000000001")]
    )
    sql.query("INSERT INTO MOMENT_TABLE(ID, TS) VALUES(2, NULL)")
    assert sql.query("SELECT TS FROM MOMENT_TABLE").to_pandas()["TS"].dtype == "datetime64[ns, UTC]"
    sql.query("INSERT INTO MOMENT_TABLE(ID, TS) VALUES(3, ?)", [dt.datetime(9999, 12, 31, 23, 59, 59)])
    frame = sql.query("SELECT TS FROM MOMENT_TABLE ORDER BY ID").to_pandas()
    assert frame["TS"].dtype == "datetime64[us, UTC]"
    assert frame["TS"].dt.tz_localize(None).to_numpy().tolist() == [
        dt.datetime(2024, 7, 1, 12),
        None,
        dt.datetime(9999, 12, 31, 23, 59, 59),
    ]


@pytest.mark.parametrize(
    "far",
    [
        np.datetime64("0000-12-31"),
        np.datetime64("10000-01-01"),
        np.datetime64(10**12, "Y"),
        np.datetime64("-1000", "M"),
    ],
)
def test_times_outside_of_the_calendar_are_refused(cache, sql, far):
    with pytest.raises(LocalProtocolError, match="years 1 to 9999"):
        cache.put("far", far)
    with pytest.raises(QueryError, match="years 1 to 9999"):
        sql.query("SELECT ?", [far])


def test_loaded_times(zone, ignite, client):
    """Columns of any unit, with or without text beside them, read by key, by SQL and in frames."""
    zoned = pd.DataFrame({"at": pd.to_datetime(MOMENTS[:1]).tz_localize("UTC").tz_convert("Asia/Kolkata")})
    columns = {f"at_{unit}": np.array([m[:19] for m in MOMENTS], f"M8[{unit}]") for unit in ("s", "ms", "us")}
    nanos = {"at": np.array([m for m in MOMENTS if 1700 < int(m[:4]) < 2200], "M8[ns]")}
    with open_session(ignite.connect_options, report=print) as session:
        try:
            for source in (columns, {**columns, "text": np.array(["x"] * len(MOMENTS))}):
                session.load("LOADED_TIMES", source, replace=True)
                for name in columns:
                    rows = session.query(f"SELECT {name} FROM LOADED_TIMES ORDER BY ID").rows
                    assert [value.astype("M8[s]") for (value,) in rows] == [
                        np.datetime64(m[:19], "s") for m in MOMENTS
                    ]
            session.load("LOADED_TIMES", nanos, replace=True)
            rows = session.query("SELECT AT FROM LOADED_TIMES ORDER BY ID").rows
            assert [value for (value,) in rows] == list(nanos["at"])
            session.load("LOADED_TIMES", zoned, replace=True)
            assert session.query("SELECT AT FROM LOADED_TIMES").rows == ((np.datetime64(MOMENTS[0]),),)
        finally:
            client.destroy_cache("LOADED_TIMES")


def test_embedded_nodes_take_times_without_a_zone_for_utc(own_nodes, monkeypatch):
    monkeypatch.setenv("TZ", "America/New_York")
    sql = SqlClient(own_nodes.connect_options)
    (row,) = sql.query("SELECT TIMESTAMP '2024-07-01 12:00:00', DATE '2024-07-01', TIME '12:00:00'").rows
    assert row == (np.datetime64("2024-07-01T12", "ns"), dt.date(2024, 7, 1), dt.time(12))
    (bound,) = sql.query("SELECT CAST(? AS VARCHAR)", [dt.datetime(2024, 7, 1, 12)]).rows
    assert bound[0].startswith("2024-07-01 12:00:00")


@pytest.mark.parametrize(
    ("time_of_day", "why"),
    [
        (dt.time(1, 2, 3, 456789), "parts of a millisecond"),
        (dt.time(1, 2, 3, tzinfo=dt.timezone.utc), "a zone"),
    ],
)
def test_times_of_day_that_a_node_would_cut_are_refused(sql, time_of_day, why):
    with pytest.raises(QueryError, match=why):
        sql.query("INSERT INTO MOMENT_TABLE(ID, TI) VALUES(1, ?)", [time_of_day])
    assert sql.query("SELECT ID FROM MOMENT_TABLE").rows == ()


def test_nanoseconds_are_read_and_written_back(cache):
    moment = cache.get(np.int32(0))
    assert (moment.microsecond, moment.nanosecond) == (123456, 789)
    cache.put("again", moment)
    assert cache.get("again").nanosecond == 789
    assert cache.remove("again")


def test_text_with_a_zero_character_is_whole(sql):
    assert sql.query("SELECT ?", ["a\0b"]).rows == (("a\0b",),)
    assert sql.query("SELECT 'a\0b'").rows == (("a\0b",),)


def test_half_a_character_is_refused_in_words(sql, cache):
    with pytest.raises(QueryError, match="lone surrogate"):
        sql.query("SELECT ?", ["a\ud800"])
    with pytest.raises(LocalProtocolError, match="lone surrogate"):
        cache.put("x", "a\ud800")
