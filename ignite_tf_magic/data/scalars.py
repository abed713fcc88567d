"""Converts single Python values to a column of one kind. `--dtype NAME=KIND` accepts the names of kinds, too."""

from __future__ import annotations

import datetime as dt
import decimal
import re
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ignite_tf_magic.data.columns import SourceColumn, is_encodable
from ignite_tf_magic.errors import LocalProtocolError
from ignite_tf_magic.protocol.ops import TypeCode
from ignite_tf_magic.protocol.times import instant_of, millis_of_date, millis_of_time

FIRST_INEXACT = 2**53  # from here on floats cannot represent every whole number
HALF_CHARACTER = (
    "half a character (a lone surrogate), which UTF-8 cannot hold; decode the text as what it was, or replace it: "
    "text.encode('utf-8', 'replace').decode()"
)
_ZULU = re.compile("[zZ]$")  # Python 3.10 cannot parse it
_FRACTION = re.compile(r"(?<=:\d\d)[.,](\d+)")
_WHOLE_AS_REAL = re.compile(r"([+-]?\d+)\.0*")  # pandas writes whole numbers like this if some are missing
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")
NUMBERS: dict[str, Any] = {
    "int": np.int64,
    **{f"int{bits}": getattr(np, f"int{bits}") for bits in (8, 16, 32, 64)},
    "float": np.float64,
    **{f"float{bits}": getattr(np, f"float{bits}") for bits in (32, 64)},
    "bool": np.bool_,
}
CODES = {
    "text": TypeCode.STRING,
    "bytes": TypeCode.BYTE_ARRAY,
    "decimal": TypeCode.DECIMAL,
    # The servers' own metadata uses this type for java.sql.Date.
    "date": TypeCode.BINARY_OBJECT,
    "time": TypeCode.TIME,
    "uuid": TypeCode.UUID,
}
KINDS = (*NUMBERS, *(kind for kind in CODES if kind != "bytes"), "timestamp")
_KIND_OF_TYPE: dict[type, str] = {
    bool: "bool",
    int: "int",
    float: "float",
    str: "text",
    bytes: "bytes",
    bytearray: "bytes",
    decimal.Decimal: "decimal",
    dt.datetime: "timestamp",
    dt.date: "date",
    dt.time: "time",
    uuid.UUID: "uuid",
    list: "list",
    tuple: "list",
    np.ndarray: "list",
    np.datetime64: "timestamp",
}
_NAMES = {"text": "str", "timestamp": "datetime", "decimal": "Decimal", "uuid": "UUID"}


def is_missing(value: Any) -> bool:
    """Return whether a value is missing: None, NA or NaT of pandas, or NaT of NumPy. NaN is a float."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, np.datetime64) and bool(np.isnat(value))


def is_nan(value: Any) -> bool:
    """Return whether a value is NaN. Among floats NaN is a number; among other values it means missing."""
    return isinstance(value, (float, np.floating)) and bool(value != value)


def kind_of(value: Any) -> str | None:
    """Return the kind of one value: None if missing, "nan" for NaN, the type's name if no kind fits."""
    if is_missing(value):
        return None
    found = _KIND_OF_TYPE.get(type(value))
    if found == "float":
        return found if value == value else "nan"
    if found is not None:
        return found
    if is_nan(value):
        return "nan"
    if isinstance(value, np.generic):
        kind = {"b": "bool", "i": "int", "u": "int", "f": "float", "U": "text", "S": "bytes"}.get(
            value.dtype.kind
        )
        if kind is not None:
            return kind
    return next(
        (kind for base, kind in _KIND_OF_TYPE.items() if isinstance(value, base)), type(value).__name__
    )


def count_kinds(values: Iterable[Any]) -> Counter[str]:
    """Count the kinds of the values that are not missing."""
    return Counter(kind for kind in map(kind_of, values) if kind is not None)


def listed(counts: Iterable[str]) -> str:
    """Return kinds as a list of Python type names."""
    return ", ".join(sorted(_NAMES.get(kind, kind) for kind in counts))


def scalar_column(name: str, values: Sequence[Any], kind: str, *, parse: bool = False) -> SourceColumn:
    """Convert values to a column of one kind. Values of other kinds are rejected; `parse` converts text."""
    rejects: dict[int, str] = {}
    made: list[Any] = [None] * len(values)
    make = _MAKERS.get(kind) or number_maker(kind)
    for row, value in enumerate(values):
        if is_missing(value):
            continue
        try:
            if isinstance(value, str) and kind != "text" and not parse:
                raise TypeError
            made[row] = make(value)
        except (LocalProtocolError, ValueError) as error:
            rejects[row] = str(error)
        except TypeError:
            if not is_nan(value):
                rejects[row] = other_kind(name, kind_of(value), kind)
    return _joined(kind, made, rejects)


def other_kind(name: str, found: str | None, wanted: str) -> str:
    """Return the message that a value is of another kind than its column."""
    return f"column {name!r} holds {listed({found or '', wanted})}, but must be of one kind; convert it first"


def _joined(kind: str, made: list[Any], rejects: Mapping[int, str]) -> SourceColumn:
    if kind == "timestamp":
        return _instants(made, dict(rejects))
    if kind in CODES:
        column = np.empty(len(made), object)
        column[:] = made
        return SourceColumn(column, code=CODES[kind], rejects=rejects)
    nulls = np.fromiter((each is None for each in made), np.bool_, len(made))
    fill = np.nan if kind.startswith("float") else 0
    numbers = np.array([fill if each is None else each for each in made], NUMBERS[kind])
    return SourceColumn(numbers, nulls if nulls.any() else None, rejects=rejects)


