"""Values as bytes: supported values round-trip, others are refused, and hostile bytes are harmless."""

from __future__ import annotations

import argparse
import datetime as dt
import io
import json
import pathlib
import pickle
import struct
import sys
import types
import uuid
import zipfile
from collections import OrderedDict, namedtuple
from contextlib import suppress
from decimal import Decimal
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from ignite_tf_magic.errors import ConfigError
from ignite_tf_magic.serialization import values
from ignite_tf_magic.serialization.values import MAX_DEPTH, decode, encode

FEW = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
MANY = settings(FEW, max_examples=120)
Point = namedtuple("Point", "x y")


def round_trip(value):
    return decode(encode({"x": value}))["x"]


def same(left, right):
    """Return whether two values are indistinguishable, including nan and the order of keys."""
    if type(left) is not type(right):
        return False
    if isinstance(left, np.ndarray | np.generic):
        return (left.dtype, left.shape, content(left)) == (right.dtype, right.shape, content(right))
    if isinstance(left, float):
        return struct.pack("d", left) == struct.pack("d", right)
    if isinstance(left, dict):
        return same([*left.items()], [*right.items()])
    if isinstance(left, argparse.Namespace | types.SimpleNamespace):
        return same(vars(left), vars(right))
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, set | frozenset):
        return sorted(map(repr, left)) == sorted(map(repr, right))
    if isinstance(left, slice):
        return same([left.start, left.stop, left.step], [right.start, right.stop, right.step])
    return left == right if isinstance(left, int) else repr(left) == repr(right)


def content(array):
    """Return an array's content without the padding between structure fields."""
    return repr(array.tolist()) if array.dtype.hasobject or array.dtype.names else array.tobytes()


def named(fields):
    """Return a namespace whose attributes may have any names."""
    found = (argparse.Namespace, types.SimpleNamespace)[len(fields) % 2]()
    vars(found).update(fields)
    return found


ZONES = st.one_of(
    st.none(),
    st.just(dt.timezone.utc),
    st.builds(dt.timezone, st.timedeltas(dt.timedelta(hours=-23), dt.timedelta(hours=23))),
    st.sampled_from([ZoneInfo("Europe/Berlin"), dt.timezone(dt.timedelta(hours=1), "home")]),
)
TEXT = st.text(st.characters(exclude_categories=()))  # includes lone surrogates
LEAVES = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.floats(), TEXT, st.binary(), st.complex_numbers()),
    *(st.dates(), st.datetimes(timezones=ZONES), st.times(timezones=ZONES), st.timedeltas(), ZONES),
    *(st.decimals(), st.uuids(), st.integers(-(10**400), 10**400)),
    st.builds(range, st.integers(), st.integers(), st.integers(1, 5)),
)
KEYS = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXT),
    lambda inner: st.tuples(inner, inner),
    max_leaves=4,
)
NESTED = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner),
        st.tuples(inner, inner),
        st.dictionaries(KEYS, inner),
        st.sets(KEYS),
        st.frozensets(KEYS),
        st.builds(slice, inner, inner, inner),
        st.dictionaries(TEXT.filter(lambda name: not name.startswith("__")), inner).map(named),
    ),
    max_leaves=8,
)


@MANY
@given(st.dictionaries(TEXT, NESTED, max_size=3))
def test_plain_values_come_back(variables):
    assert same(decode(encode(variables)), variables)


@pytest.mark.parametrize(
    "value",
    [
        *(2**63 - 1, 2**63, -(2**63) - 1, 10**5000, -0.0, float("nan"), float("-inf")),
        struct.unpack("d", struct.pack("Q", 0xFFF8000000001234))[0],
        *(
            "\ud83d\ude00",
            "\U0001f600",
            "x" * 10**6,
            b"x" * 10**6,
            "é" * 9000,
            b"x" * 1024,
            Decimal("sNaN12"),
            Decimal("-0E+9"),
        ),
        dt.datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")),
        *(
            pathlib.Path("/a/b\udcff"),
            pathlib.Path(),
            pathlib.PurePosixPath("a\\b"),
            pathlib.PureWindowsPath("C:/x"),
        ),
        {1: "a", "1": "b", 1.5: "c", (1, (None, True)): "d", float("nan"): "e", b"k": "f", np.int8(3): "g"},
    ],
    ids=lambda value: repr(value)[:20] if not isinstance(value, int) else hex(value)[:9],
)
def test_values_at_the_edge_come_back(value):
    assert same(round_trip(value), value)


