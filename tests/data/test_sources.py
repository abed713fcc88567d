"""Every kind of source, read from real files; every kind of bad input is refused with the next step."""

from __future__ import annotations

import datetime as dt
import gzip
import re
import struct

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ignite_tf_magic.data.columns import Columns
from ignite_tf_magic.data.row_types import value_type_name
from ignite_tf_magic.data.sources import SourceOptions, read_source
from ignite_tf_magic.data.text_files import TextFormat
from ignite_tf_magic.errors import SourceError

IMAGES = np.arange(5 * 28 * 28, dtype=np.uint32).reshape(5, 28, 28).astype(np.uint8)
LABELS = np.array([3, 1, 4, 1, 5], np.uint8)


def read(source, key=(), **options) -> Columns:
    """Read a source whose rows are in one chunk."""
    names = (key,) if isinstance(key, str) else key
    (columns,) = read_source(source, SourceOptions(names, **options)).chunks()
    return columns


def idx_bytes(array: np.ndarray, code: int = 8) -> bytes:
    return bytes([0, 0, code, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.fixture
def idx_files(tmp_path):
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx_bytes(IMAGES))
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx_bytes(LABELS))
    return tmp_path


def check_mnist(columns):
    assert list(columns.values) == ["pixels", "label"]
    assert columns.values["pixels"].dtype == np.uint8
    np.testing.assert_array_equal(columns.values["pixels"], IMAGES.reshape(5, 784))
    assert columns.values["label"].dtype == np.int32
    np.testing.assert_array_equal(columns.values["label"], LABELS)
    assert columns.keys is None
    assert len(columns) == 5


@pytest.mark.parametrize("half", ["train-images-idx3-ubyte", "train-labels-idx1-ubyte"])
def test_either_half_of_an_idx_pair_finds_the_other(idx_files, half):
    check_mnist(read(idx_files / half))


def test_compressed_idx_files(tmp_path):
    (tmp_path / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx_bytes(IMAGES)))
    (tmp_path / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx_bytes(LABELS)))
    check_mnist(read(str(tmp_path / "t10k-images-idx3-ubyte.gz")))


def test_idx_half_may_be_compressed_alone(idx_files):
    labels = idx_files / "train-labels-idx1-ubyte"
    (idx_files / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(labels.read_bytes()))
    labels.unlink()
    check_mnist(read(idx_files / "train-images-idx3-ubyte"))


def test_idx_of_other_numbers(tmp_path):
    (tmp_path / "weights.idx").write_bytes(idx_bytes(np.array([1.5, -2.0], ">f4"), code=0x0D))
    weights = read(tmp_path / "weights.idx").values["value"]
    assert weights.dtype == np.float32
    assert weights.tolist() == [1.5, -2.0]


def test_npz_keeps_names_and_widens_unsigned_scalars(tmp_path):
    np.savez(tmp_path / "d.npz", image=IMAGES, small=LABELS, weight=np.linspace(0, 1, 5), name=list("abcde"))
    values = read(tmp_path / "d.npz").values
    assert {name: (array.dtype, array.shape) for name, array in values.items()} == {
        "image": (np.uint8, (5, 784)),
        "small": (np.int16, (5,)),
        "weight": (np.float64, (5,)),
        "name": (object, (5,)),
    }
    assert values["name"].tolist() == list("abcde")


@pytest.mark.parametrize(("split", "rows"), [(None, 4), ("train", 4), ("test", 1)])
def test_npz_divided_like_mnist(tmp_path, split, rows):
    path = tmp_path / "mnist.npz"
    np.savez(path, x_train=IMAGES[:4], y_train=LABELS[:4], x_test=IMAGES[4:], y_test=LABELS[4:])
    columns = read(path, split=split)
    assert list(columns.values) == ["pixels", "label"]
    assert len(columns) == rows


