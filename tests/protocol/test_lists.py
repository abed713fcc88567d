"""Lists, maps, and objects of several types as columns: both walkers agree, and unsupported values are reported."""

from __future__ import annotations

import datetime as dt
import decimal
import uuid

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ignite_tf_magic.errors import RemoteProtocolError, SchemaError
from ignite_tf_magic.protocol import list_items
from ignite_tf_magic.protocol.buffer import Writer
from ignite_tf_magic.protocol.columns import ColumnChunk, PageDecoder, RaggedColumn
from ignite_tf_magic.protocol.layout import VARIABLE, Leaf, ObjectNode
from ignite_tf_magic.protocol.layout_finder import LayoutFinder
from ignite_tf_magic.protocol.messages import Page
from ignite_tf_magic.protocol.objects import BinaryObject, name_id
from ignite_tf_magic.protocol.ops import TypeCode
from ignite_tf_magic.protocol.page_series import PageSeries
from ignite_tf_magic.protocol.typed_values import (
    EnumValue,
    Int,
    Timestamp,
    TypedArray,
    TypedCollection,
    TypedMap,
    UtilDate,
)
from ignite_tf_magic.protocol.walk import RowFault
from ignite_tf_magic.protocol.walk_compiled import make_walker
from ignite_tf_magic.protocol.walk_python import PythonWalker
from ignite_tf_magic.protocol.write_values import write_value
from tests.protocol.pages import Pages, make_pages

ARRAY_LIST, HASH_MAP = 1, 1
UNIQUE = uuid.UUID(int=7)


def columns(pages, layout):
    """Return the columns of both walkers, which must agree, by name. Ragged columns are lists of lists."""
    found = []
    for walker in (make_walker(layout), PythonWalker(layout)):
        chunk, series = (
            ColumnChunk(layout, 64),
            PageSeries([Page(None, pages.num_rows, memoryview(pages.rows), False)]),
        )
        PageDecoder(layout, walker).decode(series, chunk)
        by_name = zip(layout.leaves(), chunk.columns(), strict=True)
        found.append({leaf.name.removeprefix("val."): _listed(column) for leaf, column in by_name})
    np.testing.assert_equal(*found)
    return found[0]


def _listed(column):
    if not isinstance(column, RaggedColumn):
        return column.tolist()
    found = column.values.tolist()
    for lengths in reversed(column.lengths):
        ends = np.cumsum(lengths)
        found = [found[end - size : end] for end, size in zip(ends, lengths, strict=True)]
    return found


def rows_of(name, *values):
    return make_pages([(n, BinaryObject("Row", {name: value, "n": n})) for n, value in enumerate(values)])


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (
            TypedArray(["a", None, "ü"], TypeCode.STRING_ARRAY),
            TypedArray([], TypeCode.STRING_ARRAY),
            [[b"a", b"", "ü".encode()], [], []],
        ),
        (TypedArray([UNIQUE], TypeCode.UUID_ARRAY), None, [[str(UNIQUE).encode()], [], []]),
        (
            TypedArray([UtilDate(1970, 1, 2)], TypeCode.DATE_ARRAY),
            TypedArray([UtilDate(1969, 12, 31)], TypeCode.DATE_ARRAY),
            [[86_400_000_000_000], [-86_400_000_000_000], []],
        ),
        (
            TypedArray([Timestamp(1970, 1, 1, 0, 0, 1, 5)], TypeCode.TIMESTAMP_ARRAY),
            None,
            [[1_000_005_000], [], []],
        ),
        (TypedArray([dt.time(0, 0, 2)], TypeCode.TIME_ARRAY), None, [[2000], [], []]),
        (
            TypedArray([decimal.Decimal("1.5"), None], TypeCode.DECIMAL_ARRAY),
            None,
            [[1.5, float("nan")], [], []],
        ),
        (TypedCollection([1, 2], ARRAY_LIST), TypedCollection([3], ARRAY_LIST), [[1, 2], [3], []]),
        (
            TypedCollection([True], ARRAY_LIST),
            TypedCollection([False, True], ARRAY_LIST),
            [[True], [False, True], []],
        ),
        (
            TypedArray([2.5], TypeCode.OBJECT_ARRAY, -1),
            TypedArray([], TypeCode.OBJECT_ARRAY, -1),
            [[2.5], [], []],
        ),
        (
            TypedArray([EnumValue.of(2, 77, TypeCode.BINARY_ENUM)], TypeCode.ENUM_ARRAY, 77),
            None,
            [[2], [], []],
        ),
    ],
)
def test_lists_are_ragged(first, second, expected):
    pages = rows_of("x", first, second, None)
    found = columns(pages, pages.layout())
    np.testing.assert_equal(found["x"], expected)
    assert set(found) == {"key", "x", "n"} and found["n"] == [0, 1, 2]


