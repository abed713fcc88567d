"""Columns taken from a SQL result as arrays equal those read cell by cell, compiled or not."""

from __future__ import annotations

import datetime as dt
import decimal
import uuid

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ignite_tf_magic.errors import RemoteProtocolError
from ignite_tf_magic.protocol import sql, sql_cells
from ignite_tf_magic.protocol.buffer import Writer
from ignite_tf_magic.protocol.ops import TypeCode
from ignite_tf_magic.protocol.times import SQL_DATE_HEAD
from ignite_tf_magic.protocol.walk_compiled import library
from ignite_tf_magic.protocol.write_values import write_value

CODES = [None, "compiled"] if library() else [None]


def _time(value: int) -> bytes:
    return bytes(Writer().int8(TypeCode.TIME).int64(value).data)


def _date(days: int) -> bytes:
    raw = SQL_DATE_HEAD + b"\0\0" + (days * 86_400_000).to_bytes(8, "little", signed=True)
    return bytes(Writer().int8(TypeCode.OPTIMIZED - 256).int32(len(raw)).raw(raw).data)


def _encoded(value: object) -> bytes:
    writer = Writer()
    write_value(writer, value)
    return bytes(writer.data)


def _decimal(value: decimal.Decimal) -> bytes:
    writer = Writer()
    write_value(writer, value)
    return bytes(writer.data)


def _sized(dtype: str) -> st.SearchStrategy[bytes]:
    info = np.iinfo(dtype)
    return st.integers(int(info.min), int(info.max)).map(lambda n: _encoded(np.dtype(dtype).type(n)))


MOMENTS = st.datetimes(dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31))
LATER = st.datetimes(dt.datetime(1700, 1, 1), dt.datetime(2200, 1, 1))
DIGITS = st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**30), max_value=10**30, places=3)
OF_TYPE = {
    "byte": _sized("i1"),
    "short": _sized("i2"),
    "int": _sized("i4"),
    "long": _sized("i8"),
    "float": st.floats(width=32, allow_nan=False).map(lambda x: _encoded(np.float32(x))),
    "double": st.floats(allow_nan=False).map(_encoded),
    "boolean": st.booleans().map(_encoded),
    "char": st.integers(32, 0xD7FF).map(lambda n: _encoded(np.uint16(n))),
    "text": st.text(st.characters(exclude_categories=["Cs"])).map(_encoded),
    "timestamp": LATER.map(_encoded),
    "any timestamp": MOMENTS.map(_encoded),
    "date": st.integers(-700_000, 2_900_000).map(_date),
    "time": st.integers(0, 86_399_999).map(_time),
    "decimal": DIGITS.map(_decimal),
    "uuid": st.uuids().map(_encoded),
    "binary": st.binary().map(_encoded),
    "integers": st.one_of(_sized("i1"), _sized("i8")),
    "anything": st.one_of(_sized("i4"), st.text("äb").map(_encoded), st.uuids().map(_encoded)),
}


def answer(rows: list[list[bytes]], num_columns: int) -> bytes:
    writer = Writer().int64(7).int32(num_columns)
    for index in range(num_columns):
        write_value(writer, f"C{index}")
    writer.int32(len(rows))
    for row in rows:
        writer.raw(b"".join(row))
    return bytes(writer.bool(True).data)


@pytest.fixture(params=CODES, ids=["python", "compiled"][: len(CODES)], scope="module")
def with_library(request):
    original = sql_cells.library
    if request.param is None:
        sql_cells.library = lambda: None
    yield
    sql_cells.library = original


@pytest.mark.parametrize("name", OF_TYPE)
@given(st.data())
@settings(max_examples=25, deadline=None)
def test_columns_hold_what_cells_do(with_library, name, data):
    cell = st.one_of(OF_TYPE[name], st.just(_encoded(None)))
    pages = data.draw(
        st.lists(st.lists(st.tuples(cell, _sized("i4"), cell), max_size=6), min_size=1, max_size=3)
    )
    parts, expected = [], []
    for rows in pages:
        page = sql.parse_result(memoryview(answer([list(row) for row in rows], 3)))
        expected += page.rows
        parts.append([page.cells.column(index) for index in range(3)])
        assert page.cursor == 7
        assert page.names == ("C0", "C1", "C2")
    columns = [sql_cells.join(of_one).to_list() for of_one in zip(*parts, strict=True)]
    assert list(zip(*columns, strict=True)) == expected
    types = [[type(value) for value in row] for row in expected]
    if name != "float":  # a 32-bit number becomes a 64-bit one either way
        assert [[type(value) for value in row] for row in zip(*columns, strict=True)] == types


def test_numbers_and_moments_are_arrays(with_library):
    moment = np.datetime64("2024-01-02T03:04:05.123456789")
    row = [_encoded(np.int16(-5)), _encoded(2.5), _encoded(moment), _encoded("ä")]
    page = sql.parse_result(memoryview(answer([row] * 3, 4)))
    found = [page.cells.column(index) for index in range(4)]
    assert [column.values.dtype.str for column in found] == ["<i2", "<f8", "<M8[ns]", "|O"]
    assert found[2].values[1] == moment
    assert found[0].first(2).to_list() == [-5, -5]


def test_truncated_or_corrupted_answers_are_refused(with_library):
    cells = [
        _encoded(each) for each in (1, "text", uuid.UUID(int=3), None, b"x", 2.5, dt.datetime(2020, 1, 1))
    ]
    whole = answer([cells, cells], len(cells))
    for size in range(len(whole)):
        with pytest.raises(RemoteProtocolError):
            sql.parse_result(memoryview(whole[:size]))
    for at in range(12, len(whole)):
        for value in (0, 100, 255):
            broken = memoryview(whole[:at] + bytes([value]) + whole[at + 1 :])
            try:
                page = sql.parse_result(broken)
                for index in range(page.cells.num_columns):
                    page.cells.column(index).to_list()
            except RemoteProtocolError:
                continue
