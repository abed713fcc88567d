"""Packed rows: many rows of one layout, stored as the value of one cache entry in Arrow's stream format.

An entry's schema has one column for each column of the layout, with the same name (`val.pixels`) and with the items
that a dataset yields. A null is encoded as the layout specifies; Arrow's own nulls are not used. The schema's
metadata contains the layout, so that an entry can be read without other information.
https://arrow.apache.org/docs/format/Columnar.html
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol, cast

from numpy.typing import NDArray

from ignite_tf_magic.client.packed_columns import ColumnForm, arrow
from ignite_tf_magic.client.packed_entries import NUM_ROWS, PACKED_ROWS
from ignite_tf_magic.errors import SchemaError
from ignite_tf_magic.protocol.columns import Column, ColumnChunk
from ignite_tf_magic.protocol.field_names import FieldNames
from ignite_tf_magic.protocol.layout import VARIABLE, Leaf, Node, ObjectNode, RowLayout
from ignite_tf_magic.protocol.layout_finder import is_kept
from ignite_tf_magic.protocol.layout_json import layout_from_json, layout_to_json
from ignite_tf_magic.protocol.ops import TypeCode
from ignite_tf_magic.protocol.page_series import PageSeries
from ignite_tf_magic.protocol.row_fields import Path
from ignite_tf_magic.serialization.arrow_messages import check_message, check_stream

_LAYOUT = b"ignite_tf_magic.layout"
_END = b"\xff\xff\xff\xff\0\0\0\0"
_ENTRIES_AT_ONCE = 16


class SeriesDecoder(Protocol):
    """An object that decodes rows from a series of pages into a chunk, such as `PageDecoder`."""

    def decode(self, series: PageSeries, chunk: ColumnChunk) -> None:
        """Decode as many rows as the series has left and the chunk has room for."""


def entry_layout(found: RowLayout) -> RowLayout:
    """Return the layout for reading entries: key, number of rows, and the packed rows as bytes of any length."""
    if not isinstance(found.value, ObjectNode):
        raise SchemaError(f"entries of packed rows are objects with {NUM_ROWS} and {PACKED_ROWS}")
    return RowLayout(found.key, ObjectNode(found.value.path, found.value.types, _entry_fields(found.value)))


def _entry_fields(value: ObjectNode) -> tuple[tuple[int, Leaf], ...]:
    by_name = {child.path[-1]: (field_id, child.path) for field_id, child in value.fields}
    (num_id, num_path), (rows_id, rows_path) = by_name[NUM_ROWS], by_name[PACKED_ROWS]
    packed = Leaf(rows_path, int(TypeCode.BYTE_ARRAY), VARIABLE, fill=b"")
    return (num_id, Leaf(num_path, int(TypeCode.INT))), (rows_id, packed)


Packed = bytes | memoryview


def entries_of(found: ColumnChunk) -> list[tuple[Any, int, Packed]]:
    """Return (key, number of rows, packed rows) for each entry of a chunk with the layout of `entry_layout`."""
    entries: list[Packed] = [entry for part in found.parts[-1] for entry in part]
    found.parts[-1] = []  # NumPy would convert the views to arrays
    *keys, counts, _ = (cast("NDArray[Any]", column).tolist() for column in found.columns())
    return list(zip(keys[0] if len(keys) == 1 else zip(*keys, strict=True), counts, entries, strict=True))


def with_fields(layout: RowLayout, fields: Sequence[str]) -> RowLayout:
    """Return the layout with only some fields of the value.

    Raises:
        SchemaError: The layout lacks one of the fields.
    """
    known = FieldNames(path for leaf in layout.leaves() if leaf.path[0] == "val" for path in _paths(leaf))
    return RowLayout(layout.key, _kept(layout.value, known.full_names(fields, "fields")))


def _paths(leaf: Leaf) -> list[Path]:
    path = _field_path(leaf)
    return [path[:end] for end in range(2, len(path) + 1)]


def _field_path(node: Node) -> tuple[str, ...]:
    if not isinstance(node, Leaf):
        return node.path
    name = node.path[-1].removesuffix(node.role.suffix)
    return (*node.path[:-1], name.removesuffix("_".join(("", *node.member))))


def _kept(node: Node, wanted: frozenset[str]) -> Node:
    if isinstance(node, Leaf):
        return node
    kept = [
        (number, _kept(child, wanted)) for number, child in node.fields if is_kept(wanted, _field_path(child))
    ]
    return ObjectNode(node.path, node.types, tuple(kept))


class RowPacker:
    """Packs columns of one layout into entries."""

    def __init__(self, layout: RowLayout) -> None:
        pa = arrow()
        text = json.dumps(layout_to_json(layout), sort_keys=True, separators=(",", ":"))
        self._forms = [ColumnForm.of(leaf) for leaf in layout.leaves()]
        fields = [pa.field(form.name, form.type, nullable=False) for form in self._forms]
        self.schema = pa.schema(fields, {_LAYOUT: text})
        self._head = self.schema.serialize().to_pybytes()

    def batch(self, columns: Sequence[Column]) -> Any:
        """Return columns, in the order of the layout, as a `pyarrow.RecordBatch`."""
        made = [form.to_arrow(column) for form, column in zip(self._forms, columns, strict=True)]
        return arrow().RecordBatch.from_arrays(made, schema=self.schema)

    def entry(self, batch: Any) -> bytes:
        """Return the bytes of an entry that holds the batch."""
        return b"".join((self._head, batch.serialize().to_pybytes(), _END))


def read_layout(entry: Packed, where: str) -> RowLayout:
    """Return the layout of the rows in an entry.

    Raises:
        SchemaError: The entry holds no packed rows, or rows of another version of this package.
    """
    pa = arrow()
    try:
        check_stream(entry)
        with pa.ipc.open_stream(entry) as stream:
            return layout_from_json(json.loads((stream.schema.metadata or {})[_LAYOUT]))
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise SchemaError(f"{where} holds packed rows that cannot be read: {error!r}") from error


class EntryReader:
    """Opens entries whose rows all have one layout.

    Args:
        rows: The layout of the rows, restricted to the wanted fields.
        cache: The cache's name, for messages.

    Attributes:
        forms: The forms of the columns.
    """

    def __init__(self, rows: RowLayout, cache: str) -> None:
        self._pa, self._cache = arrow(), cache
        self.forms = [ColumnForm.of(leaf) for leaf in rows.leaves()]
        self._has_fixed_rows = all(form.is_fixed for form in self.forms)
        self._head, self._schema, self._places = b"", None, list[int]()

    def open(self, key: Any, num_rows: int, entry: Packed) -> list[Any]:
        """Return the columns of an entry. Columns of variable length stay Arrow arrays.

        Raises:
            SchemaError: The entry cannot be read, has rows of another layout, or not as many rows as it states.
        """
        where, pa = f"the entry with key {key!r} of cache {self._cache!r}", self._pa
        try:
            batch = self._batch_of(entry, where)
            batch.validate(full=not self._has_fixed_rows)
        except (pa.ArrowException, OSError, EOFError, ValueError) as error:
            raise SchemaError(f"{where} holds packed rows that cannot be read: {error}") from error
        if batch.num_rows != num_rows:
            raise SchemaError(f"{where} holds {batch.num_rows} rows, but states {num_rows}")
        return [
            form.from_arrow(column, where) if form.is_fixed else column
            for form, column in zip(self.forms, map(batch.column, self._places), strict=True)
        ]

    def columns(self, key: Any, num_rows: int, entry: Packed) -> list[Column]:
        """Return the columns of an entry; raises as `open` does."""
        where = f"the entry with key {key!r} of cache {self._cache!r}"
        return [
            column if form.is_fixed else form.from_arrow(column, where)
            for form, column in zip(self.forms, self.open(key, num_rows, entry), strict=True)
        ]

    def part(self, form: ColumnForm, column: Any) -> Any:
        """Return rows of variable length in the form that a chunk stores."""
        return form.part(column, self._cache)

    def _batch_of(self, entry: Packed, where: str) -> Any:
        """Return an entry's rows; fast if the entry is one batch with the schema of the previous entry."""
        ipc = self._pa.ipc
        if self._head and entry[: len(self._head)] == self._head:
            rest = self._pa.BufferReader(self._pa.py_buffer(entry).slice(len(self._head)))
            message = ipc.read_message(rest)
            check_message(message)
            batch = ipc.read_record_batch(message, self._schema)
            if entry[len(self._head) + rest.tell() :] in (b"", _END):
                return batch
        check_stream(entry)
        with ipc.open_stream(entry) as stream:
            table = stream.read_all().combine_chunks()
        self._take_schema(table.schema, where)
        batches = table.to_batches()
        return batches[0] if batches else self._pa.RecordBatch.from_pylist([], table.schema)

    def _take_schema(self, schema: Any, where: str) -> None:
        self._places = [schema.get_field_index(form.name) for form in self.forms]
        for form, place in zip(self.forms, self._places, strict=True):
            found = schema.field(place).type if place >= 0 else "not there"
            if found != form.type:
                raise SchemaError(
                    f"{where} differs from the rows sampled: {form.name} is {found} instead of {form.type}; pack "
                    "rows of one kind into a cache"
                )
        self._schema, self._head = schema, schema.serialize().to_pybytes()


