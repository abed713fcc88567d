"""Reads rows one by one: dicts, JSON lines, elements of a tf.data.Dataset. Nested dicts become columns `a_b`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

from ignite_tf_magic.data.columns import Batch, SourceColumn, unique_names
from ignite_tf_magic.data.lists import item_kind, item_kinds
from ignite_tf_magic.data.scalars import count_kinds
from ignite_tf_magic.data.text_files import UNREADABLE, encoding_hint, open_lines
from ignite_tf_magic.data.values import chosen_kind, column_of
from ignite_tf_magic.errors import SourceError

CHUNK_ROWS = 1 << 14
_SHOWN = 60


@dataclass(frozen=True, slots=True)
class BadRecord:
    """Content that is not a row although a row was expected."""

    reason: str


Record = Mapping[str, Any] | BadRecord


@dataclass(slots=True)
class RecordColumns:
    """The columns of records, found by examining all records.

    Attributes:
        asked: Name -> requested kind.
    """

    asked: Mapping[str, str] = field(default_factory=dict)
    counts: dict[str, Counter[str]] = field(default_factory=dict)
    items: dict[str, Counter[str]] = field(default_factory=dict)

    def look(self, records: Iterable[Record]) -> None:
        """Examine more records."""
        rows = [flat for record in records if (flat := _flat(record)) is not None]
        for name in dict.fromkeys(name for row in rows for name in row):
            values = [row.get(name) for row in rows]
            self.counts.setdefault(name, Counter()).update(count_kinds(values))
            self.items.setdefault(name, Counter()).update(item_kinds(values))

    def batch(self, records: list[Record]) -> Batch:
        """Return some records as columns.

        Raises:
            SourceError: A column cannot be stored in a cache.
        """
        rows = [_flat(record) for record in records]
        bad = {row: record.reason for row, record in enumerate(records) if isinstance(record, BadRecord)}
        found = {}
        for name, counts in self.counts.items():
            values = [row.get(name) if row else None for row in rows]
            if counts.keys() <= {"nan"} and any(other.startswith(f"{name}_") for other in self.counts):
                continue  # a struct that is missing in some rows
            kind = self.asked.get(name) or chosen_kind(name, counts)
            items = item_kind(name, self.items[name]) if self.items[name] else None
            found[name] = column_of(name, values, kind, items, parse=name in self.asked)
        if bad and found:
            first = next(iter(found))
            column = found[first]
            found[first] = SourceColumn(column.values, column.nulls, column.code, {**column.rejects, **bad})
        return found


def _flat(record: Record) -> dict[str, Any] | None:
    """Return a row's values by column name; None for content that is not a row.

    Raises:
        SourceError: Two values have the same column.
    """
    if isinstance(record, BadRecord):
        return None
    pairs = list(_flattened("", record))
    found = dict(pairs)
    if len(found) != len(pairs):
        unique_names([name for name, _ in pairs])
    return found


def _flattened(path: str, record: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in record.items():
        if isinstance(value, Mapping):
            yield from _flattened(f"{path}{name}_", value)
        else:
            yield f"{path}{name}", value


def record_batches(
    records: Callable[[], Iterable[Record]], asked: Mapping[str, str]
) -> Callable[[], Iterator[Batch]]:
    """Examine all records once. Return a function that reads them as batches.

    Args:
        records: Returns the records, from the first one.
        asked: Name -> requested kind.

    Raises:
        SourceError: A requested column does not exist, or no record is a row.
    """
    columns = RecordColumns(asked)
    bad = None
    for part in _parts(records()):
        columns.look(part)
        bad = bad or next((record for record in part if isinstance(record, BadRecord)), None)
    if bad and not columns.counts:
        raise SourceError(
            f"no row was found: {bad.reason}. A file of JSON is one array of objects, or has one object in each line"
        )
    if columns.counts and (unknown := [name for name in asked if name not in columns.counts]):
        raise SourceError(f"there is no column {unknown[0]!r}; there are {', '.join(columns.counts)}")
    return lambda: (columns.batch(part) for part in _parts(records()))


def _parts(records: Iterable[Record]) -> Iterator[list[Record]]:
    left = iter(records)
    while part := list(islice(left, CHUNK_ROWS)):
        yield part


def json_records(path: Path, encoding: str) -> Iterator[Record]:
    """Read a JSON file: an array of objects, or one object in each line. Skips empty lines.

    Raises:
        SourceError: The file cannot be read, or has another encoding.
    """
    try:
        with open_lines(path, encoding) as file:
            lines = (line for line in file if line.strip())
            first = next(lines, "")
            if first.lstrip().startswith("["):
                yield from _json_array(first + file.read())
            else:
                yield from map(_json_object, chain([first] if first else [], lines))
    except UNREADABLE as error:
        raise SourceError(
            f"cannot read {str(path)!r} as JSON: {error}{encoding_hint(path, error)}"
        ) from error


def _json_array(text: str) -> Iterator[Record]:
    for each in json.loads(text, object_pairs_hook=_pairs, parse_float=_finite):
        yield each if isinstance(each, dict) else _no_object(repr(each))


def _json_object(line: str) -> Record:
    try:
        found = json.loads(line, object_pairs_hook=_pairs, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        return BadRecord(f"not JSON: {error}: {line.strip()[:_SHOWN]!a}")
    return found if isinstance(found, dict) else _no_object(line)


def _no_object(text: str) -> BadRecord:
    return BadRecord(f"not a JSON object: {text.strip()[:_SHOWN]!a}")


def _finite(text: str) -> float:
    number = float(text)
    if abs(number) == float("inf"):
        raise ValueError(f"{text} is too large for a float")
    return number


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object has the same name twice")
    return found


def element_arrays(dataset: Any) -> dict[str, list[Any]]:
    """Read a tf.data.Dataset. Each element is a row: a dict, a pair (features, label), or one value.

    Raises:
        SourceError: The dataset is infinite.
    """
    if int(dataset.cardinality()) == -1:
        raise SourceError("the given dataset has no end; limit the number of its rows: dataset.take(n)")
    rows = [dict(_flattened("", _element(each))) for each in dataset.as_numpy_iterator()]
    return {name: [row[name] for row in rows] for name in rows[0]} if rows else {}


def _element(value: Any) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    if isinstance(value, tuple) and len(value) == 2:
        features, label = value
        return {**(features if isinstance(features, Mapping) else {"features": features}), "label": label}
    if isinstance(value, tuple):
        return {f"value_{number}": each for number, each in enumerate(value)}
    return {"value": value}