def test_csv_with_a_key(tmp_path):
    (tmp_path / "iris.csv").write_text("id,sepal length,kind\n7,5.1,setosa\n9,4.9,virginica\n")
    columns = read(tmp_path / "iris.csv", key="id")
    assert columns.keys.dtype == np.int64
    assert columns.keys.tolist() == [7, 9]
    assert columns.values["sepal length"].tolist() == [5.1, 4.9]
    assert columns.values["kind"].tolist() == ["setosa", "virginica"]


def test_parquet_with_lists_and_times(tmp_path):
    pd.DataFrame(
        {
            "point": [[1.0, 2.0], [3.0, 4.0]],
            "at": pd.to_datetime(["2024-01-02T03:04:05.123456", "2024-01-03T00:00:00.0"]),
            "blob": [b"\x00\xff", b""],
            "ok": [True, False],
        }
    ).to_parquet(tmp_path / "p.parquet")
    values = read(tmp_path / "p.parquet").values
    np.testing.assert_array_equal(values["point"], [[1, 2], [3, 4]])
    assert values["at"].tolist() == [dt.datetime(2024, 1, 2, 3, 4, 5, 123456), dt.datetime(2024, 1, 3)]
    assert values["blob"].tolist() == [b"\x00\xff", b""]
    assert values["ok"].dtype == bool


def with_null(tmp_path, kind, values):
    if kind == "parquet":
        pq.write_table(
            pa.table({"n": pa.array(values, pa.int64()), "o": ["x"] * len(values)}), tmp_path / "n.parquet"
        )
    else:
        rows = (f"{'' if value is None else value},x\n" for value in values)
        (tmp_path / "n.csv").write_text("n,o\n" + "".join(rows))
    return tmp_path / f"n.{kind}"


@pytest.mark.parametrize("kind", ["parquet", "csv"])
@pytest.mark.parametrize("large", [2**53 + 1, 2**63 - 1, -(2**63)])
def test_whole_numbers_with_a_missing_one_stay_whole_numbers(tmp_path, kind, large):
    columns = read(with_null(tmp_path, kind, [5, None, large]))
    assert columns.values["n"].dtype == np.int64
    assert columns.values["n"][[0, 2]].tolist() == [5, large]
    assert columns.nulls["n"].tolist() == [False, True, False]
    assert "o" not in columns.nulls


def test_lists_with_a_missing_number_are_not_rounded(tmp_path):
    pq.write_table(pa.table({"n": pa.array([[2**53 + 1, None], [1, 2]])}), tmp_path / "n.parquet")
    with pytest.raises(SourceError, match="row 0, column 'n': a list with a missing number"):
        read(tmp_path / "n.parquet")


def test_numbers_with_zeros_in_front_are_text(tmp_path):
    (tmp_path / "z.csv").write_text("zip,code,n\n08001,1,0\n3011,+007.5,-10\n")
    columns = read(tmp_path / "z.csv")
    assert columns.values["zip"].tolist() == ["08001", "3011"]
    assert columns.values["code"].tolist() == ["1", "+007.5"]
    assert columns.values["n"].tolist() == [0, -10]
    typed = read(tmp_path / "z.csv", text=TextFormat(kinds={"zip": "int", "code": "float"}))
    assert typed.values["zip"].tolist() == [8001, 3011]
    assert typed.values["code"].tolist() == [1.0, 7.5]


@pytest.mark.parametrize("number", ["9007199254740993", "1" + "0" * 399])
def test_whole_numbers_that_no_float_holds_are_refused_in_a_column_of_floats(tmp_path, number):
    (tmp_path / "w.csv").write_text(f"x\n0.5\n{number}\n9007199254740992\n")
    with pytest.raises(SourceError, match=f"row 1, column 'x': the whole number {number}"):
        read(tmp_path / "w.csv")
    columns = read(tmp_path / "w.csv", text=TextFormat(kinds={"x": "decimal"}))
    assert [str(each) for each in columns.values["x"]] == ["0.5", number, "9007199254740992"]


