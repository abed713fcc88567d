"""Values survive encoding and decoding."""

from __future__ import annotations

import copy
import datetime as dt
import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ignite_tf_magic.errors import LocalProtocolError, RemoteProtocolError
from ignite_tf_magic.protocol.buffer import Reader, Writer
from ignite_tf_magic.protocol.objects import (
    BinaryObject,
    BinaryType,
    ObjectForm,
    array_hash,
    binary_type_of,
    java_hash,
    schema_id,
    skip_value,
)
from ignite_tf_magic.protocol.ops import ObjectFlag, TypeCode
from ignite_tf_magic.protocol.read_values import read_value
from ignite_tf_magic.protocol.typed_values import (
    Byte,
    Char,
    EnumValue,
    Float,
    Int,
    JavaSerialized,
    Short,
    SqlDate,
    Timestamp,
    TypedArray,
    TypedCollection,
    TypedMap,
    UtilDate,
    time_of,
)
from ignite_tf_magic.protocol.write_values import code_of, write_value

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.binary()
    | st.uuids()
    | st.datetimes(dt.datetime(1800, 1, 1), dt.datetime(2200, 1, 1))
)
NAMES = st.text("abcdefghijk", min_size=1, max_size=8)
OBJECTS = st.recursive(
    SCALARS,
    lambda inner: st.builds(BinaryObject, st.just("T"), st.dictionaries(NAMES, inner, max_size=4)),
    max_leaves=12,
)


def encode(value):
    writer = Writer()
    write_value(writer, value)
    return bytes(writer.data)


def types_in(value, found):
    """Collect the schemas that a value needs, as the cluster would store them."""
    if isinstance(value, BinaryObject):
        for item in value.fields.values():
            types_in(item, found)
        mine = binary_type_of("T", {name: code_of(item) for name, item in value.fields.items()})
        known = found.setdefault(mine.type_id, mine)
        found[mine.type_id] = type(mine)(
            mine.type_id, "T", {**known.fields, **mine.fields}, {**known.schemas, **mine.schemas}
        )
    return found


@given(OBJECTS)
def test_round_trip(value):
    data = encode(value)
    reader = Reader(data)
    assert read_value(reader, types_in(value, {}).get) == value
    assert reader.remaining == 0


@given(OBJECTS)
def test_skip_ends_where_read_ends(value):
    reader = Reader(encode(value) + b"tail")
    skip_value(reader)
    assert bytes(reader.take(reader.remaining)) == b"tail"


@pytest.mark.parametrize("dtype", ["u1", "i2", "i4", "i8", "f4", "f8", "u2", "?"])
def test_arrays(dtype):
    value = np.array([0, 1, 1, 0], dtype)
    back = read_value(Reader(encode(value)))
    np.testing.assert_array_equal(np.frombuffer(back, "u1") if isinstance(back, bytes) else back, value)


def test_big_endian_arrays_are_turned():
    np.testing.assert_array_equal(read_value(Reader(encode(np.array([1, 2], ">i4")))), [1, 2])


def test_numpy_moments():
    assert read_value(Reader(encode(np.datetime64("2020-02-03T04:05:06")))) == dt.datetime(
        2020, 2, 3, 4, 5, 6
    )
    assert read_value(Reader(encode(np.datetime64("NaT")))) is None


@pytest.mark.parametrize("value", [object(), 1 << 63, np.zeros((2, 2)), np.zeros(2, complex)])
def test_values_without_an_ignite_form(value):
    with pytest.raises(LocalProtocolError):
        encode(value)


# Computed by Java: "Hello".hashCode(), "grüße".hashCode(), "😀".hashCode(), Arrays.hashCode(...).
@pytest.mark.parametrize(
    ("text", "value"), [("Hello", 69609650), ("", 0), ("polygenelubricants", -(1 << 31))]
)
def test_java_hash(text, value):
    assert java_hash(text) == value


def test_array_hash_and_schema_id():
    assert array_hash(b"") == 1
    assert array_hash(bytes([1, 2, 255])) == ((31 * 1 + 1) * 31 + 2) * 31 - 1
    assert schema_id(()) == 0x811C9DC5 - (1 << 32)


def test_nan():
    assert math.isnan(read_value(Reader(encode(float("nan")))))


def test_what_was_read_is_written_as_it_was():
    for value in (
        *(Byte(-3), Short(-4), Int(7), Char(90), Float(0.5), JavaSerialized(b"abcdefg")),
        *(Timestamp.of(1234567, 891011), UtilDate.of(5), SqlDate.of(-5), time_of(-5), time_of(5)),
        *(EnumValue.of(3, 77), EnumValue.of(3, 0, 38, class_name="a.B")),
        *(TypedArray([1, None], 23, 99), TypedCollection([1, "x"], 3), TypedMap([(1, "x")], 1)),
    ):
        data = encode(value)
        back = read_value(Reader(data))
        assert (type(back), back, encode(back)) == (type(value), value, data)
        for again in (copy.deepcopy(back), pickle.loads(pickle.dumps(back))):
            assert (type(again), encode(again)) == (type(value), data)


def test_full_footers_and_raw_data():
    form = ObjectForm(7, {"a": 1, "b": 2}, ObjectFlag.USER_TYPE)
    for value in (
        BinaryObject("field", {"a": 5, "b": "x" * 300}, b"raw", form),
        BinaryObject("field", {}, b"raw", form),
    ):
        data = encode(value)
        known = BinaryType(7, "field", {"a": (4, 1), "b": (9, 2)}, {})
        back = read_value(Reader(data), {7: known}.get)
        assert (back, encode(back)) == (value, data)


def test_references_that_lead_nowhere_are_refused():
    for distance in (0, -4, 100):
        raw = bytes([TypeCode.COLLECTION, 1, 0, 0, 0, 1, TypeCode.HANDLE]) + distance.to_bytes(
            4, "little", signed=True
        )
        with pytest.raises(RemoteProtocolError, match="refers to"):
            read_value(Reader(raw))


def test_what_was_one_is_one():
    shared = TypedCollection([1], 1)
    back = read_value(Reader(encode([shared, shared])))
    assert back[0] is back[1]
    plain = BinaryObject("T", {})
    first, second = read_value(Reader(encode([plain, plain])))
    assert first is not second


@pytest.mark.parametrize("value", [Byte(128), Char(-1), Short(1 << 15), Int(1 << 31)])
def test_integers_that_do_not_fit_are_refused(value):
    with pytest.raises(LocalProtocolError, match="does not fit"):
        encode(value)
