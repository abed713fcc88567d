"""Formats values as text, which keeps what numbers lose: all digits of decimals, enum names, years 1 to 9999."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Mapping

from ignite_tf_magic.errors import SchemaError
from ignite_tf_magic.protocol.buffer import Reader
from ignite_tf_magic.protocol.lazy_numpy import np
from ignite_tf_magic.protocol.objects import SCALARS, BinaryType
from ignite_tf_magic.protocol.ops import TypeCode
from ignite_tf_magic.protocol.sql_cells import read_cell
from ignite_tf_magic.protocol.times import MAX_MILLIS, MIN_MILLIS
from ignite_tf_magic.protocol.typed_values import EnumValue

_NANO_DIGITS = 6  # after the milliseconds
_WRITABLE = frozenset(
    (
        *(*SCALARS, TypeCode.STRING, TypeCode.UUID, TypeCode.DECIMAL, TypeCode.ENUM, TypeCode.BINARY_ENUM),
        *(TypeCode.DATE, TypeCode.OPTIMIZED, TypeCode.TIME, TypeCode.TIMESTAMP),
    )
)


class UnknownEnumValue(SchemaError):
    """The known types have no name for a value of an enum. The cluster may have a newer type.

    Attributes:
        type_id: Type id of the enum.
    """

    def __init__(self, message: str, type_id: int) -> None:
        super().__init__(message)
        self.type_id = type_id


def has_text(code: int) -> bool:
    """Return whether `text_of` can format values of a type."""
    return code in _WRITABLE


def text_of(value: memoryview, types: Mapping[int, BinaryType]) -> str:
    """Return the text of one value with its type code: 12.340, SENT, 0001-01-01T00:00:00.000000000, true.

    Decimals have no exponent. Times are in ISO 8601: an instant in UTC with nanoseconds, a SQL DATE as the day that was
    written, a TIME with milliseconds. Floats have the fewest digits that identify them.

    Args:
        value: The encoded value.
        types: Types of enums, by id.

    Raises:
        UnknownEnumValue: The value is of an enum, and no type has a name for it.
        SchemaError, RemoteProtocolError: The value has no text.
    """
    code, reader = value[0], Reader(value, 1)
    if code in (TypeCode.TIMESTAMP, TypeCode.DATE):
        millis = reader.int64()
        if not MIN_MILLIS <= millis <= MAX_MILLIS:
            raise SchemaError(f"a time of {millis} ms since 1970 is outside of the years 1 to 9999")
        nanos = reader.int32() if code == TypeCode.TIMESTAMP else 0
        return f"{np.datetime64(millis, 'ms')}{nanos:0{_NANO_DIGITS}d}"
    cell = read_cell(Reader(value), types.get)
    if isinstance(cell, EnumValue):
        return _enum_name(cell)
    if isinstance(cell, decimal.Decimal):
        return format(cell, "f")
    if isinstance(cell, dt.time):
        return cell.isoformat("milliseconds")
    if isinstance(cell, bool):
        return str(cell).lower()
    if code == TypeCode.FLOAT:
        return str(np.float32(cell))
    if isinstance(cell, bytes):
        raise SchemaError("a value that Java has serialised has no text")
    return str(cell)


def _enum_name(value: EnumValue) -> str:
    if value.name is None:
        whose = value.type_name or value.class_name or f"type {value.type_id & 0xFFFFFFFF:#010x}"
        raise UnknownEnumValue(
            f"the cluster has no name for the value {int(value)} of the enum {whose}", value.type_id
        )
    return value.name
