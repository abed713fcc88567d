"""`IgniteDataset` on real nodes: every row once with its values, after any transformation."""

from __future__ import annotations

import threading
import warnings

import numpy as np
import pytest
import tensorflow as tf

import ignite_tf_magic
from ignite_tf_magic import IgniteDataset
from ignite_tf_magic.client.client import connect
from ignite_tf_magic.client.sql import SqlClient
from ignite_tf_magic.errors import CacheNotFound, ConfigError, EmptyCache, SchemaError
from ignite_tf_magic.protocol.messages import CacheConfig, QueryEntity, QueryField
from ignite_tf_magic.protocol.objects import BinaryObject
from tests.waiting import until


def all_rows(dataset):
    """Concatenate batches into one nest of arrays."""
    batches = list(dataset.as_numpy_iterator())
    return tf.nest.map_structure(lambda *columns: np.concatenate(columns), *batches)


def assert_same_rows(found, cache):
    order = np.argsort(found["key"])
    np.testing.assert_array_equal(found["key"][order], cache.keys)
    for name, column in cache.columns.items():
        np.testing.assert_array_equal(found["val"][name][order], column)


def test_every_row_once_with_its_values(digits):
    dataset = IgniteDataset(digits.name, **digits.where())
    assert dataset.element_spec == {
        "key": tf.TensorSpec([], tf.int64),
        "val": {"pixels": tf.TensorSpec([64], tf.uint8), "label": tf.TensorSpec([], tf.int32)},
    }
    assert_same_rows(all_rows(dataset.batch(333)), digits)
    assert isinstance(dataset, tf.data.Dataset)


def test_rows_one_by_one(digits):
    dataset = IgniteDataset(digits.name, **digits.where(), part="0-99")
    single = list(dataset.as_numpy_iterator())
    batched = all_rows(dataset.batch(50))
    assert [row["key"] for row in single] == batched["key"].tolist()
    assert single[0]["val"]["pixels"].shape == (64,)


def test_the_order_is_the_same_each_time_and_does_not_depend_on_page_sizes(digits):
    first = all_rows(IgniteDataset(digits.name, **digits.where()).batch(100))["key"]
    dataset = IgniteDataset(digits.name, **digits.where(), page_size=3)
    for _ in range(2):
        assert all_rows(dataset.batch(512))["key"].tolist() == first.tolist()


@pytest.mark.parametrize("batch", [1, 7, 4096, 100_000])
@pytest.mark.parametrize("drop", [False, True])
def test_batch_equals_tf_datas_own(digits, batch, drop):
    if batch == 1:
        dataset = IgniteDataset(digits.name, **digits.where(), part="0-30")
    else:
        dataset = IgniteDataset(digits.name, **digits.where())
    ours = dataset.batch(batch, drop_remainder=drop)
    stock = dataset.take(10**9).batch(batch, drop_remainder=drop)
    assert ours.element_spec == stock.element_spec
    for mine, theirs in zip(ours, stock, strict=True):
        tf.nest.map_structure(np.testing.assert_array_equal, mine, theirs)


def scale_and_one_hot(row):
    return tf.cast(row["val"]["pixels"], tf.float32) / 255.0, tf.one_hot(row["val"]["label"], 10)


def conditional(row):
    return tf.where(row["val"]["label"] > 4, row["key"], -row["key"])


def nested(row):
    return {"a": {"b": tf.reshape(row["val"]["pixels"], (8, 8))}, "c": row["key"]}


@pytest.mark.parametrize("function", [scale_and_one_hot, conditional, nested])
def test_map_on_pages_equals_map_on_rows(digits, function):
    dataset = IgniteDataset(digits.name, **digits.where(), part="0-200")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fast = dataset.map(function)
    slow = dataset.map(function, vectorize=False)
    assert fast.element_spec == slow.element_spec
    for mine, theirs in zip(fast.batch(64), slow.batch(64), strict=True):
        tf.nest.map_structure(np.testing.assert_array_equal, mine, theirs)


def test_map_of_tuples_and_map_after_batch(digits):
    dataset = IgniteDataset(digits.name, **digits.where(), part="0-200")
    pairs = dataset.map(scale_and_one_hot).map(lambda x, y: (x * 2.0, y))
    after = dataset.batch(64).map(lambda b: tf.cast(b["val"]["pixels"], tf.float32) / 255.0 * 2.0)
    for (mine, _), theirs in zip(pairs.batch(64), after, strict=True):
        np.testing.assert_allclose(mine, theirs)