DTYPES = st.one_of(
    *(st_numpy.scalar_dtypes(), st_numpy.unicode_string_dtypes(), st_numpy.byte_string_dtypes()),
    st_numpy.nested_dtypes(max_itemsize=200),
)


@MANY
@given(st_numpy.arrays(DTYPES, st_numpy.array_shapes(min_dims=0, min_side=0, max_side=4)), st.booleans())
def test_arrays_come_back(array, fortran):
    array = np.asfortranarray(array) if fortran and array.ndim > 1 else array
    back = round_trip(array)
    assert same(back, array)
    assert back.flags.f_contiguous == array.flags.f_contiguous
    assert back.flags.writeable
    if array.size:
        assert same(round_trip([array.ravel()[0]]), [array.ravel()[0]])


@pytest.mark.parametrize(
    "value",
    [
        *(np.float32(0.1), np.longdouble(1) / 3, np.str_("a\0"), np.bytes_(b"a\0"), np.bool_(True)),
        *(np.datetime64("2024-01-01T00", "25s"), np.timedelta64("NaT"), np.void(b"abc"), np.complex64(1j)),
        np.array((1, "a"), [("n", "<i2"), ("имя", ">U3")])[()],
        *(np.arange(12).reshape(3, 4)[::2, ::-1], np.array(7), np.zeros((0, 3), ">f2"), np.zeros(2, "V0")),
        *(
            np.zeros(2, [(f"field{n}", "i1") for n in range(1000)]),
            np.zeros(3, np.dtype("i1,f8", align=True)),
        ),
        *(np.array([["a", b"b"], ["", "\ud800"]], object), np.array("a", object), np.empty((0, 2), object)),
    ],
    ids=repr,
)
def test_numpy_at_the_edge_comes_back(value):
    assert same(round_trip(value), value)


def test_arrays_of_one_archive_are_apart():
    array = np.arange(1000)
    first, second = round_trip([array, array])
    first[0] = 7
    assert second[0] == 0


FRAMES = [
    pd.DataFrame(),
    pd.DataFrame(np.zeros((3, 2))),
    pd.DataFrame({"a": [1, 2], "b": ["x", None]}, index=pd.Index([5, 3], name="id")),
    pd.DataFrame({("a", 1): [1.5], ("b", 2): [True]}),
    pd.DataFrame(
        {"f": [np.nan, -0.0], "i": pd.array([1, None], "Int64"), "t": pd.to_datetime(["2024", None])}
    ),
    pd.DataFrame({"c": pd.Categorical(["b", "a", None], ["b", "a", "z"], ordered=True)}),
    pd.DataFrame({"d": [dt.date(2024, 1, 1), None], "n": [None, None], "y": [b"\0", b""]}),
    pd.DataFrame({"a": [1, 2, 3]}, index=pd.date_range("2024", periods=3, tz="Europe/Berlin")),
    pd.DataFrame({"a": [1, 2]}, index=pd.MultiIndex.from_tuples([(1, "a"), (2, "b")], names=["p", None])),
    pd.DataFrame({"a": np.arange(100)}).iloc[10:90:3],
]


@pytest.mark.parametrize("frame", FRAMES, ids=range(len(FRAMES)))
def test_frames_come_back(frame):
    pd.testing.assert_frame_equal(round_trip(frame), frame, check_exact=True, check_freq=False)
    pd.testing.assert_frame_equal(
        pd.DataFrame(index=round_trip({1: frame.index})[1]), pd.DataFrame(index=frame.index), check_freq=False
    )
    for label in frame:
        pd.testing.assert_series_equal(
            round_trip(frame[label]), frame[label], check_exact=True, check_freq=False
        )


