"""pandas frames and series become columns without losing the index, digits or missing values."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pandas as pd
import pytest

from ignite_tf_magic.data.sources import SourceOptions, read_source
from ignite_tf_magic.errors import SourceError

X = pd.DataFrame({"x": [1, 2, 3]})
DAYS = pd.date_range("2024-01-01", periods=3)


def read(source, **options):
    said = []
    (columns,) = read_source(source, SourceOptions(report=said.append, **options)).chunks()
    return columns, said


def cells(columns, name):
    """Return the values of a column, None for missing ones."""
    values = [None if value != value else value for value in columns.values[name].tolist()]
    gone = columns.nulls.get(name, np.zeros(len(values), bool))
    return [None if is_gone else value for value, is_gone in zip(values, gone, strict=True)]


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        (X.set_index(DAYS), {"index": [dt.datetime(2024, 1, day) for day in (1, 2, 3)]}),
        (X.set_index(pd.Index(["a", "b", "c"])), {"index": ["a", "b", "c"]}),
        (X.set_index(pd.Index([5, 7, 9], name="row")), {"row": [5, 7, 9]}),
        (X.rename_axis("row"), {"row": [0, 1, 2]}),
        (X.set_index(pd.Index([0.5, 1.5, 2.5])), {"index": [0.5, 1.5, 2.5]}),
        (
            X.set_index(pd.MultiIndex.from_tuples([("a", 1), ("a", 2), ("b", 1)], names=["shop", None])),
            {"shop": ["a", "a", "b"], "level_1": [1, 2, 1]},
        ),
        (X.assign(k=["b", "a", "b"]).groupby("k").sum(), {"k": ["a", "b"]}),
        (pd.Series(["a", "b", "a"], name="kind").value_counts(), {"kind": ["a", "b"]}),
        (pd.Series([1, 2], index=["a", "b"]), {"index": ["a", "b"]}),
    ],
)
def test_an_index_that_says_something_becomes_columns(frame, expected):
    columns, said = read(frame)
    assert {name: cells(columns, name) for name in expected} == expected
    assert list(columns.values)[: len(expected)] == list(expected)
    assert len(columns.values) == len(expected) + 1
    assert said == []


def test_an_index_that_numbers_rows_is_dropped_and_another_one_than_pandas_own_is_said():
    filtered = pd.DataFrame({"x": range(5)}).query("x in [0, 1, 4]")
    for frame, lines in ((X, 0), (X[::2], 0), (filtered, 1), (filtered.x, 1)):
        columns, said = read(frame)
        assert (list(columns.values), len(said)) == (["x"], lines)


def test_an_index_with_a_columns_name_is_refused():
    with pytest.raises(SourceError, match=r"already exists; name it with rename_axis"):
        read(X.set_index(pd.Index([1, 2, 3], name="x")))


MISSING = {
    "float": (pd.Series([0.5, np.nan]), [0.5, None]),
    "float32": (pd.Series([0.5, np.nan], dtype="float32"), [0.5, None]),
    "Float64": (pd.array([0.5, pd.NA], "Float64"), [0.5, None]),
    "Float64 with NaN": (pd.array([0.0, 1.5], "Float64") / pd.array([0.0, 1.0], "Float64"), [None, 1.5]),
    "arrow": (pd.array([0.5, None], "double[pyarrow]"), [0.5, None]),
    "objects of floats": (pd.Series([0.5, np.nan, None], dtype=object), [0.5, None, None]),
    "objects of integers": (pd.Series([2**53 + 1, np.nan], dtype=object), [2**53 + 1, None]),
    "booleans": (pd.Series([True, np.nan, False], dtype=object), [True, None, False]),
    "text": (pd.Series(["a", np.nan], dtype=object), ["a", None]),
    "days": (pd.Series([dt.date(2024, 1, 1), np.nan], dtype=object), [dt.date(2024, 1, 1), None]),
    "times": (pd.Series([pd.Timestamp(2024, 1, 1), pd.NaT]), [dt.datetime(2024, 1, 1), None]),
    "other byte order": (pd.Series(np.array([0.5, np.nan], ">f8")), [0.5, None]),
    "sparse": (pd.Series(pd.arrays.SparseArray([0.5, np.nan])), [0.5, None]),
    "zones": (
        pd.Series([pd.Timestamp("2024-01-01 09:00", tz="Asia/Tokyo"), pd.NaT]),
        [dt.datetime(2024, 1, 1), None],
    ),
    "nothing": (pd.Series([np.nan, np.nan], dtype=object), [None, None]),
    "no text": (pd.array([None, None], "string"), [None, None]),
}


@pytest.mark.parametrize("kind", MISSING)
def test_what_is_missing_in_a_frame_is_null(kind):
    values, expected = MISSING[kind]
    columns, _ = read(pd.DataFrame({"x": values}))
    assert cells(columns, "x") == expected
    assert [type(each) for each in cells(columns, "x")] == [type(each) for each in expected]
    if columns.values["x"].dtype.kind == "f":
        assert columns.nulls["x"].tolist() == [each is None for each in expected]


def test_nan_is_kept_as_a_number_when_asked():
    columns, _ = read(pd.DataFrame({"x": [0.5, np.nan], "word": ["a", np.nan]}), keep_nan=True)
    assert columns.nulls == {}
    assert cells(columns, "word") == ["a", None]
    with pytest.raises(SourceError, match="--keep-nan is for data frames"):
        read("digits", keep_nan=True)


def test_nan_of_arrays_is_a_number():
    assert read({"x": np.array([0.5, np.nan])})[0].nulls == {}


def test_series_in_other_containers_lose_nothing():
    whole = pd.Series([2**53 + 1, None], dtype="Int64")
    for values in (whole, whole.array, pd.Index(whole)):
        for source, name in (
            (values, "value"),
            ({"x": values}, "x"),
            ((values, [0, 1]), "features"),
            (([0, 1], values), "label"),
        ):
            assert cells(read(source)[0], name) == [2**53 + 1, None]
    for source in ({"x": whole}, (pd.DataFrame({"x": whole, "y": [0.5, 1.5]}), [0, 1])):
        columns, _ = read(source)
        assert cells(columns, "x") == [2**53 + 1, None]
    assert list(columns.values) == ["x", "y", "label"]
    with pytest.raises(SourceError, match="found twice: label"):
        read((pd.DataFrame({"label": [1]}), [1]))


def test_columns_of_several_levels_have_names_of_all():
    frame = X.assign(k=["a", "a", "b"]).groupby("k").agg({"x": ["min", "max"]})
    columns, _ = read(frame)
    assert list(columns.values) == ["k", "x_min", "x_max"]
