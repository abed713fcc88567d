"""Rows as columns, the common form of every source.

This module does not depend on sources or caches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ignite_tf_magic.errors import LocalProtocolError, SourceError
from ignite_tf_magic.protocol.objects import name_id
from ignite_tf_magic.protocol.times import MAX_MILLIS, MIN_MILLIS, instant_of

CHUNK_ROWS = 1 << 16
CHUNK_BYTES = 32 << 20
_WIDER = {"u1": np.int16, "u2": np.int32, "u4": np.int64, "f2": np.float32}
_MAX_LONG = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """One column, with one item for each row.

    Attributes:
        values: One dimension: one primitive per row. `object` arrays hold str, bytes, Decimal, date, time, UUID, number
            arrays, lists of text, lists of number arrays, and None for a missing value. Times have their own unit, in
            UTC, and NaT. Two dimensions: one primitive array per row; `uint8` is a byte[].
        nulls: True for each row without a value. None if all rows have one, or if `values` shows missing ones itself.
        code: Type code on the wire of an `object` column.
        rejects: Row -> reason, for rows that cannot be stored.
    """

    values: NDArray[Any]
    nulls: NDArray[np.bool_] | None = None
    code: int | None = None
    rejects: Mapping[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.values)

    def take(self, rows: slice | NDArray[Any]) -> SourceColumn:
        """Return some of the rows. Rejects are not included."""
        return SourceColumn(self.values[rows], None if self.nulls is None else self.nulls[rows], self.code)


Batch = Mapping[str, SourceColumn]


@dataclass(frozen=True, slots=True)
class Columns:
    """Rows as columns of equal length, in the order of the source. See `SourceColumn` for the contents of a column.

    Attributes:
        values: Field name -> array.
        nulls: Field name -> rows without a value, for fields whose values do not show missing ones themselves.
        codes: Field name -> type code on the wire, for `object` arrays.
        keys: The unique keys of the rows: an array of one type, or of tuples if several columns are the key. None if
            the rows are numbered.
        key_codes: Key column -> type code on the wire.
    """

    values: dict[str, NDArray[Any]]
    nulls: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)
    codes: Mapping[str, int] = field(default_factory=dict)
    keys: NDArray[Any] | None = None
    key_codes: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(next(iter(self.values.values())))


def num_rows(batch: Batch) -> int:
    """Return the number of rows of a batch."""
    return len(next(iter(batch.values())))


def chunks_of(batch: Batch) -> Iterator[Batch]:
    """Split a batch into pieces small enough to be copied in memory."""
    total = num_rows(batch)
    # Texts and other objects are pointers here; the objects themselves are larger.
    row_bytes = sum(
        8 * each.values.nbytes if each.values.dtype.kind == "O" else each.values.nbytes
        for each in batch.values()
    )
    step = int(max(1, min(CHUNK_ROWS, CHUNK_BYTES * total // max(row_bytes, 1))))
    for first in range(0, total, step):
        rows = slice(first, first + step)
        yield {
            name: replace(
                column.take(rows),
                rejects={
                    row - first: why for row, why in column.rejects.items() if first <= row < first + step
                },
            )
            for name, column in batch.items()
        }


def check_names(source: str, names: Sequence[str]) -> None:
    """Refuse names that a cache cannot have, before the cache is created. A failed creation would block its name.

    Raises:
        SourceError: A name cannot be a field and a SQL column, or two names are the same to Ignite.
    """
    if not names:
        raise SourceError(f"{source} holds no columns; nothing was loaded")
    folded: dict[str, str] = {}
    ids: dict[int, str] = {}
    for name in names:
        if not name.strip():
            raise SourceError(f"{source} has a column without a name; give every column one")
        if not is_encodable(name):
            raise SourceError(
                f"column {name!a} of {source} has half a character (a lone surrogate); rename it"
            )
        if name.upper() in ("_KEY", "_VAL"):
            raise SourceError(f"column {name!r} of {source} has a name that Ignite reserves; rename it")
        other = folded.setdefault(name.upper(), name)  # as SQL folds names
        if other != name:
            raise SourceError(f"columns {other!r} and {name!r} of {source} differ by case only; rename one")
        other = ids.setdefault(name_id(name), name)
        if other != name:
            raise SourceError(
                f"columns {other!r} and {name!r} of {source} are the same to Ignite; rename one"
            )


def unique_names(names: Sequence[object]) -> list[str]:
    """Return names as text.

    Raises:
        SourceError: Two columns have the same name.
    """
    seen = [str(name) for name in names]
    twice = sorted({name for name in seen if seen.count(name) > 1})
    if twice:
        raise SourceError(
            f"columns must have different names; found twice: {', '.join(twice)}; rename one (.csv files: --header "
            "--names A,B,...)"
        )
    return seen


def is_encodable(text: str) -> bool:
    """Return whether UTF-8 can represent a text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def primitive(name: str, array: NDArray[Any], nulls: NDArray[np.bool_] | None = None) -> SourceColumn:
    """Convert numbers to the types that Ignite has: signed integers, floats, booleans, timestamps, byte[].

    Rows with more than one dimension become one array each, in C order: a 28 x 28 picture is 784 values.

    Raises:
        SourceError: Ignite has no such type.
    """
    if nulls is not None and not nulls.any():
        nulls = None
    if array.ndim > 2:
        array = array.reshape(len(array), -1) if array.size else array.reshape(0, 1)
    code = array.dtype.str[1:]
    if array.dtype.kind == "M":
        return _times(name, array)
    if array.dtype.kind not in "biuf" or code == "f16":
        raise SourceError(f"column {name!r} has the type {array.dtype}, which Ignite lacks; convert it first")
    if code == "u1" and array.ndim == 2:
        return SourceColumn(array, nulls)
    if code == "i1" and array.ndim == 2:  # a byte[] is read back as uint8
        return SourceColumn(array.astype(np.int16), nulls)
    if code == "u8":
        return _signed(array, nulls)
    return SourceColumn(array.astype(_WIDER.get(code, array.dtype.newbyteorder("=")), copy=False), nulls)