def test_real_numbers_of_a_csv_stay_floats(tmp_path):
    (tmp_path / "r.csv").write_text("r,o\n1e300,x\n,x\n0.5,x\n")
    np.testing.assert_array_equal(read(tmp_path / "r.csv").values["r"], [1e300, np.nan, 0.5])


def test_times_with_a_zone_become_utc():
    noon = pd.Series(pd.to_datetime(["2024-07-01 12:00"])).dt.tz_localize("America/New_York")
    assert read(pd.DataFrame({"at": noon})).values["at"] == np.datetime64("2024-07-01T16:00")


def test_digits_are_real_and_divided_without_overlap():
    whole, train, test = (read("digits", split=split) for split in (None, "train", "test"))
    assert len(whole) == 1797
    assert len(train) + len(test) == 1797
    assert whole.values["pixels"].shape == (1797, 64)
    assert whole.values["pixels"].max() == 16
    assert set(test.values["label"].tolist()) == set(range(10))
    shared = set(map(bytes, train.values["pixels"])) & set(map(bytes, test.values["pixels"]))
    assert not shared


def test_arrays_frames_and_mappings():
    frame = pd.DataFrame({"x": np.array([1, 2], np.uint32), "c": pd.Categorical(["u", "v"])})
    assert read(frame).values["x"].dtype == np.int64
    assert read(frame).values["c"].tolist() == ["u", "v"]
    assert list(read((IMAGES, LABELS)).values) == ["pixels", "label"]
    assert list(read((np.ones((5, 3)), LABELS)).values) == ["features", "label"]
    assert read(np.ones((5, 3), np.int8)).values["value"].dtype == np.int16
    structured = np.array([(1, 2.0)], [("a", "i4"), ("b", "f8")])
    assert list(read(structured).values) == ["a", "b"]
    assert read({"k": ["a", "b"], "v": [1, 2]}, key="k").keys.tolist() == ["a", "b"]


@pytest.mark.parametrize(
    ("source", "options", "words"),
    [
        ("nowhere.npz", {}, ["nowhere.npz", "does not exist", "digits"]),
        (".", {}, ["is a directory"]),
        (__file__, {}, ["test_sources.py", ".parquet"]),
        ("keras:nothing", {}, ["'nothing'", "fashion_mnist"]),
        ("digits", {"split": "half"}, ["'half'", "'train'"]),
        ({"x": [1, 2]}, {"split": "test"}, ["not divided"]),
        ({"x": [1, 2], "y": [1]}, {}, ["x: 2", "y: 1", "the same length"]),
        ({"x": []}, {}, ["no rows"]),
        ({}, {}, ["no columns"]),
        ({"x": np.array([1, "a"], object)}, {}, ["'x'", "int, str", "convert"]),
        ({"x": np.array([["a"], ["b"]]).tolist(), "y": 3}, {}, ["'y'", "single value"]),
        ({"x": [1j]}, {}, ["complex"]),
        ({"x": np.array([1j])}, {}, ["complex128"]),
        ({"x": np.array([2**64 - 1], np.uint64)}, {}, ["2**63 - 1"]),
        ({"": [1]}, {}, ["without a name"]),
        ({"t": np.array(["2024", "10000"], "datetime64[Y]")}, {}, ["'t'", "10000", "years 1 to 9999"]),
        ({"t": np.array([["2024"]], "datetime64[Y]")}, {}, ["'t'", "arrays of times"]),
        ({"s": ["fine", "b\ud800"]}, {}, ["'s'", "row 1", "lone surrogate"]),
        ({"s\ud800": [1]}, {}, ["lone surrogate"]),
        ({"_KEY": [1]}, {}, ["'_KEY'", "rename"]),
        ({"a": [1], "_val": [1]}, {}, ["'_val'", "rename"]),
        ({"a{": [1], "b\\": [2]}, {}, ["same to Ignite"]),
        ({"\u212a": [1], "k": [2]}, {}, ["same to Ignite"]),
        ({"a": [1], "A": [2]}, {}, ["'a'", "'A'", "rename"]),
        ({"a": [1, 1], "b": [1, 2]}, {"key": "a"}, ["1 of its 2", "repeated"]),
        ({"a": [[1.5]], "b": [1]}, {"key": "a"}, ["'a'", "cannot be the key"]),
        ({"a": [1]}, {"key": "z"}, ["'z'", "it has a"]),
        ({"a": [1]}, {"key": "a"}, ["beside the key"]),
        (pd.DataFrame([[1, 2]], columns=["d", "d"]), {}, ["found twice: d"]),
    ],
)
def test_bad_input_says_what_to_do(source, options, words):
    with pytest.raises(SourceError) as caught:
        read(source, **options)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.npz", b"not a zip file", ["a.npz", ".npz"]),
        ("a.csv", b"", ["a.csv", "Empty"]),
        ("a.csv", b"x,y\n1,2\n1,2,3\n", ["a.csv", "line 3"]),
        ("a.csv", b"x\n\xff\xfe\xfa\n", ["a.csv"]),
        ("a.parquet", b"PAR1", ["a.parquet", "parquet"]),
        ("a-images-idx3", idx_bytes(IMAGES)[:-1], ["a-labels-idx1", "not in the same folder"]),
        ("a.idx", idx_bytes(IMAGES)[:-1], ["truncated", "5 x 28 x 28", "again"]),
        ("a.idx", idx_bytes(IMAGES)[:7], ["a.idx", "IDX"]),
        ("a.idx.gz", gzip.compress(idx_bytes(IMAGES))[:-20], ["a.idx.gz", "IDX"]),
        ("a.gz", b"not compressed", ["a.gz"]),
    ],
)
def test_damaged_files(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SourceError) as caught:
        read(tmp_path / name)
    for word in words:
        assert word in str(caught.value)


