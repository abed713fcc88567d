"""Columns with values as text keep what a number would lose; both walkers agree."""

from __future__ import annotations

import datetime as dt
import decimal
import uuid
from types import SimpleNamespace

import numpy as np
import pytest

from ignite_tf_magic.errors import SchemaError
from ignite_tf_magic.protocol.buffer import Writer
from ignite_tf_magic.protocol.columns import UnknownSchema
from ignite_tf_magic.protocol.layout_finder import LayoutFinder
from ignite_tf_magic.protocol.layout_json import layout_from_json, layout_to_json
from ignite_tf_magic.protocol.objects import BinaryObject, BinaryType
from ignite_tf_magic.protocol.ops import TypeCode
from ignite_tf_magic.protocol.typed_values import (
    Char,
    EnumValue,
    Float,
    Short,
    SqlDate,
    Timestamp,
    TypedArray,
    UtilDate,
)
from ignite_tf_magic.protocol.value_texts import text_of
from tests.protocol.pages import make_pages
from tests.protocol.test_lists import columns, rows_of

STATE = BinaryType(77, "State", {}, {}, enum_names={0: "NEW", 1: "SENT", 2: "LOST"})
# Java counts instants in milliseconds since 1970; here, the year 1 is in the Gregorian calendar.
YEAR_1, YEAR_9999 = -62_135_596_800_000, 253_402_300_799_999


def texts(*values, **options):
    pages = rows_of("x", *values)
    pages.types[STATE.type_id] = STATE
    layout = pages.layout(as_text=["x"], **options)
    assert layout_from_json(layout_to_json(layout)) == layout
    return columns(pages, layout)["x"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (
            [
                decimal.Decimal("12.340"),
                decimal.Decimal(-5),
                decimal.Decimal("1E-30"),
                decimal.Decimal("1E+25"),
            ],
            [b"12.340", b"-5", b"0." + 29 * b"0" + b"1", b"1" + 25 * b"0"],
        ),
        ([decimal.Decimal(10**40 + 1), None], [b"1" + 39 * b"0" + b"1", b""]),
        (
            [EnumValue.of(1, 77), None, EnumValue.of(0, 77), EnumValue.of(2, 77)],
            [b"SENT", b"", b"NEW", b"LOST"],
        ),
        ([EnumValue.of(2, 77, TypeCode.BINARY_ENUM)], [b"LOST"]),
        (
            [Timestamp.of(YEAR_1, 5), Timestamp.of(YEAR_9999, 999_999), Timestamp.of(1_500, 7)],
            [
                b"0001-01-01T00:00:00.000000005",
                b"9999-12-31T23:59:59.999999999",
                b"1970-01-01T00:00:01.500000007",
            ],
        ),
        (
            [UtilDate.of(YEAR_1), UtilDate.of(-1), None],
            [b"0001-01-01T00:00:00.000000000", b"1969-12-31T23:59:59.999000000", b""],
        ),
        ([SqlDate.of(0), SqlDate.of(YEAR_9999 - 86_399_999)], [b"1970-01-01", b"9999-12-31"]),
        ([dt.time(10, 11, 12, 345_000), dt.time(0)], [b"10:11:12.345", b"00:00:00.000"]),
        ([2**63 - 1, -(2**63)], [b"9223372036854775807", b"-9223372036854775808"]),
        ([Short(-3), None], [b"-3", b""]),
        ([0.1, float("nan"), float("-inf"), 1e300], [b"0.1", b"nan", b"-inf", b"1e+300"]),
        ([Float(0.1), Float(float("inf"))], [b"0.1", b"inf"]),
        ([True, False, None], [b"true", b"false", b""]),
        ([Char(ord("ü"))], ["ü".encode()]),
        (["as it is", None], [b"as it is", b""]),
        ([uuid.UUID(int=7)], [b"00000000-0000-0000-0000-000000000007"]),
    ],
)
def test_each_value_has_its_text(values, expected):
    assert texts(*values) == expected


def test_a_null_has_the_text_that_is_said_and_may_be_told_apart():
    assert texts(True, None, fill={"x": "unknown"}) == [b"true", b"unknown"]
    pages = rows_of("x", 5, None)
    found = columns(pages, pages.layout(as_text=["val.x"], nulls=["x"]))
    assert (found["x"], found["x_is_null"]) == ([b"5", b""], [False, True])


@pytest.mark.parametrize("fill", [5, 0, True, -1, [1]])
def test_a_null_does_not_become_what_is_no_text(fill):
    with pytest.raises(SchemaError, match="fill names the field val.x, whose nulls become text"):
        texts(decimal.Decimal(1), None, fill={"x": fill})


def test_keys_and_fields_of_objects_have_texts():
    row = BinaryObject("Outer", {"inner": BinaryObject("Inner", {"x": decimal.Decimal("0.10")})})
    pages = make_pages([(5, row), (6, row)])
    found = columns(pages, pages.layout(as_text=["key", "inner.x"]))
    assert (found["key"], found["inner.x"]) == ([b"5", b"6"], 2 * [b"0.10"])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.arange(3, dtype=np.int32), "as_text names the field val.x, of type int array, which has no text"),
        (
            TypedArray(["a"], TypeCode.STRING_ARRAY),
            "as_text names the field val.x, a list, which has no text",
        ),
        ([BinaryObject("Item", {"a": 1})], "as_text names the field val.x, a list, which has no text"),
        (EnumValue.of(0, 78), "as_text names the field val.x, an enum whose names the cluster does not know"),
    ],
)
def test_what_has_none_is_refused(value, message):
    with pytest.raises(SchemaError, match=message):
        texts(value)


def test_a_misspelt_name_is_refused():
    pages = rows_of("x", 1)
    with pytest.raises(
        SchemaError, match="as_text names the field 'y', and there is none; there are: key, n, x"
    ):
        pages.layout(as_text=["y"])


@pytest.mark.parametrize("values", [(None, None), (1, decimal.Decimal(2))])
def test_a_field_that_is_asked_for_is_not_left_out(values):
    pages = rows_of("x", *values)
    with pytest.raises(SchemaError, match=r"null in all rows|rows differ in val\.x"):
        pages.layout(as_text=["x"])


def test_what_has_no_text_in_a_row_is_told():
    millis = YEAR_9999 + 1
    raw = Writer().int8(TypeCode.DATE).int64(millis).data
    with pytest.raises(
        SchemaError, match=f"a time of {millis} ms since 1970 is outside of the years 1 to 9999"
    ):
        text_of(memoryview(bytes(raw)), {})


def test_a_value_without_a_name_is_asked_for_again():
    pages = rows_of("x", EnumValue.of(0, 77), EnumValue.of(3, 77))
    pages.types[STATE.type_id] = STATE
    finder = LayoutFinder(pages.types.get, as_text=["x"])
    finder.add(memoryview(pages.rows), pages.num_rows)
    with pytest.raises(UnknownSchema, match="no name for the value 3 of the enum State") as caught:
        columns(pages, finder.layout())
    assert caught.value.enum_type == 77


def test_the_row_that_has_no_text_is_named():
    pages = rows_of("x", *map(UtilDate.of, (0, 1, 2)))
    layout = pages.layout(as_text=["x"])
    good, bad = (bytes(Writer().int8(TypeCode.DATE).int64(millis).data) for millis in (1, YEAR_9999 + 1))
    later = SimpleNamespace(num_rows=3, rows=bytearray(pages.rows).replace(good, bad))
    with pytest.raises(SchemaError, match=r"the row with key 1 has no text in val\.x: a time of \d+ ms"):
        columns(later, layout)
