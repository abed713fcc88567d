"""Fields and rows picked by the nodes: the same rows as a full read, and nothing silently left out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from ignite_tf_magic import IgniteDataset, batches
from ignite_tf_magic.client.sql import SqlClient
from ignite_tf_magic.dataset.options import read_options
from ignite_tf_magic.dataset.reader import ChunkReader, random_order
from ignite_tf_magic.dataset.source import open_source
from ignite_tf_magic.errors import ConfigError, QueryError, SchemaError
from ignite_tf_magic.protocol.columns import RaggedColumn
from ignite_tf_magic.protocol.objects import BinaryObject

ROWS = 3000


@pytest.fixture(scope="module")
def wide(ignite, fill_cache):
    """Rows of 2 KB with some small fields."""
    random = np.random.default_rng(4)
    return fill_cache(
        ignite,
        "WIDE",
        {
            "label": (np.arange(ROWS) % 10).astype(np.int32),
            "weight": random.normal(size=ROWS),
            "name": np.array([f"row {n}" for n in range(ROWS)], object),
            "few": random.integers(0, 9, (ROWS, 3), dtype=np.uint8),
            "filling": random.integers(0, 256, (ROWS, 2000), dtype=np.uint8),
        },
    )


def columns_of(source, order=None):
    with ChunkReader(source, order) as reader:
        parts = [
            [each.arrays if isinstance(each, RaggedColumn) else each for each in chunk.columns()]
            for chunk in reader.chunks()
        ]
    return [np.concatenate(column).tolist() for column in zip(*parts, strict=True)]


@pytest.mark.parametrize("fields", [["label"], ["weight", "label"], ["few", "label"]])
@pytest.mark.parametrize("seed", [None, 5])
def test_fields_are_those_of_whole_rows(wide, fields, seed):
    source = open_source(read_options(wide.name, fields=fields, **wide.where()))
    assert source.picked is not None and "filling" not in source.picked.query.statement
    order = None if seed is None else random_order(seed)
    picked = columns_of(source, order)
    whole = columns_of(replace(source, picked=None), order)
    assert picked == columns_of(source, order)
    assert picked[0] != sorted(picked[0])
    assert sorted(zip(*picked, strict=True)) == sorted(zip(*whole, strict=True)) and len(picked[0]) == ROWS


def test_whole_rows_are_read_where_fields_are_most_of_them(wide):
    for fields in (None, ["filling"], ["filling", "label"]):
        assert open_source(read_options(wide.name, fields=fields, **wide.where())).picked is None
    some = read_options(wide.name, fields=["label"], part="0-9", **wide.where())
    assert open_source(some).picked is None, "nobody knows how many rows there have to be"


def test_nulls_and_texts_of_a_table(ignite):
    query = SqlClient(ignite.connect_options).query
    query("CREATE TABLE NULLED (ID BIGINT PRIMARY KEY, A INT, B DOUBLE, C VARCHAR, T TIMESTAMP, BIG VARCHAR)")
    try:
        for n in range(40):
            values = [n, None if n % 3 == 0 else n, None if n % 4 == 0 else n / 2]
            rest = [
                None if n % 5 == 0 else f"ü{n}",
                None if n % 7 == 0 else np.datetime64(n, "s"),
                "x" * 8000,
            ]
            query("INSERT INTO NULLED VALUES (?, ?, ?, ?, ?, ?)", [*values, *rest])
        where = {"host": "127.0.0.1", "port": ignite.nodes[0].port}
        options = read_options("NULLED", fields=["A", "B", "C", "T"], **where)
        source = open_source(options)
        assert source.picked is not None
        picked, whole = columns_of(source), columns_of(replace(source, picked=None))
        by_key = [np.argsort(each[0]) for each in (picked, whole)]
        for one, other in zip(picked, whole, strict=True):
            np.testing.assert_equal(np.array(one)[by_key[0]], np.array(other)[by_key[1]])
        rows = list(IgniteDataset("NULLED", fields=["A", "C"], where="B IS NULL", **where))
        assert sorted(int(row["key"]) for row in rows) == list(range(0, 40, 4))
        for row in rows:
            n, value = int(row["key"]), row["val"]
            assert bool(value["A_is_null"]) == (n % 3 == 0) and int(value["A"]) == (n if n % 3 else 0)
            assert value["C"].numpy() == (f"ü{n}".encode() if n % 5 else b"")
    finally:
        query("DROP TABLE NULLED")


@pytest.mark.parametrize("fields", [None, ["label"], ["name", "label"], ["filling"]])
def test_a_condition(wide, fields):
    condition = {"where": "label < ? AND weight > ?", "where_args": [3, 0.5]}
    dataset = IgniteDataset(wide.name, fields=fields, **condition, **wide.where())
    expected = {n for n in range(ROWS) if wide.columns["label"][n] < 3 and wide.columns["weight"][n] > 0.5}
    for _ in range(2):
        rows = [row for batch in dataset.batch(64) for row in batch["key"].numpy().tolist()]
        assert sorted(rows) == sorted(expected)
    shuffled = list(dataset.shuffle(500, seed=1).map(lambda row: (row["val"], row["key"])))
    assert {int(key) for _, key in shuffled} == expected
    for value, key in shuffled[:20]:
        for name, column in value.items():
            found = column.numpy()
            wanted = wide.columns[name][int(key)]
            assert found == wanted.encode() if name == "name" else np.array_equal(found, wanted)
    arrays = dataset.arrays()
    assert sorted(arrays["key"].tolist()) == sorted(expected)


@pytest.mark.parametrize(
    ("where", "args", "keys"),
    [
        ("_KEY = ?", [5], {5}),
        ("_KEY = 7", [], {7}),
        ("_KEY IN (1, 2, ?)", [3], {1, 2, 3}),
        ("_KEY = 5 OR _KEY = 900", [], {5, 900}),
        ("_KEY BETWEEN 10 AND 12", [], {10, 11, 12}),
        ("_KEY = 5 AND _KEY = 6", [], set()),
        ("name LIKE 'row 29_'", [], set(range(290, 300))),
    ],
)
def test_a_condition_over_keys_gives_each_row_once(wide, where, args, keys):
    """Ignite derives partitions from such a condition itself, and ignores the requested ones."""
    found = [
        int(row["key"]) for row in IgniteDataset(wide.name, where=where, where_args=args, **wide.where())
    ]
    assert sorted(found) == sorted(keys)
    some = IgniteDataset(wide.name, where=where, where_args=args, part="0-511", **wide.where())
    in_halves = [int(row["key"]) for row in some]
    rest = IgniteDataset(wide.name, where=where, where_args=args, part="512-1023", **wide.where())
    in_halves += [int(row["key"]) for row in rest]
    assert sorted(in_halves) == sorted(keys)


def test_whole_rows_are_asked_for_by_their_own_size(wide):
    """The size of the picked fields alone would make a node build a page of 16,384 whole rows."""
    options = read_options(wide.name, fields=["filling"], where="label < 3", **wide.where())
    picked = open_source(options).picked
    assert picked is not None and "_VAL" in picked.query.statement and picked.query.row_bytes is None
    options = read_options(wide.name, fields=["label"], where="label < 3", **wide.where())
    picked = open_source(options).picked
    assert picked is not None and "_VAL" not in picked.query.statement and picked.query.row_bytes is not None


def test_a_condition_without_rows(wide):
    dataset = IgniteDataset(wide.name, where="label = 77", **wide.where())
    assert list(dataset) == [] and list(dataset.batch(8)) == []
    assert [*batches(wide.name, 8, where="label = ?", where_args=[77], **wide.where())] == []


def test_arrays_without_tensorflow(wide):
    found = [
        n
        for b in batches(wide.name, 100, where="label = ?", where_args=[7], **wide.where())
        for n in b["key"].tolist()
    ]
    assert sorted(found) == list(range(7, ROWS, 10))


def test_texts_are_values(wide):
    injected = "row 7' OR '1'='1"
    for given, expected in (("row 7", [7]), (injected, [])):
        rows = IgniteDataset(wide.name, where="name = ?", where_args=[given], **wide.where())
        assert [int(row["key"]) for row in rows] == expected


@pytest.mark.parametrize(
    ("where", "args", "error", "words"),
    [
        ("lable < 3", (), QueryError, "(?s)not found.*Did you mean LABEL"),
        ("label < ?", (), ConfigError, r"has 1 \? and where_args= 0 values"),
        ("label < 3 AND name <> '?'", (1,), ConfigError, r"has 0 \? and where_args= 1 values"),
        ("label < (3", (), QueryError, "Syntax error"),
        ("label < 3; DROP TABLE WIDE", (), ConfigError, "write one condition"),
        (" -- nothing", (), ConfigError, "write one condition"),
        ("", (), ConfigError, "write one condition"),
        ("label IN (select 3)", (), ConfigError, "a SELECT in it"),
        ("label = ?", (object(),), QueryError, "cannot be sent to SQL"),
        (None, (1,), ConfigError, "where_args"),
    ],
)
def test_conditions_that_are_none(wide, where, args, error, words):
    with pytest.raises(error, match=words):
        IgniteDataset(wide.name, where=where, where_args=args, **wide.where())


def test_what_has_no_condition(wide, client, make_cache):
    for given, words in (
        ({"read_by": "worker"}, "read by this process alone"),
        ({"follow": True}, "not applied to new rows"),
    ):
        with pytest.raises(ConfigError, match=words):
            IgniteDataset(wide.name, where="label < 3", **given, **wide.where())
    from ignite_tf_magic.protocol.messages import CacheConfig

    client.create_cache(CacheConfig("NO_TABLE_HERE"))
    try:
        client.cache("NO_TABLE_HERE").put(1, 2)
        with pytest.raises(ConfigError, match="'NO_TABLE_HERE' has no table for it: it has no SQL table"):
            IgniteDataset("NO_TABLE_HERE", where="1 = 1", **wide.where())
    finally:
        client.destroy_cache("NO_TABLE_HERE")


def test_rows_that_the_table_does_not_show_are_an_error_and_no_silence(wide, client, make_cache):
    """The cache has a row of another type, which its table hides; a sample is unlikely to find it."""
    made = make_cache({name: wide.columns[name] for name in ("label", "filling")})
    options = read_options(made.name, fields=["label"], **made.where())
    source = open_source(options)
    assert source.picked is not None
    assert len(columns_of(source)[0]) == ROWS
    cache = client.cache(made.name)
    cache.put(ROWS, BinaryObject("Stranger", {"label": np.int32(1)}))
    found = open_source(options)
    if found.picked:
        with pytest.raises(SchemaError, match="another type"):
            columns_of(found)
    dataset = IgniteDataset(made.name, fields=["label"], **made.where())
    if len(dataset.element_spec["val"]) == 1 and found.picked:
        with pytest.raises(tf.errors.OpError, match="another type"):
            list(dataset.batch(100))
    cache.remove(ROWS)
    cache.remove(0)
    assert len(columns_of(source)[0]) == ROWS - 1, "rows that have gone are no error"


def test_workers_read_what_their_partitions_have(wide, as_worker):
    shares = [list(range(400)), list(range(400, 1024))]
    found = []
    for worker in (0, 1):
        as_worker(worker, shares, cache=wide.name)
        dataset = IgniteDataset(wide.name, fields=["label"])
        keys = [int(k) for batch in dataset.batch(64) for k in batch["key"]]
        with pytest.raises(ConfigError, match="the rows of each are not known before"):
            batches(wide.name, 8, where="label < 3")
        chosen = IgniteDataset(wide.name, where="label < ?", where_args=[3])
        assert chosen.is_shared
        sizes = [len(batch["key"]) for batch in chosen.batch(65)]
        assert set(sizes[:-1]) == {33 - worker} and len(sizes) > 1
        some = [int(row["key"]) for row in chosen]
        assert set(some) == {key for key in keys if key % 10 < 3} and len(some) == sum(sizes)
        found += keys
    assert sorted(found) == list(range(ROWS))
    everything = [int(k) for k in chosen.arrays(assigned=False)["key"]]
    assert sorted(everything) == [n for n in range(ROWS) if n % 10 < 3]