def test_a_function_that_does_not_convert_runs_row_by_row_with_one_hint(digits):
    dataset = IgniteDataset(digits.name, **digits.where(), part="0-50")

    def python_function(row):
        return tf.py_function(lambda k: k * 2, [row["key"]], tf.int64)

    with pytest.warns(UserWarning, match="row by row.*vectorize=False"):
        doubled = dataset.map(python_function)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dataset.map(python_function)
        dataset.map(python_function, vectorize=False)
    keys = [row["key"] for row in dataset.as_numpy_iterator()]
    assert [int(x) for x in doubled] == [2 * key for key in keys]


@pytest.mark.parametrize("buffer", [1, 64, 10_000])
def test_shuffle_gives_every_row_once(digits, buffer):
    dataset = IgniteDataset(digits.name, **digits.where()).shuffle(buffer)
    first = all_rows(dataset.batch(100))
    assert_same_rows(first, digits)
    assert all_rows(dataset.batch(100))["key"].tolist() != first["key"].tolist()


def test_shuffle_is_fixed_by_seed_and_pass(digits):
    def passes(**options):
        dataset = IgniteDataset(digits.name, **digits.where()).map(lambda row: row["key"])
        shuffled = dataset.shuffle(1000, **options).batch(500)
        return [np.concatenate(list(shuffled.as_numpy_iterator())).tolist() for _ in range(2)]

    once, again = passes(seed=3), passes(seed=3)
    assert once == again
    assert once[0] != once[1]
    assert passes(seed=4)[0] != once[0]
    still = passes(seed=3, reshuffle_each_iteration=False)
    assert still[0] == still[1]


def test_a_block_of_all_rows_mixes_uniformly(digits):
    dataset = IgniteDataset(digits.name, **digits.where()).shuffle(10_000, seed=1)
    keys = all_rows(dataset.batch(5000))["key"]
    # In a uniform permutation, the mean rank of the first tenth of the keys is within 5 sigma of the middle.
    ranks = np.flatnonzero(keys < 500)
    assert abs(ranks.mean() - 2500) < 5 * 1443 / np.sqrt(500)


def test_shuffle_after_batch_and_repeat_and_cache(digits):
    dataset = IgniteDataset(digits.name, **digits.where())
    assert_same_rows(all_rows(dataset.batch(100).shuffle(10)), digits)
    twice = dataset.repeat(2).batch(1000)
    assert sum(batch["key"].shape[0] for batch in twice) == 10_000
    cached = dataset.cache().prefetch(2).batch(1000)
    for _ in range(2):
        assert_same_rows(all_rows(cached), digits)


def test_partitions_divide_the_cache(digits):
    whole = set(digits.keys.tolist())
    parts = [
        IgniteDataset(digits.name, **digits.where(), part=p) for p in ("0-499", range(500, 900), "900-1023")
    ]
    found = [all_rows(part.batch(100))["key"].tolist() for part in parts]
    assert sum(map(len, found)) == len(whole)
    assert set().union(*found) == whole


def test_local_reads_one_nodes_primaries(ignite, digits):
    found = []
    for node in ignite.nodes:
        dataset = IgniteDataset(digits.name, host=node.host, port=node.port, local=True)
        found += all_rows(dataset.batch(1000))["key"].tolist()
    assert sorted(found) == digits.keys.tolist()


def test_environment_overrides_arguments(digits, monkeypatch):
    for name, value in {
        "CACHE_NAME": digits.name,
        "HOST": digits.endpoint.host,
        "PORT": str(digits.endpoint.port),
        "PART": "5,7-9",
        "PAGE_SIZE": "11",
        "LOCAL": "false",
    }.items():
        monkeypatch.setenv(f"IGNITE_DATASET_{name}", value)
    overridden = IgniteDataset("WRONG", host="wrong.invalid", port=1, part=0, page_size=1, local=True)
    monkeypatch.undo()
    plain = IgniteDataset(digits.name, **digits.where(), part=[5, 7, 8, 9])
    assert all_rows(overridden.batch(9))["key"].tolist() == all_rows(plain.batch(9))["key"].tolist()


