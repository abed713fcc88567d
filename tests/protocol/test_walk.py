"""The compiled walker, the Python walker and plain value reading give the same columns and the same errors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ignite_tf_magic.errors import RemoteProtocolError, SchemaError
from ignite_tf_magic.protocol import walk_python
from ignite_tf_magic.protocol.buffer import Reader, Writer
from ignite_tf_magic.protocol.columns import ColumnChunk, PageDecoder, RaggedColumn, UnknownSchema
from ignite_tf_magic.protocol.layout import ObjectNode, RowLayout
from ignite_tf_magic.protocol.messages import Page
from ignite_tf_magic.protocol.objects import BinaryObject, name_id
from ignite_tf_magic.protocol.page_series import PageSeries
from ignite_tf_magic.protocol.read_values import read_value
from ignite_tf_magic.protocol.typed_values import Timestamp, UtilDate
from ignite_tf_magic.protocol.walk_compiled import (
    CompiledWalker,
    index_rows,
    is_compiled,
    make_walker,
    measure_pages,
)
from ignite_tf_magic.protocol.walk_python import PythonWalker
from ignite_tf_magic.protocol.write_values import write_value
from tests.protocol.pages import FIXED, Pages, make_pages, page_sets

SLOW = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def test_the_library_was_built():
    assert is_compiled(), "no compiled walker: the package was installed without a C compiler"


def decode(pages, layout, walker, chunk=None):
    chunk = chunk or ColumnChunk(layout, 64)
    series = PageSeries([whole_page(pages)])
    PageDecoder(layout, walker).decode(series, chunk)
    assert not series.num_rows
    return chunk.columns()


def whole_page(pages):
    return Page(None, pages.num_rows, memoryview(pages.rows), False)


def outcome(pages, layout, walker):
    try:
        return [
            ("ragged", c.values.tolist(), c.lengths[0].tolist())
            if isinstance(c, RaggedColumn)
            else c.tolist()
            for c in decode(pages, layout, walker)
        ]
    except (RemoteProtocolError, SchemaError) as error:
        return type(error)


def full_layout(pages):
    """Return the layout with null flags for every second field."""
    leaves = pages.layout(nulls="error").leaves()
    names = [leaf.name for leaf in leaves]
    fill = dict.fromkeys([leaf.name for leaf in leaves if leaf.is_fixed], 0)
    return pages.layout(fill=fill, nulls=names[::2])


def plain(value, leaf):
    """Return a column's content for a value read by `read_value`."""
    if value is None:
        return (
            [np.frombuffer(leaf.fill, leaf.dtype).reshape(leaf.row_shape).tolist()]
            if leaf.is_fixed
            else [b""]
        )
    if isinstance(value, str):
        return [value.encode()]
    if leaf.is_list:
        return [[each.encode() for each in value]]
    if hasattr(value, "hex") and leaf.code == 10:
        return [str(value).encode()]
    if leaf.code == 33:
        return [np.datetime64(value, "ns").astype(np.int64).item()]
    if isinstance(value, bytes) and leaf.is_fixed:
        return [list(value)]
    return [value.tolist() if isinstance(value, np.ndarray) else value]


@given(page_sets())
@SLOW
def test_both_walkers_agree_with_reading_value_by_value(rows):
    pages = make_pages(rows)
    layout = full_layout(pages)
    compiled = outcome(pages, layout, make_walker(layout))
    assert compiled == outcome(pages, layout, PythonWalker(layout)) or has_nan(compiled)
    reader = Reader(pages.rows)
    expected = [[] for _ in layout.leaves()]
    for _ in rows:
        key, value = read_value(reader, pages.types.get), read_value(reader, pages.types.get)
        for number, leaf in enumerate(layout.leaves()):
            item = key if leaf.path[0] == "key" else value
            for name in leaf.path[1:]:
                name = name.removesuffix("_is_null")
                item = None if item is None else item.fields.get(name)
            expected[number] += [item is None] if leaf.is_nullness else plain(item, leaf)
    for number, got in enumerate(compiled):
        if isinstance(got, tuple):
            flat = [x for row in expected[number] for x in (row if row != b"" else [])]
            assert got[1] == flat
        else:
            np.testing.assert_equal(got, expected[number])


def has_nan(columns):
    return any(x != x for c in columns if isinstance(c, list) for x in c if isinstance(x, float))


@given(page_sets(kinds=FIXED, nulls=False))
@SLOW
def test_fixed_rows_take_the_strided_path_and_equal_the_row_path(rows):
    pages = make_pages(rows)
    layout = full_layout(pages)
    by_row = PythonWalker(layout)
    by_row._strides = False
    assert outcome(pages, layout, PythonWalker(layout)) == outcome(pages, layout, by_row)


