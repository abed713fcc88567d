"""Instants on the wire: milliseconds since 1970 in UTC, and the nanoseconds within the millisecond.

They range from year 1 to 9999, like Python's calendar and SQL. NumPy's nanoseconds range only from 1677 to 2262;
conversions use them only for instants within that range. Times without a zone count as UTC.
"""

from __future__ import annotations

import datetime as dt
import struct
from functools import cache
from typing import TYPE_CHECKING, Any

from ignite_tf_magic.errors import LocalProtocolError, RemoteProtocolError
from ignite_tf_magic.protocol.lazy_numpy import np

if TYPE_CHECKING:
    from numpy.typing import NDArray


@cache
def wire_dtype() -> np.dtype[Any]:
    """Return the dtype of an encoded timestamp without its type code: milliseconds since 1970 and nanoseconds."""
    return np.dtype([("millis", "<i8"), ("nanos", "<i4")])


MIN_MILLIS = -62_135_596_800_000
MAX_MILLIS = 253_402_300_799_999
# The whole years of NumPy's nanoseconds, 1678 to 2261: nearer to the ends, NumPy's own casts overflow.
_FIRST_MILLIS_IN_NANOS = -9_214_560_000_000
_LAST_MILLIS_IN_NANOS = 9_214_646_399_999
# Milliseconds whose nanoseconds all fit into an int64; _rows.c has the same numbers.
MIN_MILLIS_AS_NANOS = -9_223_372_036_854
MAX_MILLIS_AS_NANOS = 9_223_372_036_853
# The optimised marshaller writes java.sql.Date as 'f', the id of the class, a checksum of two bytes, milliseconds.
SQL_DATE_BYTES = 15
SQL_DATE_HEAD = b"f" + (1087757882).to_bytes(4, "little")
_SQL_DATE = struct.Struct("<5sHq")
_HOURS_13_MS = 13 * 3_600_000
DAY_MS = 86_400_000
_SQL_DATE_CHECKSUM = 0x6697
_EPOCH = dt.datetime(1970, 1, 1)
_EPOCH_UTC = _EPOCH.replace(tzinfo=dt.timezone.utc)
_NANOS_OF_MILLI = 1_000_000
_FIRST_GREGORIAN_DAY = -141_427  # 15 October 1582
_NANOS = {
    "W": 604_800_000_000_000,
    "D": 86_400_000_000_000,
    "h": 3_600_000_000_000,
    "m": 60_000_000_000,
    "s": 1_000_000_000,
    "ms": 1_000_000,
    "us": 1000,
    "ns": 1,
}
_PARTS_OF_NANO = {"ps": 1000, "fs": 1_000_000, "as": 1_000_000_000}


