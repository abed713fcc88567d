"""Tests of a cache's profile as text, as JSON, and as a picture."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pytest

from ignite_tf_magic.profiling.column_numbers import OF_COUNTS, OF_VALUES, numbers_of, numbers_of_items
from ignite_tf_magic.profiling.profile import NodeRows, PartitionSkew
from ignite_tf_magic.session import CacheProfile, Histogram
from ignite_tf_magic.ui.profile_pictures import picture_of_profile
from ignite_tf_magic.ui.profile_views import profile_as_json, profile_view, spark_text

DAYS = [dt.date(2024, 1, 1) + dt.timedelta(days=i * i) for i in range(20)]
MOMENTS = [np.datetime64("2024-01-02T03:04:05.123456789") + np.timedelta64(i, "ms") for i in range(20)]
COLUMNS = (
    numbers_of("key", "long", "integer", Counter(range(2**60, 2**60 + 100)), 0),
    numbers_of("label", "int", "integer", Counter([0] * 60 + [7] * 20), 20),
    numbers_of("x", "double", "float", Counter([0.5, float("nan"), float("inf"), 1e300]), 1),
    numbers_of("one", "double", "float", Counter([0.5, 0.5]), 0),
    numbers_of(
        "price", "decimal", "decimal", Counter([Decimal("12345678901234567890.01"), Decimal("0.5")]), 0
    ),
    numbers_of("is_new", "boolean", "boolean", Counter([True, False, True]), 0),
    numbers_of("name", "string", "text", Counter(["<b>$x_1$", "\x1b[31mred"]), 0),
    numbers_of("kind", "string", "text", Counter(["a rather long name of a class"] * 4 + ["b"] * 2), 0),
    numbers_of("day", "date", "date", Counter(DAYS), 0),
    numbers_of("when", "timestamp", "timestamp", Counter(MOMENTS), 0),
)
PROFILE = CacheProfile(
    "SEEN",
    rows=1_000_000,
    backups=1,
    num_sampled=100,
    num_read_partitions=11,
    read_from="11 of 1,024 partitions",
    is_whole=False,
    table=None,
    row_bytes=846.0,
    kinds=(),
    columns=COLUMNS,
    partitions=PartitionSkew(1024, 11, 2, 0, 976.0, 1900),
    nodes=(NodeRows("db1:10800", 500, 600_000), NodeRows("db2:10800", 524, 400_000)),
    notes=("look here",),
)
OF_SAMPLE = replace(
    PROFILE, columns=tuple(replace(each, estimated=OF_COUNTS | OF_VALUES) for each in COLUMNS)
)


def line_of(view, beginning):
    (line, *_) = [line for line in view.text.splitlines() if line.startswith(beginning)]
    return line


def test_exact_numbers_have_no_mark():
    text = profile_view(PROFILE).text
    table = text[text.index("COLUMN") :]
    assert "~" not in table
    assert "≥" not in table
    assert f"{2**60:,}" in table
    assert "12345678901234567890.01" in table
    assert "2024-01-02 03:04:05 UTC" in table
    assert "the most frequent 3 times as frequent as the rarest" in table
    assert "note: look here" in table


def test_numbers_of_a_sample_are_marked():
    view = profile_view(OF_SAMPLE)
    assert "a sample of 100 rows, chosen at random from 11 of 1,024 partitions" in view.text
    assert line_of(view, "label ").split()[:4] == ["label", "int", "~20.00%", "~0"]
    assert "≥2" in line_of(view, "label ")
    assert "~0.5" in view.text
    assert "~75.0%" in view.text
    assert "~3 times" in view.text
    assert (
        "11 partitions that were read, of 1,024: 0 to 1,900 rows each, median 976; 2 are empty" in view.text
    )


def test_arrays_of_which_some_were_looked_at_are_marked():
    arrays = numbers_of_items("pixels", "byte array", [np.arange(9, dtype=np.uint8)], 0, 1)
    whole = replace(PROFILE, is_whole=True, columns=(arrays,))
    assert "Numbers are those of all rows.\n" in profile_view(whole).text
    some = replace(whole, columns=(replace(arrays, estimated=OF_VALUES),))
    assert "of arrays with a ~, those of some rows" in profile_view(some).text
    assert "~4  ~2.73861" in profile_view(some).text


def test_what_others_have_written_is_text():
    view = profile_view(PROFILE)
    assert "\x1b" not in view.text
    assert "<b>" not in view.html.replace("<b>cache", "")


def test_programs_are_told_all_digits():
    found = json.loads(json.dumps(profile_as_json(OF_SAMPLE), allow_nan=False))
    columns = {column["name"]: column for column in found["columns"]}
    assert columns["key"]["max"] == 2**60 + 99
    assert columns["price"]["max"] == "12345678901234567890.01"
    assert columns["when"]["min"] == "2024-01-02T03:04:05.123456789"
    assert columns["x"]["max"] == "inf"
    assert (columns["x"]["nans"], columns["x"]["infinite"], columns["x"]["nulls"]) == (1, 1, 1)
    assert columns["label"]["classes"] == [{"value": 0, "rows": 60}, {"value": 7, "rows": 20}]
    assert "mean" in columns["label"]["estimated"]
    assert columns["label"]["histogram"]["counts"] == [60, 0, 0, 0, 0, 0, 0, 20]
    assert found["partitions"]["empty"] == 2


@pytest.mark.parametrize(("counts", "line"), [((0, 1, 8), " ▁█"), ((1000, 1, 0, 500), "█▁ ▄"), ((5,), "█")])
def test_a_histogram_in_a_line(counts, line):
    assert spark_text(Histogram(tuple(range(len(counts) + 1)), counts)) == line


@pytest.mark.parametrize("profile", [PROFILE, OF_SAMPLE, replace(PROFILE, columns=COLUMNS * 4)])
def test_a_picture_of_every_kind_of_column(profile):
    assert picture_of_profile(profile).startswith(b"\x89PNG")


def test_no_picture_of_nothing():
    assert picture_of_profile(replace(PROFILE, columns=())) is None
    assert "no rows" in profile_view(replace(PROFILE, rows=0, columns=(), partitions=None, nodes=())).text