@given(page_sets(), st.data())
@SLOW
def test_corrupted_pages_give_the_same_fault_in_both(rows, data):
    pages = make_pages(rows)
    layout = full_layout(pages)
    broken = bytearray(pages.rows)
    if data.draw(st.booleans()):
        del broken[data.draw(st.integers(0, len(broken) - 1)) :]
    for _ in range(data.draw(st.integers(0, 3))):
        if broken:
            broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    pages.rows = bytes(broken)
    compiled = outcome(pages, layout, make_walker(layout))
    python = outcome(pages, layout, PythonWalker(layout))
    if isinstance(compiled, list) and isinstance(python, list):
        np.testing.assert_equal(compiled, python)
    else:
        assert compiled == python


@given(page_sets(), st.data())
@SLOW
def test_index_agrees_and_never_crashes(rows, data):
    pages = make_pages(rows)
    for rubbish in (False, True):
        raw = bytearray(pages.rows)
        if rubbish:
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
        found = []
        for index in (index_rows, walk_python.index_rows):
            starts, hashes = np.zeros(pages.num_rows + 1, np.int64), np.zeros(pages.num_rows, np.uint64)
            try:
                index(memoryview(bytes(raw)), pages.num_rows, starts, hashes)
                found.append((starts.tolist(), hashes.tolist()))
            except RemoteProtocolError:
                found.append(None)
        assert found[0] == found[1]


@given(page_sets(), st.integers(0, 20), st.integers(1, 9), st.booleans())
@SLOW
def test_runs_of_pages_and_chunks_that_cut_them_give_the_rows_of_one_page(rows, cut, chunk_rows, compiled):
    whole = make_pages(rows)
    layout = full_layout(whole)
    parts = (rows[:cut], rows[cut:], rows)
    series = PageSeries([whole_page(make_pages(part, whole.types)) for part in parts if part])
    decoder = PageDecoder(layout, make_walker(layout) if compiled else PythonWalker(layout))
    chunks = [ColumnChunk(layout, chunk_rows)]
    while series.num_rows:
        if not chunks[-1].free_rows:
            chunks.append(ColumnChunk(layout, chunk_rows))
        decoder.decode(series, chunks[-1])
    expected = outcome(make_pages([*rows, *rows], whole.types), layout, PythonWalker(layout))
    found = [rows_of_chunk(chunk) for chunk in chunks]
    for number, column in enumerate(expected):
        joined = [row for columns in found for row in columns[number]]
        np.testing.assert_equal(joined, rows_of_column(column))


def rows_of_chunk(chunk):
    columns = chunk.columns()
    return [
        rows_of_column(("ragged", c.values.tolist(), c.lengths[0].tolist()))
        if isinstance(c, RaggedColumn)
        else c.tolist()
        for c in columns
    ]


def rows_of_column(column):
    """Return a column as a list of rows. A ragged column arrives as its values and the length of each row."""
    if not isinstance(column, tuple):
        return column
    _, values, lengths = column
    ends = np.cumsum(lengths).tolist()
    return [values[end - length : end] for end, length in zip(ends, lengths, strict=True)]


@given(page_sets(), st.data())
@SLOW
def test_measuring_pages_agrees_with_their_index(rows, data):
    pages = make_pages(rows)
    starts, hashes = np.zeros(pages.num_rows + 1, np.int64), np.zeros(pages.num_rows, np.uint64)
    index_rows(memoryview(pages.rows), pages.num_rows, starts, hashes)
    page = whole_page(pages)
    assert measure_pages(PageSeries([page, page])) == 2 * [(page.num_rows, int(np.diff(starts).max()))]
    assert measure_pages(PageSeries([page])) == [(page.num_rows, walk_python.measure_page(page))]
    short = page._replace(rows=page.rows[: data.draw(st.integers(0, len(pages.rows) - 1))])
    with pytest.raises(RemoteProtocolError):
        measure_pages(PageSeries([page, short]))


def test_the_template_path_is_taken_and_left_again():
    """Rows of one shape, a null, then the shape again: within a page and across pages."""
    rows = [(i, BinaryObject("P", {"a": np.int32(i), "b": np.array([i, i], np.uint8)})) for i in range(20)]
    rows[7] = (7, BinaryObject("P", {"a": None, "b": np.array([9, 9], np.uint8)}))
    rows[12] = (12, BinaryObject("P", {"b": np.array([8, 8], np.uint8)}))
    pages = make_pages(rows)
    layout = pages.layout(fill={"a": -1})
    walker = make_walker(layout)
    assert isinstance(walker, CompiledWalker)
    for _ in range(2):
        key, a, b = decode(pages, layout, walker)
        assert key.tolist() == list(range(20))
        assert a.tolist() == [-1 if i in (7, 12) else i for i in range(20)]
        assert b[7].tolist() == [9, 9]
        assert b[12].tolist() == [8, 8]


