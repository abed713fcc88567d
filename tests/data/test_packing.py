"""Packed caches hold the same rows as plain ones; errors name the rows that cannot be packed."""

from __future__ import annotations

import datetime as dt
import decimal
import resource
import uuid

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from ignite_tf_magic import IgniteDataset, batches
from ignite_tf_magic.client.cache_facts import forget
from ignite_tf_magic.client.packed_entries import packed_count, partitions_of_entries
from ignite_tf_magic.data import packing
from ignite_tf_magic.errors import (
    CacheExists,
    ConfigError,
    EmptyCache,
    IgniteTfError,
    SchemaError,
    SourceError,
)
from ignite_tf_magic.protocol.messages import CacheConfig
from ignite_tf_magic.protocol.objects import BinaryObject
from ignite_tf_magic.protocol.typed_values import (
    Char,
    Int,
    SqlDate,
    Timestamp,
    TypedCollection,
    TypedMap,
    UtilDate,
)
from ignite_tf_magic.session import open_session

PLAIN, PACKED = "PACKING_PLAIN", "PACKING_PACKED"
ROWS = 700


@pytest.fixture(scope="module")
def session(ignite):
    with open_session(ignite.connect_options, report=print) as opened:
        yield opened


@pytest.fixture(autouse=True)
def gone(session, ignite, monkeypatch):
    monkeypatch.setenv("IGNITE_TF_CLUSTER", ",".join(map(str, ignite.connect_options.endpoints)))
    yield
    for name in session.client.cache_names():
        if name.startswith("PACKING"):
            session.client.destroy_cache(name)
            forget(session.client, name)


def everything(rows: int = ROWS) -> pd.DataFrame:
    """Return rows with every kind of column. Special values come late, where no sample finds them."""
    late = rows - 3
    return pd.DataFrame(
        {
            "id": np.arange(rows) * 7,
            "whole": np.arange(rows, dtype=np.int16),
            "real": [np.nan if row == late else row / 3 for row in range(rows)],
            "truth": [row % 2 == 0 for row in range(rows)],
            "words": [None if row == late else f"Zoë {row}" for row in range(rows)],
            "raw": [bytes(row % 5) for row in range(rows)],
            "missing": pd.array([None if row == late else row for row in range(rows)], "Int32"),
            "born": [dt.date(1970, 1, 1) + dt.timedelta(days=row) for row in range(rows)],
            "seen": pd.date_range("2024-01-01", periods=rows, freq="h"),
            "id_of": [uuid.UUID(int=row) for row in range(rows)],
            "price": [decimal.Decimal(row) / 8 for row in range(rows)],
            "numbers": [np.arange(row % 4, dtype=np.float32) for row in range(rows)],
            "texts": [[f"t{row}"] * (row % 3) for row in range(rows)],
            "deep": [[[row, 1], [2]][: row % 3] for row in range(rows)],
            "pixels": list(np.arange(rows * 16).astype(np.uint8).reshape(rows, 16)),
        }
    )


def rows_of(dataset) -> dict:
    """Return the rows by key, as Python values."""
    found = {}
    for row in dataset:
        key = row["key"].numpy()
        assert key not in found
        found[key] = {
            name: each.to_list()
            if hasattr(each, "to_list")
            else each.numpy().tolist()
            if hasattr(each.numpy(), "tolist")
            else each.numpy()
            for name, each in sorted(row["val"].items())
        }
    return found


