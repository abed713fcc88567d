"""Record files hold the same rows as the generator, in TFRecord framing that stock TensorFlow operations read."""

from __future__ import annotations

import gc
import os
import random
import signal
import struct
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import ignite_tf_magic
from ignite_tf_magic import IgniteDataset
from ignite_tf_magic.client.cache_scan import Baseline
from ignite_tf_magic.client.client import connect
from ignite_tf_magic.client.sql import SqlClient
from ignite_tf_magic.dataset.options import parse_partitions, read_options
from ignite_tf_magic.dataset.snapshot import Snapshot
from ignite_tf_magic.dataset.source import open_source
from ignite_tf_magic.dataset.tfrecord_address import RecordAddress, part_text
from ignite_tf_magic.dataset.tfrecord_encoding import masked, page_record
from ignite_tf_magic.dataset.tfrecord_files import RecordFile, record_file_system
from ignite_tf_magic.dataset.tfrecord_pages import decode
from ignite_tf_magic.errors import (
    CacheNotFound,
    ConfigError,
    ConnectionLost,
    IgniteTfError,
    PartitionsLost,
    SchemaError,
)
from ignite_tf_magic.protocol import crc32c as crc_module
from ignite_tf_magic.protocol.columns import ColumnChunk
from ignite_tf_magic.protocol.crc32c import crc32c, crc32c_python
from ignite_tf_magic.protocol.layout import Leaf, ObjectNode, RowLayout
from ignite_tf_magic.protocol.messages import CacheConfig
from ignite_tf_magic.protocol.objects import BinaryObject, binary_type_of
from ignite_tf_magic.protocol.ops import TypeCode
from ignite_tf_magic.protocol.typed_values import TypedArray, TypedCollection, TypedMap
from ignite_tf_magic.settings.options import ConnectOptions, Endpoint
from ignite_tf_magic.tfplugin.codes import Code, code_of
from ignite_tf_magic.tfplugin.registration import register_schemes
from tests.waiting import until


@pytest.fixture(scope="module", autouse=True)
def ignite_scheme():
    register_schemes({"ignite": record_file_system()})


@pytest.fixture
def where(ignite):
    return {"host": "127.0.0.1", "port": ignite.nodes[0].port}


def uri_of(cache, name="assigned", **options):
    return RecordAddress(cache.name, name, cache.endpoint, **options).uri()


def read_all(uri, step=1 << 20):
    found, space = bytearray(), bytearray(step)
    with closing(record_file_system().open_read(uri)) as file:
        while True:
            count = file.read_into(len(found), memoryview(space))
            found += space[:count]
            if count < step:
                return bytes(found)


def payloads(framed):
    """Parse TFRecord framing by its specification."""
    found, at = [], 0
    while at < len(framed):
        (size,) = struct.unpack_from("<Q", framed, at)
        (crc_of_size,) = struct.unpack_from("<I", framed, at + 8)
        payload = framed[at + 12 : at + 12 + size]
        (crc,) = struct.unpack_from("<I", framed, at + 12 + size)
        assert crc_of_size == masked(crc32c_python(framed[at : at + 8]))
        assert crc == masked(crc32c(memoryview(payload)))
        found.append(payload)
        at += size + 16
    assert at == len(framed)
    return found


# Checksums


@given(st.binary(max_size=200), st.integers(0, 200))
def test_checksums_agree_and_go_on(data, cut):
    whole = crc32c_python(data)
    assert crc32c(memoryview(data)) == whole
    assert crc32c(memoryview(data)[cut:], crc32c(memoryview(data)[:cut])) == whole
    compiled = crc_module.library()
    if compiled is not None and data:  # the table path, for processors without the instruction
        at, tables = np.frombuffer(data, np.uint8).ctypes.data, crc_module.tables().ctypes.data
        assert compiled.itm_crc32c(0, at, len(data), tables, 1) == whole


def test_the_known_checksum():
    assert crc32c(memoryview(b"123456789")) == 0xE3069283


