"""One Ignite value <-> one Python value.

Plain Python values choose their Ignite type: int -> long, float -> double, str, bytes -> byte[],
bool, UUID, Decimal, datetime -> timestamp, in UTC, which one without a zone is taken for, date -> java.sql.Date and
time -> java.sql.Time, which nodes in UTC show as they are. A list of text is a String[], any other an Object[]. NumPy
scalars and one-dimensional arrays choose theirs exactly (np.int32(5) -> int, np.float32 array -> float[]), which is the
way to write a key of type int.
Source: Ignite documentation, "Binary Client Protocol", data format.
"""

from __future__ import annotations

import datetime as dt
import decimal
import struct
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from ignite_tf_magic.errors import LocalProtocolError, RemoteProtocolError
from ignite_tf_magic.protocol.buffer import Reader, Writer
from ignite_tf_magic.protocol.decimals import decimal_from_wire, write_decimal
from ignite_tf_magic.protocol.lazy_numpy import np
from ignite_tf_magic.protocol.ops import ObjectFlag, TypeCode
from ignite_tf_magic.protocol.times import (
    SQL_DATE_BYTES,
    SQL_DATE_HEAD,
    instant_of,
    millis_of_time,
    sql_date,
    to_datetime,
    wire_dtype,
)

HEADER_BYTES = 24
_HEADER = struct.Struct("<bbhiiiii")
_FNV_OFFSET = 0x811C9DC5
_FNV_PRIME = 0x01000193
# What is NumPy's in no case, though some of NumPy's types derive from these.
_OF_PYTHON = frozenset((bool, int, float, str, bytes))
_OF_CLASS_OBJECT = -1
_TIMESTAMP = struct.Struct("<qi")

# Types with a NumPy dtype, and its name.
SCALARS: dict[int, str] = {
    TypeCode.BYTE: "<i1",
    TypeCode.SHORT: "<i2",
    TypeCode.INT: "<i4",
    TypeCode.LONG: "<i8",
    TypeCode.FLOAT: "<f4",
    TypeCode.DOUBLE: "<f8",
    TypeCode.CHAR: "<u2",
    TypeCode.BOOL: "?",
}
# Java's byte is signed, but nobody keeps signed bytes in a byte[]: pixels and files are unsigned.
ARRAYS: dict[int, str] = {
    TypeCode.BYTE_ARRAY: "<u1",
    TypeCode.SHORT_ARRAY: "<i2",
    TypeCode.INT_ARRAY: "<i4",
    TypeCode.LONG_ARRAY: "<i8",
    TypeCode.FLOAT_ARRAY: "<f4",
    TypeCode.DOUBLE_ARRAY: "<f8",
    TypeCode.CHAR_ARRAY: "<u2",
    TypeCode.BOOL_ARRAY: "?",
}
CODE_OF_DTYPE: dict[str, TypeCode] = {
    "i1": TypeCode.BYTE,
    "i2": TypeCode.SHORT,
    "i4": TypeCode.INT,
    "i8": TypeCode.LONG,
    "f4": TypeCode.FLOAT,
    "f8": TypeCode.DOUBLE,
    "u2": TypeCode.CHAR,
    "b1": TypeCode.BOOL,
}
ARRAY_CODE_OF_DTYPE: dict[str, TypeCode] = {
    "u1": TypeCode.BYTE_ARRAY,
    "i1": TypeCode.BYTE_ARRAY,
    "i2": TypeCode.SHORT_ARRAY,
    "i4": TypeCode.INT_ARRAY,
    "i8": TypeCode.LONG_ARRAY,
    "f4": TypeCode.FLOAT_ARRAY,
    "f8": TypeCode.DOUBLE_ARRAY,
    "u2": TypeCode.CHAR_ARRAY,
    "b1": TypeCode.BOOL_ARRAY,
}


@cache
def dtype_of(code: int) -> np.dtype[Any]:
    """Return the dtype of a scalar's or an array's type."""
    return np.dtype(SCALARS.get(code) or ARRAYS[code])


@dataclass(frozen=True, slots=True)
class BinaryType:
    """What the cluster knows of one type of binary objects.

    Attributes:
        fields: Field name -> (type code, field id), in the type's order.
        schemas: Schema id -> field ids in the order in which such an object stores them.
    """

    type_id: int
    name: str
    fields: Mapping[str, tuple[int, int]]
    schemas: Mapping[int, tuple[int, ...]]
    affinity_field: str | None = None