def test_text_ragged_and_moments(make_cache):
    columns = {
        "name": np.array(["Tom", "", "grüße", "x" * 300], object),
        "blob": np.array([b"", b"\x00\x01", b"abc", b"z"], object),
        "when": np.array(["2020-01-01", "1969-12-31T23:59:59.5", "2024-02-29", "1970-01-01"], "M8[ns]"),
    }
    cache = make_cache(columns)
    rows = sorted(IgniteDataset(cache.name, **cache.where()).as_numpy_iterator(), key=lambda row: row["key"])
    assert [row["val"]["name"].decode() for row in rows] == columns["name"].tolist()
    assert [row["val"]["blob"] for row in rows] == columns["blob"].tolist()
    assert [row["val"]["when"] for row in rows] == columns["when"].astype(np.int64).tolist()


def test_arrays_of_varying_length_are_ragged(ignite, client):
    client.create_cache(CacheConfig("RAGGED"))
    cache = client.cache("RAGGED")
    for key in range(40):
        cache.put(key, BinaryObject("Ragged", {"x": np.arange(key, dtype=np.float32)}))
    dataset = IgniteDataset("RAGGED", host="127.0.0.1", port=ignite.nodes[0].port)
    assert isinstance(dataset.element_spec["val"]["x"], tf.RaggedTensorSpec)
    batches = list(dataset.batch(16))
    assert [b["val"]["x"].shape[0] for b in batches] == [16, 16, 8]
    lengths = {
        int(k): int(n) for b in batches for k, n in zip(b["key"], b["val"]["x"].row_lengths(), strict=True)
    }
    assert lengths == {key: key for key in range(40)}
    shuffled = next(iter(dataset.shuffle(100).batch(40)))
    for key, row in zip(shuffled["key"], shuffled["val"]["x"], strict=True):
        assert row.numpy().tolist() == list(range(int(key)))
    client.destroy_cache("RAGGED")


def test_nested_objects_bare_values_and_object_keys(ignite, client):
    client.create_cache(CacheConfig("NESTED"))
    cache = client.cache("NESTED")
    for n in range(50):
        kitten = BinaryObject("Kitten", {"age": np.int32(n), "name": f"k{n}"})
        cache.put(BinaryObject("Id", {"n": n}), BinaryObject("Box", {"kitten": kitten, "w": n / 2}))
    where = {"host": "127.0.0.1", "port": ignite.nodes[1].port}
    dataset = IgniteDataset("NESTED", **where)
    batch = next(iter(dataset.batch(50)))
    np.testing.assert_array_equal(batch["val"]["kitten"]["age"], batch["key"]["n"])
    np.testing.assert_array_equal(batch["val"]["w"] * 2, batch["key"]["n"])
    only = IgniteDataset("NESTED", **where, fields=["kitten.age"])
    assert list(only.element_spec["val"]["kitten"]) == ["age"]
    assert list(only.element_spec["val"]) == ["kitten"]
    client.destroy_cache("NESTED")


def test_nulls(ignite, client):
    client.create_cache(CacheConfig("NULLS"))
    cache = client.cache("NULLS")
    for n in range(30):
        value = {
            "r": None if n == 3 else n / 2,
            "s": None if n == 4 else "t",
            "i": None if n == 5 else np.int32(n),
        }
        cache.put(n, BinaryObject("Nullable", value))
    where = {"host": "127.0.0.1", "port": ignite.nodes[0].port}
    # tf.data raises its own error with the source's message in it.
    with pytest.raises(tf.errors.OpError, match=r"SchemaError.*null in val.i.*fill=\{'i': 0\}"):
        all_rows(IgniteDataset("NULLS", **where, nulls="error").batch(10))
    found = all_rows(IgniteDataset("NULLS", **where, fill={"i": -1}).batch(10))
    by_key = {key: n for n, key in enumerate(found["key"].tolist())}
    assert np.isnan(found["val"]["r"][by_key[3]])
    assert found["val"]["s"][by_key[4]] == b""
    assert found["val"]["i"][by_key[5]] == -1
    assert set(found["val"]) == {"i", "r", "s"}
    client.destroy_cache("NULLS")