# Framing

LEAVES = {
    "text": (TypeCode.STRING, 1, st.binary(max_size=300)),
    "byte": (TypeCode.BYTE, 1, None),
    "short": (TypeCode.SHORT, 1, None),
    "int": (TypeCode.INT, 1, None),
    "char": (TypeCode.CHAR, 1, None),
    "float": (TypeCode.FLOAT, 1, None),
    "double": (TypeCode.DOUBLE, 1, None),
    "flag": (TypeCode.BOOL, 1, None),
    "pixels": (TypeCode.BYTE_ARRAY, 5, None),
    "flags": (TypeCode.BOOL_ARRAY, 3, None),
    "floats": (TypeCode.FLOAT_ARRAY, 3, None),
    "nothing": (TypeCode.INT_ARRAY, 0, None),
}


@st.composite
def chunks(draw):
    names = draw(st.lists(st.sampled_from(sorted(LEAVES)), min_size=1, max_size=5, unique=True))
    num_rows = draw(st.integers(1, 40))
    leaves = [Leaf(("val", name), *LEAVES[name][:2]) for name in names]
    binary_type = binary_type_of("T", {name: LEAVES[name][0] for name in names})
    fields = tuple((number, leaf) for number, leaf in enumerate(leaves))
    layout = RowLayout(Leaf(("key",), TypeCode.LONG), ObjectNode(("val",), (binary_type,), fields))
    chunk = ColumnChunk(layout, num_rows + draw(st.integers(0, 3)))
    chunk.num_rows = num_rows
    generator = np.random.default_rng(draw(st.integers(0, 100)))
    for number, leaf in enumerate(layout.leaves()):
        if leaf.is_text:
            texts = st.lists(LEAVES["text"][2], min_size=num_rows, max_size=num_rows)
            chunk.parts[number].append(draw(texts))
        else:
            raw = generator.integers(
                0, 2 if leaf.dtype == np.bool_ else 256, chunk.fixed[number].nbytes, np.uint8
            )
            chunk.fixed[number][...] = raw.view(leaf.dtype).reshape(chunk.fixed[number].shape)
    return layout, chunk


@settings(max_examples=60, deadline=None)
@given(chunks(), st.integers(0, 100))
def test_a_record_decodes_to_its_columns_whatever_the_pieces_it_is_read_in(made, seed):
    layout, chunk = made
    record = page_record(chunk)
    pieces, generator, space = [], random.Random(seed), np.empty(10_000, np.uint8)
    at = 0
    while at < record.num_bytes:
        count = record.copy_to(space[: generator.randint(1, 3000)], at)
        pieces.append(space[:count].tobytes())
        at += count
    (payload,) = payloads(b"".join(pieces))
    found = decode(tf.constant(payload), layout)
    flat = [found["key"], *found["val"].values()]
    for mine, theirs in zip(flat, chunk.columns(), strict=True):
        assert tuple(mine.shape) == theirs.shape
        assert mine.numpy().tobytes() == theirs.tobytes() or mine.numpy().tolist() == theirs.tolist()


