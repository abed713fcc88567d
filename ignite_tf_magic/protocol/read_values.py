"""Reads an Ignite value as a Python value, which `write_values` writes back unchanged.

The Python values are those of `typed_values`, BinaryObject, NumPy arrays of numbers, and plain Python types.
Source: Ignite documentation, "Binary Client Protocol", data format.
"""

from __future__ import annotations

import decimal
import uuid
from collections.abc import Callable
from typing import Any

from ignite_tf_magic.errors import RemoteProtocolError
from ignite_tf_magic.protocol.buffer import Reader
from ignite_tf_magic.protocol.decimals import decimal_from_wire
from ignite_tf_magic.protocol.lazy_numpy import np
from ignite_tf_magic.protocol.objects import (
    ARRAYS,
    HEADER_BYTES,
    SCALARS,
    VALUES_BEHIND_COUNT,
    BinaryObject,
    FindType,
    ObjectForm,
    dtype_of,
    name_id,
    read_header,
)
from ignite_tf_magic.protocol.ops import TypeCode
from ignite_tf_magic.protocol.times import SQL_DATE_BYTES, SQL_DATE_HEAD
from ignite_tf_magic.protocol.typed_values import (
    INTEGERS,
    EnumValue,
    Float,
    JavaClass,
    JavaSerialized,
    SqlDate,
    Timestamp,
    TypedArray,
    TypedCollection,
    TypedMap,
    UtilDate,
    time_of,
)

_MAX_DEPTH = 64


def read_value(reader: Reader, find_type: FindType | None = None, depth: int = 0) -> Any:
    """Read one value with its type code.

    Args:
        reader: A reader at the type code; it is moved past the value.
        find_type: Returns the type of a binary object by type id, to name its fields.
        depth: Nesting depth so far. Values nested deeper than 64 count as corrupted.

    Raises:
        RemoteProtocolError: Truncated bytes, an unknown type code, or impossible lengths.
        UnknownObjectSchema: `find_type` does not know the schema of an object.
    """
    return _ValueReading(find_type).value(reader, depth)


def uuid_from_wire(raw: bytes | memoryview) -> uuid.UUID:
    """Read a UUID: two little-endian 64-bit halves."""
    data = bytes(raw)
    return uuid.UUID(bytes=data[7::-1] + data[:7:-1])


class _ValueReading:
    """Reads the values of one message. A value may refer to an earlier one."""

    def __init__(self, find_type: FindType | None) -> None:
        self._find = find_type
        self._read: dict[int, Any] = {}  # by the offset of the type code

    def value(self, reader: Reader, depth: int) -> Any:
        if depth > _MAX_DEPTH:
            raise RemoteProtocolError(f"corrupted message: values nested more than {_MAX_DEPTH} deep")
        code = reader.int8() & 0xFF
        if code in SCALARS:
            return _scalar(reader, code)
        if code == TypeCode.BYTE_ARRAY:
            return bytes(reader.take(reader.count()))
        if code in ARRAYS:
            dtype = dtype_of(code)
            return np.frombuffer(reader.take(reader.count(dtype.itemsize) * dtype.itemsize), dtype).copy()
        if code in _READERS:
            return _READERS[code](reader)
        if code in VALUES_BEHIND_COUNT:
            return self._array(reader, code, depth + 1)
        read = _NESTED.get(code)
        if read is None:
            raise RemoteProtocolError(f"unknown type code {code} at offset {reader.position - 1}")
        return read(self, reader, code, depth + 1)

    def _all_of(self, made: list[Any], start: int, reader: Reader, size: int, depth: int) -> Any:
        """Fill a list. It is registered before it is filled, because its items may refer to it."""
        self._read[start] = made
        for _ in range(size):
            made.append(self.value(reader, depth))
        return made

    def _array(self, reader: Reader, code: int, depth: int) -> Any:
        start = reader.position - 1
        return self._all_of(TypedArray((), code), start, reader, reader.count(), depth)

    def _object_array(self, reader: Reader, code: int, depth: int) -> Any:
        start = reader.position - 1
        made = TypedArray((), code, *_class_of(reader))
        return self._all_of(made, start, reader, reader.count(), depth)

    def _collection(self, reader: Reader, _code: int, depth: int) -> Any:
        start, size = reader.position - 1, reader.count()
        return self._all_of(TypedCollection((), reader.int8()), start, reader, size, depth)

    def _map(self, reader: Reader, _code: int, depth: int) -> TypedMap:
        start, size = reader.position - 1, reader.count(2)
        made = self._read[start] = TypedMap((), reader.int8())
        for _ in range(size):
            made.append((self.value(reader, depth), self.value(reader, depth)))
        return made

    def _enum(self, reader: Reader, code: int, _depth: int) -> EnumValue:
        type_id, class_name = _class_of(reader)
        ordinal = reader.int32()
        known = self._find(type_id or name_id(class_name or "")) if self._find else None
        return EnumValue.of(
            ordinal,
            type_id,
            code,
            class_name=class_name,
            type_name=known.name if known else class_name,
            name=known.enum_names.get(ordinal) if known else None,
        )

    def _class(self, reader: Reader, _code: int, _depth: int) -> JavaClass:
        type_id, class_name = _class_of(reader)
        known = self._find(type_id) if self._find and type_id else None
        return JavaClass.of(
            class_name or (known.name if known else f"class {type_id & 0xFFFFFFFF:#010x}"), type_id
        )

    def _wrapped(self, reader: Reader, _code: int, depth: int) -> Any:
        data = reader.take(reader.count())
        start = _inside(reader.int32(), len(data))
        return _ValueReading(self._find).value(Reader(data, start), depth)

    def _handle(self, reader: Reader, _code: int, depth: int) -> Any:
        here = reader.position - 1
        place = here - reader.int32()
        if not 0 <= place < here:
            raise RemoteProtocolError(f"corrupted message: offset {here} refers to offset {place}")
        if place not in self._read:  # before the place where reading began, in a part of an object
            return self.value(Reader(reader.view, place), depth)
        return self._read[place]

    def _object(self, reader: Reader, _code: int, depth: int) -> BinaryObject:
        start = reader.position - 1
        header = read_header(reader, start)
        view = reader.view[: start + header.length]
        body = view[start:]
        type_id, type_name = header.type_id, None
        if type_id == 0:  # the cluster does not know the class: its name comes before the fields
            type_name = _text(Reader(view, start + HEADER_BYTES))
            type_id = name_id(type_name)
        binary_type = self._find(type_id) if self._find else None
        names = {field_id: name for name, (_, field_id) in binary_type.fields.items()} if binary_type else {}
        offsets = [
            (names.get(field_id, f"field {field_id & 0xFFFFFFFF:#010x}"), field_id, offset)
            for field_id, offset in header.field_offsets(body, binary_type)
        ]
        fields: dict[str, Any] = {}
        raw_start, raw_end = header.raw_range(body)
        made = self._read[start] = BinaryObject(
            binary_type.name if binary_type else type_name or f"type {type_id & 0xFFFFFFFF:#010x}",
            fields,
            bytes(body[raw_start:raw_end]),
            ObjectForm(type_id, {name: field_id for name, field_id, _ in offsets}, header.form_flags),
        )
        for name, _, offset in offsets:
            fields[name] = self.value(Reader(view, start + _inside(offset, len(body))), depth)
        reader.position = start + header.length
        return made