@dataclass(frozen=True, slots=True)
class BinaryObject:
    """A complex object, with its fields by name (by "field 0x..." where the type is unknown)."""

    type_name: str
    fields: Mapping[str, Any] = field(default_factory=dict)


FindType = Callable[[int], BinaryType | None]


def java_hash(text: str) -> int:
    """Hash a string as `java.lang.String.hashCode` does; also the id of a cache of that name."""
    value = 0
    for unit in _utf16_units(text):
        value = (31 * value + unit) & 0xFFFFFFFF
    return _signed(value)


def name_id(name: str) -> int:
    """Id of a type or field: the hash of its lower-case name."""
    return java_hash(name.lower())


def schema_id(field_ids: tuple[int, ...]) -> int:
    """Id of a schema: FNV-1 over the bytes of its field ids."""
    if not field_ids:
        return 0
    value = _FNV_OFFSET
    for field_id in field_ids:
        for shift in (0, 8, 16, 24):
            value = ((value ^ (field_id >> shift & 0xFF)) * _FNV_PRIME) & 0xFFFFFFFF
    return _signed(value)


def array_hash(data: bytes | memoryview) -> int:
    """Hash bytes as `java.util.Arrays.hashCode` does; the hash of a binary object's fields."""
    value = 1
    for byte in data:
        value = (31 * value + (byte - 256 if byte > 127 else byte)) & 0xFFFFFFFF
    return _signed(value)


def _utf16_units(text: str) -> tuple[int, ...]:
    raw = text.encode("utf-16-le", "surrogatepass")
    return struct.unpack(f"<{len(raw) // 2}H", raw)


def _signed(value: int) -> int:
    return value - (1 << 32) if value & 0x80000000 else value


def write_value(writer: Writer, value: Any) -> None:
    """Append one value with its type code.

    Raises:
        LocalProtocolError: The value has no Ignite form here.
    """
    if value is None:
        writer.int8(TypeCode.NULL)
    elif type(value) in _OF_PYTHON:
        _write_python_scalar(writer, value)
    elif isinstance(value, BinaryObject):
        write_object(writer, value)
    elif isinstance(value, np.ndarray):
        _write_array(writer, value)
    elif isinstance(value, np.generic):
        _write_numpy_scalar(writer, value)
    else:
        _write_python_scalar(writer, value)


def _write_numpy_scalar(writer: Writer, value: np.generic) -> None:
    code = CODE_OF_DTYPE.get(value.dtype.str[1:])
    if isinstance(value, np.datetime64):
        _write_moment(writer, value)
        return
    if value.dtype == wire_dtype():
        writer.int8(TypeCode.TIMESTAMP).raw(value.tobytes())
        return
    if code is None:
        _write_python_scalar(writer, value.item())
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
            f"an array of {value.dtype} with {value.ndim} dimensions has no Ignite form; "
            "give a one-dimensional array of a primitive type"
        )
    writer.int8(code).int32(value.size)
    writer.raw(np.ascontiguousarray(value, value.dtype.newbyteorder("<")).tobytes())


def _write_python_scalar(writer: Writer, value: Any) -> None:
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
        writer.int8(TypeCode.OPTIMIZED - 256).int32(SQL_DATE_BYTES).raw(sql_date(value))
    elif isinstance(value, dt.time):
        writer.int8(TypeCode.TIME).int64(millis_of_time(value))
    elif isinstance(value, list | tuple):
        _write_list(writer, value)
    else:
        raise LocalProtocolError(f"a value of type {type(value).__name__} has no Ignite form here")


def _write_list(writer: Writer, value: Sequence[Any]) -> None:
    if value and all(item is None or isinstance(item, str) for item in value):
        writer.int8(TypeCode.STRING_ARRAY).int32(len(value))
    else:
        writer.int8(TypeCode.OBJECT_ARRAY).int32(_OF_CLASS_OBJECT).int32(len(value))
    for item in value:
        write_value(writer, item)


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


def write_object(writer: Writer, value: BinaryObject) -> None:
    """Append a binary object with a compact footer, as the servers themselves write it.

    The cluster must know its type and schema (`binary_type_of`, PUT_BINARY_TYPE) before it can read it.
    """
    body = Writer()
    offsets = []
    for item in value.fields.values():
        offsets.append(HEADER_BYTES + len(body.data))
        write_value(body, item)
    field_ids = tuple(name_id(name) for name in value.fields)
    header = object_header(value.type_name, field_ids, offsets, len(body.data), array_hash(bytes(body.data)))
    writer.raw(header).raw(body.data).raw(object_footer(offsets))