@FEW
@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.floats(), st.text(), st.booleans())))
def test_frames_of_any_content_come_back(rows):
    frame = pd.DataFrame(rows, columns=list("ifsb"))
    frame = frame.astype({"i": "int64", "f": "float64", "s": "string", "b": "bool"})
    pd.testing.assert_frame_equal(round_trip(frame), frame, check_exact=True)


@pytest.mark.parametrize("name", [None, "a", 5, ("a", 1), "0"])
def test_a_series_keeps_its_name(name):
    series = pd.Series([1, 2], name=name)
    assert same(round_trip(series).name, name)


def test_what_comes_back_can_be_changed():
    frame = round_trip(pd.DataFrame({"a": [1.0, 2.0]}))
    frame.loc[0, "a"] = 7
    assert frame["a"].tolist() == [7, 2]


@pytest.mark.parametrize(
    "table",
    [
        pa.table({}),
        pa.table({"a": [1, None], "l": [[1], []], "s": [{"x": "y"}, None], "n": pa.nulls(2)}),
        pa.table({"d": pa.chunked_array([pa.array([word]).dictionary_encode() for word in "ab"])}),
        pa.table({"a": range(1000)}).slice(10, 20).replace_schema_metadata({"who": "we"}),
    ],
    ids=range(4),
)
def test_arrow_tables_come_back(table):
    back = round_trip(table)
    assert back.equals(table)
    assert back.schema.equals(table.schema, check_metadata=True)


def tensor(given, module="tensorflow.python.framework.ops"):
    def numpy(self):
        if isinstance(given, Exception):
            raise given
        return given

    return type("EagerTensor", (), {"__module__": module, "numpy": numpy})()


@pytest.mark.parametrize(
    "array", [np.ones((2, 2), "f4"), np.float32(2), b"text", np.array([b"a", b"bc"], object)]
)
def test_tensors_come_back_as_their_arrays(array):
    assert same(round_trip([tensor(array), tensor(array, "keras.src.backend")]), [array, array])


class Thing:
    def __repr__(self):
        raise RuntimeError("not to be shown")


def own_dtype():
    return np.dtype({"names": ["b", "a"], "formats": ["i4", "i4"], "offsets": [4, 0]})


