"""Reads rows of a packed cache to show them: as a dataset yields them, but with readable times and strings.

Entries hold rows in the order of their source. A sample consists of rows from 128 or more entries, which are chosen at
random. If the source is sorted, the sample covers only some ranges of its values.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from ignite_tf_magic.client.cache_facts import check_complete, read_facts
from ignite_tf_magic.client.cache_scan import Baseline
from ignite_tf_magic.client.client import Cache
from ignite_tf_magic.client.packed_entries import (
    NUM_ROWS,
    PACKED_ROWS,
    holds_packed_rows,
    packed_count,
    partitions_of_entries,
)
from ignite_tf_magic.client.packed_rows import EntryReader, read_layout
from ignite_tf_magic.client.page_sizes import PAGE_BYTES
from ignite_tf_magic.client.row_counts import check_rows
from ignite_tf_magic.errors import SchemaError
from ignite_tf_magic.profiling.rows import MAX_READ_BYTES, RowSample, in_turns
from ignite_tf_magic.protocol.columns import Column, RaggedColumn
from ignite_tf_magic.protocol.layout import Leaf, Node
from ignite_tf_magic.protocol.objects import ARRAYS, SCALARS, dtype_of
from ignite_tf_magic.protocol.ops import TypeCode
from ignite_tf_magic.protocol.row_fields import Path, RowField, RowFields, type_name
from ignite_tf_magic.protocol.times import date_of_sql, time_of_sql, to_datetime64

_SPREAD, _DRAWN_FROM, _AT_ONCE = 24, 128, 8
_NULL = RowField(int(TypeCode.NULL), None)
_CODE_OF_ITEM = {dtype_of(code): int(code) for code in SCALARS}
_CODE_OF_ARRAY = {dtype_of(code): int(code) for code in ARRAYS}
# Conversion of integer columns to readable values, by type code.
_READ_AS: dict[int, Callable[[int], Any]] = {
    TypeCode.CHAR: chr,
    TypeCode.TIMESTAMP: lambda nanos: np.datetime64(nanos, "ns"),
    TypeCode.DATE: lambda millis: to_datetime64(millis, 0),
    TypeCode.OPTIMIZED: date_of_sql,
    TypeCode.TIME: time_of_sql,
}
NULLS_NOTE = (
    "its rows are packed: nulls are known only for fields with a column for nulls; elsewhere they are the values of a "
    "dataset (NaN, an empty text)"
)


def packed_rows(cache: Cache, baseline: Baseline) -> PackedRows | None:
    """Return the rows of a packed cache; None if the cache is not packed, or is empty.

    Raises:
        LoadIncomplete, RowsLost: Some of its entries are missing.
        SchemaError: The entries were not written by a load, or cannot be read.
        ConfigError: pyarrow is not installed.
    """
    if not baseline.size or not holds_packed_rows(cache.config()):
        return None
    facts = read_facts(cache.client, cache.name)
    check_complete(cache.client, cache.name, facts)
    check_rows(cache, baseline, facts)
    return PackedRows(cache, baseline.size)


class PackedRows:
    """The rows of a packed cache; see `packed_rows`.

    Attributes:
        num_rows: Number of rows in all entries.
        layout: Layout of the rows.
    """

    def __init__(self, cache: Cache, num_entries: int) -> None:
        self._cache, self._num_entries = cache, num_entries
        self._count = packed_count(cache, num_entries)
        self.num_rows = self._count.rows(num_entries, None)
        self._at_once = 1
        ((_, _, first),) = self._entries([0])
        self._at_once = max(1, min(_AT_ONCE, PAGE_BYTES // len(first)))
        self.layout = read_layout(first, f"an entry of cache {cache.name!r}")
        self._paths = frozenset(leaf.path for leaf in self.layout.leaves())
        self._reader = EntryReader(self.layout, cache.name)

    def first(self, num_rows: int, max_bytes: int = MAX_READ_BYTES) -> list[RowFields]:
        """Return rows, taken in turns from as many entries as rows are requested, up to 24.

        Args:
            num_rows: Maximum number of rows.
            max_bytes: Reading stops after this many bytes.
        """
        num_spread = min(_SPREAD, num_rows, self._num_entries)
        numbers = np.linspace(0, self._num_entries - 1, num_spread).astype(int).tolist()
        share, read_bytes = -(-num_rows // num_spread), 0
        found: list[list[RowFields]] = []
        for number, count, entry in self._entries(dict.fromkeys((*numbers, *range(self._num_entries)))):
            found.append(self._rows(number, count, entry, range(min(share, count))))
            read_bytes += len(entry)
            is_enough = sum(map(len, found)) >= num_rows and len(found) >= num_spread
            if is_enough or read_bytes > max_bytes:
                break
        return in_turns(found, num_rows)

    def draw(self, num_rows: int) -> RowSample:
        """Choose rows at random from entries, which are also chosen at random. Repeated calls choose the same.

        Reads 128 entries, or more if these have fewer rows than requested, and about 256 MiB at most. A cache with no
        more rows than requested is read completely. `rows_of` covers all partitions.
        """
        chance = random.Random(self._cache.cache_id)  # noqa: S311  not for secrets
        order = list(range(self._num_entries))
        chance.shuffle(order)
        is_small = self.num_rows <= num_rows
        chosen = order if is_small else order[: max(_DRAWN_FROM, -(-num_rows // self._count.entry_rows))]
        share = 1.0 if is_small else num_rows / (len(chosen) * self._count.entry_rows)
        sample, num_read = RowSample(rows_of=self._rows_of_partitions()), 0
        for number, count, entry in self._entries(chosen):
            taken = sorted(chance.sample(range(count), min(count, max(1, round(share * count)))))
            sample.rows += self._rows(number, count, entry, taken)
            sample.num_read, sample.read_bytes = sample.num_read + count, sample.read_bytes + len(entry)
            num_read += 1
            if sample.read_bytes > MAX_READ_BYTES and num_read < len(chosen):
                sample.is_cut = True
                break
        sample.is_whole = len(sample.rows) == self.num_rows
        sample.read_from = f"{num_read:,} of {self._num_entries:,} entries"
        return sample

    def _entries(self, numbers: Iterable[int]) -> Iterator[tuple[int, int, bytes]]:
        """Yield the number, the number of rows and the packed rows of each entry."""
        wanted = list(numbers)
        for first in range(0, len(wanted), self._at_once):
            some = wanted[first : first + self._at_once]
            found = self._cache.get_all(some)
            for number in some:
                if number not in found:
                    raise SchemaError(
                        f"the entry with key {number} of cache {self._cache.name!r} no longer exists"
                    )
                fields = found[number].fields
                yield number, int(fields[NUM_ROWS]), bytes(fields[PACKED_ROWS])

    def _rows(self, number: int, count: int, entry: bytes, chosen: Sequence[int]) -> list[RowFields]:
        columns = self._reader.columns(number, count, entry)
        types = (_type_of(self.layout.key), _type_of(self.layout.value))
        fields: list[dict[Path, RowField]] = [{} for _ in chosen]
        for leaf, column in zip(self.layout.leaves(), columns, strict=True):
            of_field = (*leaf.path[:-1], leaf.path[-1].removesuffix(leaf.role.suffix))
            tells_of_another = leaf.is_nullness and of_field in self._paths
            code = _code_of(leaf)
            for row, at in zip(fields, chosen, strict=True):
                value = _value(leaf, column, at)
                if not tells_of_another:
                    row[leaf.path] = RowField(code, value)
                elif value:
                    row[of_field] = _NULL
        return [RowFields(types, row) for row in fields]

    def _rows_of_partitions(self) -> dict[int, int]:
        """Return the number of rows by partition, if it is known without reading; else an empty dict."""
        partition_map = self._cache.partition_map()
        partitions = partitions_of_entries(self._num_entries, partition_map)
        if partitions is None:
            return {}
        entries = np.bincount(partitions, minlength=partition_map.num_partitions).tolist()
        return {number: self._count.rows(each, [number]) for number, each in enumerate(entries)}


def _type_of(node: Node) -> str:
    if isinstance(node, Leaf):
        return type_name(_code_of(node))
    return " or ".join(each.name for each in node.types) or "row"


def _code_of(leaf: Leaf) -> int:
    """Return the type of a column's values: the field's own type if the column still has it."""
    if leaf.is_list:
        return leaf.code
    if leaf.is_ragged or leaf.row_shape:
        return _CODE_OF_ARRAY[leaf.dtype]
    if leaf.is_text:
        return int(TypeCode.BYTE_ARRAY if _is_bytes(leaf) else TypeCode.STRING)
    return leaf.code if leaf.code in _READ_AS else _CODE_OF_ITEM[leaf.dtype]


def _is_bytes(leaf: Leaf) -> bool:
    return leaf.code == TypeCode.BYTE_ARRAY and not leaf.as_text


def _value(leaf: Leaf, column: Column, row: int) -> Any:
    """Return a value of a column in the form in which an unpacked cache has it."""
    found = _items(column, 0, row) if isinstance(column, RaggedColumn) else column[row]
    return _nested(leaf, found) if leaf.is_list or not isinstance(found, np.ndarray) else found


def _items(column: RaggedColumn, level: int, row: int) -> Any:
    """Return the items of a row: an array, or nested lists of arrays."""
    lengths = column.lengths[level]
    start = int(lengths[:row].sum())
    end = start + int(lengths[row])
    if level + 1 == len(column.lengths):
        return column.values[start:end]
    return [_items(column, level + 1, each) for each in range(start, end)]


def _nested(leaf: Leaf, found: Any) -> Any:
    """Return the readable form of a value, or of the items of a list."""
    if leaf.item:
        return [_nested(leaf.item, each) for each in found]
    if isinstance(found, np.ndarray):
        return found.tobytes() if leaf.code == TypeCode.BYTE_ARRAY else found
    return _read(leaf, found)


def _read(leaf: Leaf, item: Any) -> Any:
    if isinstance(item, bytes):
        return item if _is_bytes(leaf) else item.decode(errors="replace")
    value = item.item() if isinstance(item, np.generic) else item
    return _READ_AS[leaf.code](value) if leaf.code in _READ_AS else value
