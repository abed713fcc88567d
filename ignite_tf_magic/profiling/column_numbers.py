"""Computes the statistics of one column from its values and their frequencies. Pure functions.

The p percent quantile is the least value that at least p percent of the values do not exceed. It is one of the values,
and therefore exact for integers, decimals and times. Standard deviations are those of a sample (n - 1), as in pandas.
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import accumulate
from typing import Any

import numpy as np

PERCENTS = (5, 25, 50, 75, 95)
MAX_CLASSES = 30
NUM_BINS = 30
NUMBERS = frozenset({"integer", "float", "decimal"})
TIMES = frozenset({"date", "time", "timestamp"})
_ORDERED = NUMBERS | TIMES | {"text"}
_OF_CLASSES = frozenset({"integer", "text", "boolean"})
_DIGITS = decimal.Context(prec=60)


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts of values between edges. There is one more edge than bins.

    A value on an edge belongs to the bin above it, except on the last edge.

    Attributes:
        edges: Numbers or timestamps.
    """

    edges: tuple[Any, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ClassCount:
    """A value of a column that has few different values, and the number of rows that have it."""

    value: Any
    count: int


@dataclass(frozen=True, slots=True)
class ColumnProfile:
    """The statistics of one column. Those that are unknown, or undefined for its kind, are None or empty.

    Attributes:
        name: As `ColumnInfo.name`.
        type: Stored type.
        kind: integer, float, decimal, boolean, text, date, time, timestamp, uuid, array, object, java, null or mixed.
        num_rows: Number of rows that the counts cover: those of the whole cache, or of the sample.
        num_nulls: How many of them have no value. A NaN is a value.
        num_nans: How many of them have a NaN.
        num_infinite: How many of them have an infinite number. If there are any, there is no mean.
        num_distinct: Number of different values, without null and NaN.
        mean: A float; for decimals a Decimal.
        quantiles: Values by percent.
        classes: All values, if the column has few.
        estimated: Names of the fields that come from a sample; `num_distinct` is then a lower bound.
    """

    name: str
    type: str
    kind: str
    num_rows: int
    num_nulls: int
    num_nans: int = 0
    num_infinite: int = 0
    num_distinct: int | None = None
    least: Any = None
    greatest: Any = None
    mean: Any = None
    std: float | None = None
    quantiles: Mapping[int, Any] = field(default_factory=dict)
    classes: tuple[ClassCount, ...] = ()
    histogram: Histogram | None = None
    estimated: frozenset[str] = frozenset()

    @property
    def imbalance(self) -> float | None:
        """Ratio of the rows in the largest and the smallest class; None if there are fewer than two classes."""
        counts = [each.count for each in self.classes]
        return max(counts) / min(counts) if len(counts) > 1 else None


OF_COUNTS = frozenset({"num_nulls", "num_nans", "num_infinite", "num_distinct", "classes"})
OF_VALUES = frozenset({"least", "greatest", "mean", "std", "quantiles", "histogram"})


def numbers_of(name: str, type_name: str, kind: str, values: Counter[Any], num_nulls: int) -> ColumnProfile:
    """Compute the statistics of comparable values, none of which is null."""
    num_nans, values = _without_nans(values)
    num_rows = sum(values.values()) + num_nans + num_nulls
    column = ColumnProfile(name, type_name, kind, num_rows, num_nulls, num_nans, num_distinct=len(values))
    if kind in _ORDERED and values:
        ordered = _ordered(values, kind)
        column = replace(column, least=ordered[0][0], greatest=ordered[-1][0])
        if kind != "text":
            column = replace(column, quantiles=_quantiles(ordered))
    if kind in _OF_CLASSES and _are_classes(values, kind):
        column = replace(column, classes=_classes(values, kind))
    if kind == "boolean" and values:
        return replace(column, mean=values[True] / sum(values.values()))
    if kind == "float":
        infinite = sum(count for value, count in values.items() if math.isinf(value))
        finite = Counter({value: count for value, count in values.items() if math.isfinite(value)})
        column = replace(column, num_infinite=infinite, histogram=histogram_of(finite))
        return column if infinite else replace(column, **_moments(finite))
    if kind in NUMBERS:
        return replace(column, histogram=histogram_of(values), **_moments(values))
    return replace(column, histogram=_histogram_of_times(values)) if kind in TIMES else column


def _without_nans(values: Counter[Any]) -> tuple[int, Counter[Any]]:
    nans = sum(count for value, count in values.items() if isinstance(value, float) and math.isnan(value))
    if not nans:
        return 0, values
    return nans, Counter({value: count for value, count in values.items() if value == value})


def _ordered(values: Counter[Any], kind: str) -> list[tuple[Any, int]]:
    # Order text by UTF-16, as the cluster's SQL does.
    key = (lambda pair: pair[0].encode("utf-16-be", "surrogatepass")) if kind == "text" else None
    return sorted(values.items(), key=key or (lambda pair: pair[0]))


def _quantiles(ordered: Sequence[tuple[Any, int]]) -> dict[int, Any]:
    ends = list(accumulate(count for _, count in ordered))
    places = {percent: -(-percent * ends[-1] // 100) for percent in PERCENTS}
    return {percent: ordered[int(np.searchsorted(ends, place))][0] for percent, place in places.items()}


def _are_classes(values: Counter[Any], kind: str) -> bool:
    return kind == "boolean" or (len(values) <= MAX_CLASSES and sum(values.values()) >= 2 * len(values) > 0)


def _classes(values: Counter[Any], kind: str) -> tuple[ClassCount, ...]:
    pairs = values.most_common() if kind == "text" else sorted(values.items())
    return tuple(ClassCount(value, count) for value, count in pairs)


def _moments(values: Counter[Any]) -> dict[str, Any]:
    """Return mean and standard deviation; the sums of integers and decimals are exact."""
    num_values = sum(values.values())
    if not num_values:
        return {}
    total = _total(values)
    mean = mean_of(total, num_values)
    if not math.isfinite(mean):
        return {"mean": mean}
    # Subtract a number near the mean first, because floats hold few digits of large numbers.
    centre = total // num_values if isinstance(total, int) else mean
    near = np.array([float(value - centre) for value in values])
    weights = np.array(list(values.values()), np.float64)
    squares = float(weights @ np.square(near) - (weights @ near) ** 2 / num_values)
    return {"mean": mean, "std": math.sqrt(max(squares, 0.0) / (num_values - 1)) if num_values > 1 else None}


def _total(values: Counter[Any]) -> Any:
    if any(isinstance(value, float) for value in values):
        try:
            return math.fsum(value * count for value, count in values.items())
        except OverflowError:
            return math.inf
    with decimal.localcontext(_DIGITS):
        return sum(value * count for value, count in values.items())


def mean_of(total: Any, num_values: int) -> Any:
    """Divide a sum: return a correctly rounded float, or for a decimal a Decimal of at most 60 digits."""
    if isinstance(total, decimal.Decimal):
        return _DIGITS.divide(total, num_values)
    if isinstance(total, int):
        return float(Fraction(total, num_values))
    return total / num_values


def histogram_of(values: Mapping[Any, int]) -> Histogram | None:
    """Count numbers in bins: one per integer if there are few, else 30 of equal width."""
    if not values:
        return None
    least, greatest = min(values), max(values)
    if isinstance(least, int) and greatest - least < NUM_BINS:
        counts = tuple(values.get(number, 0) for number in range(least, greatest + 1))
        return Histogram(tuple(range(least, greatest + 2)), counts)
    return _binned(values, least, float(greatest - least))


def _binned(values: Mapping[Any, int], least: Any, width: float) -> Histogram:
    if not width or not math.isfinite(width):
        return Histogram((float(least), float(max(values))), (sum(values.values()),))
    places = np.array([float(value - least) for value in values]) / width * NUM_BINS
    bins = np.minimum(places.astype(np.int64), NUM_BINS - 1)
    counts = np.bincount(bins, np.array(list(values.values()), np.float64), NUM_BINS)
    edges = tuple(float(least) + width * number / NUM_BINS for number in range(NUM_BINS + 1))
    return Histogram(edges, tuple(int(each) for each in counts))


def _histogram_of_times(values: Mapping[Any, int]) -> Histogram | None:
    """Count timestamps in bins with timestamps as edges; None for times of day."""
    if not values or isinstance(next(iter(values)), dt.time):
        return None
    moments = {np.datetime64(value).astype("M8[us]").item(): count for value, count in values.items()}
    micros: Counter[int] = Counter()
    for moment, count in moments.items():
        micros[(moment - dt.datetime(1970, 1, 1)) // dt.timedelta(microseconds=1)] += count
    binned = histogram_of(micros)
    if binned is None:
        return None
    edges = tuple(np.datetime64(int(edge), "us") for edge in binned.edges)
    return Histogram(edges, binned.counts)


def numbers_of_items(
    name: str, type_name: str, arrays: Sequence[Any], num_nulls: int, num_rows: int
) -> ColumnProfile:
    """Compute the statistics of all items of arrays together; nulls, NaNs and infinite numbers are counted per row."""
    column = ColumnProfile(name, type_name, "array", num_rows, num_nulls)
    items = np.concatenate(arrays) if arrays else np.zeros(0)
    if items.dtype.kind not in "iuf" or not len(items):
        return column
    if items.dtype.kind == "f":
        column = replace(
            column,
            num_nans=sum(bool(np.isnan(each).any()) for each in arrays),
            num_infinite=sum(bool(np.isinf(each).any()) for each in arrays),
        )
        items = items[~np.isnan(items)]
    if not len(items):
        return column
    column = replace(column, least=items.min().item(), greatest=items.max().item())
    if column.num_infinite:
        return column
    values, counts = np.unique(items, return_counts=True)
    histogram = histogram_of(dict(zip(values.tolist(), counts.tolist(), strict=True)))
    wide = items.astype(np.float64)
    std = float(wide.std(ddof=1)) if len(wide) > 1 else None
    return replace(column, mean=float(wide.mean()), std=std, histogram=histogram)