@pytest.mark.parametrize("key", ["", "id", "words_"], ids=["numbered", "whole", "text"])
def test_packed_rows_are_those_of_a_cache_that_is_not(session, key):
    frame = everything()
    if key == "words_":
        frame[key] = [f"key {row}" for row in range(ROWS)]
    session.load(PLAIN, frame, key=key or ())
    outcome = session.load(PACKED, frame, key=key or (), packed=True)
    assert (outcome.rows, outcome.entries) == (ROWS, -(-ROWS // (ROWS // packing.MIN_ENTRIES)))
    assert session.client.cache(PACKED).size() == outcome.entries
    plain, packed = IgniteDataset(PLAIN, nulls=["missing"]), IgniteDataset(PACKED)
    assert packed.element_spec == plain.element_spec
    assert set(plain.element_spec["val"]) == {*frame.columns, "missing_is_null"} - {key}
    expected = rows_of(plain)
    assert repr(rows_of(packed)) == repr({key: expected[key] for key in rows_of(packed)})
    assert len(expected) == len(rows_of(packed)) == ROWS
    assert [each.rows for each in session.caches() if each.name in (PLAIN, PACKED)] == [ROWS, ROWS]


def test_a_cache_is_packed(session):
    session.load(PLAIN, everything())
    session.pack(PLAIN, PACKED, nulls="mask")
    expected = IgniteDataset(PLAIN, nulls="mask")
    assert IgniteDataset(PACKED).element_spec == expected.element_spec
    assert repr(sorted(rows_of(IgniteDataset(PACKED)).items())) == repr(sorted(rows_of(expected).items()))


def test_some_rows_and_fields_are_packed(session):
    session.load(PLAIN, {"a": np.arange(ROWS), "b": np.arange(ROWS) % 10, "c": np.arange(ROWS)})
    outcome = session.pack(PLAIN, PACKED, fields=["a", "b"], where="B < ?", where_args=[3])
    assert outcome.rows == ROWS * 3 // 10
    found = rows_of(IgniteDataset(PACKED, fields=["b"]))
    assert found == {row: {"b": row % 10} for row in range(ROWS) if row % 10 < 3}
    again = session.pack(
        PACKED, PACKED, replace=True
    )  # the old cache is read to its end before it is removed
    assert (again.rows, again.entries) == (outcome.rows, 210)
    assert rows_of(IgniteDataset(PACKED, fields=["b"])) == found
    assert list(IgniteDataset(PACKED, fields=[]).element_spec["val"]) == []


def test_batches_and_orders(session):
    session.load(PACKED, {"x": np.arange(ROWS)}, packed=True)
    dataset = IgniteDataset(PACKED).map(lambda row: row["key"])
    assert [len(batch) for batch in dataset.batch(256)] == [256, 256, ROWS - 512]
    first, second = (np.concatenate(list(dataset.batch(100).as_numpy_iterator())) for _ in range(2))
    assert np.array_equal(first, second) and sorted(first) == list(range(ROWS))
    mixed = np.concatenate(list(dataset.shuffle(300, seed=1).batch(100).as_numpy_iterator()))
    assert sorted(mixed) == list(range(ROWS)) and not np.array_equal(mixed, first)
    assert abs(np.corrcoef(mixed, first)[0, 1]) < 0.6
    arrays = [batch["val"]["x"] for batch in batches(PACKED, 64)]
    assert sorted(np.concatenate(arrays)) == list(range(ROWS))


def test_a_packing_that_ended_is_gone_on_with(session):
    frame = everything()

    class EndedError(Exception):
        pass

    def end(done: int, of: int) -> None:
        if done:
            raise EndedError

    with pytest.raises(EndedError):
        session.load(PACKED, frame, packed=True, progress=end)
    with pytest.raises(IgniteTfError, match="PACKING_PACKED"):
        IgniteDataset(PACKED)
    session.client.cache(PACKED).remove(0)
    assert PACKED in [each.name for each in session.caches()]
    told = []
    outcome = session.load(
        PACKED, frame, packed=True, resume=True, progress=lambda done, of: told.append((done, of))
    )
    assert outcome.rows == ROWS and told[-1] == (ROWS, ROWS)
    assert sorted(rows_of(IgniteDataset(PACKED))) == list(range(ROWS))


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"where": "x < 3"}, ConfigError, "where= cannot be used"),
        ({"fill": {"x": 0}}, ConfigError, "fill="),
        ({"nulls": "mask"}, ConfigError, "nulls="),
        ({"variable": ["x"]}, ConfigError, "variable="),
        ({"follow": True}, ConfigError, "follow="),
        ({"fields": ["y"]}, SchemaError, "fields names the field 'y', and there is none; there are: x"),
    ],
    ids=lambda each: "-".join(each) if isinstance(each, dict) else None,
)
def test_what_cannot_be_had_of_packed_rows(session, options, error, words):
    session.load(PACKED, {"x": np.arange(ROWS)}, packed=True)
    with pytest.raises(error, match=words):
        IgniteDataset(PACKED, **options)


