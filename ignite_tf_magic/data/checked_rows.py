"""Checks all rows of a source before the first is written: each can be stored in a cache, and no key is repeated."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ignite_tf_magic.data.columns import Batch, Columns, SourceColumn, check_names, num_rows
from ignite_tf_magic.errors import SourceError
from ignite_tf_magic.protocol.affinity import encoded
from ignite_tf_magic.protocol.encode import wire_code
from ignite_tf_magic.protocol.ops import TypeCode

Read = Callable[[], Iterator[Batch]]
_SHOWN = 5
_SAMPLED_EACH = 1009
_KEY_CODES = frozenset(
    {
        TypeCode.LONG,
        TypeCode.DOUBLE,
        TypeCode.BOOL,
        TypeCode.STRING,
        TypeCode.UUID,
        TypeCode.DECIMAL,
        TypeCode.TIMESTAMP,
        TypeCode.TIME,
        TypeCode.BINARY_OBJECT,
    }
)
# Keys are widened to one type of their kind, so that equal numbers are equal keys.
_KEY_TYPES = {
    **dict.fromkeys((TypeCode.BYTE, TypeCode.SHORT, TypeCode.INT), TypeCode.LONG),
    TypeCode.FLOAT: TypeCode.DOUBLE,
}


class CheckedRows:
    """The checked rows of a source. They can be read repeatedly, chunk by chunk.

    Args:
        name: The source's name in messages.
        read: Reads the source from its first row.
        key: Columns whose values become the keys; if empty, rows are numbered.
        rejects: File for the rows that cannot be stored in a cache, as JSON lines; if None, such a row is an error.
        bad_lines: Line -> reason, for lines that are not rows; complete once all rows are read.

    Attributes:
        codes: Field -> type code on the wire.
        key_codes: Key column -> type code on the wire.
        empty: Fields without a value in any row.
        num_rows: Number of rows that can be stored.
        num_rejected: Number of rows that cannot be stored.
        digest: Identifies this source by its names, types, number of rows, and some of the rows.

    Raises:
        SourceError: There are no rows, or some cannot be stored, or two have the same key.
    """

    def __init__(
        self, name: str, read: Read, key: tuple[str, ...], rejects: Path | None, bad_lines: Mapping[int, str]
    ) -> None:
        self.name, self._read, self._key = name, read, key
        self.codes: dict[str, int] = {}
        self.key_codes: dict[str, int] = {}
        self.empty: set[str] = set()
        self.num_rows = self.num_rejected = 0
        self._hash = hashlib.blake2b(digest_size=16)
        self._refused = _RowRefusals(name, rejects)
        keys = _KeyDigests()
        try:
            self._look(keys)
            for line, reason in bad_lines.items():
                self._refused.add("line", line, "", reason, {})
        finally:
            self._refused.close()
        self.num_rejected = self._refused.count
        if not self.num_rows and not self.num_rejected:
            raise SourceError(f"{name} holds no rows; nothing was loaded")
        self._refused.check()
        if not self.num_rows:
            raise SourceError(
                f"all {self.num_rejected:,} rows of {name} cannot be stored in a cache; nothing was loaded"
            )
        if key:
            self._refuse_repeated(keys)
        self._hash.update(f"{self.num_rows} {sorted(self.codes.items())} {self.key_codes}".encode())
        self.digest = self._hash.hexdigest()

    def chunks(self) -> Iterator[Columns]:
        """Yield the rows that can be stored, from the first one."""
        for batch in self._read():
            if len(chunk := self._divided(_without(batch, set(_reasons(batch, self._key))))):
                yield chunk

    def _look(self, keys: _KeyDigests) -> None:
        seen = 0
        for batch in self._read():
            self._check_columns(batch)
            bad = self._refused.take(batch, seen, self._key)
            seen += num_rows(batch)
            chunk = self._divided(_without(batch, bad))
            if not len(chunk):
                continue
            self._codes_of(chunk)
            self._sample(chunk)
            self.num_rows += len(chunk)
            if chunk.keys is not None:
                keys.add(chunk.keys)

    def _check_columns(self, batch: Batch) -> None:
        lengths = {name: len(column) for name, column in batch.items()}
        if len(set(lengths.values())) > 1:
            listed = ", ".join(f"{name}: {length}" for name, length in lengths.items())
            raise SourceError(f"columns of {self.name} must have the same length, found {listed}")
        if self.num_rows:
            return
        check_names(self.name, list(batch))
        for name in self._key:
            if name not in batch:
                raise SourceError(
                    f"{self.name} has no column {name!r} to take keys from; it has {', '.join(batch)}"
                )
        if not set(batch) - set(self._key):
            raise SourceError(
                f"{self.name} has no column beside the key {self._key[0]!r}; a row needs at least one value"
            )

    def _divided(self, batch: Batch) -> Columns:
        fields = {name: column for name, column in batch.items() if name not in self._key}
        keys = [(name, batch[name]) for name in self._key]
        return Columns(
            {name: column.values for name, column in fields.items()},
            {
                name: column.nulls
                for name, column in fields.items()
                if column.nulls is not None and column.nulls.any()
            },
            {name: column.code for name, column in fields.items() if column.code is not None},
            _keys(keys),
            {name: _key_code(name, column) for name, column in keys},
        )

    def _codes_of(self, chunk: Columns) -> None:
        found = {name: wire_code(name, array, chunk.codes.get(name)) for name, array in chunk.values.items()}
        self.empty = {
            name
            for name, array in chunk.values.items()
            if (name in self.empty or not self.codes) and not _has_value(array, chunk.nulls.get(name))
        }
        self.codes, self.key_codes = self.codes or found, self.key_codes or dict(chunk.key_codes)
        if self.codes != found:
            other = next(name for name in found if self.codes.get(name) != found[name])
            raise SourceError(
                f"column {other!r} of {self.name} changes its type from one row to another; convert it first"
            )

    def _sample(self, chunk: Columns) -> None:
        for row in range(-self.num_rows % _SAMPLED_EACH, len(chunk), _SAMPLED_EACH):
            for name, array in chunk.values.items():
                is_null = name in chunk.nulls and chunk.nulls[name][row]
                self._hash.update(encoded(None if is_null else array[row]))
            if chunk.keys is not None:
                self._hash.update(_encoded_key(chunk.keys[row]))

    def _refuse_repeated(self, keys: _KeyDigests) -> None:
        """Refuse rows with the same key, which would replace each other. The error names the first repetition."""
        repeated = keys.repeated()
        if repeated is None:
            return
        count, row, other = repeated
        shown, first = "", 0
        for chunk in self.chunks():
            if chunk.keys is not None and first <= row < first + len(chunk):
                shown = f", {_readable(chunk.keys[row - first])},"
                break
            first += len(chunk)
        raise SourceError(
            f"column{'s' if len(self._key) > 1 else ''} {', '.join(map(repr, self._key))} cannot be the key: {count} "
            f"of its {self.num_rows} values are repeated, and rows with the same key replace each other; the "
            f"first{shown} is in rows {other} and {row}"
        )


def _reasons(batch: Batch, key: tuple[str, ...]) -> dict[int, tuple[str, str]]:
    """Map each row that cannot be stored to its first column with a problem, and the reason."""
    found: dict[int, tuple[str, str]] = {}
    for name, column in batch.items():
        if name in key:
            for row in set(_missing(column)) - column.rejects.keys():
                found.setdefault(row, (name, "no value, and it is the key"))
        for row, reason in column.rejects.items():
            found[row] = found.get(row, (name, reason))
    return found


def _without(batch: Batch, bad: set[int]) -> Batch:
    if not bad:
        return batch
    rows = np.setdiff1d(np.arange(num_rows(batch)), np.fromiter(bad, np.intp))
    return {name: column.take(rows) for name, column in batch.items()}


def _key_code(name: str, column: SourceColumn) -> int:
    code = (
        wire_code(name, column.values, column.code) if column.values.ndim == 1 else int(TypeCode.OBJECT_ARRAY)
    )
    code = int(_KEY_TYPES.get(TypeCode(code), code))
    if code not in _KEY_CODES:
        what = TypeCode(code).name.lower().replace("_", " ") + (
            f" ({column.values.dtype})" if column.code is None else ""
        )
        raise SourceError(
            f"column {name!r} cannot be the key: found {what}, not numbers, text, UUID, Decimal, bool or times"
        )
    return code


def _keys(columns: list[tuple[str, SourceColumn]]) -> NDArray[Any] | None:
    """Return keys of one type, or tuples. A single date becomes a tuple too, because Ignite rejects dates as keys."""
    if not columns:
        return None
    arrays = [_key_array(column.values) for _, column in columns]
    if len(arrays) == 1 and columns[0][1].code != TypeCode.BINARY_OBJECT:
        return arrays[0]
    keys = np.empty(len(arrays[0]), object)
    keys[:] = list(zip(*arrays, strict=True))
    return keys


def _key_array(array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype.kind == "f":
        return array.astype(np.float64) + 0.0  # SQL has no negative zero
    return array.astype(np.int64) if array.dtype.kind == "i" else array


def _readable(key: Any) -> str:
    parts = [str(each) for each in key] if isinstance(key, tuple) else [str(key)]
    return parts[0] if len(parts) == 1 else f"({', '.join(parts)})"


def _encoded_key(key: Any) -> bytes:
    return b"".join(map(encoded, key)) if isinstance(key, tuple) else encoded(key)


class _KeyDigests:
    """Keys as 16-byte hashes (or integers as they are), so that millions of them fit into memory."""

    def __init__(self) -> None:
        self._parts: list[NDArray[Any]] = []

    def add(self, keys: NDArray[Any]) -> None:
        if keys.dtype.kind == "i":
            self._parts.append(keys)
            return
        digests = b"".join(hashlib.blake2b(_encoded_key(key), digest_size=16).digest() for key in keys)
        self._parts.append(np.frombuffer(digests, "V16"))

    def repeated(self) -> tuple[int, int, int] | None:
        """Return the number of repeated keys, the row of the first repetition, and the earlier row with that key."""
        if not self._parts:
            return None
        keys = np.concatenate(self._parts)
        if keys.dtype.kind == "V":
            keys = keys.view([("a", "<u8"), ("b", "<u8")])
        order = np.argsort(keys, kind="stable", order=keys.dtype.names)
        again = np.flatnonzero(keys[order][1:] == keys[order][:-1])
        if not len(again):
            return None
        first = again[np.argmin(order[again + 1])]
        return len(again), int(order[first + 1]), int(order[first])


class _RowRefusals:
    """Counts the rows that cannot be stored, keeps the first few for a message, and writes all to a file if wanted."""

    def __init__(self, source: str, path: Path | None) -> None:
        self.count = 0
        self._source, self._path, self._file = source, path, _opened(path)
        self._first: list[str] = []

    def take(self, batch: Batch, first: int, key: tuple[str, ...]) -> set[int]:
        """Record the rows of a batch that cannot be stored. Return their numbers."""
        reasons = _reasons(batch, key)
        for row, (name, reason) in sorted(reasons.items()):
            others = {
                other: _shown(column, row) for other, column in batch.items() if row not in column.rejects
            }
            self.add("row", first + row, name, reason, others)
        return set(reasons)

    def add(self, what: str, number: int, column: str, reason: str, others: Mapping[str, Any]) -> None:
        """Record one row or line."""
        self.count += 1
        if len(self._first) < _SHOWN:
            where = f"{what} {number}" if number >= 0 else f"a {what}"
            self._first.append(f"{where}{f', column {column!r}' if column else ''}: {reason}")
        if self._file:
            content = {what: number, "column": column, "reason": reason, "values": others}
            self._file.write(json.dumps(content, default=str) + "\n")

    def check(self) -> None:
        """Refuse the source if there are such rows and no file to write them to."""
        if self.count and self._file is None:
            more = f", and {self.count - _SHOWN:,} more" if self.count > _SHOWN else ""
            raise SourceError(
                f"{self.count:,} rows of {self._source} cannot be stored in a cache, and nothing was loaded: "
                f"{'; '.join(self._first)}{more}. To leave such rows out, and have them in a file: --rejects FILE"
            )

    def close(self) -> None:
        """Close the file."""
        if self._file:
            self._file.close()


def _missing(column: SourceColumn) -> list[int]:
    missing = np.zeros(len(column), np.bool_) if column.nulls is None else column.nulls
    if column.values.dtype.kind == "f" and column.values.ndim == 1:
        missing = missing | np.isnan(column.values)
    elif column.nulls is None and column.values.dtype.kind == "M":
        missing = np.isnat(column.values)
    elif column.nulls is None and column.values.dtype.kind == "O":
        missing = np.fromiter((value is None for value in column.values), np.bool_, len(column))
    return [int(row) for row in np.flatnonzero(missing)]


def _has_value(array: NDArray[Any], nulls: NDArray[np.bool_] | None) -> bool:
    if nulls is not None:
        return not nulls.all()
    if array.dtype.kind == "M":
        return not np.isnat(array).all()
    return array.dtype.kind != "O" or any(value is not None for value in array)


def _shown(column: SourceColumn, row: int) -> Any:
    if column.nulls is not None and column.nulls[row]:
        return None
    value = column.values[row]
    return value if value is None or isinstance(value, str | int | float) else str(value)


def _opened(path: Path | None) -> IO[str] | None:
    if path is None:
        return None
    try:
        return path.open("w", encoding="utf-8")
    except OSError as error:
        raise SourceError(f"the rejected rows cannot be written to {str(path)!r}: {error}") from error