def test_npz_of_python_objects_is_not_unpickled(tmp_path):
    np.savez(tmp_path / "o.npz", x=np.array([{}], object))
    with pytest.raises(SourceError, match="fixed-width strings"):
        read(tmp_path / "o.npz")


def test_keras_sets_need_internet_and_say_so(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv("NO_PROXY", "")
    monkeypatch.setattr(
        "urllib.request._opener", None
    )  # the global opener would keep these proxies for other tests
    with pytest.raises(SourceError, match="internet"):
        read("keras:mnist")


def test_keras_set_from_its_download_cache(tmp_path, monkeypatch):
    """Keras checks a cached file by its hash. A data set without a hash exercises a real load."""
    pytest.importorskip("keras")
    from keras.src.datasets import mnist

    path = tmp_path / "mnist.npz"
    np.savez(path, x_train=IMAGES[:3], y_train=LABELS[:3], x_test=IMAGES[3:], y_test=LABELS[3:])
    monkeypatch.setattr(mnist, "get_file", lambda *_, **__: str(path))
    assert len(read("keras:mnist")) == 3
    assert read("keras:mnist", split="test").values["label"].tolist() == LABELS[3:].tolist()


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("t.jsonl", TextFormat(kinds={"y": "text"}), "no column 'y'; there are x"),
        ("t.csv", TextFormat(kinds={"y": "text"}), "no column 'y'; it has x"),
        ("t.csv", TextFormat(kinds={"x": "texts"}), "'texts'; there are int, "),
        ("t.jsonl", TextFormat(na=["-"]), "leave them out"),
        ("t.npz", TextFormat(separator=";"), "leave them out"),
    ],
)
def test_options_that_would_do_nothing_are_refused(tmp_path, name, text, words):
    (tmp_path / name).write_text('{"x": 1}\n' if name == "t.jsonl" else "x\n1\n")
    with pytest.raises(SourceError, match=re.escape(words)):
        read(tmp_path / name, text=text)