def test_a_boolean_beside_a_field_tells_where_it_is_null(ignite, client):
    client.create_cache(CacheConfig("MASKED"))
    cache = client.cache("MASKED")
    for n in range(60):
        inner = (
            None if n % 20 == 4 else BinaryObject("MaskedIn", {"on": True, "x": None if n == 5 else n / 2})
        )
        value = {"i": None if n == 7 else np.int32(n + 1), "whole": np.int16(n + 1), "s": "t", "in": inner}
        if n % 10 == 3:
            del value["i"]  # like objects that were put before the field existed
        cache.put(n, BinaryObject("Masked", value))
    where = {"host": "127.0.0.1", "port": ignite.nodes[0].port}
    try:
        rows = list(IgniteDataset("MASKED", **where).shuffle(60, seed=1).as_numpy_iterator())
        assert len(rows) == 60
        for row in rows:
            n, value = int(row["key"]), row["val"]
            assert set(value) == {"i", "i_is_null", "whole", "s", "in"} and set(value["in"]) == {
                "on",
                "on_is_null",
                "x",
            }
            is_null = n % 10 == 3 or n == 7
            assert (value["i"], value["i_is_null"]) == ((0, True) if is_null else (n + 1, False))
            assert (value["in"]["on"], value["in"]["on_is_null"]) == (n % 20 != 4, n % 20 == 4)
        of_all = IgniteDataset("MASKED", **where, nulls="mask", fields=["i", "whole", "s"], fill={"i": -1})
        assert set(of_all.element_spec["val"]) == {"i", "whole", "whole_is_null", "s"}
        assert min(row["val"]["i"] for row in of_all.as_numpy_iterator()) == -1
        named = IgniteDataset("MASKED", **where, nulls=["s", "in.x"], fill={"i": -1, "in.on": False})
        assert {row["key"]: row["val"]["in"]["x_is_null"] for row in named.as_numpy_iterator()} == {
            n: n == 5 or n % 20 == 4 for n in range(60)
        }
        assert not any(row["val"]["s_is_null"] for row in named.as_numpy_iterator())
        (batch,) = ignite_tf_magic.batches("MASKED", 60, **where)
        expected = {n for n in range(60) if n % 10 == 3 or n == 7}
        assert set(batch["key"][batch["val"]["i_is_null"]].tolist()) == expected
        assert batch["val"]["i_is_null"].dtype == bool
        with pytest.raises(SchemaError, match="nulls names the field 'nothing', and there is none"):
            IgniteDataset("MASKED", **where, nulls=["nothing"])
        for wrong in ("masks", [], [3]):
            with pytest.raises(ConfigError, match=r"nulls=.*write 'mask', 'error', or a list"):
                IgniteDataset("MASKED", **where, nulls=wrong)
        cache.put(100, BinaryObject("Masked", {"i": np.int32(1), "i_is_null": 1}))
        with pytest.raises(SchemaError, match="there is a field 'i_is_null'"):
            IgniteDataset("MASKED", **where)
        assert set(IgniteDataset("MASKED", **where, fields=["i"]).element_spec["val"]) == {"i", "i_is_null"}
    finally:
        client.destroy_cache("MASKED")


def test_workers_agree_on_what_may_be_null(ignite, client, as_worker):
    client.create_cache(CacheConfig("MASKED_ONCE"))
    cache = client.cache("MASKED_ONCE")
    for n in range(1500):
        cache.put(n, BinaryObject("MaskedOnce", {"i": np.int32(n)}))
    where = {"host": "127.0.0.1", "port": ignite.nodes[0].port}
    for row in IgniteDataset("MASKED_ONCE", **where, part="512-1023"):
        cache.put(int(row["key"]), BinaryObject("MaskedOnce", {"i": None}))
    try:
        shares, specs = [range(512), range(512, 1024)], []
        for worker in range(2):
            as_worker(worker, shares, "MASKED_ONCE")
            specs.append(IgniteDataset("MASKED_ONCE").element_spec)
        assert specs[0] == specs[1] and "i_is_null" in specs[0]["val"]
    finally:
        client.destroy_cache("MASKED_ONCE")


def test_an_early_end_ends_the_reading_threads(digits):
    others = set(threading.enumerate())  # other tests' datasets that are not yet collected
    dataset = IgniteDataset(digits.name, **digits.where()).batch(10)
    for _ in range(5):
        next(iter(dataset))
    del dataset
    import gc

    gc.collect()
    until(
        lambda: not [t for t in set(threading.enumerate()) - others if t.name.startswith("ignite-read")],
        what="the reading threads to end",
    )


