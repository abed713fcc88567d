"""Reads the fields of single rows with their exact values and any types, for inspecting a cache.

Training data goes through `columns`, which needs one type per field. Values are those of `sql_cells`: times keep their
nanoseconds, and decimals their digits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ignite_tf_magic.errors import RemoteProtocolError
from ignite_tf_magic.protocol.buffer import Reader
from ignite_tf_magic.protocol.objects import BinaryType, FindType, read_header, skip_value
from ignite_tf_magic.protocol.ops import TypeCode
from ignite_tf_magic.protocol.sql_cells import read_cell

Path = tuple[str, ...]
_NAMES = {TypeCode.BOOL: "boolean", TypeCode.OPTIMIZED: "date", TypeCode.DATE: "java.util.Date"}
_CLASS_ID_AT = 1
_MIN_SERIALISED_BYTES = 5
_MAX_DEPTH = 64


@dataclass(frozen=True, slots=True)
class RowField:
    """One field of one row.

    Attributes:
        code: Type code; NULL if there is no value.
        value: The value as `sql_cells.read_cell` returns it; None for an object whose type the cluster does not know.
    """

    code: int
    value: Any

    @property
    def java_class_id(self) -> int | None:
        """The class id of a value serialised by Java, which cannot be decoded here; None for other values."""
        if self.code != TypeCode.OPTIMIZED or not isinstance(self.value, bytes):
            return None
        raw = self.value[_CLASS_ID_AT:_MIN_SERIALISED_BYTES]
        return int.from_bytes(raw, "little", signed=True) if len(raw) == _MIN_SERIALISED_BYTES - 1 else 0


@dataclass(frozen=True, slots=True)
class RowFields:
    """One row.

    Attributes:
        types: Readable types of the key and the value: the name of a binary type, else as in `type_name`.
        fields: Path -> field: ("key",), ("val", "pixels"), ("val", "owner", "name"), ... A field of the type that the
            row lacks is null.
    """

    types: tuple[str, str]
    fields: dict[Path, RowField]


def read_row(row: memoryview, find_type: FindType) -> RowFields:
    """Read the key and the value of a row.

    Raises:
        RemoteProtocolError: Truncated bytes, an unknown type code, or impossible lengths.
    """
    reader = Reader(row)
    fields: dict[Path, RowField] = {}
    types = []
    for root in ("key", "val"):
        start = reader.position
        skip_value(reader)
        fields.update(_fields((root,), row, start, find_type))
        types.append(_type_of(row, start, find_type))
    return RowFields((types[0], types[1]), fields)


def type_name(code: int) -> str:
    """Return the readable name of a type: "long", "byte array", "date"."""
    known = _NAMES.get(TypeCode(code)) if code in tuple(TypeCode) else f"type code {code}"
    return known or TypeCode(code).name.lower().replace("_", " ")


def _fields(path: Path, view: memoryview, start: int, find_type: FindType) -> Iterator[tuple[Path, RowField]]:
    if len(path) > _MAX_DEPTH:
        raise RemoteProtocolError(f"corrupted message: values nested more than {_MAX_DEPTH} deep")
    view, start, code = _unwrapped(view, start)
    if code != TypeCode.BINARY_OBJECT:
        yield path, RowField(code, read_cell(Reader(view, start), find_type))
        return
    header = read_header(Reader(view), start)
    binary_type = find_type(header.type_id)
    if binary_type is None:
        yield path, RowField(code, None)
        return
    names = _names(binary_type)
    view = view[: start + header.length]
    for field_id, offset in header.field_offsets(view[start:], binary_type):
        name = names.pop(field_id, f"field {field_id & 0xFFFFFFFF:#010x}")
        yield from _fields((*path, name), view, start + offset, find_type)
    for name in names.values():
        yield (*path, name), RowField(TypeCode.NULL, None)


def _names(binary_type: BinaryType) -> dict[int, str]:
    return {field_id: name for name, (_, field_id) in binary_type.fields.items()}


def _type_of(view: memoryview, start: int, find_type: FindType) -> str:
    view, start, code = _unwrapped(view, start)
    if code != TypeCode.BINARY_OBJECT:
        return type_name(code)
    type_id = read_header(Reader(view), start).type_id
    binary_type = find_type(type_id)
    return binary_type.name if binary_type else f"an unknown type {type_id & 0xFFFFFFFF:#010x}"


def _unwrapped(view: memoryview, start: int) -> tuple[memoryview, int, int]:
    """Unwrap a value. Return the view that holds it, its offset there, and its type code."""
    while (code := Reader(view, start).int8() & 0xFF) == TypeCode.WRAPPED_OBJECT:
        reader = Reader(view, start + 1)
        view = reader.take(reader.count())
        start = reader.int32()
    return view, start, code
