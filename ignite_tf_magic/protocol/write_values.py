"""Writes a Python value as an Ignite value.

The type of a plain Python value decides its Ignite type: int -> long, float -> double, bytes -> byte[], str -> String,
bool -> boolean, UUID -> UUID, Decimal -> BigDecimal, datetime -> timestamp in UTC, date -> java.sql.Date, time ->
java.sql.Time. A datetime without a zone counts as UTC. Nodes in UTC show dates and times unchanged. A list of text
becomes a String[], any other list an Object[], a dict a LinkedHashMap.

NumPy scalars and one-dimensional arrays keep their exact type: np.int32(5) -> int, np.float32 array -> float[]. Use
np.int32 to write a key of type int. Values of `typed_values` keep their type, too: a value that was read is written
back unchanged.
Source: Ignite documentation, "Binary Client Protocol", data format.
"""

from __future__ import annotations

import datetime as dt
import decimal
import struct
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ignite_tf_magic.errors import LocalProtocolError
from ignite_tf_magic.protocol.buffer import Writer
from ignite_tf_magic.protocol.decimals import write_decimal
from ignite_tf_magic.protocol.lazy_numpy import np
from ignite_tf_magic.protocol.objects import (
    ARRAY_CODE_OF_DTYPE,
    CODE_OF_DTYPE,
    HEADER_BYTES,
    BinaryObject,
    array_hash,
    dtype_of,
    object_footer,
    object_header,
)
from ignite_tf_magic.protocol.ops import ObjectFlag, TypeCode
from ignite_tf_magic.protocol.times import (
    SQL_DATE_BYTES,
    instant_of,
    millis_of_time,
    sql_date,
    sql_date_of,
    wire_dtype,
)
from ignite_tf_magic.protocol.typed_values import (
    INTEGERS,
    EnumValue,
    Float,
    JavaClass,
    JavaSerialized,
    JavaTime,
    SqlDate,
    TypedArray,
    TypedCollection,
    TypedMap,
    UtilDate,
)

# Values of exactly these types are never NumPy's, although some NumPy types derive from them.
_OF_PYTHON = frozenset((bool, int, float, str, bytes))
_OF_CLASS_OBJECT = -1
_LINKED_HASH_MAP = 2
_MAX_DEPTH = 64
_TIMESTAMP = struct.Struct("<qi")
_OPTIMIZED = TypeCode.OPTIMIZED - 256
_NEW_FORM = ObjectFlag.USER_TYPE | ObjectFlag.COMPACT_FOOTER


def write_value(writer: Writer, value: Any) -> None:
    """Append one value with its type code.

    Raises:
        LocalProtocolError: The value has no Ignite form here.
    """
    _ValueWriting(writer).value(value, 0)


def code_of(value: Any) -> int:
    """Return the type code a value is written with."""
    writer = Writer()
    write_value(writer, value)
    return writer.data[0]


def write_text(writer: Writer, value: str | None) -> None:
    """Append a string value with its type code, or a null."""
    if value is None:
        writer.int8(TypeCode.NULL)
        return
    try:
        raw = value.encode()
    except UnicodeEncodeError as error:
        raise LocalProtocolError(
            f"the text {value[:60]!a} has half a character (a lone surrogate) at {error.start}, which UTF-8 cannot "
            "hold; decode it as what it was, or replace it: text.encode('utf-8', 'replace').decode()"
        ) from None
    writer.int8(TypeCode.STRING).int32(len(raw)).raw(raw)


