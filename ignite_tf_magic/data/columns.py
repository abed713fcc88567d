"""Rows as columns: what every source becomes, whatever it was.

This module knows nothing of sources and of caches.
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
        values: One dimension: one primitive per row (`object` arrays hold str, bytes, Decimal, date, time, UUID, number
            arrays, lists of text or lists of number arrays, and None where one is missing; times have their own unit,
            in UTC, and NaT). Two dimensions: one primitive array per row; `uint8` is a byte[].
        nulls: Which rows have no value; None where all have one, or where the values tell.
        code: Type on the wire of an `object` column.
        rejects: Rows that have no form, and why.
    """

    values: NDArray[Any]
    nulls: NDArray[np.bool_] | None = None
    code: int | None = None
    rejects: Mapping[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.values)

    def take(self, rows: slice | NDArray[Any]) -> SourceColumn:
        """Return some of the rows; rejects are not among them any more."""
        return SourceColumn(self.values[rows], None if self.nulls is None else self.nulls[rows], self.code)


Batch = Mapping[str, SourceColumn]


@dataclass(frozen=True, slots=True)
class Columns:
    """Rows as columns of equal length, in the order of the source; `SourceColumn` tells what each of these holds.

    Attributes:
        values: Field name -> array.
        nulls: Field name -> rows without a value, for fields that have some and whose values do not tell.
        codes: Field name -> type on the wire, of `object` arrays.
        keys: Keys of the rows, no two equal: an array of one type, of tuples where several columns are the key, or
            None: the rows are numbered.
        key_codes: Name -> type on the wire of the columns that are the key.
    """

    values: dict[str, NDArray[Any]]
    nulls: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)
    codes: Mapping[str, int] = field(default_factory=dict)
    keys: NDArray[Any] | None = None
    key_codes: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(next(iter(self.values.values())))


def num_rows(batch: Batch) -> int:
    """Count the rows of a batch."""
    return len(next(iter(batch.values())))


def chunks_of(batch: Batch) -> Iterator[Batch]:
    """Cut a batch into pieces of which each may be copied in memory."""
    total = num_rows(batch)
    # Texts and other objects are pointers here, and larger than that.
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
    """Refuse names that a cache cannot have, before it is made: one that could not be made blocks its name.

    Raises:
        SourceError: A name is none of a field and a SQL column, or two are the same to Ignite.
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
            raise SourceError(
                f"column {name!r} of {source} has a name that Ignite keeps for itself; rename it"
            )
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
        SourceError: Two columns have one name.
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
    """Tell whether UTF-8 can hold a text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def primitive(name: str, array: NDArray[Any], nulls: NDArray[np.bool_] | None = None) -> SourceColumn:
    """Bring numbers to the types Ignite has: signed integers, floats, booleans, timestamps, byte[].

    Rows of more than one dimension become one array each, in C order: a 28 x 28 picture is 784 values.

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
    """Return the rows that may be outside of the range of times: all of them where NumPy cannot tell for sure."""
    unit, count = np.datetime_data(array.dtype)
    if (unit in ("ns", "ps", "fs", "as") and count == 1) or not len(array):  # 64 bits of them stay within it
        return np.empty(0, np.intp)
    if count > 1 or unit in ("W", "generic"):  # the ends of the range are within one of them
        return np.flatnonzero(~np.isnat(array))
    first, last = (np.datetime64(each, "ms").astype(array.dtype) for each in (MIN_MILLIS, MAX_MILLIS))
    return np.flatnonzero((array < first) | (array > last))