def array_of(*items):
    return TypedArray(items, TypeCode.OBJECT_ARRAY, -1)


def list_of(*items):
    return TypedCollection(items, ARRAY_LIST)


def floats(*items):
    return np.array(items, np.float32)


@pytest.mark.parametrize(
    ("values", "expected", "shape"),
    [
        ([array_of(floats(1, 2), floats(3)), array_of(), None], [[[1, 2], [3]], [], []], (None, None)),
        ([array_of(floats(1, 2), floats(3, 4)), array_of(floats(5, 6), floats(7, 8))], None, (2, 2)),
        ([array_of(floats(1, 2)), array_of(floats(5, 6), floats(7, 8))], None, (None, 2)),
        ([list_of(floats(1, 2)), list_of(floats(3, 4))], None, (None, 2)),
        ([array_of(floats(), floats()), array_of(floats(), floats())], None, (None, None)),
        ([array_of(floats(1), None), array_of(floats(2), floats(3))], [[[1], []], [[2], [3]]], (None, None)),
        ([list_of(list_of("a", None), None), list_of()], [[[b"a", b""], []], []], (None, None)),
        ([list_of(array_of(1, 2), array_of()), None], [[[1, 2], []], []], (None, None)),
        ([array_of(list_of(list_of(2.5)), list_of())], [[[[2.5]], []]], (None, None, None)),
        ([array_of(b"ab", b"c"), array_of(None)], [[b"ab", b"c"], [b""]], (None,)),
        ([array_of(b"ab", b"c"), None], [[b"ab", b"c"], []], (None,)),
        ([array_of(b"ab", b"cd"), array_of(b"\xff\x01", b"gh")], None, (2, 2)),
        (
            [TypedMap([("k", list_of(1, 2))], HASH_MAP), TypedMap([("a", list_of()), ("b", None)], HASH_MAP)],
            [[[1, 2]], [[], []]],
            (None, None),
        ),
    ],
)
def test_lists_in_lists(values, expected, shape):
    pages = rows_of("x", *values)
    layout = pages.layout()
    name = "x_values" if isinstance(values[0], TypedMap) else "x"
    found = columns(pages, layout)[name]
    wanted = (
        [[np.frombuffer(item, "u1") if type(item) is bytes else item for item in v] for v in values]
        if expected is None
        else expected
    )
    assert [[list(item) if isinstance(item, np.ndarray) else item for item in v] for v in wanted] == found
    (leaf,) = (each for each in layout.leaves() if each.path[-1] == name)
    assert (*[None] * leaf.ragged_levels, *leaf.row_shape) == shape


def test_nulls_in_lists_in_lists():
    pages = rows_of("x", list_of(list_of(1, None), list_of()), list_of(None, list_of(None)))
    found = columns(pages, pages.layout())
    assert found["x"] == [[[1, 0], []], [[], [0]]]
    assert found["x_null_items"] == [[[False, True], []], [[], [True]]]
    with pytest.raises(SchemaError, match="has a null in the list val.x"):
        columns(pages, pages.layout(nulls="error"))
    arrays = rows_of("x", list_of(np.array([1, 2]), None))
    found = columns(arrays, arrays.layout())
    assert found["x"] == [[[1, 2], []]] and found["x_null_items"] == [[False, True]]