REFUSED = {
    "function": (test_frames_come_back, "x", "function", "script"),
    "lambda": ({"a": [1, (lambda: 1)]}, "x['a'][1]", "function", "script"),
    "module": ([sys], "x[0]", "module", "script"),
    "class": (Thing, "x", "type", "script"),
    "instance": ({1: {"k": (0, Thing())}}, "x[1]['k'][1]", "Thing", "made of"),
    "key": ({Thing(): 1}, "x[<Thing instance at", "Thing", "made of"),
    "in a set": ([{Thing()}], "x[0]", "Thing", "made of"),
    "open file": (sys.__stdout__, "x", "_io.TextIOWrapper", "made of"),
    "generator": ((n for n in ()), "x", "generator", "made of"),
    "subclass of dict": (OrderedDict(), "x", "collections.OrderedDict", "plain"),
    "named tuple": (Point(1, 2), "x", "Point", "plain"),
    "bytearray": (bytearray(), "x", "bytearray", "plain"),
    "masked array": (np.ma.zeros(3), "x", "MaskedArray", "plain"),
    "objects": (np.array([1, "a"], object), "x", "dtype('O')", "astype"),
    "objects in fields": (np.zeros(2, [("a", "O")]), "x", "'O'", "astype"),
    "overlapping fields": (np.zeros(2, own_dtype()), "x", "out-of-order", "astype"),
    "scalar with such fields": (np.zeros(2, own_dtype())[0], "x", "out-of-order", "astype"),
    "timestamp of pandas": ([pd.Timestamp(0)], "x[0]", "pandas.Timestamp", "plain"),
    "missing time": (pd.NaT, "x", "pandas.NaTType", "plain"),
    "frame of lists": (pd.DataFrame({"a": [[1]]}), "x", 'column name="a"', "lists"),
    "frame of mixed objects": (pd.DataFrame({"a": [1, "x"]}, dtype=object), "x", "column a", "astype"),
    "frame of numbers in objects": (pd.DataFrame({"a": [1, 2]}, dtype=object), "x", "int64", "astype"),
    "equal columns": (pd.DataFrame([[1, 2]], columns=["a", "a"]), "x", "Duplicate column", "lists"),
    "columns of numbers and text": (pd.DataFrame([[1, 2]], columns=[1, "a"]), "x", "column", "lists"),
    "extension type": (pd.Series(pd.period_range("2024", periods=2, freq="M")), "x", "period", "astype"),
    "view type": (pa.table({"a": pa.array(["x"], pa.string_view())}), "x", "string_view", "lists"),
    "tensor of a graph": ([tensor(NotImplementedError("in a graph"))], "x[0]", "in a graph", "convert"),
    "tensor of tensors": (tensor(tensor(Thing())), "x", "Thing", "made of"),
    "own zone": (dt.datetime(2024, 1, 1, tzinfo=type("Zone", (dt.tzinfo,), {})()), "x", "Zone", "made of"),
    "zone of a file": (
        [ZoneInfo.from_file(io.BytesIO(pathlib.Path("/usr/share/zoneinfo/UTC").read_bytes()))],
        "x[0]",
        "None",
        "convert",
    ),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_refusals_say_what_and_where_and_what_to_do(case):
    value, *said = case
    with pytest.raises(ConfigError) as raised:
        encode({"fine": 1, "x": value})
    assert str(raised.value).startswith(f"cannot send {said[0]}")
    for part in said[1:]:
        assert part in str(raised.value)
    assert len(str(raised.value)) < 700


def nest(depth, value=()):
    for _ in range(depth):
        value = [value]
    return value


def test_nesting_is_bounded():
    assert round_trip(nest(MAX_DEPTH, 1)) == nest(MAX_DEPTH, 1)
    loop = {"list": [1]}
    loop["list"] += [loop, loop]
    for value in (nest(MAX_DEPTH), nest(100_000), loop):
        with pytest.raises(ConfigError, match="contains itself, or has more than 100 levels; send it flat"):
            encode({"x": value})


def test_the_bound_names_the_largest_variable():
    ones = np.ones(200_000, "u1")
    for variables in ({"b": ones, "a": [ones, {"k": b"x" * 300_000}]}, {"a": "x" * 2_000_000, "b": ones}):
        with pytest.raises(ConfigError, match=r"0\.5 MiB that can be sent; the largest is a with .*igfs://"):
            encode(variables, max_bytes=500_000)
    assert len(encode({"b": ones, "a": [ones]}, max_bytes=500_000)) < 500_000


TERABYTES = np.broadcast_to(np.float64(0), 10**12)


@pytest.mark.parametrize(
    "value",
    [TERABYTES, [TERABYTES], pd.DataFrame({"a": pd.Series(TERABYTES, copy=False)}, copy=False)],
    ids=range(3),
)
def test_what_is_too_large_is_not_copied(value):
    with pytest.raises(ConfigError, match=r"largest is x with at least 7,629,394\.5 MiB"):
        encode({"x": value, "y": np.zeros(10**6)})


def test_lists_that_share_parts_are_bounded():
    value = []
    for _ in range(60):
        value = [value, value]
    with pytest.raises(ConfigError, match="largest is x"):
        encode({"x": value}, max_bytes=1_000_000)


def test_the_index_counts_too(monkeypatch):
    numbers = [2**62 + n for n in range(1000)]  # 20 bytes each, but counted as 8
    with pytest.raises(ConfigError, match="largest is x"):
        encode({"x": numbers}, max_bytes=15_000)
    with pytest.raises(ConfigError, match="largest is  with"):
        encode({}, max_bytes=10)
    monkeypatch.setattr(values, "MAX_BYTES", 15_000)
    with pytest.raises(ConfigError, match="largest is x"):
        encode({"x": numbers}, max_bytes=10**9)


def test_equal_values_give_equal_bytes():
    variables = {"a": np.arange(1000), "b": {"c": FRAMES[2]}}
    assert encode(variables) == encode(variables)


def test_a_package_that_is_missing_is_named(monkeypatch):
    data = encode({"x": FRAMES[1]})
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for call in (lambda: encode({"x": FRAMES[1]}), lambda: decode(data)):
        with pytest.raises(
            ConfigError, match=r"'pyarrow' is missing here: pip install 'ignite_tf_magic\[data\]'"
        ):
            call()
    assert decode(encode({"x": 1})) == {"x": 1}


# Hostile bytes


def archive(members, compression=zipfile.ZIP_STORED):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as file:
        for name, data in members.items():
            file.writestr(name, data)
    return buffer.getvalue()


def index(*nodes):
    return json.dumps({"format": 1, "values": [[f"x{number}", node] for number, node in enumerate(nodes)]})


def npy(array, **options):
    buffer = io.BytesIO()
    np.save(buffer, array, **options)
    return buffer.getvalue()


def arrow(table, **options):
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as stream:
        stream.write_table(table)
    return sink.getvalue()


class Bomb:
    def __reduce__(self):
        return pathlib.Path.touch, (pathlib.Path("exploded"),)


ARRAY, TABLE = ["numpy.ndarray", ["blob", "0"]], ["pyarrow.Table", ["blob", "0"]]
NUMBERS = pa.table({"a": range(100_000)})
WORDS = pa.table({"a": pa.array(["x", "y"]).dictionary_encode()})
HOSTILE = {
    "nothing": b"",
    "an empty archive": archive({}),
    "no index": archive({"0": b""}),
    "a pickle": pickle.dumps(Bomb()),
    "a pickle in an array": archive(
        {"0": npy(np.array([Bomb()]), allow_pickle=True), "index.json": index(ARRAY)}
    ),
    "a pickle as the index": archive({"index.json": pickle.dumps(Bomb())}),
    "objects in a scalar": archive(
        {"index.json": index(["scalar", "|O", ["builtins.bytes", "AAAAAAAAAAA="]])}
    ),
    "a compressed member": archive({"index.json": index("x" * 10**6)}, zipfile.ZIP_DEFLATED),
    "an unknown member": archive({"index.json": index(1), "run.py": b"1"}),
    "a member twice": archive({"0": npy(np.zeros(5)), "index.json": index(ARRAY, ARRAY)}),
    "the index as a member": archive({"index.json": index(["blob", "index.json"])}),
    "a long array": archive(
        {"0": npy(np.zeros(5)).replace(b"(5,)", b"(9" + b"9" * 8 + b",)"), "index.json": index(ARRAY)}
    ),
    "another format": archive({"index.json": json.dumps({"format": 2, "values": []})}),
    "deep JSON": archive({"index.json": b"[" * 10**6}),
    "deep nodes": archive({"index.json": index(json.loads("[" * 500 + "]" * 500))}),
    "deep lists": archive({"index.json": index(json.loads('["builtins.list",' * 300 + "1" + "]" * 300))}),
    "an unknown tag": archive({"index.json": index(["os.system", "ls"])}),
    "a tag that is a list": archive({"index.json": index([[], 1])}),
    "a mapping": archive({"index.json": index({"a": 1})}),
    "an infinite number": archive({"index.json": b'{"format": 1, "values": [["x", 1e999]]}'}),
    "a name that is no text": archive({"index.json": b'{"format": 1, "values": [[1, 1]]}'}),
    "a set of lists": archive({"index.json": index(["builtins.set", ["builtins.list"]])}),
    "half a mapping": archive({"index.json": index(["builtins.dict", 1])}),
    "a far time": archive({"index.json": index(["datetime.timedelta", 2**62, 0, 0])}),
    "a zone elsewhere": archive({"index.json": index(["zoneinfo.ZoneInfo", "../../etc/passwd"])}),
    "compressed columns": archive({"0": arrow(NUMBERS, compression="zstd"), "index.json": index(TABLE)}),
    "compressed dictionaries": archive({"0": arrow(WORDS, compression="lz4"), "index.json": index(TABLE)}),
    "columns of nothing": archive({"0": arrow(pa.table({"a": pa.nulls(10**9)})), "index.json": index(TABLE)}),
    "columns of views": archive(
        {"0": arrow(pa.table({"a": pa.array(["x"], pa.string_view())})), "index.json": index(TABLE)}
    ),
    "extension types": archive(
        {"0": arrow(pa.table({"a": pa.array([b"x" * 16], pa.uuid())})), "index.json": index(TABLE)}
    ),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_hostile_archives_are_refused(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="cannot read the values that were sent: ") as raised:
        decode(data)
    assert len(str(raised.value)) < 500
    assert not list(tmp_path.iterdir())


def test_archives_are_read_up_to_the_bound(monkeypatch):
    data = encode({"a": b"x" * 5000, "b": b"y" * 5000})
    monkeypatch.setattr(values, "MAX_BYTES", 10_000)
    with pytest.raises(ConfigError, match="too large"):
        decode(data)


def test_an_extension_type_is_not_made(monkeypatch):
    class Loud(pa.ExtensionType):
        made = 0

        def __init__(self):
            super().__init__(pa.int64(), "test.loud")

        def __arrow_ext_serialize__(self):
            return b""

        @classmethod
        def __arrow_ext_deserialize__(cls, storage, serialized):
            cls.made += 1
            return cls()

    pa.register_extension_type(Loud())
    try:
        table = pa.table({"a": pa.ExtensionArray.from_storage(Loud(), pa.array([1]))})
        data = archive({"0": arrow(table), "index.json": index(TABLE)})
        with pytest.raises(ConfigError, match="extension types"):
            decode(data)
    finally:
        pa.unregister_extension_type("test.loud")
    assert Loud.made == 0


SEEDS = [
    encode({"a": [1, {"b": (None, 1.5, "text", b"bytes", 2**70, float("inf"), "\ud800")}]}),
    encode(
        {
            "t": [
                dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc),
                Decimal(1),
                uuid.UUID(int=1),
                ZoneInfo("UTC"),
            ]
        }
    ),
    encode({"n": np.arange(300), "s": np.float32(1), "f": np.zeros(50, [("a", "U3"), ("b", "f4", (2,))])}),
    encode({"f": FRAMES[8], "s": FRAMES[5]["c"], "t": pa.table({"l": [[1], [2, 3]], "n": pa.nulls(2)})}),
]
CHANGES = st.lists(
    st.tuples(st.integers(0), st.binary(max_size=8), st.integers(0, 12)), min_size=1, max_size=8
)


def changed(data, changes):
    for at, new, removed in changes:
        at %= len(data) + 1
        data = data[:at] + new + data[at + removed :]
    return data


def check(data):
    with suppress(ConfigError):
        assert isinstance(decode(data), dict)


@MANY
@given(st.sampled_from(SEEDS), CHANGES)
def test_changed_archives_are_read_or_refused(seed, changes):
    check(changed(seed, changes))


@MANY
@given(st.sampled_from(SEEDS), st.integers(0), CHANGES)
def test_archives_of_changed_members_are_read_or_refused(seed, number, changes):
    """The checksums are valid, so only the reader of the members can detect a change."""
    with zipfile.ZipFile(io.BytesIO(seed)) as file:
        members = {name: file.read(name) for name in file.namelist()}
    name = sorted(members)[number % len(members)]
    check(archive({**members, name: changed(members[name], changes)}))


@FEW
@given(st.sampled_from(SEEDS), st.integers(0))
def test_a_part_of_an_archive_is_refused(seed, length):
    with pytest.raises(ConfigError):
        decode(seed[: length % len(seed)])


JSON = st.recursive(
    st.one_of(
        st.none(), st.integers(-9, 2**64), st.floats(), st.text(max_size=5), st.sampled_from([*values._KINDS])
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.tuples(st.sampled_from([*values._KINDS, "blob"]), inner, inner),
        st.tuples(st.sampled_from([*values._KINDS, "blob"]), inner),
    ),
)


@MANY
@given(st.lists(JSON, max_size=4), st.binary(max_size=20))
def test_any_index_is_read_or_refused(nodes, data):
    check(archive({"index.json": index(*nodes), "0": data}))