def test_damaged_and_shortened_files_are_found_out(digits, tmp_path):
    raw = read_all(uri_of(digits, part="0-30"))
    path = tmp_path / "records"

    def rows():
        return sum(1 for _ in tf.data.TFRecordDataset(str(path)))

    path.write_bytes(raw)
    assert rows() == len(payloads(raw))
    for place in (0, 9, 12, len(raw) // 2, len(raw) - 1):
        path.write_bytes(raw[:place] + bytes([raw[place] ^ 0x10]) + raw[place + 1 :])
        with pytest.raises(tf.errors.DataLossError):
            rows()
    path.write_bytes(raw[:-5])
    with pytest.raises(tf.errors.DataLossError):
        rows()


# The same rows as from the generator


def assert_equal_datasets(name, batch=7, **options):
    one = IgniteDataset(name, **options, read_by="caller")
    other = IgniteDataset(name, **options, read_by="worker")
    assert one.element_spec == other.element_spec
    count = 0
    for mine, theirs in zip(one.batch(batch), other.batch(batch), strict=True):
        pairs = zip(tf.nest.flatten(mine, True), tf.nest.flatten(theirs, True), strict=True)
        for left, right in pairs:
            assert left.dtype == right.dtype
            np.testing.assert_array_equal(left.numpy(), right.numpy())
            count += 1
    assert count
    return other


def test_fixed_rows_in_any_share(digits):
    for options in ({}, {"part": "5,0-3"}, {"local": True}, {"page_size": 3}, {"fields": ["label"]}):
        assert_equal_datasets(digits.name, 333, **digits.where(), **options)


def test_text_numbers_arrays_and_moments(make_cache):
    columns = {
        "name": np.array(["Tom", "", "grüße", "x" * 300], object),
        "blob": np.array([b"", b"\x00\x01", b"abc", b"z"], object),
        "when": np.array(["2020-01-01", "1969-12-31T23:59:59.5", "2024-02-29", "1970-01-01"], "M8[ns]"),
    }
    for code in ("?", "i1", "i2", "i4", "i8", "f4", "f8"):
        columns[f"one_{code[-1:]}{code[:1]}"] = np.arange(4).astype(code)
        columns[f"two_{code[-1:]}{code[:1]}"] = np.arange(12).reshape(4, 3).astype(code)
    cache = make_cache(columns)
    assert_equal_datasets(cache.name, 3, **cache.where())
    # More than one page of strings, with lengths of more than one byte.
    many = make_cache({"s": np.array([("é" * (n % 400)) for n in range(3000)], object)})
    assert_equal_datasets(many.name, 1000, **many.where())


def test_chunks_of_large_strings_are_bounded(make_cache):
    """Chunks are bounded by the bytes of sampled rows; a fixed number of rows could make chunks of 800 MB here."""
    cache = make_cache({"jpeg": np.array([b"x" * (50_000 + n) for n in range(150)], object)})
    source = open_source(read_options(cache.name, **cache.where()))
    assert source.chunk_rows == 64
    assert max(len(payload) for payload in payloads(read_all(uri_of(cache)))) < 4_000_000
    assert_equal_datasets(cache.name, 50, **cache.where())


def test_lists_maps_and_objects_of_several_types(client, where):
    client.create_cache(CacheConfig("R_LISTS"))
    cache = client.cache("R_LISTS")
    try:
        for n in range(60):
            words = TypedArray([f"w{i}" for i in range(n % 4)], TypeCode.STRING_ARRAY)
            counts = TypedMap([(f"k{i}", None if i == 2 else n) for i in range(n % 3 + 1)], 1)
            mixed = TypedCollection([1, "one"], 1)
            frames = TypedArray([np.arange(i, dtype=np.float32) for i in range(n % 4)], TypeCode.OBJECT_ARRAY)
            points = TypedCollection([np.array([n, i]) for i in range(n % 3)], 1)
            grid = TypedArray([np.full(3, n, np.int16)] * 2, TypeCode.OBJECT_ARRAY)
            deep = TypedCollection([TypedCollection([f"{n}"] * i, 1) for i in range(n % 4)], 1)
            nested = {"frames": frames, "points": points, "grid": grid, "deep": deep}
            fields = {"words": words, "counts": counts, "mixed": mixed, "n": np.int32(n)}
            if n % 2:
                fields = {"words": words, "weight": n / 2, "n": np.int32(n)}
            cache.put(n, BinaryObject("ROdd" if n % 2 else "REven", fields | nested))
        with pytest.warns(
            UserWarning, match="'R_LISTS', these fields are left out: val.mixed; field val.mixed is"
        ):
            dataset = IgniteDataset("R_LISTS", **where)
        names = ["words", "counts_keys", "counts_values", "counts_null_values", "n", "weight"]
        assert set(dataset.element_spec["val"]) == {*names, *nested}
        for row in dataset:
            n, value = int(row["key"]), row["val"]
            assert value["words"].numpy().tolist() == [f"w{i}".encode() for i in range(n % 4)]
            size = 0 if n % 2 else n % 3 + 1
            assert value["counts_keys"].numpy().tolist() == [f"k{i}".encode() for i in range(size)]
            assert value["counts_values"].numpy().tolist() == [0 if i == 2 else n for i in range(size)]
            assert value["counts_null_values"].numpy().tolist() == [i == 2 for i in range(size)]
            assert value["frames"].to_list() == [list(range(i)) for i in range(n % 4)]
            assert value["points"].numpy().tolist() == [[n, i] for i in range(n % 3)]
            assert value["grid"].numpy().tolist() == [[n] * 3] * 2
            assert value["deep"].to_list() == [[f"{n}".encode()] * i for i in range(n % 4)]
            assert value["n"] == n and (value["weight"] == n / 2 if n % 2 else np.isnan(value["weight"]))
        assert_equal_datasets("R_LISTS", 16, **where, fields=["words", "counts", "n", "weight", *nested])
        with pytest.raises(SchemaError, match="field val.mixed is a list of long and string"):
            IgniteDataset("R_LISTS", **where, fields=["mixed"])
        found = {}
        for batch in ignite_tf_magic.batches("R_LISTS", 16, **where, fields=["words", "frames"]):
            found |= zip(
                batch["key"].tolist(),
                zip(batch["val"]["words"], batch["val"]["frames"], strict=True),
                strict=True,
            )
        assert {n: len(words) for n, (words, _) in found.items()} == {n: n % 4 for n in range(60)}
        frames = {n: [frame.tolist() for frame in each] for n, (_, each) in found.items()}
        assert frames == {n: [list(range(i)) for i in range(n % 4)] for n in range(60)}
    finally:
        client.destroy_cache("R_LISTS")


def test_ragged_nested_and_null_rows(client, where):
    for name in ("R_RAGGED", "R_NESTED", "R_NULLS"):
        client.create_cache(CacheConfig(name))
    try:
        for n in range(40):
            x = {"x": np.arange(n, dtype=np.float32), "s": np.arange(n % 3, dtype=np.int16)}
            client.cache("R_RAGGED").put(n, BinaryObject("RRagged", x))
            kitten = BinaryObject("RCat", {"age": np.int32(n), "name": f"cat {n}"})
            client.cache("R_NESTED").put(
                BinaryObject("RId", {"n": n}),
                BinaryObject("RBox", {"kitten": kitten, "id": uuid.UUID(int=n)}),
            )
            value = {
                "r": None if n == 3 else n / 2,
                "s": None if n == 4 else "t",
                "i": None if n == 5 else np.int32(n),
            }
            client.cache("R_NULLS").put(n, BinaryObject("RNullable", value))
        assert_equal_datasets("R_RAGGED", 16, **where)
        assert_equal_datasets("R_NESTED", **where)
        assert_equal_datasets("R_NULLS", **where, fill={"i": -1})
        assert_equal_datasets("R_NULLS", **where)
        assert_equal_datasets("R_NULLS", **where, nulls=["r", "s"], fill={"i": -1})
        with pytest.raises(tf.errors.OpError, match=r"SchemaError.*null in val.i.*fill=\{'i': 0\}"):
            list(IgniteDataset("R_NULLS", **where, nulls="error", read_by="worker"))
    finally:
        for name in ("R_RAGGED", "R_NESTED", "R_NULLS"):
            client.destroy_cache(name)


def test_a_sql_table_of_every_type(ignite, where):
    sql = SqlClient(ignite.connect_options)
    sql.query(
        "CREATE TABLE R_KITTENS (id INT, name VARCHAR, born DATE, weight DOUBLE, price DECIMAL(10,2), "
        "seen TIMESTAMP, wakes TIME, chip UUID, cute BOOLEAN, toes TINYINT, naps SMALLINT, purr REAL, "
        "PRIMARY KEY (id, name))"
    )
    empty = IgniteDataset("SQL_PUBLIC_R_KITTENS", **where, read_by="worker")
    assert list(empty) == []
    insert = (
        "INSERT INTO R_KITTENS VALUES (?, ?, '2020-02-03', 1.5, -12.34, '2020-01-01 10:00:00', '10:11:12', "
        "'01234567-89ab-cdef-0123-456789abcdef', true, -3, 300, 0.5)"
    )
    for number in range(20):
        sql.query(insert, (number, "kitten " + "x" * number))
    assert_equal_datasets("SQL_PUBLIC_R_KITTENS", **where)
    assert len(list(empty)) == 20
    sql.query("DROP TABLE R_KITTENS")


def test_an_empty_cache_with_a_given_structure(client, where):
    client.create_cache(CacheConfig("R_EMPTY"))
    spec = {"key": tf.TensorSpec([], tf.int64), "val": {"x": tf.RaggedTensorSpec([None], tf.float32, 0)}}
    dataset = IgniteDataset("R_EMPTY", **where, element_spec=spec, read_by="worker")
    assert dataset.element_spec == spec
    assert list(dataset.batch(4)) == []
    client.destroy_cache("R_EMPTY")


def test_map_shuffle_and_repeat_on_records(digits):
    def passes(**options):
        dataset = IgniteDataset(digits.name, **digits.where(), read_by="worker").map(lambda row: row["key"])
        shuffled = dataset.shuffle(1000, **options).batch(500)
        return [np.concatenate(list(shuffled.as_numpy_iterator())).tolist() for _ in range(2)]

    once, again, other = passes(seed=3), passes(seed=3), passes()
    assert once == again
    assert once[0] != once[1] and other[0] != other[1] and once[0] != other[0]
    assert (
        passes(seed=3, reshuffle_each_iteration=False)[0] == passes(seed=3, reshuffle_each_iteration=False)[1]
    )
    for keys in (*once, *other):
        assert sorted(keys) == digits.keys.tolist()
    twice = IgniteDataset(digits.name, **digits.where(), read_by="worker").repeat(2).batch(1000)
    assert sum(len(batch["key"]) for batch in twice) == 2 * len(digits.keys)


def test_a_type_added_after_the_dataset_was_made_is_learnt(ignite, client, where):
    cache = client.create_cache(CacheConfig("R_EVOLVES"))
    cache.put(1, BinaryObject("REvolves", {"a": np.int32(1)}))
    dataset = IgniteDataset("R_EVOLVES", **where, read_by="worker")
    with connect(ignite.connect_options) as other:
        other.cache("R_EVOLVES").put(2, BinaryObject("REvolves", {"b": "x", "a": np.int32(2)}))
    assert sorted(row["val"]["a"] for row in dataset.as_numpy_iterator()) == [1, 2]
    client.destroy_cache("R_EVOLVES")


# Files


def test_what_is_assigned_is_read_by_the_opening_processs_environment(digits, monkeypatch):
    def num_rows(name, **options):
        raw = read_all(uri_of(digits, name, **options))
        return sum(struct.unpack_from("<q", payload)[0] for payload in payloads(raw))

    everything = len(digits.keys)
    shares = [num_rows(f"part-{number}") for number in (7, 8)]
    assert num_rows("assigned") == num_rows("all") == everything
    assert num_rows("assigned", part="7,8") == sum(shares)
    monkeypatch.setenv("IGNITE_DATASET_PART", "7")
    assert num_rows("assigned") == num_rows("assigned", part="8") == shares[0]
    assert num_rows("part-8") == shares[1]
    assert num_rows("all") == everything
    monkeypatch.setenv("IGNITE_DATASET_ASSIGNED_CACHE", "ANOTHER")
    assert num_rows("assigned") == everything


def test_reading_anywhere_and_from_many_threads(digits):
    raw = read_all(uri_of(digits), 10_000)
    file = record_file_system().open_read(uri_of(digits))
    assert len(payloads(raw)) > 1

    def piece(seed):
        at = random.Random(seed).randrange(len(raw) + 10)
        space = bytearray(random.Random(-seed).randrange(50_000))
        count = file.read_into(at, memoryview(space))
        return bytes(space[:count]) == raw[at : at + len(space)]

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(piece, range(40)))
    file.close()
    assert no_reading_threads()


