"""Frames of the kinds that pandas documents are refused, or are loaded and read back by SQL and a dataset."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from ignite_tf_magic import batches
from ignite_tf_magic.errors import SourceError
from ignite_tf_magic.session import open_session

CACHE = "FRAMES_THERE_AND_BACK"
BASE = pd.DataFrame({"g": ["a", "a", "b"], "x": [1, 2, 3], "y": [1.5, 2.5, np.nan]})
DAYS = pd.date_range("2020", periods=2)
FRAMES = {
    "integers": pd.DataFrame({"x": [1, 2]}),
    "small integers": pd.DataFrame({"x": np.array([1, -2], np.int8), "y": np.array([1, 255], np.uint8)}),
    "nullable integers": pd.DataFrame({"x": pd.array([2**53 + 1, None], "Int64")}),
    "floats": pd.DataFrame({"x": [1.5, np.nan, np.inf, -np.inf]}),
    "float32": pd.DataFrame({"x": np.array([1.5, 2], np.float32)}),
    "nullable floats": pd.DataFrame({"x": pd.array([1.5, None], "Float64")}),
    "booleans": pd.DataFrame({"x": [True, False]}),
    "nullable booleans": pd.DataFrame({"x": pd.array([True, None], "boolean")}),
    "booleans with NaN": pd.DataFrame({"x": [True, np.nan]}),
    "text": pd.DataFrame({"x": ["a\0", None, "\U0001f600", ""]}),
    "string dtype": pd.DataFrame({"x": pd.array(["a", pd.NA], "string")}),
    "categories": pd.DataFrame({"x": pd.Categorical(["a", "b", None])}),
    "categories of numbers": pd.DataFrame({"x": pd.Categorical([3, 1])}),
    "ordered categories": pd.DataFrame({"x": pd.Categorical(["lo", "hi"], ["lo", "hi"], ordered=True)}),
    "datetimes": pd.DataFrame({"x": pd.to_datetime(["2020-01-01 00:00:00.123456789", None])}),
    "zoned datetimes": pd.DataFrame({"x": pd.to_datetime(["2020-06-01"]).tz_localize("Europe/Berlin")}),
    "dates": pd.DataFrame({"x": [dt.date(2020, 1, 1), None]}),
    "times": pd.DataFrame({"x": [dt.time(1, 2, 3)]}),
    "decimals": pd.DataFrame({"x": [Decimal("1.50"), None]}),
    "UUIDs": pd.DataFrame({"x": [uuid.UUID(int=5)]}),
    "bytes": pd.DataFrame({"x": [b"a\0", None]}),
    "sparse": pd.DataFrame({"x": pd.arrays.SparseArray([0, 0, 1])}),
    "sparse floats": pd.DataFrame({"x": pd.arrays.SparseArray([np.nan, 1.0])}),
    "lists of numbers": pd.DataFrame({"x": [[1.5, 2.0], [3.0]]}),
    "lists of text": pd.DataFrame({"x": [["a"], ["b", "c"]]}),
    "arrays": pd.DataFrame({"x": list(np.arange(6).reshape(3, 2))}),
    "all null": pd.DataFrame({"x": [None, None], "y": [1, 2]}),
    "Arrow's integers": pd.DataFrame({"x": pd.array([1, None], pd.ArrowDtype(pa.int32()))}),
    "Arrow's decimals": pd.DataFrame({"x": pd.array([Decimal("1.5")], pd.ArrowDtype(pa.decimal128(5, 2)))}),
    "Arrow's lists": pd.DataFrame({"x": pd.array([[1, 2], [3]], pd.ArrowDtype(pa.list_(pa.int64())))}),
    "two indexes": BASE.set_index(["g", "x"]),
    "a named index": BASE.set_index("x"),
    "an index of days": pd.DataFrame({"v": [1, 2]}, DAYS),
    "a filter": BASE[BASE["x"] > 1],
    "groupby": BASE.groupby("g").sum(),
    "groupby of several": BASE.groupby("g").agg({"x": ["min", "max"]}),
    "pivot_table": BASE.pivot_table("x", "g", aggfunc="sum"),
    "value_counts": BASE["g"].value_counts().to_frame(),
    "crosstab": pd.crosstab(BASE["g"], BASE["x"]),
    "describe": BASE.describe(),
    "get_dummies": pd.get_dummies(BASE["g"]),
    "resample": pd.DataFrame({"v": [1, 2]}, DAYS).resample("D").mean(),
    "merge": BASE.merge(BASE, on="g"),
    "explode": pd.DataFrame({"x": [[1, 2], [3]]}).explode("x"),
    "numbered columns": pd.DataFrame([[1, 2]]),
}
REFUSED = {
    "large unsigned": pd.DataFrame({"x": np.array([1, 2**64 - 1], np.uint64)}),
    "timedeltas": pd.DataFrame({"x": pd.to_timedelta(["1h"])}),
    "periods": pd.DataFrame({"x": pd.period_range("2020-01", periods=2, freq="M")}),
    "intervals": pd.DataFrame({"x": pd.interval_range(0, 2)}),
    "complex": pd.DataFrame({"x": [1 + 2j]}),
    "dicts": pd.DataFrame({"x": [{"a": 1}]}),
    "mixed": pd.DataFrame({"x": [1, "a"]}),
    "two of a name": pd.DataFrame([[1, 2]], columns=["x", "x"]),
}


@pytest.fixture(scope="module")
def session(ignite):
    with open_session(ignite.connect_options, report=str) as opened:
        yield opened


@pytest.mark.nightly
def test_frames_come_back_as_they_were(session, ignite):
    """Nightly. Shorter: tests/data/test_values.py::test_a_frame_loses_nothing"""
    assert len(FRAMES) + len(REFUSED) > 50
    node = ignite.connect_options.endpoints[0]
    found, told = {}, {}
    for kind, frame in FRAMES.items():
        session.load(CACHE, frame, replace=True)
        result = session.query(f"SELECT * FROM {CACHE} ORDER BY _KEY")
        found[kind] = (
            [column.name for column in result.columns][1:],
            [plain(row[1:]) for row in result.rows],
        )
        told[kind] = expected(frame)
        (batch,) = batches(CACHE, 100, host=node.host, port=node.port)
        for name, rows in told_by_dataset(frame).items():
            assert batch["val"][name][np.argsort(batch["key"])].tolist() == rows, f"{kind}: {name}"
    assert found == told


def test_frames_without_a_form_are_refused_with_the_column(session):
    for frame in REFUSED.values():
        with pytest.raises(SourceError, match="'x'|: x;"):
            session.load(CACHE, frame, replace=True)


def expected(frame: pd.DataFrame) -> tuple[list[str], list[Any]]:
    """Return a frame's column names and rows, including its index unless that only numbers the rows."""
    is_plain = frame.index.name is None and pd.api.types.is_integer_dtype(frame.index.dtype)
    whole = frame.reset_index(drop=is_plain) if frame.index.nlevels == 1 else frame.reset_index()
    names = ["_".join(filter(None, name)) if isinstance(name, tuple) else str(name) for name in whole.columns]
    return names, [plain(row) for row in whole.itertuples(index=False, name=None)]


def told_by_dataset(frame: pd.DataFrame) -> dict[str, list[Any]]:
    """Return the columns of plain numbers, which a dataset returns unchanged."""
    return {
        str(name): frame[name].tolist()
        for name in frame.columns
        if isinstance(name, str)
        and frame[name].dtype in ("int64", "float32", "bool")
        and frame.columns.nlevels == 1
    }


def plain(value: Any) -> Any:
    """Return a value in one form whatever its source; None for each kind of missing value."""
    if isinstance(value, (list, tuple, np.ndarray)):
        return [plain(each) for each in value]
    if value is None or value is pd.NA or value is pd.NaT or value != value:
        return None
    if isinstance(value, pd.Timestamp):
        return (value.tz_convert(None) if value.tz else value).to_datetime64().astype("M8[ns]")
    return value.item() if isinstance(value, np.generic) and not isinstance(value, np.datetime64) else value
