"""The statistics of a column equal those of pandas and NumPy, for values of all kinds."""

from __future__ import annotations

import datetime as dt
import math
from collections import Counter
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ignite_tf_magic.profiling.column_numbers import (
    NUM_BINS,
    PERCENTS,
    histogram_of,
    numbers_of,
    numbers_of_items,
)

LONG = st.integers(-(2**63), 2**63 - 1)
KINDS = {
    "integer": st.one_of(LONG, st.integers(-5, 5)),
    "float": st.one_of(st.floats(-1e100, 1e100), st.integers(-3, 3).map(float)),
    "decimal": st.decimals(-(10**30), 10**30, places=3),
    "text": st.text(max_size=4),
    "date": st.dates(dt.date(1700, 1, 1)),
    "timestamp": st.datetimes(dt.datetime(1700, 1, 1), dt.datetime(2200, 1, 1)).map(
        lambda moment: np.datetime64(moment, "ns")
    ),
    "uuid": st.uuids(),
}


@pytest.mark.parametrize("kind", sorted(KINDS))
@given(data=st.data())
def test_as_pandas_has_them(kind, data):
    values = data.draw(st.lists(KINDS[kind], min_size=1, max_size=40))
    column = numbers_of("c", "t", kind, Counter(values), num_nulls=3)
    assert (column.num_rows, column.num_nulls) == (len(values) + 3, 3)
    assert column.num_distinct == pd.Series(values, dtype=object).nunique()
    if kind not in ("text", "uuid"):
        assert (column.least, column.greatest) == (min(values), max(values))
        ordered = sorted(values)
        for percent in PERCENTS:
            found = column.quantiles[percent]
            assert Fraction(sum(each <= found for each in ordered), len(ordered)) >= Fraction(percent, 100)
            assert Fraction(sum(each < found for each in ordered), len(ordered)) < Fraction(percent, 100)
    if column.histogram:
        assert sum(column.histogram.counts) == len(values)
        assert len(column.histogram.edges) == len(column.histogram.counts) + 1
    for each in column.classes:
        assert each.count == values.count(each.value)
    if column.classes:
        assert sum(each.count for each in column.classes) == len(values)


@given(st.lists(KINDS["integer"], min_size=2))
def test_mean_and_deviation_of_large_integers_are_exact(values):
    column = numbers_of("c", "t", "integer", Counter(values), 0)
    mean = Fraction(sum(values), len(values))
    variance = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
    assert column.mean == float(mean)
    assert column.std == pytest.approx(math.sqrt(variance), rel=1e-9)


@given(st.lists(st.decimals(-(10**25), 10**25, places=2), min_size=2))
def test_mean_and_deviation_of_decimals_are_exact(values):
    column = numbers_of("c", "t", "decimal", Counter(values), 0)
    mean = Fraction(sum(map(Fraction, values)), len(values))
    variance = sum((Fraction(value) - mean) ** 2 for value in values) / (len(values) - 1)
    assert isinstance(column.mean, Decimal)
    assert abs(Fraction(column.mean) - mean) <= abs(mean) / 10**40
    assert column.std == pytest.approx(math.sqrt(variance), rel=1e-9)


@given(st.lists(st.floats(-1e6, 1e6), min_size=2))
def test_mean_and_deviation_of_floats(values):
    column = numbers_of("c", "t", "float", Counter(values), 0)
    series = pd.Series(values)
    assert column.mean == pytest.approx(series.mean(), rel=1e-9, abs=1e-6)
    assert column.std == pytest.approx(series.std(), rel=1e-6, abs=1e-6)


def test_nan_null_and_infinity_are_told_apart():
    values = Counter([1.0, 2.0, math.inf, float("nan"), float("nan")])
    column = numbers_of("c", "t", "float", values, num_nulls=4)
    assert (column.num_rows, column.num_nulls, column.num_nans, column.num_infinite) == (9, 4, 2, 1)
    assert (column.num_distinct, column.least, column.greatest) == (3, 1.0, math.inf)
    assert (column.mean, column.std) == (None, None)
    assert sum(column.histogram.counts) == 2


def test_only_nulls_or_nans():
    assert numbers_of("c", "t", "integer", Counter(), 5).least is None
    column = numbers_of("c", "t", "float", Counter([float("nan")]), 0)
    assert (column.num_nans, column.mean, column.histogram, column.num_distinct) == (1, None, None, 0)


@pytest.mark.parametrize(
    ("values", "kind", "classes"),
    [
        ([2, 1, 1], "integer", []),
        ([2, 2, 1, 1, 1], "integer", [(1, 3), (2, 2)]),
        (["a", "b", "b", "b"], "text", [("b", 3), ("a", 1)]),
        ([True], "boolean", [(True, 1)]),
        ([1.0, 1.0, 2.0, 2.0], "float", []),
        (list(range(31)) * 2, "integer", []),
    ],
)
def test_classes_are_those_of_columns_with_few_values(values, kind, classes):
    column = numbers_of("c", "t", kind, Counter(values), 0)
    assert [(each.value, each.count) for each in column.classes] == classes


def test_imbalance_is_that_of_the_largest_and_the_smallest_class():
    assert numbers_of("c", "t", "integer", Counter([0] * 9 + [1] * 3), 0).imbalance == 3.0
    assert numbers_of("c", "t", "integer", Counter([0, 0]), 0).imbalance is None


def test_bins():
    assert histogram_of({3: 2, 5: 1}).edges == (3, 4, 5, 6)
    assert histogram_of({3: 2, 5: 1}).counts == (2, 0, 1)
    wide = histogram_of({0: 1, 29: 1, 30: 5, 3000: 2})
    assert (len(wide.counts), wide.counts[0], wide.counts[-1]) == (NUM_BINS, 7, 2)
    assert histogram_of({2.5: 4}).counts == (4,)
    assert histogram_of({-1.7e308: 1, 1.7e308: 1}).counts == (2,)


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float32])
def test_items_of_arrays_are_taken_together(dtype):
    arrays = [np.arange(5, dtype=dtype), np.zeros(0, dtype), np.array([7, 9], dtype)]
    column = numbers_of_items("c", "t", arrays, 2, 5)
    series = pd.Series(np.concatenate(arrays))
    assert (column.num_rows, column.num_nulls) == (5, 2)
    assert (column.least, column.greatest) == (0, 9)
    assert column.mean == pytest.approx(series.mean())
    assert column.std == pytest.approx(series.std())
    assert sum(column.histogram.counts) == 7
    assert numbers_of_items("c", "t", [], 2, 2).mean is None


def test_of_arrays_rows_with_nans_are_counted():
    arrays = [np.array([1.0, np.nan, np.nan]), np.array([np.inf]), np.array([2.0])]
    column = numbers_of_items("c", "t", arrays, 0, 3)
    assert (column.num_nans, column.num_infinite, column.least, column.greatest) == (1, 1, 1.0, np.inf)
    assert (column.mean, column.std, column.histogram) == (None, None, None)