@pytest.mark.parametrize("unit", ["Y", "M", "W", "D", "h", "m", "s", "ms", "us", "7D"])
def test_times_outside_of_the_range_have_no_form_in_any_unit(tmp_path, unit):
    far = np.array(["0000-12-01", "0001-02-01", "NaT", "9999-12-01", "10000-02-01"], f"M8[{unit}]")
    with pytest.raises(SourceError, match=r"^2 rows .* row 0, column 't': .*; row 4, column 't': "):
        read({"t": far})
    columns = read({"t": far}, rejects=tmp_path / "bad")
    assert columns.values["t"].astype(str).tolist() == far[1:4].astype(str).tolist()


def test_value_type_names_are_identifiers():
    assert [value_type_name(name) for name in ("MNIST", "digits", "my-digits.v2", "7up")] == [
        "MNIST",
        "Digits",
        "My_digits_v2",
        "T7up",
    ]


LOST_BY_NUMPY = {
    "bytes": [b"\1\0\0", b"\0", b""],
    "text": ["a\0", "\0", "b"],
    "large": [2**63 - 1, -(2**63), 0],
    "lists of text": [["a\0", "b"], ["c", "d\0"], ["", "e"]],
}


@pytest.mark.parametrize("values", LOST_BY_NUMPY.values(), ids=LOST_BY_NUMPY)
def test_values_are_the_same_in_every_container(values):
    for columns in (
        read(values),
        read((values, [0, 1, 2])),
        read({"features": values}),
        read(pd.Series(values)),
    ):
        found = columns.values[next(iter(columns.values))].tolist()
        assert [list(each) if isinstance(each, list) else each for each in found] == values


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([2**53 + 1, 0.5], "row 0.*the whole number 9007199254740993, which no float can represent"),
        ([[2**53 + 1, 0.5]], "row 0.*the whole number 9007199254740993, which no float can represent"),
        ([np.array([2**53 + 1]), np.array([0.5])], "row 0.*that no float can represent"),
        ([2**63, -1], "row 0.*does not fit into 64 bits"),
        ([1, "a"], "row 1.*int, str, but must be of one kind"),
        ([True, 2], "bool, int, but must be of one kind"),
        ([[True, 2], [3, 4]], "row 0"),
        ([(1, "2", 2.5), (2, "b", 3.5)], "row 0.*not a list of"),
    ],
)
def test_mixed_kinds_are_refused_in_every_container(values, words):
    for source in (values, (values, [0] * len(values)), {"x": values}, tuple(values * 3)):
        with pytest.raises(SourceError, match=words):
            read(source)


def test_masked_values_are_missing(tmp_path):
    masked = np.ma.masked_array([7, 8, 9], [False, True, False])
    columns = read(
        {
            "n": masked.astype(np.int32),
            "word": np.ma.masked_array(["a", "b", "c"], masked.mask),
            "at": np.ma.masked_array(np.array(["2024", "2025", "2026"], "M8[s]"), masked.mask),
            "row": np.ma.masked_array(np.ones((3, 2)), np.repeat(masked.mask, 2).reshape(3, 2)),
        }
    )
    assert columns.values["n"].dtype == np.int32
    assert columns.nulls["n"].tolist() == columns.nulls["row"].tolist() == [False, True, False]
    assert columns.values["word"].tolist() == ["a", None, "c"]
    assert np.isnat(columns.values["at"]).tolist() == [False, True, False]
    with pytest.raises(SourceError, match="row 0, column 'value': a list with a missing number"):
        read(np.ma.masked_array([[1, 2], [3, 4]], [[True, False], [False, False]]))


def test_arrow_and_polars_columns_in_a_mapping_keep_their_digits():
    import polars as pl

    for values in (
        pa.array([2**53 + 1, None]),
        pa.chunked_array([[2**53 + 1, None]]),
        pl.Series([2**53 + 1, None]),
    ):
        for source in ({"x": values}, ([0, 1], values), (values, [0, 1]), values):
            columns = read(source)
            (name,) = columns.nulls
            assert columns.values[name].tolist()[0] == 2**53 + 1
            assert columns.nulls[name].tolist() == [False, True]