@pytest.mark.parametrize("make", [make_walker, PythonWalker])
def test_faults_name_the_field_and_the_way_out(make):
    rows = [(1, BinaryObject("P", {"age": np.int32(1), "pic": np.zeros(3, np.uint8)}))]
    good = make_pages(rows)
    layout = good.layout()

    def fails(value, match):
        page = make_pages([(2, value)], good.types)
        with pytest.raises(SchemaError, match=match):
            decode(page, layout, make(layout))

    fails(
        BinaryObject("P", {"age": None, "pic": np.zeros(3, np.uint8)}), r"null in val.age.*fill=\{'age': 0\}"
    )
    fails(BinaryObject("P", {"age": np.int64(1), "pic": np.zeros(3, np.uint8)}), "another type in val.age")
    fails(
        BinaryObject("P", {"age": np.int32(1), "pic": np.zeros(4, np.uint8)}), r"val.pic.*variable=\['pic'\]"
    )
    fails(BinaryObject("Q", {"age": np.int32(1)}), "another type in an object")


@pytest.mark.parametrize("make", [make_walker, PythonWalker])
def test_a_newer_schema_is_told_apart_from_corruption(make):
    layout = make_pages([(1, BinaryObject("P", {"a": np.int32(1)}))]).layout()
    newer = make_pages([(1, BinaryObject("P", {"a": np.int32(1), "b": np.int32(2)}))])
    with pytest.raises(UnknownSchema):
        decode(newer, layout, make(layout))


@pytest.mark.parametrize("walker", [make_walker, PythonWalker])
@pytest.mark.parametrize(
    "far", ["9999-12-31", "0001-01-01", "1677-09-21T00:12:43.145", "2262-04-11T23:47:16.854"]
)
def test_a_time_that_nanoseconds_do_not_hold_is_refused_with_its_row(walker, far):
    """The first row of a page, a row that matches the template, and a row that is walked separately."""
    near = [np.datetime64(at, "us") for at in ("1677-09-21T00:12:43.146", "2262-04-11T23:47:16.853999")]
    fits = make_pages([(n, BinaryObject("P", {"at": near[n % 2], "n": n})) for n in range(6)])
    assert (
        decode(fits, fits.layout(), walker(fits.layout()))[1].tolist()
        == [-9223372036854000000, 9223372036853999000] * 3
    )
    for row in (0, 3):
        for other in ({}, {"text": "x"}):
            times = [np.datetime64(far) if n == row else near[0] for n in range(6)]
            pages = make_pages([(f"key {n}", BinaryObject("P", {"at": times[n], **other})) for n in range(6)])
            with pytest.raises(
                SchemaError, match=rf"the row with key 'key {row}' has a time in val\.at .*1677"
            ):
                decode(pages, pages.layout(), walker(pages.layout()))


@pytest.mark.parametrize("walker", [make_walker, PythonWalker])
@pytest.mark.parametrize("other", [{}, {"text": "x"}])
def test_an_instant_is_in_nanoseconds_whichever_class_it_is_of(walker, other):
    """java.util.Date and Timestamp in one column, in rows that match the template and rows walked separately."""
    date, stamp = UtilDate(1970, 1, 1, 0, 0, 1, 5000), Timestamp(1970, 1, 1, 0, 0, 1, 5000)
    for values in ([date] * 6, [stamp, date, stamp, stamp, date, date], [stamp, None, date]):
        pages = make_pages([(n, BinaryObject("P", {"at": each, **other})) for n, each in enumerate(values)])
        found = decode(
            pages, pages.layout(nulls="error", fill={"at": 7}), walker(pages.layout(fill={"at": 7}))
        )
        assert found[1].tolist() == [7 if each is None else 1_005_000_000 for each in values]