def test_the_autotuner_is_off_unless_asked_for(digits):
    batches = IgniteDataset(digits.name, **digits.where()).batch(10)
    assert not batches.options().autotune.enabled
    options = tf.data.Options()
    options.autotune.enabled = True
    assert batches.with_options(options).options().autotune.enabled


def test_no_such_cache_lists_the_near_names(digits):
    with pytest.raises(CacheNotFound, match=digits.name):
        IgniteDataset("dataset_digit", **digits.where())


def test_an_empty_cache_needs_a_schema(ignite, client):
    client.create_cache(CacheConfig("EMPTY_DATASET"))
    where = {"host": "127.0.0.1", "port": ignite.nodes[0].port}
    with pytest.raises(EmptyCache, match="element_spec="):
        IgniteDataset("EMPTY_DATASET", **where)
    spec = {"key": tf.TensorSpec([], tf.int64), "val": {"x": tf.TensorSpec([3], tf.float32)}}
    dataset = IgniteDataset("EMPTY_DATASET", **where, element_spec=spec)
    assert dataset.element_spec == spec
    assert list(dataset.batch(4)) == []
    client.destroy_cache("EMPTY_DATASET")


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"part": "7-3"}, "'7-3' is not a partition or a range"),
        ({"part": "x"}, "'x'"),
        ({"part": 5000}, "no partition 5000; it has 0-1023"),
        ({"page_size": 0}, "page_size=0"),
        ({"equal_steps": "maybe"}, "'pad', 'drop', 'repeat'"),
    ],
)
def test_bad_arguments(digits, options, match):
    with pytest.raises(ConfigError, match=match):
        IgniteDataset(digits.name, **digits.where(), **options)


def test_a_type_added_after_the_dataset_was_made_is_learnt(ignite, client):
    """A new schema of a known type appears after the dataset was made; the decoder asks the cluster again."""
    cache = client.create_cache(CacheConfig("EVOLVES"))
    cache.put(1, BinaryObject("Evolves", {"a": np.int32(1)}))
    dataset = IgniteDataset("EVOLVES", host="127.0.0.1", port=ignite.nodes[0].port)
    with connect(ignite.connect_options) as other:
        other.cache("EVOLVES").put(2, BinaryObject("Evolves", {"b": "x", "a": np.int32(2)}))
    assert sorted(all_rows(dataset.batch(10))["val"]["a"].tolist()) == [1, 2]
    client.destroy_cache("EVOLVES")


def test_an_empty_sql_table_tells_its_schema(ignite):
    sql = SqlClient(ignite.connect_options)
    sql.query("CREATE TABLE EMPTY_TABLE (a INT, b VARCHAR, c DOUBLE, d DATE, e BINARY, PRIMARY KEY (a, b))")
    dataset = IgniteDataset("SQL_PUBLIC_EMPTY_TABLE", host="127.0.0.1", port=ignite.nodes[0].port)
    assert dataset.element_spec == {
        "key": {"A": tf.TensorSpec([], tf.int32), "B": tf.TensorSpec([], tf.string)},
        "val": {
            "C": tf.TensorSpec([], tf.float64),
            "D": tf.TensorSpec([], tf.int64),
            "E": tf.TensorSpec([], tf.string),
        },
    }
    assert list(dataset.batch(4)) == []
    for option in (
        {"fields": ["X"]},
        {"fill": {"X": 0}},
        {"variable": ["X"]},
        {"nulls": ["X"]},
        {"as_text": ["X"]},
    ):
        with pytest.raises(SchemaError, match=f"{next(iter(option))} names the field 'X', and there is none"):
            IgniteDataset("SQL_PUBLIC_EMPTY_TABLE", host="127.0.0.1", port=ignite.nodes[0].port, **option)
    sql.query("INSERT INTO EMPTY_TABLE VALUES (1, 'x', 2.5, '2020-01-01', X'0102')")
    (row,) = dataset.as_numpy_iterator()
    assert (row["key"]["A"], row["key"]["B"], row["val"]["C"], row["val"]["E"]) == (1, b"x", 2.5, b"\x01\x02")
    sql.query("DROP TABLE EMPTY_TABLE")