def test_an_array_of_arrays_has_the_shape_that_all_rows_share():
    pages = rows_of("x", array_of(floats(1, 2), floats(3, 4)), None)
    found = columns(pages, pages.layout())
    np.testing.assert_equal(found["x"], [[[1, 2], [3, 4]], [[float("nan")] * 2] * 2])
    found = columns(pages, pages.layout(fill={"x": 7}))
    assert found["x"][1] == [[7, 7], [7, 7]]
    assert columns(pages, pages.layout(variable=["x"]))["x"] == [[[1, 2], [3, 4]], []]
    later = rows_of("x", array_of(floats(1, 2), None))
    np.testing.assert_equal(columns(later, pages.layout())["x"], [[[1, 2], [float("nan")] * 2]])
    ints = rows_of("x", array_of(np.array([1, 2])), None)
    found = columns(ints, ints.layout())
    assert found["x"] == [[[1, 2]], [[0, 0]]] and found["x_is_null"] == [False, True]
    with pytest.raises(SchemaError, match="key 1 has a null in val.x"):
        columns(ints, ints.layout(nulls="error"))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (array_of(floats(1, 2)), r"an array in val.x that is not 2 by 2 long.*variable=\['x'\]"),
        (array_of(floats(1, 2), floats(3)), "an array in val.x that is not 2 by 2 long"),
        (array_of(floats(1, 2), np.array([1.0, 2.0])), "another type in val.x"),
        (array_of(floats(1, 2), 3.0), "another type in val.x"),
        (array_of(floats(1, 2), list_of(1.0, 2.0)), "another type in val.x"),
        (array_of(floats(1, 2), TypedMap([(1.0, 2.0)], HASH_MAP)), "another type in val.x"),
    ],
)
def test_rows_of_another_shape_are_told(value, message):
    pages = rows_of("x", array_of(floats(1, 2), floats(3, 4)))
    with pytest.raises(SchemaError, match=message):
        columns(rows_of("x", value), pages.layout())


def test_lists_in_lists_have_one_type():
    pages = rows_of("x", list_of(list_of(1), list_of(2.5)))
    with pytest.raises(SchemaError, match="field val.x is a list of double and long"):
        pages.layout(fields=["x"])
    pages = rows_of("x", list_of(list_of(1)))
    other = rows_of("x", list_of(TypedMap([(1, 2)], HASH_MAP)))
    with pytest.raises(SchemaError, match="another type in val.x"):
        columns(other, pages.layout())


def test_null_items_are_told_of():
    pages = rows_of("x", TypedCollection([1, None], ARRAY_LIST), TypedCollection([None, 2], ARRAY_LIST))
    found = columns(pages, pages.layout())
    assert found["x"] == [[1, 0], [0, 2]] and found["x_null_items"] == [[False, True], [True, False]]
    found = columns(pages, pages.layout(nulls="mask"))
    assert found["x_null_items"] == [[False, True], [True, False]] and found["n_is_null"] == [False, False]
    with pytest.raises(
        SchemaError, match=r"key 0 has a null in the list val.x, and int64 has no null.*nulls='mask'"
    ):
        columns(pages, pages.layout(nulls="error"))


def test_a_map_is_its_keys_and_its_values():
    pages = rows_of("m", TypedMap([("a", 1), ("b", None)], HASH_MAP), None, TypedMap([(None, 3)], HASH_MAP))
    found = columns(pages, pages.layout())
    assert found["m_keys"] == [[b"a", b"b"], [], [b""]]
    assert found["m_values"] == [[1, 0], [], [3]] and found["m_null_values"] == [[False, True], [], [False]]
    assert set(found) == {"key", "n", "m_keys", "m_values", "m_null_values"}
    masked = columns(pages, pages.layout(nulls=["m"], fields=["m"]))
    assert masked["m_is_null"] == [False, True, False]
    with pytest.raises(SchemaError, match="nulls names the field 'm_keys', and there is none"):
        pages.layout(nulls=["m_keys"])
    assert set(columns(pages, pages.layout(fields=["m"]))) == {"key", "m_keys", "m_values", "m_null_values"}