def _scalar(reader: Reader, code: int) -> Any:
    dtype = dtype_of(code)
    value = np.frombuffer(reader.take(dtype.itemsize), dtype)[0].item()
    if code in INTEGERS:
        return INTEGERS[code](value)
    return Float(value) if code == TypeCode.FLOAT else value


def _class_of(reader: Reader) -> tuple[int, str | None]:
    """Read the id of a type or, if it is 0, the name of the class."""
    type_id = reader.int32()
    return (type_id, None) if type_id else (0, _text(reader))


def _text(reader: Reader) -> str:
    code = reader.int8()
    if code != TypeCode.STRING:
        raise RemoteProtocolError(
            f"corrupted message: type code {code} where the name of a class was expected"
        )
    return reader.text()


def _inside(offset: int, size: int) -> int:
    if not 0 <= offset < max(size, 1):
        raise RemoteProtocolError(f"corrupted object: offset {offset} in {size} bytes")
    return offset


def _optimized(reader: Reader) -> SqlDate | JavaSerialized:
    """Read a java.sql.Date. Other values serialised by Java stay bytes."""
    raw = reader.take(reader.count())
    if len(raw) != SQL_DATE_BYTES or bytes(raw[:5]) != SQL_DATE_HEAD:
        return JavaSerialized(raw)
    return SqlDate.of(int.from_bytes(raw[-8:], "little", signed=True))


def _decimal(reader: Reader) -> decimal.Decimal:
    scale = reader.int32()
    return decimal_from_wire(scale, bytes(reader.take(reader.count())))


_READERS: dict[int, Callable[[Reader], Any]] = {
    TypeCode.NULL: lambda _reader: None,
    TypeCode.STRING: lambda reader: reader.text(),
    TypeCode.UUID: lambda reader: uuid_from_wire(reader.take(16)),
    TypeCode.DATE: lambda reader: UtilDate.of(reader.int64()),
    TypeCode.TIMESTAMP: lambda reader: Timestamp.of(reader.int64(), reader.int32()),
    TypeCode.TIME: lambda reader: time_of(reader.int64()),
    TypeCode.DECIMAL: _decimal,
    TypeCode.OPTIMIZED: _optimized,
}
_NESTED: dict[int, Callable[[_ValueReading, Reader, int, int], Any]] = {
    TypeCode.ENUM: _ValueReading._enum,
    TypeCode.BINARY_ENUM: _ValueReading._enum,
    TypeCode.OBJECT_ARRAY: _ValueReading._object_array,
    TypeCode.ENUM_ARRAY: _ValueReading._object_array,
    TypeCode.COLLECTION: _ValueReading._collection,
    TypeCode.MAP: _ValueReading._map,
    TypeCode.CLASS: _ValueReading._class,
    TypeCode.WRAPPED_OBJECT: _ValueReading._wrapped,
    TypeCode.HANDLE: _ValueReading._handle,
    TypeCode.BINARY_OBJECT: _ValueReading._object,
}