def test_what_cannot_be_done_with_a_packed_cache(session):
    session.load(PACKED, {"x": np.arange(ROWS)}, packed=True)
    with pytest.raises(CacheExists):
        session.load(PACKED, {"x": np.arange(3)}, packed=True)
    with pytest.raises(ConfigError, match="cannot be appended to a cache"):
        session.load(PACKED, {"x": np.arange(3)}, packed=True, append=True)
    with pytest.raises(ConfigError, match="cannot be upserted to a cache"):
        session.load(PACKED, {"x": np.arange(3), "y": np.arange(3)}, key="x", packed=True, upsert=True)
    with pytest.raises(SourceError, match="do not fit table"):
        session.load(PACKED, {"x": np.arange(3)}, append=True)
    with pytest.raises(ConfigError, match="outputs are written beside single rows"):
        session.predict("none.keras", PACKED, "PACKING_OUT")
    assert rows_of(IgniteDataset(PACKED)) == {row: {"x": row} for row in range(ROWS)}


def test_rows_that_are_packed_are_looked_at(session):
    frame = everything(4000)
    session.load(PLAIN, frame)
    session.load(PACKED, frame, packed=True)
    plain, packed = (session.columns(name) for name in (PLAIN, PACKED))
    assert (packed.rows, packed.num_looked_at, packed.table) == (4000, 256, None)
    assert "nulls are known only for fields" in packed.notes[0]
    forms = {each.name: (each.dtype, each.shape, each.is_key) for each in plain.columns}
    assert {each.name: (each.dtype, each.shape, each.is_key) for each in packed.columns} == forms | {
        "price": ("float64", (), False)
    }
    seen = session.sample(PACKED, 50)
    assert (len(seen.rows), seen.total_rows) == (50, 4000)
    shown = rows_of_sample(session.sample(PLAIN, 5000))
    for key, row in rows_of_sample(seen).items():
        expected = {**shown[key], "price": float(shown[key]["price"]), "id_of": str(shown[key]["id_of"])}
        assert repr(row) == repr(expected)


def rows_of_sample(sample) -> dict:
    rows = [dict(zip(sample.columns, row, strict=True)) for row in sample.rows]
    return {row.pop("key"): dict(sorted(row.items())) for row in rows}


def test_rows_of_java_that_are_packed_look_as_they_did(session):
    """Dates at midnight of another zone, items of lists and maps, arrays of arrays, objects, null objects."""
    berlin = 1_719_784_800_000  # 2024-07-01 in Berlin

    def value(row: int) -> BinaryObject:
        fields = {
            "day": SqlDate.of(berlin) if row % 2 else None,
            "at": UtilDate.of(-1 - row),
            "time": dt.time(23, 59, 59, 999_000),
            "letter": Char(ord("ö")),
            "texts": TypedCollection([f"é{row}"] * (row % 3), 1),
            "times": TypedCollection([Timestamp.of(1_500, 7)] * (row % 2), 1),
            "deep": TypedCollection([TypedCollection([Int(row)], 1), TypedCollection([], 1)], 1),
            "bytes": TypedCollection([b"abc", b"xyz"], 1),
            "map": TypedMap([(f"k{row}", 1.5)], 1),
            "inner": BinaryObject("PackingInner", {"x": Int(row), "s": "t"}) if row != 5 else None,
        }
        return BinaryObject("PackingJavaRow", fields)

    plain = session.client.create_cache(CacheConfig(PLAIN))
    plain.put_all({Int(row): value(row) for row in range(300)})
    session.pack(PLAIN, PACKED, nulls="mask")
    shown, packed = (rows_of_sample(session.sample(name, 300)) for name in (PLAIN, PACKED))
    assert len(packed) == 300
    for key, row in packed.items():
        expected = dict(shown[key])
        ((name, number),) = expected.pop("map")
        assert (row.pop("map_keys"), row.pop("map_values")) == ([name], [number])
        expected["inner.s"] = expected["inner.s"] or ""  # a null text is packed as an empty one
        expected["times"] = [np.datetime64(1_500_000_007, "ns") for _ in expected["times"]]
        told = {name: each for name, each in row.items() if not name.endswith("_null_items")}
        assert repr(told) == repr(expected)
    kinds = session.columns(PACKED).kinds
    assert [(kind.key_type, kind.value_type) for kind in kinds] == [("int", "PackingJavaRow")]