def test_lists_as_values_and_rows_that_differ_later():
    pages = make_pages([(n, TypedCollection(["x"] * n, ARRAY_LIST)) for n in range(3)])
    assert columns(pages, pages.layout())["val"] == [[], [b"x"], [b"x", b"x"]]
    other = make_pages([(0, TypedCollection([1], ARRAY_LIST))])
    with pytest.raises(SchemaError, match="key 0 has another type in val than the rows sampled"):
        columns(other, pages.layout())
    objects = make_pages([(0, TypedCollection([BinaryObject("Inner", {"a": 1})], ARRAY_LIST))])
    with pytest.raises(SchemaError, match="key 0 has another type in val than the rows sampled"):
        columns(objects, pages.layout())
    late = make_pages([(5, TypedArray([Timestamp(2400, 1, 1)], TypeCode.TIMESTAMP_ARRAY))])
    with pytest.raises(SchemaError, match="key 5 has a time in val outside"):
        columns(late, late.layout())


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (TypedCollection([1, "a"], ARRAY_LIST), "a list of long and string, which has no tensor form"),
        (TypedCollection([Int(1), 2], ARRAY_LIST), "a list of int and long"),
        (
            TypedCollection([BinaryObject("Inner", {"a": 1}), 2], ARRAY_LIST),
            "a list of binary object and long",
        ),
        (TypedCollection([], ARRAY_LIST), "an empty collection in all rows sampled"),
        (TypedMap([("a", 1), ("b", "c")], HASH_MAP), "a list of long and string"),
    ],
)
def test_fields_without_a_form_are_left_out_unless_they_are_asked_for(value, words):
    pages = rows_of("x", value, value)
    assert set(columns(pages, pages.layout())) == {"key", "n"}
    with pytest.raises(SchemaError, match=words):
        pages.layout(fields=["x"])
    alone = make_pages([(1, BinaryObject("Alone", {"x": value}))])
    with pytest.raises(SchemaError, match=f"there is no column to read: field val.x is {words}"):
        alone.layout()


def test_what_was_left_out_is_told():
    from ignite_tf_magic.protocol.buffer import Reader
    from ignite_tf_magic.protocol.layout_finder import LayoutFinder

    pages = rows_of("x", TypedCollection([1, "a"], ARRAY_LIST))
    finder = LayoutFinder(pages.types.get)
    finder.add(Reader(pages.rows).view, 1)
    finder.layout()
    assert list(finder.left_out) == ["val.x"]


def test_names_that_a_column_would_share():
    pages = make_pages([(1, BinaryObject("Row", {"m": TypedMap([(1, 2)], HASH_MAP), "m_keys": 3}))])
    with pytest.raises(
        SchemaError, match="there is a field 'm_keys', and the keys of 'm' would have its name"
    ):
        pages.layout()
    assert columns(pages, pages.layout(fields=["m_keys"]))["m_keys"] == [3]


def test_objects_of_several_types_have_the_fields_of_all():
    cats = [BinaryObject("Cat", {"name": f"cat {n}", "lives": Int(9), "legs": 4}) for n in range(3)]
    dogs = [BinaryObject("Dog", {"name": f"dog {n}", "weight": n / 2, "legs": 4}) for n in range(3)]
    pages = make_pages(
        [(n, value) for n, value in enumerate([cats[0], dogs[0], dogs[1], cats[1], cats[2], dogs[2]])]
    )
    layout = pages.layout()
    assert isinstance(layout.value, ObjectNode) and [each.name for each in layout.value.types] == [
        "Cat",
        "Dog",
    ]
    found = columns(pages, layout)
    assert found["name"] == [b"cat 0", b"dog 0", b"dog 1", b"cat 1", b"cat 2", b"dog 2"]
    assert found["lives"] == [9, 0, 0, 9, 9, 0]
    assert found["lives_is_null"] == [False, True, True, False, False, True]
    np.testing.assert_equal(found["weight"], [np.nan, 0, 0.5, np.nan, np.nan, 1])
    assert found["legs"] == [4] * 6 and "legs_is_null" not in found
    with pytest.raises(SchemaError, match="has another type in an object than the rows sampled"):
        columns(make_pages([(1, BinaryObject("Mouse", {"name": "m"}))], pages.types), layout)
    mixed = make_pages([(1, cats[0]), (2, BinaryObject("Fish", {"name": 3, "legs": 0}))])
    assert set(columns(mixed, mixed.layout())) == {"key", "lives", "lives_is_null", "legs"}


def test_maps_that_are_values_themselves():
    rows = [
        (1, TypedMap([("a", Int(1)), ("b", None)], HASH_MAP)),
        (2, TypedMap([], HASH_MAP)),
        (3, {"c": Int(3)}),
    ]
    pages = make_pages(rows)
    assert columns(pages, pages.layout()) == {
        "key": [1, 2, 3],
        "keys": [[b"a", b"b"], [], [b"c"]],
        "values": [[1, 0], [], [3]],
        "null_values": [[False, True], [], [False]],
    }
    assert pages.layout().num_values == 1
    mixed = make_pages([(1, TypedMap([("a", Int(1)), ("b", "two")], HASH_MAP))])
    with pytest.raises(SchemaError, match="field val is a list of int and string, which has no tensor form"):
        mixed.layout()
    other = make_pages([*rows, (4, Int(5))])
    with pytest.raises(SchemaError, match="rows differ in val: int and map"):
        other.layout()