def _instants(made: list[tuple[int, int] | None], rejects: dict[int, str]) -> SourceColumn:
    """Return times in microseconds, or in nanoseconds if any of them needs that."""
    in_nanos = any(each is not None and each[1] % 1000 for each in made)
    nat = np.iinfo(np.int64).min
    found = np.full(len(made), nat, np.int64)
    for row, each in enumerate(made):
        if each is None:
            continue
        ticks = each[0] * 1_000_000 + each[1] if in_nanos else each[0] * 1000 + each[1] // 1000
        if nat < ticks <= -(nat + 1):
            found[row] = ticks
        else:
            rejects[row] = (
                "a time outside of 1677 to 2262, which nanoseconds cannot represent, and others of the column have some"
            )
    return SourceColumn(found.view("M8[ns]" if in_nanos else "M8[us]"), rejects=rejects)


def number_maker(kind: str) -> Callable[[Any], Any]:
    """Return a function that converts a value to a number, or raises TypeError or ValueError."""
    dtype = np.dtype(NUMBERS[kind])
    if dtype.kind == "b":
        return _truth
    if dtype.kind == "f":
        largest = float(np.finfo(dtype).max)
        return lambda value: _float(value, largest)
    info = np.iinfo(dtype)

    def whole(value: Any) -> int:
        if isinstance(value, str):
            value = _whole(value)
        if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
            raise TypeError
        if not info.min <= value <= info.max:
            raise ValueError(
                f"the integer {value} does not fit into {info.bits} bits; give text, Decimal or a float"
            )
        return int(value)

    return whole


def _truth(value: Any) -> bool:
    if isinstance(value, str):
        word = value.lower()
        if word not in ("true", "false"):
            raise ValueError(f"{value!r} is neither true nor false")
        return word == "true"
    if not isinstance(value, bool | np.bool_):
        raise TypeError
    return bool(value)


def _whole(text: str) -> int:
    try:
        return int(_WHOLE_AS_REAL.sub(r"\1", text))
    except ValueError:
        raise ValueError(_no_number(text, "whole number")) from None


def _no_number(text: str, wanted: str) -> str:
    hint = "; if its comma is a decimal point: --decimal ','" if _DECIMAL_COMMA.fullmatch(text) else ""
    return f"{text!r} is not a {wanted}{hint}"


def _float(value: Any, largest: float) -> float:
    if isinstance(value, bool | np.bool_) or not isinstance(value, str | int | float | np.number):
        raise TypeError
    try:
        made = float(value)
    except OverflowError:
        raise ValueError(f"the whole number {value} is too large for a float; give text or Decimal") from None
    except ValueError:
        raise ValueError(_no_number(str(value), "number")) from None
    if abs(made) > largest and "inf" not in str(value).lower():
        raise ValueError(
            f"{value} is too large for a float up to {largest:.2g}; give text or Decimal (--dtype NAME=decimal)"
        )
    if isinstance(value, int | np.integer) and abs(int(value)) > FIRST_INEXACT and int(made) != value:
        raise ValueError(
            f"the whole number {value}, which no float can represent, in a column of floats; give text or Decimal"
        )
    return made


def text_of(value: Any) -> str:
    """Return text that UTF-8 can hold, or raise TypeError or ValueError."""
    if not isinstance(value, str):
        raise TypeError
    if not is_encodable(value):
        raise ValueError(HALF_CHARACTER)
    return str(value)


def _bytes(value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray):
        raise TypeError
    return bytes(value)


def _decimal(value: Any) -> decimal.Decimal:
    if isinstance(value, bool) or not isinstance(value, str | int | decimal.Decimal):
        raise TypeError
    try:
        made = decimal.Decimal(value)
    except decimal.InvalidOperation:
        raise ValueError(f"{value!r} is not a decimal number") from None
    if not made.is_finite():
        raise ValueError(f"the decimal {value} is not a number")
    return made


def _date(value: Any) -> dt.date:
    made = dt.date.fromisoformat(value) if isinstance(value, str) else value
    if isinstance(made, dt.datetime) or not isinstance(made, dt.date):
        raise TypeError
    millis_of_date(made)
    return made


def _without_nanos(text: str) -> tuple[str, int]:
    """Return a time's text with six digits after the seconds, and its remaining nanoseconds."""
    found = _FRACTION.search(text)
    if found is None:
        return text, 0
    digits = found[1].rstrip("0").ljust(9, "0")
    if len(digits) > 9:
        raise ValueError(f"the time {text} has parts of a nanosecond; leave them out")
    return f"{text[: found.start()]}.{digits[:6]}{text[found.end() :]}", int(digits[6:])


def _time(value: Any) -> dt.time:
    made = value
    if isinstance(value, str):
        text, nanos = _without_nanos(value)
        if nanos:
            raise ValueError(f"the time {value} has parts of a millisecond, which SQL's TIME cannot hold")
        made = dt.time.fromisoformat(text)
    if not isinstance(made, dt.time):
        raise TypeError
    millis_of_time(made)
    return made


def _moment(value: Any) -> tuple[int, int] | None:
    made, nanos = value, 0
    if isinstance(value, str):
        text, nanos = _without_nanos(_ZULU.sub("+00:00", value))
        made = dt.datetime.fromisoformat(text)
    if not isinstance(made, dt.datetime | np.datetime64):
        raise TypeError
    instant = instant_of(made)
    return instant and (instant[0], instant[1] + nanos)


def _uuid(value: Any) -> uuid.UUID:
    made = uuid.UUID(value) if isinstance(value, str) else value
    if not isinstance(made, uuid.UUID):
        raise TypeError
    return made


_MAKERS: dict[str, Callable[[Any], Any]] = {
    "text": text_of,
    "bytes": _bytes,
    "decimal": _decimal,
    "date": _date,
    "time": _time,
    "timestamp": _moment,
    "uuid": _uuid,
}