def object_header(
    type_name: str, field_ids: tuple[int, ...], offsets: Sequence[int], body_bytes: int, body_hash: int
) -> bytes:
    """Build the header of an object with a compact footer."""
    end = HEADER_BYTES + body_bytes
    flags = ObjectFlag.USER_TYPE | ObjectFlag.COMPACT_FOOTER
    if field_ids:
        flags |= ObjectFlag.HAS_SCHEMA | _WIDTH_FLAG[_offset_width(offsets)]
    return _HEADER.pack(
        TypeCode.BINARY_OBJECT,
        1,
        flags,
        name_id(type_name),
        body_hash,
        end + len(object_footer(offsets)),
        schema_id(field_ids),
        end if field_ids else 0,
    )


def object_footer(offsets: Sequence[int]) -> bytes:
    """Build a compact footer: only the offsets, as narrow as the last one allows."""
    width = _offset_width(offsets)
    return b"".join(offset.to_bytes(width, "little") for offset in offsets)


def _offset_width(offsets: Sequence[int]) -> int:
    last = offsets[-1] if offsets else 0
    return 1 if last < 1 << 8 else 2 if last < 1 << 16 else 4


_WIDTH_FLAG = {1: ObjectFlag.OFFSET_ONE_BYTE, 2: ObjectFlag.OFFSET_TWO_BYTES, 4: ObjectFlag(0)}


def binary_type_of(type_name: str, codes: Mapping[str, int]) -> BinaryType:
    """Describe a type with one schema: its fields and their type codes, in stored order."""
    fields = {name: (code, name_id(name)) for name, code in codes.items()}
    field_ids = tuple(field_id for _, field_id in fields.values())
    return BinaryType(name_id(type_name), type_name, fields, {schema_id(field_ids): field_ids})


def code_of(value: Any) -> int:
    """Return the type code a value is written with."""
    writer = Writer()
    write_value(writer, value)
    return writer.data[0]


def read_value(reader: Reader, find_type: FindType | None = None, depth: int = 0) -> Any:
    """Read one value with its type code.

    Args:
        reader: Positioned at the type code; afterwards behind the value.
        find_type: Gives the type of a binary object, to name its fields.
        depth: Nesting so far; objects nested deeper than 64 are refused as corrupted.

    Raises:
        RemoteProtocolError: Truncated bytes, an unknown type code, or senseless lengths.
    """
    if depth > 64:
        raise RemoteProtocolError("corrupted message: values nested more than 64 deep")
    code = reader.int8() & 0xFF
    if code in SCALARS:
        dtype = dtype_of(code)
        return np.frombuffer(reader.take(dtype.itemsize), dtype)[0].item()
    if code == TypeCode.BYTE_ARRAY:
        return bytes(reader.take(reader.count()))
    if code in ARRAYS:
        dtype = dtype_of(code)
        return np.frombuffer(reader.take(reader.count(dtype.itemsize) * dtype.itemsize), dtype).copy()
    read = _READERS.get(code)
    if read is None:
        raise RemoteProtocolError(f"unknown type code {code} at offset {reader.position - 1}")
    return read(reader, find_type, depth + 1)


def _read_uuid(reader: Reader, _find: FindType | None, _depth: int) -> uuid.UUID:
    return uuid_from_wire(reader.take(16))


def uuid_from_wire(raw: bytes | memoryview) -> uuid.UUID:
    """Read a UUID: two little-endian 64-bit halves."""
    data = bytes(raw)
    return uuid.UUID(bytes=data[7::-1] + data[:7:-1])


def _read_date(reader: Reader, _find: FindType | None, _depth: int) -> dt.datetime:
    return to_datetime(reader.int64(), 0)


def _read_timestamp(reader: Reader, _find: FindType | None, _depth: int) -> dt.datetime:
    return to_datetime(reader.int64(), reader.int32())


def _read_optimized(reader: Reader, _find: FindType | None, _depth: int) -> dt.datetime | bytes:
    """Read a java.sql.Date; anything else that Java serialised stays bytes."""
    raw = reader.take(reader.count())
    if len(raw) != SQL_DATE_BYTES or bytes(raw[:5]) != SQL_DATE_HEAD:
        return bytes(raw)
    return to_datetime(int.from_bytes(raw[-8:], "little", signed=True), 0)