@pytest.mark.parametrize("num_rows", [200, 10_000], ids=["some", "all"])
def test_numbers_of_rows_that_are_packed(session, num_rows):
    frame = everything(2000)
    session.load(PLAIN, frame, keep_nan=True)
    session.load(PACKED, frame, packed=True, keep_nan=True)
    plain, packed = session.profile(PLAIN), session.profile(PACKED, num_rows=num_rows)
    assert (packed.rows, packed.is_whole, packed.kinds[0].key_type) == (2000, num_rows > 2000, "long")
    entries = session.client.cache(PACKED).size()
    read = entries if packed.is_whole else int(packed.read_from.split()[0])
    assert packed.read_from == f"{read} of {entries} entries" and read >= 8
    assert packed.partitions.num_counted == packed.partitions.num_partitions
    assert sum(node.rows for node in packed.nodes) == 2000
    columns = {each.name: each for each in packed.columns}
    if not packed.is_whole:
        assert packed.num_sampled >= 200 and all(each.estimated for each in packed.columns)
        assert abs(columns["whole"].mean - 1000) < 300
        return
    same = ("num_rows", "num_nulls", "num_nans", "num_distinct", "least", "greatest", "mean", "histogram")
    for theirs in plain.columns:
        if theirs.name in (
            "words",
            "id_of",
            "price",
            "texts",
            "deep",
        ):  # their types differ between the caches
            continue
        assert [getattr(columns[theirs.name], name) for name in same] == [
            getattr(theirs, name) for name in same
        ], theirs.name
    assert columns["words"].num_distinct == 2000 and columns["price"].greatest == 1999 / 8


def test_what_has_no_form_is_not_left_out(session):
    far = {"x": range(300), "seen": [dt.datetime(2000 + 2 * row, 1, 1) for row in range(300)]}
    session.load(PLAIN, pd.DataFrame({"x": far["x"], "seen": np.array(far["seen"], "M8[us]")}))
    for packed in (
        lambda: session.load(PACKED, far, packed=True),
        lambda: session.pack(PLAIN, PACKED),
    ):
        with pytest.raises(SchemaError, match="a time in val.seen outside of September 1677 to April 2262"):
            packed()
    assert PACKED not in session.client.cache_names()


def test_what_a_dataset_leaves_out_is_not_lost_in_packing(session):
    mixed = TypedMap([("a", 1), ("b", "c")], 1)
    cache = session.client.get_or_create_cache(CacheConfig(PLAIN))
    cache.put_all({row: BinaryObject("PackingMixed", {"n": row, "mixed": mixed}) for row in range(9)})
    with pytest.raises(SchemaError, match="nothing was packed: .* left out: val.mixed"):
        session.pack(PLAIN, PLAIN, replace=True)
    assert session.client.cache(PLAIN).size() == 9
    session.pack(PLAIN, PACKED, fields=["n"])
    assert rows_of(IgniteDataset(PACKED)) == {row: {"n": row} for row in range(9)}


def test_bytes_of_two_lengths_and_none(session):
    raw = [b"abcde"] * 1000
    raw[500], raw[600] = None, b"abcd"
    session.load(PACKED, pd.DataFrame({"raw": raw}), packed=True)
    found = rows_of(IgniteDataset(PACKED))
    assert (found[0]["raw"], found[500]["raw"], found[600]["raw"]) == (b"abcde", b"", b"abcd")