def no_reading_threads():
    return not [thread for thread in threading.enumerate() if thread.name.startswith("ignite-read")]


def test_an_early_end_ends_the_reading_threads(digits):
    dataset = IgniteDataset(digits.name, **digits.where(), read_by="worker").batch(10)
    for _ in range(3):
        next(iter(dataset))
    gc.collect()
    until(no_reading_threads, what="the reading threads to end")


def test_a_forked_process_is_told_to_open_its_own(digits):
    with closing(record_file_system().open_read(uri_of(digits))) as file:
        file._process += 1  # simulates a fork: TensorFlow's threads make a real one unsafe
        with pytest.raises(OSError, match="fork"):
            file.read_into(0, memoryview(bytearray(10)))
        file._process -= 1


class Failing:
    """A source whose node disappears. A later read must not report the end of the rows instead."""

    def chunks(self):
        raise ConnectionLost("db1:10800", "it went away")
        yield

    def close(self):
        pass


def test_an_error_stays_an_error():
    with closing(RecordFile(Failing)) as file:
        for _ in range(2):
            with pytest.raises(IgniteTfError, match="ConnectionLost.*went away"):
                file.read_into(0, memoryview(bytearray(10)))


def test_listing_and_describing(digits):
    top = f"ignite://{digits.endpoint}/{digits.name}"
    names = tf.io.gfile.listdir(top)
    assert names[:3] == ["assigned", "all", "part-0"]
    assert len(names) == 1024 + 2
    assert tf.io.gfile.isdir(top)
    assert not tf.io.gfile.isdir(f"{top}/part-3")
    assert tf.io.gfile.exists(f"{top}/part-3")
    assert not tf.io.gfile.exists(f"{top}/part-1024")
    assert not tf.io.gfile.exists(f"{top}X/part-0")