class _ValueWriting:
    """Writes one value and the values in it.

    An object or container that contains itself, or that was read from Ignite and occurs several times, is written once.
    Later occurrences are written as a HANDLE: how many bytes before the value is.
    """

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._places: dict[int, int] = {}  # id of an object -> its offset
        self._open: set[int] = set()

    def value(self, value: Any, depth: int) -> None:
        kind = type(value)
        if kind in _SIMPLE:
            _SIMPLE[kind](self._writer, value)
        elif kind in _OF_PYTHON:
            _write_scalar(self._writer, value)
        elif isinstance(value, BinaryObject | list | tuple | Mapping):
            self._container(value, depth)
        elif isinstance(value, np.ndarray):
            _write_array(self._writer, value)
        elif isinstance(value, np.generic):
            _write_numpy_scalar(self._writer, value)
        else:
            _write_scalar(self._writer, value)

    def _container(self, value: Any, depth: int) -> None:
        if depth > _MAX_DEPTH:
            raise LocalProtocolError(
                f"a value has values nested more than {_MAX_DEPTH} deep, which cannot be written"
            )
        here, place = len(self._writer.data), self._places.get(id(value))
        if place is not None and (id(value) in self._open or _was_read(value)):
            self._writer.int8(TypeCode.HANDLE).int32(here - place)
            return
        self._places[id(value)] = here
        self._open.add(id(value))
        if isinstance(value, BinaryObject):
            self._object(value, depth)
        elif isinstance(value, TypedMap | Mapping):
            self._map(value, depth)
        elif isinstance(value, TypedCollection):
            self._writer.int8(TypeCode.COLLECTION).int32(len(value)).int8(value.kind)
            self._all(value, depth)
        else:
            self._array(value, depth)
        self._open.discard(id(value))

    def _all(self, values: Sequence[Any], depth: int) -> None:
        for each in values:
            self.value(each, depth + 1)

    def _map(self, value: TypedMap | Mapping[Any, Any], depth: int) -> None:
        kind = value.kind if isinstance(value, TypedMap) else _LINKED_HASH_MAP
        self._writer.int8(TypeCode.MAP).int32(len(value)).int8(kind)
        for pair in value if isinstance(value, TypedMap) else value.items():
            self._all(pair, depth)

    def _array(self, value: Sequence[Any], depth: int) -> None:
        if isinstance(value, TypedArray):
            self._writer.int8(value.code)
            if value.code in (TypeCode.OBJECT_ARRAY, TypeCode.ENUM_ARRAY):
                _write_class(self._writer, value.type_id, value.class_name)
        elif value and all(item is None or isinstance(item, str) for item in value):
            self._writer.int8(TypeCode.STRING_ARRAY)
        else:
            self._writer.int8(TypeCode.OBJECT_ARRAY).int32(_OF_CLASS_OBJECT)
        self._writer.int32(len(value))
        self._all(value, depth)

    def _object(self, value: BinaryObject, depth: int) -> None:
        """Append a binary object: in its original form if it was read, else with a compact footer, as servers do.

        The cluster can read the object only if it knows the type and schema (`binary_type_of`, PUT_BINARY_TYPE).
        """
        data, start = self._writer.data, len(self._writer.data)
        self._writer.raw(bytes(HEADER_BYTES))
        offsets = []
        for item in value.fields.values():
            offsets.append(len(data) - start)
            self.value(item, depth + 1)
        raw_at = len(data) - start if value.raw else 0
        self._writer.raw(value.raw)
        body = bytes(data[start + HEADER_BYTES :])
        flags = value.form.flags if value.form else _NEW_FORM
        field_ids = value.field_ids
        data[start : start + HEADER_BYTES] = object_header(
            value.type_id, field_ids, offsets, len(body), array_hash(body), flags=flags, raw_at=raw_at
        )
        self._writer.raw(object_footer(offsets, field_ids, flags=flags, raw_at=raw_at))


def _was_read(value: Any) -> bool:
    """Return whether a value was read from Ignite. If it occurs twice, it then was one object in Ignite, too."""
    if isinstance(value, BinaryObject):
        return value.form is not None
    return isinstance(value, TypedArray | TypedCollection | TypedMap)


def _write_class(writer: Writer, type_id: int, class_name: str | None) -> None:
    writer.int32(type_id)
    if type_id == 0:
        write_text(writer, class_name)


def _write_numpy_scalar(writer: Writer, value: np.generic) -> None:
    code = CODE_OF_DTYPE.get(value.dtype.str[1:])
    if isinstance(value, np.datetime64):
        _write_moment(writer, value)
        return
    if value.dtype == wire_dtype():
        writer.int8(TypeCode.TIMESTAMP).raw(value.tobytes())
        return
    if code is None:
        _write_scalar(writer, value.item())
        return
    writer.int8(code).raw(np.asarray(value, dtype_of(code)).tobytes())