def test_lists_of_objects_are_packed(session):
    def item(row):
        part = BinaryObject("PackingPart", {"w": row})
        return BinaryObject("PackingItem", {"price": row / 2, "parts": TypedCollection([part], 1)})

    cache = session.client.get_or_create_cache(CacheConfig(PLAIN))
    rows = {row: TypedCollection([item(row) for _ in range(row % 3)], 1) for row in range(40)}
    cache.put_all(
        {row: BinaryObject("PackingRow", {"items": items, "n": row}) for row, items in rows.items()}
    )
    with pytest.warns(UserWarning, match="left out: val.items_parts"):
        plain = IgniteDataset(PLAIN)
        session.pack(PLAIN, PACKED, fields=["items"])
    expected = {key: {"items_price": row["items_price"]} for key, row in rows_of(plain).items()}
    assert rows_of(IgniteDataset(PACKED, fields=["items"])) == expected
    assert expected[5] == {"items_price": [2.5, 2.5]}


def test_lists_that_are_all_empty(session):
    frame = pd.DataFrame({"x": range(4), "none": [[], [], [], []]})
    session.load(PLAIN, frame)
    session.load(PACKED, frame, packed=True)
    assert IgniteDataset(PACKED).element_spec == IgniteDataset(PLAIN).element_spec
    rows = {row: {"x": row, "none": []} for row in range(4)}  # TensorFlow would abort if they had no length
    assert rows_of(IgniteDataset(PACKED)) == rows_of(IgniteDataset(PLAIN)) == rows


def test_a_cache_without_rows_is_not_packed(session):
    session.client.get_or_create_cache(CacheConfig(PLAIN))
    with pytest.raises(EmptyCache, match="holds no rows to pack"):
        session.pack(PLAIN, PACKED)
    assert PACKED not in session.client.cache_names()


def test_a_full_disk_is_told_of_and_nothing_is_written(session, monkeypatch):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    pixels = np.zeros((4096, 1024), np.uint8)

    def read_little(rows):
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
        return opened(rows)

    opened = packing.RowPacker
    monkeypatch.setattr(packing, "RowPacker", read_little)
    try:
        with pytest.raises(SourceError, match="cannot be kept in .* TMPDIR"):
            session.load(PACKED, {"pixels": pixels}, packed=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert PACKED not in session.client.cache_names()


def changed(session, key: int, change) -> None:
    cache = session.client.cache(PACKED)
    value = cache.get(key)
    cache.put(key, BinaryObject(value.type_name, {**value.fields, **change(value.fields)}))


def arrow_entry(options=None, **columns) -> bytes:
    """Return columns as another writer would store them: in batches of one row."""
    table = pa.table({name.replace("val_", "val."): column for name, column in columns.items()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=options) as stream:
        for batch in table.to_batches(1):
            stream.write_batch(batch)
    return sink.getvalue().to_pybytes()


def of_others(*options, **columns):
    return lambda _: {"PACKED_ROWS": arrow_entry(*options, **columns), "NUM_ROWS": Int(1)}


def head_of(entry: bytes) -> bytes:
    """Return an entry without rows."""
    with pa.ipc.open_stream(entry) as stream:
        return stream.schema.serialize().to_pybytes() + b"\xff\xff\xff\xff\0\0\0\0"


COMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4")


def compressed(entry: bytes) -> bytes:
    """Return a compressed entry whose schema bytes are unchanged."""
    with pa.ipc.open_stream(entry) as stream:
        table = stream.read_all()
    sink, head = pa.BufferOutputStream(), table.schema.serialize().to_pybytes()
    with pa.ipc.new_stream(sink, table.schema, options=COMPRESSED) as stream:
        stream.write_table(table)
    found = sink.getvalue().to_pybytes()
    assert found.startswith(head) and entry.startswith(head)
    return found


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda fields: {"PACKED_ROWS": fields["PACKED_ROWS"][:-40]}, "packed rows that cannot be read"),
        (lambda fields: {"PACKED_ROWS": b"\x07" * 300}, "packed rows that cannot be read"),
        (lambda fields: {"PACKED_ROWS": b""}, "packed rows that cannot be read"),
        (lambda fields: {"NUM_ROWS": Int(fields["NUM_ROWS"] + 1)}, "rows, but states"),
        (of_others(val_x=pa.array([1])), "key is not there"),
        (of_others(key=pa.array([1]), val_x=pa.array([1.5])), "val.x is double instead of int64"),
        (of_others(key=pa.array([1]), val_x=pa.array([None], pa.int64())), "nulls in val.x"),
        (lambda fields: {"PACKED_ROWS": head_of(fields["PACKED_ROWS"])}, "packed rows that cannot be read"),
        (
            of_others(COMPRESSED, key=pa.array([1]), val_x=pa.array([1])),
            "compressed batches or extension types",
        ),
        (
            lambda fields: {"PACKED_ROWS": compressed(fields["PACKED_ROWS"])},
            "compressed batches or extension types",
        ),
    ],
    ids=[
        "cut",
        "garbage",
        "empty",
        "count",
        "no key",
        "type",
        "null",
        "none",
        "compressed",
        "compressed alike",
    ],
)
def test_an_entry_that_is_none_is_named(session, change, words):
    session.load(PACKED, {"x": np.arange(ROWS)}, packed=True)
    changed(session, 99, change)
    with pytest.raises(Exception, match=f"entry with key 99 of cache '{PACKED}'.*{words}"):
        rows_of(IgniteDataset(PACKED))