def _read_time(reader: Reader, _find: FindType | None, _depth: int) -> dt.time:
    return to_datetime(reader.int64(), 0).time()


def _read_decimal(reader: Reader, _find: FindType | None, _depth: int) -> decimal.Decimal:
    scale = reader.int32()
    return decimal_from_wire(scale, bytes(reader.take(reader.count())))


def _read_enum(reader: Reader, _find: FindType | None, _depth: int) -> int:
    if reader.int32() == 0:
        read_value(reader)
    return reader.int32()


def _read_values(reader: Reader, find: FindType | None, depth: int) -> list[Any]:
    return [read_value(reader, find, depth) for _ in range(reader.count())]


def _read_object_array(reader: Reader, find: FindType | None, depth: int) -> list[Any]:
    if reader.int32() == 0:
        read_value(reader)
    return _read_values(reader, find, depth)


def _read_collection(reader: Reader, find: FindType | None, depth: int) -> list[Any]:
    size = reader.count()
    reader.int8()
    return [read_value(reader, find, depth) for _ in range(size)]


def _read_map(reader: Reader, find: FindType | None, depth: int) -> list[tuple[Any, Any]]:
    size = reader.count(2)
    reader.int8()
    return [(read_value(reader, find, depth), read_value(reader, find, depth)) for _ in range(size)]


def _read_wrapped(reader: Reader, find: FindType | None, depth: int) -> Any:
    data = reader.take(reader.count())
    return read_value(Reader(data, _inside(reader.int32(), len(data))), find, depth)


def _inside(offset: int, size: int) -> int:
    if not 0 <= offset < max(size, 1):
        raise RemoteProtocolError(f"corrupted object: offset {offset} in {size} bytes")
    return offset


def _read_object(reader: Reader, find: FindType | None, depth: int) -> BinaryObject:
    start = reader.position - 1
    header = read_header(reader, start)
    binary_type = find(header.type_id) if find else None
    names = {field_id: name for name, (_, field_id) in binary_type.fields.items()} if binary_type else {}
    body = reader.view[start : start + header.length]
    values = {}
    for field_id, offset in header.field_offsets(body, binary_type):
        name = names.get(field_id, f"field {field_id & 0xFFFFFFFF:#010x}")
        values[name] = read_value(Reader(body, _inside(offset, len(body))), find, depth)
    reader.position = start + header.length
    return BinaryObject(
        binary_type.name if binary_type else f"type {header.type_id & 0xFFFFFFFF:#010x}", values
    )


@dataclass(frozen=True, slots=True)
class ObjectHeader:
    """The 24 bytes in front of a binary object's fields."""

    flags: int
    type_id: int
    length: int
    schema_id: int
    footer: int

    @property
    def offset_bytes(self) -> int:
        """Width of a field offset in the footer."""
        if self.flags & ObjectFlag.OFFSET_ONE_BYTE:
            return 1
        return 2 if self.flags & ObjectFlag.OFFSET_TWO_BYTES else 4

    def field_offsets(self, body: memoryview, binary_type: BinaryType | None) -> list[tuple[int, int]]:
        """List (field id, offset from the object's start) in stored order.

        Raises:
            RemoteProtocolError: The footer is compact and the type does not tell this schema.
        """
        if not self.flags & ObjectFlag.HAS_SCHEMA:
            return []
        end = self.length - (4 if self.flags & ObjectFlag.HAS_RAW_DATA else 0)
        footer = Reader(body[: max(end, 0)], self.footer)
        if self.flags & ObjectFlag.COMPACT_FOOTER:
            ids = binary_type.schemas.get(self.schema_id) if binary_type else None
            if ids is None:
                raise RemoteProtocolError(f"schema {self.schema_id:#x} of type {self.type_id:#x} is unknown")
            return [(field_id, self._offset(footer)) for field_id in ids]
        pairs = []
        while footer.remaining >= 4 + self.offset_bytes:
            pairs.append((footer.int32(), self._offset(footer)))
        return pairs

    def _offset(self, footer: Reader) -> int:
        return int.from_bytes(footer.take(self.offset_bytes), "little")