def _write_moment(writer: Writer, value: dt.datetime | np.datetime64) -> None:
    instant = instant_of(value)
    if instant is None:
        writer.int8(TypeCode.NULL)
    else:
        writer.int8(TypeCode.TIMESTAMP).raw(_TIMESTAMP.pack(*instant))


def _write_array(writer: Writer, value: np.ndarray[Any, Any]) -> None:
    code = ARRAY_CODE_OF_DTYPE.get(value.dtype.str[1:])
    if code is None or value.ndim != 1:
        raise LocalProtocolError(
            f"an array of {value.dtype} with {value.ndim} dimensions cannot be stored in Ignite; "
            "give a one-dimensional array of a primitive type"
        )
    writer.int8(code).int32(value.size)
    writer.raw(np.ascontiguousarray(value, value.dtype.newbyteorder("<")).tobytes())


def _write_scalar(writer: Writer, value: Any) -> None:
    if isinstance(value, bool):
        writer.int8(TypeCode.BOOL).bool(value)
    elif isinstance(value, int):
        if not -(1 << 63) <= value < 1 << 63:
            raise LocalProtocolError(f"{value} does not fit into a 64-bit integer")
        writer.int8(TypeCode.LONG).int64(value)
    elif isinstance(value, float):
        writer.int8(TypeCode.DOUBLE).raw(struct.pack("<d", value))
    elif isinstance(value, str):
        write_text(writer, value)
    elif isinstance(value, bytes | bytearray | memoryview):
        writer.int8(TypeCode.BYTE_ARRAY).int32(len(value)).raw(value)
    elif isinstance(value, uuid.UUID):
        writer.int8(TypeCode.UUID).raw(value.bytes[7::-1] + value.bytes[:7:-1])
    elif isinstance(value, dt.datetime):
        _write_moment(writer, value)
    elif isinstance(value, decimal.Decimal):
        write_decimal(writer, value)
    elif isinstance(value, dt.date):
        writer.int8(_OPTIMIZED).int32(SQL_DATE_BYTES).raw(sql_date(value))
    elif isinstance(value, dt.time):
        writer.int8(TypeCode.TIME).int64(millis_of_time(value))
    else:
        raise LocalProtocolError(f"a value of type {type(value).__name__} cannot be stored in Ignite here")


def _write_integer(writer: Writer, value: Any) -> None:
    try:
        raw = value.to_bytes(value.num_bytes, "little", signed=value.code != TypeCode.CHAR)
    except OverflowError:
        raise LocalProtocolError(
            f"{int(value)} does not fit into a Java {type(value).__name__.lower()}"
        ) from None
    writer.int8(value.code).raw(raw)


def _write_float(writer: Writer, value: Float) -> None:
    writer.int8(TypeCode.FLOAT).raw(np.float32(value).tobytes())


def _write_enum(writer: Writer, value: EnumValue) -> None:
    writer.int8(value.code)
    _write_class(writer, value.type_id, value.class_name)
    writer.int32(int(value))


def _write_class_object(writer: Writer, value: JavaClass) -> None:
    writer.int8(TypeCode.CLASS)
    _write_class(writer, value.type_id, str(value))


def _write_serialized(writer: Writer, value: JavaSerialized) -> None:
    writer.int8(_OPTIMIZED).int32(len(value)).raw(value)


def _millis(value: dt.datetime) -> int:
    millis, nanos = instant_of(value) or (0, 0)
    if nanos:
        raise LocalProtocolError(
            f"the time {value} has parts of a millisecond, which Java's dates cannot hold; cut it off"
        )
    return millis


_SIMPLE: dict[type, Callable[[Writer, Any], Any]] = {
    type(None): lambda writer, _: writer.int8(TypeCode.NULL),
    **dict.fromkeys(INTEGERS.values(), _write_integer),
    Float: _write_float,
    EnumValue: _write_enum,
    JavaClass: _write_class_object,
    JavaSerialized: _write_serialized,
    UtilDate: lambda writer, value: writer.int8(TypeCode.DATE).int64(_millis(value)),
    SqlDate: lambda writer, value: (
        writer.int8(_OPTIMIZED).int32(SQL_DATE_BYTES).raw(sql_date_of(_millis(value)))
    ),
    JavaTime: lambda writer, value: writer.int8(TypeCode.TIME).int64(value.millis),
}