def test_an_entry_is_a_stream_that_others_read(session):
    session.load(PACKED, everything(), packed=True)
    entry = session.client.cache(PACKED).get(2).fields
    with pa.ipc.open_stream(entry["PACKED_ROWS"]) as stream:
        table = stream.read_all()
    size = entry["NUM_ROWS"]
    assert table["key"].to_pylist() == list(range(2 * size, 3 * size))
    assert table["val.words"].to_pylist() == [f"Zoë {row}".encode() for row in range(2 * size, 3 * size)]
    assert table["val.numbers"].to_pylist() == [list(range(row % 4)) for row in range(2 * size, 3 * size)]


def test_an_entry_of_another_writer_is_read(session):
    session.load(PACKED, {"x": np.arange(ROWS)}, packed=True)
    size = session.client.cache(PACKED).get(0).fields["NUM_ROWS"]
    keys = pa.array(range(1000, 1000 + size))
    changed(session, 3, lambda _: {"PACKED_ROWS": arrow_entry(more=keys, val_x=keys, key=keys)})
    found = rows_of(IgniteDataset(PACKED))
    assert len(found) == ROWS and found[1000 + size - 1] == {"x": 1000 + size - 1}


def test_an_entry_that_is_gone_is_missed(session):
    session.load(PACKED, {"x": np.arange(ROWS)}, packed=True)
    dataset = IgniteDataset(PACKED)
    session.client.cache(PACKED).remove(17)
    with pytest.raises(Exception, match="had 140 entries of packed rows here .* but 139 were read"):
        rows_of(dataset)


def test_a_cache_that_was_packed_again_is_read_whole_or_not_at_all(session):
    session.load(PACKED, {"x": np.arange(300)}, packed=True)  # 150 entries
    dataset = IgniteDataset(PACKED)
    for num_rows in (1400, 511):  # 140 and 171 entries
        session.load(PACKED, {"x": np.arange(num_rows)}, packed=True, replace=True)
        with pytest.raises(Exception, match="was written again since"):
            rows_of(dataset)
    dataset = IgniteDataset(PACKED)
    session.load(PACKED, {"x": np.arange(342)}, packed=True, replace=True)  # 171 entries again
    assert sorted(rows_of(dataset)) == list(range(342))


def test_rows_are_counted_by_two_entries(session):
    session.load(PACKED, {"x": np.arange(ROWS)}, packed=True)
    cache = session.client.cache(PACKED)
    count, partition_map = packed_count(cache, cache.size()), cache.partition_map()
    where = partitions_of_entries(cache.size(), partition_map).tolist()
    of_each = {part: count.rows(where.count(part), [part]) for part in set(where)}
    told = {part: len(list(IgniteDataset(PACKED, part=part))) for part in (where[0], where[-1])}
    assert {part: of_each[part] for part in told} == told
    assert sum(of_each.values()) == count.rows(cache.size(), None) == ROWS
    for lost in (17, 0):
        cache.remove(lost)
        with pytest.raises(SchemaError, match="so their number is unknown"):
            packed_count(cache, cache.size())
    assert [each.rows for each in session.caches() if each.name == PACKED] == [cache.size()]