def read_header(reader: Reader, start: int) -> ObjectHeader:
    """Read the header of the binary object whose type code stands at `start`.

    Raises:
        RemoteProtocolError: Truncated, or lengths that contradict each other.
    """
    try:
        _, _, flags, type_id, _, length, schema, footer = _HEADER.unpack_from(reader.view, start)
    except struct.error:
        raise RemoteProtocolError(f"truncated object header at offset {start}") from None
    flags &= 0xFFFF
    if length < HEADER_BYTES or start + length > len(reader.view):
        raise RemoteProtocolError(f"corrupted object: length {length} at offset {start}")
    if flags & ObjectFlag.HAS_SCHEMA and not HEADER_BYTES <= footer <= length:
        raise RemoteProtocolError(f"corrupted object: footer at {footer} of {length}")
    return ObjectHeader(flags, type_id, length, schema, footer)


_SIZE_OF_PLAIN = {
    **{code: int(name[2:] or 1) for code, name in SCALARS.items()},
    TypeCode.NULL: 0,
    TypeCode.UUID: 16,
    TypeCode.DATE: 8,
    TypeCode.TIMESTAMP: 12,
    TypeCode.TIME: 8,
}
_VALUES_BEHIND_COUNT = frozenset(
    {
        TypeCode.STRING_ARRAY,
        TypeCode.UUID_ARRAY,
        TypeCode.DATE_ARRAY,
        TypeCode.DECIMAL_ARRAY,
        TypeCode.TIMESTAMP_ARRAY,
        TypeCode.TIME_ARRAY,
    }
)


def skip_value(reader: Reader, depth: int = 0) -> None:
    """Move behind one value of any type without looking into it.

    Raises:
        RemoteProtocolError: As `read_value`.
    """
    code = reader.int8() & 0xFF
    if depth > 64:
        raise RemoteProtocolError("corrupted message: values nested more than 64 deep")
    if code in _SIZE_OF_PLAIN:
        reader.take(_SIZE_OF_PLAIN[code])
    elif code in ARRAYS:
        width = dtype_of(code).itemsize
        reader.take(reader.count(width) * width)
    elif code in (TypeCode.STRING, TypeCode.WRAPPED_OBJECT, TypeCode.OPTIMIZED):
        reader.take(reader.count() + (4 if code == TypeCode.WRAPPED_OBJECT else 0))
    elif code == TypeCode.DECIMAL:
        reader.int32()
        reader.take(reader.count())
    elif code == TypeCode.BINARY_OBJECT:
        start = reader.position - 1
        reader.position = start + read_header(reader, start).length
    else:
        _skip_many(reader, code, depth + 1)


def _skip_many(reader: Reader, code: int, depth: int) -> None:
    if code in (TypeCode.ENUM, TypeCode.BINARY_ENUM, TypeCode.OBJECT_ARRAY, TypeCode.ENUM_ARRAY):
        if reader.int32() == 0:
            skip_value(reader, depth)
        if code in (TypeCode.ENUM, TypeCode.BINARY_ENUM):
            reader.int32()
            return
        size = reader.count()
    elif code in (TypeCode.COLLECTION, TypeCode.MAP):
        size = reader.count() * (2 if code == TypeCode.MAP else 1)
        reader.int8()
    elif code in _VALUES_BEHIND_COUNT:
        size = reader.count()
    else:
        raise RemoteProtocolError(f"unknown type code {code} at offset {reader.position - 1}")
    for _ in range(size):
        skip_value(reader, depth)


_READERS: dict[int, Callable[[Reader, FindType | None, int], Any]] = {
    TypeCode.NULL: lambda _reader, _find, _depth: None,
    TypeCode.STRING: lambda reader, _find, _depth: reader.text(),
    TypeCode.UUID: _read_uuid,
    TypeCode.DATE: _read_date,
    TypeCode.TIMESTAMP: _read_timestamp,
    TypeCode.TIME: _read_time,
    TypeCode.DECIMAL: _read_decimal,
    TypeCode.ENUM: _read_enum,
    TypeCode.BINARY_ENUM: _read_enum,
    TypeCode.STRING_ARRAY: _read_values,
    TypeCode.UUID_ARRAY: _read_values,
    TypeCode.DATE_ARRAY: _read_values,
    TypeCode.DECIMAL_ARRAY: _read_values,
    TypeCode.TIMESTAMP_ARRAY: _read_values,
    TypeCode.TIME_ARRAY: _read_values,
    TypeCode.OBJECT_ARRAY: _read_object_array,
    TypeCode.ENUM_ARRAY: _read_object_array,
    TypeCode.COLLECTION: _read_collection,
    TypeCode.MAP: _read_map,
    TypeCode.WRAPPED_OBJECT: _read_wrapped,
    TypeCode.BINARY_OBJECT: _read_object,
    TypeCode.OPTIMIZED: _read_optimized,
}