def test_refusals(digits):
    top = f"ignite://{digits.endpoint}/{digits.name}"
    with pytest.raises(tf.errors.PermissionDeniedError, match="ignite-tf load"):
        tf.io.gfile.remove(f"{top}/part-3")
    with pytest.raises(tf.errors.PermissionDeniedError, match="igfs://"):
        tf.io.write_file(f"{top}/part-3", b"")
    for bad, match in (
        ("part-x", "has the files"),
        ("part-1?a=1", "no option 'a'"),
        ("part-1?order=x", "number"),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match=match):
            list(tf.data.TFRecordDataset(f"{top}/{bad}"))
    with pytest.raises(tf.errors.NotFoundError, match=digits.name):
        list(tf.data.TFRecordDataset(f"{top}S/part-1"))
    with pytest.raises(tf.errors.InvalidArgumentError, match="no partition 5000"):
        list(tf.data.TFRecordDataset(f"{top}/part-5000"))
    with pytest.raises(ConfigError, match="'worker' or 'caller'"):
        IgniteDataset(digits.name, **digits.where(), read_by="chief")


def test_an_unreachable_ignite_is_not_taken_for_a_lost_worker():
    """A coordinator that gets UNAVAILABLE or DEADLINE_EXCEEDED would wait forever for another worker."""
    address = RecordAddress("ANY", endpoint=Endpoint("127.0.0.1", 9))
    with pytest.raises(IgniteTfError, match="127.0.0.1:9.*IGNITE_DATASET_HOST") as caught:
        record_file_system().open_read(address.uri())
    assert code_of(caught.value) == Code.INTERNAL