def instant_of(value: dt.datetime | np.datetime64) -> tuple[int, int] | None:
    """Return an instant as milliseconds since 1970 and nanoseconds within the millisecond; None for NaT.

    Raises:
        LocalProtocolError: The instant is outside of the years 1 to 9999.
    """
    if isinstance(value, np.datetime64):
        return None if np.isnat(value) else _checked(*divmod(_nanos(value), _NANOS_OF_MILLI), value)
    if (
        to_numpy := getattr(value, "to_datetime64", None)
    ) is not None:  # a pandas Timestamp, which has nanoseconds and NaT
        return instant_of(to_numpy())
    since = value - (_EPOCH if value.tzinfo is None else _EPOCH_UTC)
    micros = (since.days * 86400 + since.seconds) * 1_000_000 + since.microseconds
    return _checked(micros // 1000, micros % 1000 * 1000 + getattr(value, "nanosecond", 0), value)


def _nanos(value: np.datetime64) -> int:
    unit, count = np.datetime_data(value.dtype)
    if unit in ("Y", "M"):  # of varying length; the range is checked first: days far outside it overflow
        if not 1 <= 1970 + int(value.astype("M8[Y]").view(np.int64)) <= 9999:
            raise _outside(value)
        return _nanos(value.astype("M8[D]"))
    ticks = int(value.view(np.int64)) * count
    return ticks * _NANOS[unit] if unit in _NANOS else ticks // _PARTS_OF_NANO[unit]


def _checked(millis: int, nanos: int, value: Any) -> tuple[int, int]:
    if not MIN_MILLIS <= millis <= MAX_MILLIS:
        raise _outside(value)
    return millis, nanos


def _outside(value: Any) -> LocalProtocolError:
    return LocalProtocolError(
        f"the time {value} is outside of the years 1 to 9999, the limits of Ignite's timestamps here"
    )


def instants_of(column: NDArray[Any]) -> NDArray[Any]:
    """Return a column of datetime64 without NaT as `wire_dtype`.

    Raises:
        LocalProtocolError: An instant is outside of the years 1 to 9999.
    """
    if np.datetime_data(column.dtype)[0] in ("ns", *_PARTS_OF_NANO):
        per_milli, nanos = _NANOS_OF_MILLI, column.astype("M8[ns]").view(np.int64)
    else:
        first, last = (np.datetime64(each, "us") for each in ("0001-01-01", "9999-12-31T23:59:59.999999"))
        # Check in the column's own unit first: in a finer one, values far outside may overflow.
        for checked in (column, column.astype("M8[us]")):
            outside = (checked < first.astype(checked.dtype)) | (checked > last.astype(checked.dtype))
            if outside.any():
                raise _outside(f"{column[outside][0]} (row {int(np.flatnonzero(outside)[0])})")
        per_milli, nanos = 1000, column.astype("M8[us]").view(np.int64)
    found = np.empty(len(column), wire_dtype())
    found["millis"], rest = np.divmod(nanos, per_milli)
    found["nanos"] = rest * (_NANOS_OF_MILLI // per_milli)
    return found


def to_datetime(millis: int, nanos: int) -> dt.datetime:
    """Return an instant as a datetime in UTC without a zone, to the microsecond.

    Raises:
        RemoteProtocolError: The instant is outside of the years 1 to 9999.
    """
    try:
        return _EPOCH + dt.timedelta(milliseconds=millis, microseconds=nanos // 1000)
    except OverflowError:
        raise RemoteProtocolError(
            f"a time of {millis} ms since 1970 is outside of the years 1 to 9999, which Python's calendar has"
        ) from None


def to_datetime64(millis: int, nanos: int) -> np.datetime64:
    """Return an instant in UTC, in nanoseconds or, before 1678 and after 2261, in microseconds.

    Raises:
        RemoteProtocolError: The instant is outside of the range of microseconds, too.
    """
    if _FIRST_MILLIS_IN_NANOS <= millis <= _LAST_MILLIS_IN_NANOS:
        return np.datetime64(millis * _NANOS_OF_MILLI + nanos, "ns")
    try:
        return np.datetime64(millis * 1000 + nanos // 1000, "us")
    except OverflowError:
        raise RemoteProtocolError(
            f"a time of {millis} ms since 1970 is outside of what NumPy can hold"
        ) from None


def nanos_of_wire(instants: NDArray[Any]) -> NDArray[Any] | None:
    """Return instants as datetime64[ns], or None if `to_datetime64` does not return nanoseconds for all of them."""
    millis = instants["millis"]
    if ((millis < _FIRST_MILLIS_IN_NANOS) | (millis > _LAST_MILLIS_IN_NANOS)).any():
        return None
    nanos: NDArray[Any] = (millis * _NANOS_OF_MILLI + instants["nanos"]).view("M8[ns]")
    return nanos


def millis_of_date(value: dt.date) -> int:
    """Return midnight of a date in UTC, in milliseconds since 1970.

    Raises:
        LocalProtocolError: The date is before 15 October 1582, where Java uses another calendar.
    """
    days = value.toordinal() - _EPOCH.toordinal()
    if days < _FIRST_GREGORIAN_DAY:
        raise LocalProtocolError(
            f"the date {value} is before 15 October 1582, and Java counts those days by another calendar; give a "
            "datetime, or text"
        )
    return days * DAY_MS


def sql_date(value: dt.date) -> bytes:
    """Return a date as Java serialises java.sql.Date.

    Raises:
        LocalProtocolError: As for `millis_of_date`.
    """
    return sql_date_of(millis_of_date(value))


def sql_date_of(millis: int) -> bytes:
    """Return the java.sql.Date of these milliseconds since 1970, as Java serialises it."""
    return _SQL_DATE.pack(SQL_DATE_HEAD, _SQL_DATE_CHECKSUM, millis)


def millis_of_time(value: dt.time) -> int:
    """Return a time of day in milliseconds.

    Raises:
        LocalProtocolError: The time has a zone or fractions of a millisecond, which Ignite's TIME cannot hold.
    """
    if value.tzinfo is not None or value.microsecond % 1000:
        what = "a zone" if value.tzinfo is not None else "parts of a millisecond"
        raise LocalProtocolError(
            f"the time {value} has {what}, which Ignite's TIME cannot hold; cut it off, or give text"
        )
    return ((value.hour * 60 + value.minute) * 60 + value.second) * 1000 + value.microsecond // 1000


def date_of_sql(millis: int) -> dt.date:
    """Return the date of a java.sql.Date, which is midnight in an unknown zone, in milliseconds since 1970.

    The result is right for zones from UTC-10 to UTC+13.

    Raises:
        RemoteProtocolError: The date is outside of the years 1 to 9999.
    """
    return date_of_java((millis + _HOURS_13_MS) // DAY_MS)


def time_of_sql(millis: int) -> dt.time:
    """Return the time of day of a java.sql.Time, given in milliseconds since 1970."""
    return to_datetime(millis % DAY_MS, 0).time()


def date_of_java(day: int) -> dt.date:
    """Return the date that Java assigns to a day since 1970: before 15 October 1582 a Julian date.

    Raises:
        RemoteProtocolError: The date is outside of the years 1 to 9999, or does not exist in Python's calendar.
    """
    if day >= _FIRST_GREGORIAN_DAY:
        return to_datetime(day * DAY_MS, 0).date()
    since_march_0 = day + 719_470  # days since 1 March of the Julian year 0
    year, of_year = divmod(4 * since_march_0 + 3, 1461)
    month, of_month = divmod(5 * (of_year // 4) + 2, 153)
    year, month = (year, month + 3) if month < 10 else (year + 1, month - 9)
    try:
        return dt.date(year, month, of_month // 5 + 1)
    except ValueError:  # also 29 February of a year that has none in Python's calendar
        raise RemoteProtocolError(
            f"a date of {day} days since 1970, day {of_month // 5 + 1} of month {month} of year {year}, is not in "
            "Python's calendar"
        ) from None