def test_a_row_that_is_no_map_is_told():
    pages, other = make_pages([(1, {"a": 1}), (2, {"b": 2})]), make_pages([(1, {"a": 1}), (2, Int(5))])
    for walker in (make_walker(pages.layout()), PythonWalker(pages.layout())):
        chunk = ColumnChunk(pages.layout(), 8)
        series = PageSeries([Page(None, 2, memoryview(other.rows), False)])
        with pytest.raises(SchemaError, match="the row with key 2 has another type in val.keys"):
            PageDecoder(pages.layout(), walker).decode(series, chunk)


def test_arrays_that_are_all_empty_have_no_length():
    """A row without items would abort TensorFlow's unbatch."""
    pages = rows_of("x", np.zeros(0, np.float32), np.zeros(0, np.float32))
    (leaf,) = [leaf for leaf in pages.layout().leaves() if leaf.name == "val.x"]
    assert leaf.is_ragged and columns(pages, pages.layout())["x"] == [[], []]


def test_lists_of_objects_have_a_column_for_each_of_their_fields():
    def item(name, price, *tags, width):
        words = TypedArray(tags, TypeCode.STRING_ARRAY)
        return BinaryObject(
            "Item", {"name": name, "price": price, "tags": words, "size": BinaryObject("Size", width)}
        )

    first, last = item("a", 1.5, "x", "y", width={"w": Int(3)}), item(None, 2.0, width={"w": Int(4)})
    lists = [list_of(first, None), None, list_of(), list_of(last)]
    pages = make_pages([(n, BinaryObject("Order", {"items": each, "n": n})) for n, each in enumerate(lists)])
    expected = {
        "key": [0, 1, 2, 3],
        "items_name": [[b"a", b""], [], [], [b""]],
        "items_price": [[1.5, np.nan], [], [], [2.0]],
        "items_tags": [[[b"x", b"y"], []], [], [], [[]]],
        "items_size_w": [[3, 0], [], [], [4]],
        "items_size_w_null_items": [[False, True], [], [], [False]],
        "n": [0, 1, 2, 3],
    }
    np.testing.assert_equal(columns(pages, pages.layout()), expected)


def test_arrays_of_objects_that_are_values_themselves():
    first = BinaryObject("Point", {"x": 1.0, "name": "a"})
    pages = make_pages(
        [(1, array_of(first, BinaryObject("Point", {"x": 2.0, "name": "b"}))), (2, array_of())]
    )
    assert columns(pages, pages.layout()) == {
        "key": [1, 2],
        "x": [[1.0, 2.0], []],
        "name": [[b"a", b"b"], []],
    }
    other = make_pages([(3, array_of(first, Int(1)))])
    with pytest.raises(SchemaError, match="the row with key 3 has another type in val.x"):
        columns(other, pages.layout())


def test_what_of_objects_in_lists_has_no_form_is_left_out():
    point = BinaryObject("Mixed", {"x": 1.0, "odd": TypedMap([(1, 2)], HASH_MAP)})
    pages = make_pages([(1, BinaryObject("Row", {"points": array_of(point), "n": 1}))])
    finder = LayoutFinder(pages.types.get)
    finder.add(memoryview(pages.rows), 1)
    assert [leaf.name for leaf in finder.layout().leaves()] == ["key", "val.points_x", "val.n"]
    assert list(finder.left_out) == ["val.points_odd"]
    twice = make_pages([(1, BinaryObject("Row", {"points": array_of(point), "points_x": 1}))])
    with pytest.raises(SchemaError, match="points_x"):
        twice.layout()


def test_columns_of_objects_in_lists_never_share_a_name():
    inner = BinaryObject("P", {"a_b": 1, "a": BinaryObject("Q", {"b": 2})})
    with pytest.raises(SchemaError, match="a_b"):
        make_pages([(1, array_of(inner))]).layout()


def test_objects_in_lists_that_are_not_alike():
    mixed = [
        BinaryObject("Mix", {"x": BinaryObject("Q", {"w": 1}), "n": 1}),
        BinaryObject("Mix", {"x": 7, "n": 2}),
    ]
    pages = make_pages([(1, BinaryObject("Row", {"items": array_of(*mixed), "n": 1}))])
    assert columns(pages, pages.layout()) == {"key": [1], "items_n": [[1, 2]], "n": [1]}
    del pages.types[name_id("Q")]
    assert set(columns(pages, pages.layout())) == {"key", "n"}