def test_a_destroyed_cache_is_an_error_at_the_next_read(make_cache, client):
    cache = make_cache({"x": np.arange(50)})
    dataset = IgniteDataset(cache.name, **cache.where(), read_by="worker")
    assert len(list(dataset)) == 50
    client.destroy_cache(cache.name)
    with pytest.raises(tf.errors.OpError, match=f"(?i){cache.name}"):
        list(dataset)
    client.create_cache(CacheConfig(cache.name))


def test_rows_lost_between_making_and_reading_are_noticed(own_nodes, fill_cache):
    cache = fill_cache(own_nodes, "LOST", {"x": np.arange(1000)}, backups=0)
    survivor, victim, _ = own_nodes.nodes
    endpoint = Endpoint(survivor.host, survivor.port)
    source = open_source(read_options(cache.name, host=endpoint.host, port=endpoint.port))
    snapshot = source.snapshot.to_text()
    os.kill(victim.pid, signal.SIGKILL)
    with connect(ConnectOptions((endpoint,))) as client:
        until(lambda: len(client.cache("LOST").partition_map().owners) == 2, what="the loss to be noticed")
    # A process that never saw the lost node now opens the file.
    with pytest.raises(PartitionsLost, match="LOST"):
        read_all(RecordAddress("LOST", endpoint=endpoint, snapshot=snapshot).uri())