class PackedDecoder:
    """Decodes rows from the entries of a series of pages. One thread.

    Entries are read in place, in the pages. Copies would need freshly mapped memory each time, because TensorFlow makes
    malloc return all freed memory at once. So a series must stay valid until `has_rows` reports its end.

    Args:
        entries: Decodes the entries, as views.
        layout: The layout of the entries.
        rows: The layout of the rows, restricted to the wanted fields.
        cache: The cache's name, for messages.

    Attributes:
        num_entries: Number of entries read so far.
    """

    def __init__(self, entries: SeriesDecoder, layout: RowLayout, rows: RowLayout, cache: str) -> None:
        self._entries, self._entry_layout, self._reader = entries, layout, EntryReader(rows, cache)
        self._read: deque[tuple[Any, int, Packed]] = deque()
        self._columns: list[Any] = []
        self._next_row = self._num_rows = self.num_entries = 0

    def has_rows(self, series: PageSeries) -> bool:
        """Return whether rows are left, in the series or in the entries already read."""
        return bool(series.num_rows or self._read or self._next_row < self._num_rows)

    def decode(self, series: PageSeries, chunk: ColumnChunk) -> None:
        """Decode rows into a chunk until none are left or the chunk is full.

        Raises:
            SchemaError: As from `EntryReader.open`.
            UnknownSchema, RemoteProtocolError: As from `PageDecoder.decode`.
        """
        while chunk.free_rows and self.has_rows(series):
            if self._next_row == self._num_rows:
                if not self._read:
                    self._read_entries(series)
                key, num_rows, entry = self._read.popleft()
                self._columns = self._reader.open(key, num_rows, entry)
                self._next_row, self._num_rows = 0, num_rows
            else:
                self._take(chunk)

    def _read_entries(self, series: PageSeries) -> None:
        found = ColumnChunk(self._entry_layout, _ENTRIES_AT_ONCE)
        self._entries.decode(series, found)
        self._read.extend(entries_of(found))
        self.num_entries += found.num_rows

    def _take(self, chunk: ColumnChunk) -> None:
        first, at = self._next_row, chunk.num_rows
        count = min(self._num_rows - first, chunk.free_rows)
        for number, (form, column) in enumerate(zip(self._reader.forms, self._columns, strict=True)):
            buffer = chunk.fixed[number]
            if buffer is not None:
                buffer[at : at + count] = column[first : first + count]
            else:
                chunk.parts[number].append(self._reader.part(form, column.slice(first, count)))
        chunk.num_rows += count
        self._next_row += count