def test_an_empty_cache_has_the_fields_that_its_type_has_beside_the_columns(ignite, client):
    """A Java class declares only some of its fields for SQL, but stores all of them."""
    entity = QueryEntity(
        "HALF_DECLARED", "java.lang.Long", "HalfDeclared", (QueryField("NAME", "java.lang.String"),)
    )
    cache = client.create_cache(CacheConfig("HALF_DECLARED", query_entities=(entity,)))
    try:
        row = BinaryObject(
            "HalfDeclared",
            {"age": np.int32(4), "name": "Tom", "owner": BinaryObject("HalfOwner", {"name": "x"})},
        )
        cache.put(0, row)  # this registers the type
        cache.remove(0)
        dataset = IgniteDataset("HALF_DECLARED", host="127.0.0.1", port=ignite.nodes[0].port)
        assert dataset.element_spec["val"] == {
            "age": tf.TensorSpec([], tf.int32),
            "name": tf.TensorSpec([], tf.string),
        }
        cache.put(1, row)
        assert list(dataset.as_numpy_iterator()) == [{"key": 1, "val": {"age": 4, "name": b"Tom"}}]
    finally:
        client.destroy_cache("HALF_DECLARED")


def test_an_empty_sql_table_with_a_key_of_one_column(ignite):
    sql = SqlClient(ignite.connect_options)
    sql.query("CREATE TABLE EMPTY_BY_ID (id INT PRIMARY KEY, b VARCHAR)")
    dataset = IgniteDataset("SQL_PUBLIC_EMPTY_BY_ID", host="127.0.0.1", port=ignite.nodes[0].port)
    sql.query("INSERT INTO EMPTY_BY_ID VALUES (7, 'x')")
    assert list(dataset.as_numpy_iterator()) == [{"key": 7, "val": {"B": b"x"}}]
    sql.query("DROP TABLE EMPTY_BY_ID")


def test_a_sql_table_gives_its_columns(ignite):
    sql = SqlClient(ignite.connect_options)
    sql.query(
        "CREATE TABLE KITTEN_CACHE (id INT PRIMARY KEY, name VARCHAR, born DATE, weight DOUBLE, price DECIMAL(10,2), "
        "seen TIMESTAMP, wakes TIME, chip UUID, cute BOOLEAN, toes TINYINT, naps SMALLINT, purr REAL)",
    )
    insert = (
        "INSERT INTO KITTEN_CACHE VALUES (?, ?, '2020-02-03', 1.5, -12.34, '2020-01-01 10:00:00', '10:11:12', "
        "'01234567-89ab-cdef-0123-456789abcdef', true, -3, 300, 0.5)"
    )
    for number in range(20):
        sql.query(insert, (number, "kitten " + "x" * number))
    dataset = IgniteDataset("SQL_PUBLIC_KITTEN_CACHE", host="127.0.0.1", port=ignite.nodes[0].port)
    rows = all_rows(dataset.batch(7))
    assert sorted(rows["key"].tolist()) == list(range(20))
    value = {name: column[0] for name, column in rows["val"].items()}
    assert rows["val"]["NAME"].tolist() == [b"kitten " + b"x" * key for key in rows["key"].tolist()]
    # A DATE is stored as midnight in the nodes' time zone.
    born = np.datetime64(int(value["BORN"]), "ms")
    assert abs(born - np.datetime64("2020-02-03")) <= np.timedelta64(14, "h")
    assert value["PRICE"] == -12.34
    assert (value["WEIGHT"], value["CUTE"], value["TOES"], value["NAPS"]) == (1.5, True, -3, 300)
    assert value["CHIP"] == b"01234567-89ab-cdef-0123-456789abcdef"
    assert value["PURR"] == np.float32(0.5)
    few = IgniteDataset(
        "SQL_PUBLIC_KITTEN_CACHE", host="127.0.0.1", port=ignite.nodes[0].port, fields=["BORN", "TOES"]
    )
    assert set(few.element_spec["val"]) == {"BORN", "TOES"}
    assert set(all_rows(few.batch(20))["val"]["BORN"].tolist()) == {int(value["BORN"])}
    sql.query("DROP TABLE KITTEN_CACHE")