def _signed(array: NDArray[Any], nulls: NDArray[np.bool_] | None) -> SourceColumn:
    too_large = array > np.uint64(_MAX_LONG)
    rows = np.flatnonzero(too_large if array.ndim == 1 else too_large.any(1))
    reason = "an integer above 2**63 - 1, too large for Ignite's long; give text, Decimal or a float"
    return SourceColumn(array.astype(np.int64), nulls, rejects=dict.fromkeys(rows.tolist(), reason))


def _times(name: str, array: NDArray[Any]) -> SourceColumn:
    if array.ndim > 1:
        raise SourceError(f"column {name!r} holds arrays of times, which Ignite lacks; make a column of each")
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    rejects = {}
    for row in _suspicious(native):
        try:
            instant_of(native[row])
        except LocalProtocolError as error:
            rejects[int(row)] = f"{error}; clip it"
    if rejects:
        native = native.copy()
        native[list(rejects)] = np.datetime64("NaT")
    return SourceColumn(native, rejects=rejects)


def _suspicious(array: NDArray[Any]) -> NDArray[np.intp]:
    """Return the rows that may be outside the range of times: all rows if NumPy cannot decide that."""
    unit, count = np.datetime_data(array.dtype)
    if (unit in ("ns", "ps", "fs", "as") and count == 1) or not len(array):  # all 64-bit values are in range
        return np.empty(0, np.intp)
    if count > 1 or unit in ("W", "generic"):  # the ends of the range are inside one of these units
        return np.flatnonzero(~np.isnat(array))
    first, last = (np.datetime64(each, "ms").astype(array.dtype) for each in (MIN_MILLIS, MAX_MILLIS))
    return np.flatnonzero((array < first) | (array > last))