@pytest.mark.parametrize("walker", [make_walker, PythonWalker])
def test_an_object_of_a_type_that_nobody_registered_is_left_out_with_the_reason(walker):
    rows = [(BinaryObject("K", {"a": np.int32(n)}), float(n)) for n in range(3)]
    pages = make_pages(rows)
    del pages.types[name_id("K")]
    layout = pages.layout()
    assert [column.tolist() for column in decode(pages, layout, walker(layout))] == [[0.0, 1.0, 2.0]]
    pages = make_pages([(value, key) for key, value in rows])
    del pages.types[name_id("K")]
    with pytest.raises(
        SchemaError, match="no column to read: val has objects of binary type 0x.*not registered"
    ):
        pages.layout()
    pages = make_pages([(1, BinaryObject("P", {"k": rows[0][0], "n": 5}))])
    del pages.types[name_id("K")]
    layout = pages.layout()
    assert [leaf.name for leaf in layout.leaves()] == ["key", "val.n"]
    assert [column.tolist() for column in decode(pages, layout, walker(layout))] == [[1], [5]]


def test_rows_that_differ_in_type_are_refused_with_the_field():
    pages = make_pages([(1, BinaryObject("P", {"a": np.int32(1)})), (2, BinaryObject("P", {"a": "x"}))])
    with pytest.raises(SchemaError, match=r"rows differ in val.a: int and string"):
        pages.layout()


def test_fields_can_be_left_out_and_unknown_names_are_refused():
    rows = [(1, BinaryObject("P", {"a": np.int32(1), "b": "x", "c": BinaryObject("C", {"d": 1.5})}))]
    pages = make_pages(rows)
    assert [leaf.name for leaf in pages.layout(fields=["a", "c.d"]).leaves()] == ["key", "val.a", "val.c.d"]
    with pytest.raises(SchemaError, match="fields names the field 'z'.*there are: a, b, c, c.d"):
        pages.layout(fields=["z"])


@pytest.mark.parametrize("option", ["fill", "variable"])
@pytest.mark.parametrize("name", ["z", "val.z", "c.e", "val.c.e", "key.d", "value", "c", "val", ""])
def test_misspelt_names_in_options_are_refused(option, name):
    rows = [(1, BinaryObject("P", {"a": np.int32(1), "c": BinaryObject("C", {"d": np.zeros(2)})}))]
    given = {name: 0} if option == "fill" else [name]
    with pytest.raises(SchemaError, match=rf"{option} names the field '{name}'.*[tT]here are: a, c\.d, key"):
        make_pages(rows).layout(**{option: given})


def test_names_in_options_may_be_short_or_whole_and_in_any_case():
    rows = [(1, BinaryObject("P", {"a": np.int32(1), "c": BinaryObject("C", {"d": np.zeros(2)})}))]
    for name in ("a", "A", "val.a", "key", "c.d", "C.D", "val.c.d"):
        make_pages(rows).layout(fill={name: 0}, fields=["a"])
    for name in ("c.d", "val.c.d"):
        assert make_pages(rows).layout(variable=[name]).leaves()[-1].is_ragged


@given(page_sets(kinds=(*FIXED, "text", "bytes", "uuid")))
@SLOW
def test_cells_of_a_row_are_what_the_fields_of_an_object_are(rows):
    """SQL returns cells one after the other, without a header."""
    rows = [
        (key, value) for key, value in rows if isinstance(value, BinaryObject) and "in" not in value.fields
    ]
    if not rows:
        return
    pages = make_pages(rows)
    layout = full_layout(pages)
    expected = outcome(pages, layout, PythonWalker(layout))
    names = [leaf.path[1] for leaf in layout.leaves() if leaf.path[0] == "val" and not leaf.is_nullness]
    writer = Writer()
    for key, value in rows:
        write_value(writer, key)
        for name in names:
            write_value(writer, value.fields.get(name))
    cells = RowLayout(layout.key, ObjectNode(("val",), (), layout.value.fields))
    assert cells.num_values == len(names)
    answered = Pages(bytes(writer.data), len(rows), {})
    for walker in (make_walker(cells), PythonWalker(cells)):
        found = outcome(answered, cells, walker)
        assert found == expected or has_nan(expected)
    starts, hashes = np.zeros(len(rows) + 1, np.int64), np.zeros(len(rows), np.uint64)
    index_rows(memoryview(answered.rows), len(rows), starts, hashes, len(names))
    others = np.zeros_like(starts), np.zeros_like(hashes)
    walk_python.index_rows(memoryview(answered.rows), len(rows), *others, len(names))
    np.testing.assert_array_equal(starts, others[0])
    np.testing.assert_array_equal(hashes, others[1])
    for cut in (1, len(answered.rows) // 2, len(answered.rows) - 1):
        cut_off = Pages(answered.rows[:cut], len(rows), {})
        for walker in (make_walker(cells), PythonWalker(cells)):
            assert outcome(cut_off, cells, walker) in (RemoteProtocolError, SchemaError)