def test_tables_in_other_containers_keep_their_digits():
    import polars as pl

    columns = {"n": [2**53 + 1, 2], "x": [0.5, 1.5]}
    for table in (pa.table(columns), pl.DataFrame(columns), pd.DataFrame(columns)):
        pair = read((table, [0, 1]))
        assert {name: array.tolist() for name, array in pair.values.items()} == {**columns, "label": [0, 1]}
        with pytest.raises(SourceError, match="'both'.*several types"):
            read({"both": table})
    assert read({"both": pd.DataFrame({"a": [1, 2], "b": [3, 4]})}).values["both"].tolist() == [
        [1, 3],
        [2, 4],
    ]


def test_nan_among_other_values_than_floats_is_missing():
    rows = [{"n": 2**53 + 1, "vip": True}, {"n": float("nan"), "vip": float("nan")}]
    for source in (rows, {name: [row[name] for row in rows] for name in rows[0]}):
        columns = read(source)
        assert (columns.values["n"].dtype, columns.values["vip"].dtype) == (np.int64, np.bool_)
        assert columns.values["n"].tolist()[0] == 2**53 + 1
        assert columns.nulls["n"].tolist() == columns.nulls["vip"].tolist() == [False, True]


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl"])
def test_times_keep_their_nanoseconds(tmp_path, name):
    text = "2020-01-01T10:00:00.123456789Z"
    (tmp_path / name).write_text(f"t\n{text}\n" if name == "t.csv" else f'{{"t": "{text}"}}\n')
    times = read(tmp_path / name, text=TextFormat(kinds={"t": "timestamp"})).values["t"]
    assert times.tolist() == [np.datetime64(text[:-1], "ns").item()]
    (tmp_path / name).write_text((tmp_path / name).read_text().replace("789Z", "7891"))
    with pytest.raises(SourceError, match="parts of a nanosecond"):
        read(tmp_path / name, text=TextFormat(kinds={"t": "timestamp"}))
    with pytest.raises(SourceError, match="row 0"):
        read(tmp_path / name, text=TextFormat(kinds={"t": "time"}))


def test_times_of_day_with_parts_of_a_millisecond_are_refused(tmp_path):
    (tmp_path / "t.csv").write_text("t\n10:00:00.1230001\n")
    with pytest.raises(SourceError, match="parts of a millisecond"):
        read(tmp_path / "t.csv", text=TextFormat(kinds={"t": "time"}))


@pytest.mark.parametrize(("number", "kind"), [("1e400", "float"), ("-1e400", "float64"), ("1e39", "float32")])
def test_numbers_beyond_a_float_are_refused(tmp_path, number, kind):
    (tmp_path / "x.csv").write_text(f"x\n{number}\n1\ninf\n")
    with pytest.raises(SourceError, match=f"^1 rows .*{number} is too large for a float"):
        read(tmp_path / "x.csv", text=TextFormat(kinds={"x": kind}))


def test_whole_numbers_written_as_real_ones_are_whole_when_asked(tmp_path):
    (tmp_path / "x.csv").write_text("age,o\n22.0,x\n,x\n-38.00,x\n")
    columns = read(tmp_path / "x.csv", text=TextFormat(kinds={"age": "int"}))
    assert columns.values["age"].tolist() == [22, 0, -38]
    assert columns.nulls["age"].tolist() == [False, True, False]


@pytest.mark.parametrize(
    "value", [[{"q": 1}], [dt.date(2020, 1, 1)], [[{"q": 1}]]], ids=["objects", "dates", "nested"]
)
def test_lists_of_what_has_no_form_are_refused_by_name(value):
    for source in ([{"x": value}], {"x": [value]}, [value]):
        with pytest.raises(SourceError, match=r"holds lists of"):
            read(source)