@pytest.mark.parametrize("items", [["a"], [BinaryObject("Item", {"a": 1})]])
def test_a_list_that_is_null_is_empty_and_nothing_else(items):
    """This holds whether or not fields are named. An option without effect is refused."""
    pages = rows_of("x", items, None)
    with pytest.raises(
        SchemaError, match=r"fill names the field val\.x, a list; where it is null the list is empty"
    ):
        pages.layout(fill={"x": "b"})


def test_an_array_that_is_null_has_the_items_that_are_said():
    pages = rows_of("x", np.arange(3, dtype=np.int32), None, np.arange(2, dtype=np.int32))
    assert columns(pages, pages.layout(fill={"x": [7, 8]}))["x"] == [[0, 1, 2], [7, 8], [0, 1]]


def taken(data):
    """Return the values and lengths of a page with one list of texts, or the error."""
    text = Leaf(("val", "x"), TypeCode.STRING)
    leaf = Leaf(("val", "x"), TypeCode.STRING_ARRAY, VARIABLE, item=text)
    try:
        values, lengths = list_items.take_items(leaf, 0, memoryview(data), [(0, len(data)), (-1, 0)])
    except (RowFault, RemoteProtocolError) as error:
        return type(error), getattr(error, "rule", str(error))
    return values.tolist(), [each.tolist() for each in lengths]


@given(
    st.lists(st.none() | st.text(max_size=4), max_size=4),
    st.booleans(),
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 255)), max_size=2),
    st.integers(0, 60),
)
def test_texts_are_read_at_once_as_one_by_one(texts, is_array, damage, end):
    listed = TypedArray(texts, TypeCode.STRING_ARRAY) if is_array else TypedCollection(texts, ARRAY_LIST)
    write_value(writer := Writer(), listed)
    data = writer.data
    for at, byte in damage:
        data[at % len(data)] = byte
    if end < len(data) and damage:
        del data[end:]
    at_once = taken(bytes(data))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(list_items, "is_of_texts", lambda leaf: False)
        assert at_once == taken(bytes(data))


LISTED = st.lists(st.sampled_from(["", "a", "ä", "long" * 2000]), max_size=3)


@given(
    st.lists(st.lists(LISTED | st.none(), min_size=1, max_size=4), min_size=1, max_size=5),
    st.sampled_from([None, "null", "other", "damaged"]),
    st.integers(1, 7),
)
@settings(deadline=None)
def test_texts_of_many_pages_are_those_of_each_page(lists, odd, chunk_rows):
    of_texts = [
        [None if texts is None else TypedArray(texts, TypeCode.STRING_ARRAY) for texts in page]
        for page in lists
    ]
    pages = [row_page(page, 10 * number) for number, page in enumerate(of_texts)]
    layout = rows_of("x", TypedArray(["a"], TypeCode.STRING_ARRAY)).layout()
    last = [TypedArray(["a", {"null": None, "other": Int(3)}.get(odd, "ä")], TypeCode.STRING_ARRAY)]
    if odd:
        spoilt = row_page(last, 99)
        rows = spoilt.rows.replace("ä".encode(), b"\xff\xff") if odd == "damaged" else spoilt.rows
        pages.insert(len(pages) // 2, Pages(rows, 1, spoilt.types))
    found = []
    for walker in (make_walker(layout), PythonWalker(layout)):
        series = PageSeries([Page(None, page.num_rows, memoryview(page.rows), False) for page in pages])
        decoder, rows = PageDecoder(layout, walker), []
        try:
            while series.num_rows:
                chunk = ColumnChunk(layout, chunk_rows)
                decoder.decode(series, chunk)
                rows += zip(*map(_listed, chunk.columns()), strict=True)
            found.append(rows)
        except (RemoteProtocolError, SchemaError) as error:
            found.append(str(error))
    assert found[0] == found[1]
    assert isinstance(found[0], str) == (odd in ("other", "damaged"))


def row_page(values, first_key):
    return make_pages(
        [(first_key + n, BinaryObject("Row", {"x": value, "n": n})) for n, value in enumerate(values)]
    )