# Names and snapshots


@given(
    st.text(min_size=1, max_size=30),
    st.sampled_from(["assigned", "all", "part-0", "part-1023"]),
    st.none() | st.just(Endpoint("db1", 10801)) | st.just(Endpoint("::1")),
    st.none() | st.sampled_from(["none", "0-3,7"]),
    st.booleans(),
    st.none() | st.integers(1, 9999),
    st.none() | st.integers(0, 2**64),
)
def test_names_are_read_as_they_were_written(cache, name, endpoint, part, local, page_size, order):
    address = RecordAddress(cache, name, endpoint, part, local, page_size, "p", "s-_", order)
    assert RecordAddress.parse(address.uri()) == address


def test_plain_names():
    assert RecordAddress.parse("ignite://MNIST/assigned") == RecordAddress("MNIST")
    assert RecordAddress.parse("ignite://h:1/MNIST") == RecordAddress("MNIST", "", Endpoint("h", 1))
    assert RecordAddress.parse("ignite://h/MNIST/all") == RecordAddress("MNIST", "all", Endpoint("h"))
    for bad in ("ignite://", "ignite://h:1", "ignite://a/b/c/d"):
        with pytest.raises(ConfigError):
            RecordAddress.parse(bad)


@given(st.none() | st.lists(st.integers(0, 50), unique=True).map(tuple))
def test_partitions_are_read_as_they_were_written(partitions):
    assert parse_partitions(part_text(partitions)) == partitions


def test_snapshots_are_read_as_they_were_written(digits):
    source = open_source(read_options(digits.name, **digits.where()))
    snapshot = source.snapshot
    text = snapshot.to_text()
    again = Snapshot.from_text(text)
    assert again.to_text() == text
    assert again.baseline == source.baseline
    assert again.layout.leaves() == source.layout.leaves()
    assert again.row_bytes == source.row_bytes > 64
    assert len(text) < 2000  # the snapshot is part of a file name
    odd = Baseline("C", {-1: uuid.uuid4()}, frozenset({uuid.uuid4()}), 2, 7)
    assert Snapshot.from_text(Snapshot(source.layout, odd, 7).to_text()).baseline == odd
    for bad in ("", "AAAA", text[:-9], text[9:]):
        with pytest.raises(ConfigError, match="same version"):
            Snapshot.from_text(bad)


def test_a_snapshot_of_another_cache_is_refused(digits, monkeypatch):
    source = open_source(read_options(digits.name, **digits.where()))
    uri = uri_of(digits, snapshot=source.snapshot.to_text())
    monkeypatch.setenv("IGNITE_DATASET_CACHE_NAME", "OTHER")
    with pytest.raises((ConfigError, CacheNotFound), match="OTHER"):
        record_file_system().open_read(uri)
