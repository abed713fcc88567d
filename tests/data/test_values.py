"""Loaded values read back unchanged: by key, in SQL, and in a dataset."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ignite_tf_magic import IgniteDataset
from ignite_tf_magic.client.cache_facts import forget
from ignite_tf_magic.client.cache_scan import WHOLE_CACHE
from ignite_tf_magic.data.text_files import TextFormat
from ignite_tf_magic.embedded import nodes
from ignite_tf_magic.errors import SourceError
from ignite_tf_magic.protocol.affinity import partition_of_key
from ignite_tf_magic.protocol.objects import BinaryObject
from ignite_tf_magic.session import open_session

CACHE = "VALUES_IN"
DAY, NOON = dt.date(2024, 2, 29), dt.time(12, 30, 1, 5000)
MOMENT = dt.datetime(2024, 7, 1, 12, 0, 0, 123456)
ID = uuid.UUID("12345678-9abc-def0-1234-56789abcdef0")
# For each kind: a value, what it is by key, and what it is in SQL.
SCALARS = {
    "whole": (2**63 - 1, 2**63 - 1, 2**63 - 1),
    "real": (0.1, 0.1, 0.1),
    "truth": (True, True, True),
    "words": ("Zoë \U0001f600", "Zoë \U0001f600", "Zoë \U0001f600"),
    "raw": (b"\x00\xff", b"\x00\xff", b"\x00\xff"),
    "price": (Decimal("-12345678901234567890.50"),) * 3,
    "born": (DAY, dt.datetime(2024, 2, 29), DAY),
    "wakes": (NOON, NOON, NOON),
    "seen": (MOMENT, MOMENT, np.datetime64(MOMENT, "ns")),
    "id_of": (ID, ID, ID),
}


@pytest.fixture(scope="module")
def session(ignite):
    with open_session(ignite.connect_options, report=print) as opened:
        yield opened


@pytest.fixture(autouse=True)
def gone(session):
    yield
    for name in session.client.cache_names():
        if name.startswith(CACHE):
            session.client.destroy_cache(name)
            forget(session.client, name)


def sources(tmp_path, rows):
    """Return the same rows as every type of source that can hold all kinds."""
    names = {name: [row[name] for row in rows] for name in rows[0]}
    table = pa.table(
        {**names, "id_of": pa.array([each and each.bytes for each in names["id_of"]], pa.uuid())}
    )
    batch = table.to_batches()[0]
    pq.write_table(table, tmp_path / "t.parquet")
    return {
        "dicts": rows,
        "objects": {name: np.array([*values, None], object)[:-1] for name, values in names.items()},
        "pandas": pd.DataFrame({name: pd.Series(values, dtype=object) for name, values in names.items()}),
        "table": table,
        "batch": batch,
        "reader": pa.RecordBatchReader.from_batches(table.schema, [batch, batch.slice(0, 0)]),
        "parquet": tmp_path / "t.parquet",
    }


KINDS = ("dicts", "objects", "pandas", "table", "batch", "reader", "parquet")


@pytest.mark.parametrize("source", KINDS)
def test_every_kind_and_its_nulls_come_back(session, tmp_path, source):
    given = {name: each[0] for name, each in SCALARS.items()}
    session.load(CACHE, sources(tmp_path, [given, dict.fromkeys(given), given])[source])
    cache = session.client.cache(CACHE)
    assert cache.get(0).fields == {name: each[1] for name, each in SCALARS.items()}
    assert cache.get(1).fields == dict.fromkeys(SCALARS)
    names = ", ".join(SCALARS)
    result = session.query(f"SELECT {names} FROM {CACHE} ORDER BY _KEY")
    assert result.rows[0] == result.rows[2] == tuple(each[2] for each in SCALARS.values())
    assert result.rows[1] == (None,) * len(SCALARS)
    kinds = [column.kind for column in result.columns]
    assert kinds[-5:] == ["decimal", "date", "time", "timestamp", "uuid"]


def test_polars_has_categories_and_zones(session):
    frame = pl.DataFrame(
        {
            "n": pl.Series([1, None, 2**53 + 1], dtype=pl.Int64),
            "kind": pl.Series(["a", None, "b"], dtype=pl.Categorical),
            "at": pl.Series([MOMENT, None, MOMENT]).dt.replace_time_zone("America/New_York"),
            "day": [DAY, None, DAY],
            "price": pl.Series([Decimal("1.50"), None, Decimal("-0.01")], dtype=pl.Decimal(10, 2)),
        }
    )
    session.load(CACHE, frame.lazy())
    rows = session.query(f"SELECT n, kind, at, day, price FROM {CACHE} ORDER BY _KEY").rows
    at = np.datetime64("2024-07-01T16:00:00.123456", "ns")
    assert rows[0] == (1, "a", at, DAY, Decimal("1.50"))
    assert rows[1] == (None,) * 5
    assert rows[2] == (2**53 + 1, "b", at, DAY, Decimal("-0.01"))


def test_pandas_has_categories_zones_and_its_own_missing_values(session):
    frame = pd.DataFrame(
        {
            "n": pd.array([1, None, 2**53 + 1], "Int64"),
            "flag": pd.array([True, None, False], "boolean"),
            "kind": pd.Categorical(["a", None, "b"]),
            "name": pd.array(["x", None, ""], "string"),
            "at": pd.to_datetime(["2024-07-01 12:00", None, "2024-07-01 12:00"]).tz_localize("Asia/Tokyo"),
            "arrow": pd.array([7, None, 9], "int32[pyarrow]"),
        }
    )
    session.load(CACHE, frame)
    rows = session.query(f"SELECT n, flag, kind, name, at, arrow FROM {CACHE} ORDER BY _KEY").rows
    at = np.datetime64("2024-07-01T03:00", "ns")
    assert rows == (
        (1, True, "a", "x", at, 7),
        (None,) * 6,
        (2**53 + 1, False, "b", "", at, 9),
    )


def test_a_frame_loses_nothing(session):
    """The index becomes a column or the key, NaN becomes NULL, trailing zeros of text and bytes stay."""
    index = pd.Index(["a\0", "b"], name="shop")
    frame = pd.DataFrame(
        {
            "real": [np.nan, 1.5],
            "vip": pd.Series([True, np.nan], dtype=object, index=index),
            "raw": pd.Series([b"\1\0\0", b""], dtype=object, index=index),
        },
        index=index,
    )
    session.load(CACHE, frame, key="shop")
    rows = session.query(f"SELECT shop, real, vip, raw FROM {CACHE} ORDER BY shop").rows
    assert rows == (("a\0", None, True, b"\1\0\0"), ("b", 1.5, None, b""))
    assert session.query(f"SELECT AVG(real), COUNT(real) FROM {CACHE}").rows == ((1.5, 1),)
    session.load(CACHE, frame, key="shop", keep_nan=True, replace=True)
    assert np.isnan(session.client.cache(CACHE).get("a\0").fields["real"])


def test_the_index_that_is_dropped_is_said(session):
    said = []
    session.report = said.append
    frame = pd.DataFrame({"x": range(5)})
    session.load(CACHE, frame)
    assert said == []
    filtered = frame.query("x in [0, 1, 4]")
    session.load(CACHE, filtered, replace=True)
    (line,) = said
    assert "index" in line and "rename_axis('row')" in line
    session.load(CACHE, filtered.rename_axis("at"), replace=True)
    assert session.query(f"SELECT at, x FROM {CACHE} ORDER BY x").rows == ((0, 0), (1, 1), (4, 4))


def test_hugging_face_and_tensorflow(session):
    import datasets
    import tensorflow as tf

    given = datasets.Dataset.from_dict(
        {"text": ["a", None, "c"], "label": [0, 1, 1], "vec": [[1.0], [2.0, 3.0], []]}
    )
    session.load(CACHE, datasets.DatasetDict({"train": given.select([2, 0]), "test": given}))
    cache = session.client.cache(CACHE)
    assert [cache.get(key).fields["text"] for key in (0, 1)] == ["c", "a"]
    assert cache.get(0).fields["vec"].tolist() == []
    pictures = tf.data.Dataset.from_tensor_slices(
        ({"picture": np.arange(12, dtype=np.uint8).reshape(3, 2, 2)}, np.array([3, 1, 2], np.int32))
    )
    session.load(CACHE, pictures, replace=True)
    assert cache.get(2).fields == {"picture": bytes([8, 9, 10, 11]), "label": 2}
    with pytest.raises(SourceError, match=r"no end.*take\(n\)"):
        session.load(f"{CACHE}_2", pictures.repeat())


LISTS = [
    {
        "flat": [1, 2],
        "ragged": [1.5],
        "texts": ["a", None],
        "deep": [[1, 2], [3]],
        "who": {"name": "u", "at": {"x": 1}},
    },
    {"flat": [3, 4], "ragged": [], "texts": [], "deep": [], "who": None},
    {"flat": None, "ragged": None, "texts": None, "deep": None, "who": {"name": None, "at": {"x": 2}}},
]


@pytest.mark.parametrize("source", ["dicts", "arrow", "jsonl"])
def test_lists_of_one_and_two_levels_and_structs(session, tmp_path, source):
    if source == "arrow":
        given = pa.Table.from_pylist(LISTS)
    elif source == "jsonl":
        given = tmp_path / "l.jsonl"
        given.write_text("".join(json.dumps(row) + "\n" for row in LISTS))
    else:
        given = LISTS
    session.load(CACHE, given)
    cache = session.client.cache(CACHE)
    rows = [{name: plain(value) for name, value in cache.get(key).fields.items()} for key in range(3)]
    assert rows == [
        {
            "flat": [1, 2],
            "ragged": [1.5],
            "texts": ["a", None],
            "deep": [[1, 2], [3]],
            "who_name": "u",
            "who_at_x": 1,
        },
        {"flat": [3, 4], "ragged": [], "texts": [], "deep": [], "who_name": None, "who_at_x": None},
        {"flat": None, "ragged": None, "texts": None, "deep": None, "who_name": None, "who_at_x": 2},
    ]
    columns = "flat, ragged, texts, deep, who_name, who_at_x"
    shown = session.query(f"SELECT {columns} FROM {CACHE} ORDER BY _KEY").rows
    assert [[plain(value) for value in row] for row in shown] == [list(row.values()) for row in rows]


def plain(value):
    if isinstance(value, np.ndarray):
        return value.tolist()
    return [plain(each) for each in value] if isinstance(value, list) else value


def test_a_dataset_reads_them(session, ignite):
    frame = pa.table(
        {
            "whole": pa.array([5, None, 7], pa.int64()),
            "real": pa.array([0.5, None, 1.5]),
            "words": ["a", None, "c"],
            "day": pa.array([DAY, None, DAY]),
            "price": pa.array([Decimal("1.50"), None, Decimal("2.25")]),
            "ragged": pa.array([[1, 2], [], [3]]),
        }
    )
    session.load(CACHE, frame)
    endpoint = ignite.connect_options.endpoints[0]
    fill = {"whole": -1, "day": 0}
    dataset = IgniteDataset(CACHE, endpoint.host, endpoint.port, fill=fill)
    rows = {int(each["key"]): each["val"] for each in dataset.as_numpy_iterator()}
    assert [rows[key]["whole"] for key in range(3)] == [5, -1, 7]
    assert [rows[key]["words"] for key in range(3)] == [b"a", b"", b"c"]
    np.testing.assert_array_equal([rows[key]["real"] for key in range(3)], [0.5, np.nan, 1.5])
    np.testing.assert_array_equal([rows[key]["price"] for key in range(3)], [1.5, np.nan, 2.25])
    millis = (DAY - dt.date(1970, 1, 1)).days * 86_400_000
    assert [rows[key]["day"] for key in range(3)] == [millis, 0, millis]
    assert [rows[key]["ragged"].tolist() for key in range(3)] == [[1, 2], [], [3]]


def test_a_dataset_has_no_columns_of_what_was_there_before(session, ignite):
    endpoint = ignite.connect_options.endpoints[0]
    for names in (("n", "words"), ("n",), ("n", "more")):
        session.load(CACHE, {name: np.arange(3) for name in names}, replace=True)
        element = IgniteDataset(CACHE, endpoint.host, endpoint.port).element_spec
        assert element["val"].keys() == set(names)


KEYS = {
    "whole": (7, -(2**40)),
    "words": ("a", "ü\U0001f600"),
    "id_of": (ID, uuid.UUID(int=2**127 + 5)),
    "seen": (MOMENT, dt.datetime(1969, 12, 31, 23, 59, 59, 999000)),
    "price": (Decimal("1.50"), Decimal("-123456789012345678901234567890.1")),
    "share": (0.1, -1e300),
    "truth": (True, False),
    "wakes": (NOON, dt.time(0)),
    "born": (DAY, dt.date(1969, 12, 31)),
}


@pytest.mark.parametrize("kind", KEYS)
def test_keys_of_any_scalar_type(session, kind):
    keys = KEYS[kind]
    session.load(CACHE, [{kind: key, "x": number} for number, key in enumerate(keys)], key=kind)
    cache = session.client.cache(CACHE)
    rows = session.query(f"SELECT {kind}, x FROM {CACHE} ORDER BY x").rows
    expected = [np.datetime64(key, "ns") for key in keys] if kind == "seen" else list(keys)
    assert [row[0] for row in rows] == expected
    key_type = cache.config().query_entities[0].key_type
    written = [BinaryObject(key_type, {kind: key}) for key in keys] if kind == "born" else keys
    assert [cache.get(key).fields for key in written] == [{"x": 0}, {"x": 1}]
    check_partitions(cache, written)
    with pytest.raises(SourceError, match=rf"'{kind}' cannot be the key: 1 of its 2 values are repeated"):
        session.load(CACHE, [{kind: keys[0], "x": 0}] * 2, key=kind, replace=True)


def test_keys_that_are_floats_have_one_zero_and_no_nan(session):
    with pytest.raises(SourceError, match="cannot be the key: 1 of its 2 values are repeated"):
        session.load(CACHE, {"k": np.array([0.0, -0.0]), "x": [1, 2]}, key="k")
    with pytest.raises(SourceError, match="row 1, column 'k': no value, and it is the key"):
        session.load(CACHE, {"k": np.array([0.5, np.nan]), "x": [1, 2]}, key="k")
    session.load(CACHE, {"k": np.array([-0.0, 0.5], np.float32), "x": [1, 2]}, key="k")
    assert session.client.cache(CACHE).get_all([0.0, 0.5]).keys() == {0.0, 0.5}


def check_partitions(cache, keys):
    """Check that rows are in the partitions computed from their keys. Else loads would be slow and miscounted."""
    filled = {partition for partition, stats in cache.partition_stats().items() if stats.rows}
    assert WHOLE_CACHE not in filled
    assert filled == {partition_of_key(key, cache.partition_map().num_partitions) for key in keys}


def test_keys_of_several_columns(session):
    rows = [{"day": DAY, "shop": shop, "till": till, "x": till} for shop in ("a", "b") for till in (1, 2)]
    session.load(CACHE, rows, key=("shop", "till", "day"))
    shown = session.query(
        f"SELECT x FROM {CACHE} WHERE shop = 'b' AND till = 2 AND day = DATE '2024-02-29'"
    ).rows
    assert shown == ((2,),)
    cache = session.client.cache(CACHE)
    key_type = cache.config().query_entities[0].key_type
    keys = [BinaryObject(key_type, {"shop": r["shop"], "till": r["till"], "day": DAY}) for r in rows]
    assert [cache.get(key).fields for key in keys] == [{"x": 1}, {"x": 2}] * 2
    check_partitions(cache, keys)
    with pytest.raises(
        SourceError, match=r"'shop', 'till' cannot be the key: 2 of its 4.*\(a, 1\).* rows 0 and 2"
    ):
        session.load(f"{CACHE}_2", [{**row, "shop": "a"} for row in rows], key=("shop", "till"))


CSV = """\
Größe;zip;day;at;n;cc
1.5;007;2024-02-29;2024-07-01T12:00:00Z;1;NA
;;;;-;""
+2.5;010;1970-01-01;2024-07-01 12:00:00+02:00;9007199254740993;DE
"""


def test_csv_as_it_is_said_to_be(session, tmp_path):
    (tmp_path / "c.csv").write_text(CSV, encoding="latin-1")
    text = TextFormat(";", {"zip": "text", "day": "date", "at": "timestamp"}, ["-"], "latin-1")
    session.load(CACHE, tmp_path / "c.csv", text=text)
    noon = np.datetime64("2024-07-01T12:00", "ns")
    rows = session.query(f"SELECT größe, zip, day, at, n, cc FROM {CACHE} ORDER BY _KEY").rows
    assert rows == (
        (1.5, "007", DAY, noon, 1, "NA"),
        (None, None, None, None, None, ""),
        (2.5, "010", dt.date(1970, 1, 1), noon - np.timedelta64(2, "h"), 2**53 + 1, "DE"),
    )


def test_dates_are_refused_where_a_node_shows_others(new_cluster, monkeypatch):
    java_command = nodes.java_command

    def elsewhere(*given):
        return [word.replace("timezone=UTC", "timezone=America/New_York") for word in java_command(*given)]

    monkeypatch.setattr(nodes, "java_command", elsewhere)
    with open_session(new_cluster(num_nodes=1).connect_options, report=print) as opened:
        for value in (DAY, NOON):
            with pytest.raises(SourceError, match=r"'d' .* does not run in UTC.*2024-01-01 19:00:00"):
                opened.load(CACHE, {"d": np.array([value], object)})
        assert CACHE not in opened.client.cache_names()
        opened.load(CACHE, {"d": np.array([MOMENT], object)})
        assert opened.query(f"SELECT d FROM {CACHE}").rows == ((np.datetime64(MOMENT, "ns"),),)
