"""Binary objects, their types, and the lengths of values, for both reading and writing of values.

Source: Ignite documentation, "Binary Client Protocol", data format.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from typing import Any

from ignite_tf_magic.errors import RemoteProtocolError
from ignite_tf_magic.protocol.buffer import Reader
from ignite_tf_magic.protocol.lazy_numpy import np
from ignite_tf_magic.protocol.ops import ObjectFlag, TypeCode

HEADER_BYTES = 24
_HEADER = struct.Struct("<bbhiiiii")
_FNV_OFFSET = 0x811C9DC5
_FNV_PRIME = 0x01000193
_RAW_OFFSET_BYTES = 4
_COMPACT = ObjectFlag.USER_TYPE | ObjectFlag.COMPACT_FOOTER
_OF_FORM = ObjectFlag.USER_TYPE | ObjectFlag.COMPACT_FOOTER

# Type code of a scalar -> name of its NumPy dtype.
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
# Java's byte is signed, but byte[] is read as unsigned, because it usually holds pixels or files.
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
    """Return the dtype of a scalar or array type code."""
    return np.dtype(SCALARS.get(code) or ARRAYS[code])


@dataclass(frozen=True, slots=True)
class BinaryType:
    """The cluster's metadata of one type of binary objects.

    Attributes:
        fields: Field name -> (type code, field id), in the type's order.
        schemas: Schema id -> field ids, in the order in which objects of this schema store them.
        enum_names: Ordinal -> name, for an enum.
    """

    type_id: int
    name: str
    fields: Mapping[str, tuple[int, int]]
    schemas: Mapping[int, tuple[int, ...]]
    affinity_field: str | None = None
    enum_names: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ObjectForm:
    """How an object that was read was encoded, apart from its fields; it is written back in the same way.

    Attributes:
        type_id: Type id in the object, which need not be the hash of the type's name.
        field_ids: Field name -> field id in the object, which need not be the hash of the name.
        flags: The flags USER_TYPE and COMPACT_FOOTER. A compact footer has no field ids.
    """

    type_id: int
    field_ids: Mapping[str, int]
    flags: int


@dataclass(frozen=True, slots=True)
class BinaryObject:
    """A binary object with its fields by name, or by "field 0x..." if the type is unknown.

    Objects that refer to each other in a circle do so in Python, too. Compare their `fields`: `==` recurses endlessly.

    Attributes:
        raw: Data that the object's class wrote after the fields, in a format that only the class knows.
        form: How the object was encoded, if it was read; else None.
    """

    type_name: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    raw: bytes = b""
    form: ObjectForm | None = field(default=None, compare=False, repr=False)

    @property
    def type_id(self) -> int:
        """Id of its type."""
        return self.form.type_id if self.form else name_id(self.type_name)

    @property
    def field_ids(self) -> tuple[int, ...]:
        """Ids of its fields, in their order."""
        known = self.form.field_ids if self.form else {}
        return tuple(known[name] if name in known else name_id(name) for name in self.fields)


class UnknownObjectSchema(RemoteProtocolError):
    """An object has a schema that the metadata of its type lacks. The cluster may know the schema by now.

    Attributes:
        type_id: Id of the type.
        schema_id: Id of the schema.
    """

    def __init__(self, type_id: int, schema_id: int) -> None:
        super().__init__(f"schema {schema_id:#x} of type {type_id:#x} is unknown")
        self.type_id, self.schema_id = type_id, schema_id


FindType = Callable[[int], BinaryType | None]


def java_hash(text: str) -> int:
    """Hash a string as `java.lang.String.hashCode` does. The hash of a cache's name is the cache's id."""
    value = 0
    for unit in _utf16_units(text):
        value = (31 * value + unit) & 0xFFFFFFFF
    return _signed(value)


@lru_cache(4096)  # called for each field of each object that is written
def name_id(name: str) -> int:
    """Return the id of a type or field: the hash of its lower-case name."""
    return java_hash(name.lower())


@lru_cache(1024)
def schema_id(field_ids: tuple[int, ...]) -> int:
    """Return the id of a schema: FNV-1a over the bytes of its field ids."""
    value = _FNV_OFFSET
    for field_id in field_ids:
        for shift in (0, 8, 16, 24):
            value = ((value ^ (field_id >> shift & 0xFF)) * _FNV_PRIME) & 0xFFFFFFFF
    return _signed(value)


def array_hash(data: bytes | memoryview) -> int:
    """Hash bytes as `java.util.Arrays.hashCode` does. Binary objects have this hash of their fields in the header."""
    value = 1
    for byte in data:
        value = (31 * value + (byte - 256 if byte > 127 else byte)) & 0xFFFFFFFF
    return _signed(value)


def _utf16_units(text: str) -> tuple[int, ...]:
    raw = text.encode("utf-16-le", "surrogatepass")
    return struct.unpack(f"<{len(raw) // 2}H", raw)


def _signed(value: int) -> int:
    return value - (1 << 32) if value & 0x80000000 else value


def object_header(
    type_id: int,
    field_ids: tuple[int, ...],
    offsets: Sequence[int],
    body_bytes: int,
    body_hash: int,
    *,
    flags: int = _COMPACT,
    raw_at: int = 0,
) -> bytes:
    """Build the header of an object.

    Args:
        type_id: Id of the type.
        field_ids: Ids of the fields, in stored order.
        offsets: Offsets of the fields, from the object's start.
        body_bytes: Size in bytes of the fields and of the raw data after them.
        body_hash: Hash of these bytes.
        flags: The flags USER_TYPE and COMPACT_FOOTER, as in `ObjectForm`.
        raw_at: Offset of the raw data, from the object's start; 0 if there is none.
    """
    end = HEADER_BYTES + body_bytes
    if field_ids:
        flags |= ObjectFlag.HAS_SCHEMA | _WIDTH_FLAG[_offset_width(offsets)]
    if raw_at:
        flags |= ObjectFlag.HAS_RAW_DATA
    footer = object_footer(offsets, field_ids, flags=flags, raw_at=raw_at)
    return _HEADER.pack(
        TypeCode.BINARY_OBJECT,
        1,
        flags,
        type_id,
        body_hash,
        end + len(footer),
        schema_id(field_ids),
        end if field_ids else raw_at or HEADER_BYTES,
    )


def object_footer(
    offsets: Sequence[int], field_ids: Sequence[int] = (), *, flags: int = _COMPACT, raw_at: int = 0
) -> bytes:
    """Build a footer: the offsets, only as wide as the last one needs, and the field ids unless it is compact."""
    if not offsets:
        return b""
    width = _offset_width(offsets)
    pieces = [offset.to_bytes(width, "little") for offset in offsets]
    if not flags & ObjectFlag.COMPACT_FOOTER:
        named = zip(field_ids, pieces, strict=True)
        pieces = [field_id.to_bytes(4, "little", signed=True) + piece for field_id, piece in named]
    return b"".join(pieces) + (raw_at.to_bytes(_RAW_OFFSET_BYTES, "little") if raw_at else b"")


def _offset_width(offsets: Sequence[int]) -> int:
    last = offsets[-1] if offsets else 0
    return 1 if last < 1 << 8 else 2 if last < 1 << 16 else 4


_WIDTH_FLAG = {1: ObjectFlag.OFFSET_ONE_BYTE, 2: ObjectFlag.OFFSET_TWO_BYTES, 4: ObjectFlag(0)}


def binary_type_of(type_name: str, codes: Mapping[str, int]) -> BinaryType:
    """Return a type with one schema, from the type codes of its fields in stored order."""
    fields = {name: (code, name_id(name)) for name, code in codes.items()}
    field_ids = tuple(field_id for _, field_id in fields.values())
    return BinaryType(name_id(type_name), type_name, fields, {schema_id(field_ids): field_ids})


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

    @property
    def form_flags(self) -> int:
        """The flags that `ObjectForm` keeps."""
        return self.flags & _OF_FORM

    def raw_range(self, body: memoryview) -> tuple[int, int]:
        """Return where raw data begins and ends, from the object's start; both are 0 if there is none.

        Raises:
            RemoteProtocolError: The raw data would be outside of the object.
        """
        if not self.flags & ObjectFlag.HAS_RAW_DATA:
            return 0, 0
        if not self.flags & ObjectFlag.HAS_SCHEMA:
            start, end = self.footer, self.length
        else:
            start, end = Reader(body, self.length - _RAW_OFFSET_BYTES).int32(), self.footer
        if not HEADER_BYTES <= start <= end:
            raise RemoteProtocolError(f"corrupted object: raw data from {start} to {end}")
        return start, end

    def field_offsets(self, body: memoryview, binary_type: BinaryType | None) -> list[tuple[int, int]]:
        """Return (field id, offset from the object's start) of each field, in stored order.

        Raises:
            UnknownObjectSchema: The footer is compact and the type lacks this schema.
            RemoteProtocolError: The footer is truncated.
        """
        if not self.flags & ObjectFlag.HAS_SCHEMA:
            return []
        end = self.length - (4 if self.flags & ObjectFlag.HAS_RAW_DATA else 0)
        footer = Reader(body[: max(end, 0)], self.footer)
        if self.flags & ObjectFlag.COMPACT_FOOTER:
            ids = binary_type.schemas.get(self.schema_id) if binary_type else None
            if ids is None:
                raise UnknownObjectSchema(self.type_id, self.schema_id)
            return [(field_id, self._offset(footer)) for field_id in ids]
        pairs = []
        while footer.remaining >= 4 + self.offset_bytes:
            pairs.append((footer.int32(), self._offset(footer)))
        return pairs

    def _offset(self, footer: Reader) -> int:
        return int.from_bytes(footer.take(self.offset_bytes), "little")


def read_header(reader: Reader, start: int) -> ObjectHeader:
    """Read the header of the binary object whose type code is at `start`.

    Raises:
        RemoteProtocolError: The header is truncated, or its lengths contradict each other.
    """
    try:
        _, _, flags, type_id, _, length, schema, footer = _HEADER.unpack_from(reader.view, start)
    except struct.error:
        raise RemoteProtocolError(f"truncated object header at offset {start}") from None
    flags &= 0xFFFF
    if length < HEADER_BYTES or start + length > len(reader.view):
        raise RemoteProtocolError(f"corrupted object: length {length} at offset {start}")
    footer_end = length - (4 if flags & ObjectFlag.HAS_RAW_DATA else 0)
    if flags & ObjectFlag.HAS_SCHEMA and not HEADER_BYTES <= footer <= footer_end:
        raise RemoteProtocolError(f"corrupted object: footer at {footer} of {length}")
    return ObjectHeader(flags, type_id, length, schema, footer)


_SIZE_OF_PLAIN = {
    **{code: int(name[2:] or 1) for code, name in SCALARS.items()},
    TypeCode.NULL: 0,
    TypeCode.UUID: 16,
    TypeCode.DATE: 8,
    TypeCode.TIMESTAMP: 12,
    TypeCode.TIME: 8,
    TypeCode.HANDLE: 4,
}
VALUES_BEHIND_COUNT = frozenset(
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
    """Move the reader past one value of any type, without decoding it.

    Raises:
        RemoteProtocolError: Truncated bytes, an unknown type code, impossible lengths, or nesting deeper than 64.
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
    if code in (
        TypeCode.ENUM,
        TypeCode.BINARY_ENUM,
        TypeCode.OBJECT_ARRAY,
        TypeCode.ENUM_ARRAY,
        TypeCode.CLASS,
    ):
        if reader.int32() == 0:
            skip_value(reader, depth)
        if code == TypeCode.CLASS:
            return
        if code in (TypeCode.ENUM, TypeCode.BINARY_ENUM):
            reader.int32()
            return
        size = reader.count()
    elif code in (TypeCode.COLLECTION, TypeCode.MAP):
        size = reader.count() * (2 if code == TypeCode.MAP else 1)
        reader.int8()
    elif code in VALUES_BEHIND_COUNT:
        size = reader.count()
    else:
        raise RemoteProtocolError(f"unknown type code {code} at offset {reader.position - 1}")
    for _ in range(size):
        skip_value(reader, depth)


_AFFINITY_KEY = replace(
    binary_type_of("AffinityKey", {"key": TypeCode.BINARY_OBJECT, "affKey": TypeCode.BINARY_OBJECT}),
    name="org.apache.ignite.cache.affinity.AffinityKey",
)
# Ignite's own types, whose metadata clusters do not return.
BUILT_IN_TYPES = {_AFFINITY_KEY.type_id: _AFFINITY_KEY}
