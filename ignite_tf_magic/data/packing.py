"""Packs rows into entries, for caches that are read much more often than written (`client.packed_rows`).

Entries are written like the rows of any source: they have two columns, and are numbered. So a load of entries can be
resumed, can replace a cache, and is marked like any other load. Entries are first written to a temporary file, because
their number must be known beforehand and a cache to be packed is read only once.
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ignite_tf_magic.client.client import Client
from ignite_tf_magic.client.packed_columns import arrow
from ignite_tf_magic.client.packed_entries import NUM_ROWS, PACKED_ROWS
from ignite_tf_magic.client.packed_rows import RowPacker
from ignite_tf_magic.closing import Closing
from ignite_tf_magic.data.checked_rows import CheckedRows
from ignite_tf_magic.data.columns import Batch, Columns, SourceColumn
from ignite_tf_magic.data.load_options import LoadOptions, LoadOutcome, LoadWay
from ignite_tf_magic.data.loading import load_rows
from ignite_tf_magic.data.row_types import RowTypes, has_object_keys, value_type_name
from ignite_tf_magic.errors import ConfigError, SchemaError, SourceError
from ignite_tf_magic.protocol.columns import Column, ColumnChunk, PageDecoder
from ignite_tf_magic.protocol.encode import RowEncoder
from ignite_tf_magic.protocol.layout import RowLayout
from ignite_tf_magic.protocol.layout_finder import LayoutFinder
from ignite_tf_magic.protocol.messages import Page
from ignite_tf_magic.protocol.objects import BinaryType, binary_type_of
from ignite_tf_magic.protocol.ops import TypeCode
from ignite_tf_magic.protocol.page_series import PageSeries

ENTRY_BYTES = 256 * 1024
MIN_ENTRIES = 128
"""So that several workers have about the same share, and something to shuffle, also of few rows."""
_LOOKED_AT = 256
_CHUNK_ROWS = 8192
_BATCH_BYTES = 8 << 20
_HEAD = struct.Struct("<iq")
# For a column of these types, a layout depends only on which rows have no value, and on lengths.
_SIMPLE = frozenset(
    (
        *(TypeCode.STRING, TypeCode.BYTE_ARRAY, TypeCode.DECIMAL, TypeCode.UUID),
        *(TypeCode.BINARY_OBJECT, TypeCode.TIME, TypeCode.TIMESTAMP),
    )
)


@dataclass(frozen=True, slots=True)
class UnpackedRows:
    """Rows as columns, before they are packed.

    Attributes:
        name: The rows' name in messages.
        layout: The layout of the rows.
        num_rows: The exact or approximate number of rows.
        read: Returns a generator of pieces, each a list of columns in the order of the layout. It is closed at the end.
    """

    name: str
    layout: RowLayout
    num_rows: int
    read: Callable[[], Generator[Sequence[Column], None, None]]


def load_packed(client: Client, cache: str, rows: UnpackedRows, options: LoadOptions) -> LoadOutcome:
    """Pack rows and write them into a cache as `load_rows` does. Blocks until all are written.

    Raises:
        ConfigError: The options add rows to a cache, or pyarrow is not installed.
        SourceError: There are no rows, or the directory for temporary files has no room for them.
        SchemaError: A row does not fit the layout.
    """
    if options.way not in (LoadWay.NEW, LoadWay.REPLACE):
        raise ConfigError(
            f"packed rows cannot be {options.way.value}ed to a cache: pack all of them again, with --replace"
        )
    with _PackedFile(rows) as entries:
        total, progress = entries.num_rows, options.progress
        packed = CheckedRows(rows.name, entries.batches, (), None, {})

        def tell(done: int, of: int) -> None:
            if progress:
                progress(done * total // of, total)

        outcome = load_rows(client, cache, packed, replace(options, key=(), progress=tell))
    return replace(outcome, rows=total, entries=packed.num_rows)


def unpacked(cache: str, rows: CheckedRows) -> UnpackedRows:
    """Return the rows of a source as columns, in the form in which a dataset yields them.

    The rows are encoded and decoded again. So a packed cache has the same values as any other cache.

    Raises:
        SchemaError: A column has no tensor form.
    """
    types = _types(cache, rows)
    known: dict[int, BinaryType] = {}
    finder = LayoutFinder(known.get)
    for chunk, encoder in _encoders(rows, types):
        known |= {each.type_id: each for each in (encoder.binary_type, encoder.key_type) if each is not None}
        _look(finder, encoder, _telling_rows(chunk))
    layout = finder.layout()
    if finder.left_out:
        why = "; ".join(map(str, finder.left_out.values()))
        raise SchemaError(
            f"nothing was loaded, because packed rows cannot hold {', '.join(finder.left_out)}: {why}"
        )

    def read() -> Generator[Sequence[Column], None, None]:
        decoder = PageDecoder(layout)
        for _, encoder in _encoders(rows, types):
            for first in range(0, len(encoder), _CHUNK_ROWS):
                index = np.arange(first, min(first + _CHUNK_ROWS, len(encoder)))
                chunk = ColumnChunk(layout, len(index))
                decoder.decode(PageSeries([_page(encoder, index)]), chunk)
                yield chunk.columns()

    return UnpackedRows(rows.name, layout, rows.num_rows, read)


def _types(cache: str, rows: CheckedRows) -> RowTypes:
    name = value_type_name(cache)
    return RowTypes(name, binary_type_of(f"{name}_key", rows.key_codes) if has_object_keys(rows) else None)


def _encoders(rows: CheckedRows, types: RowTypes) -> Iterator[tuple[Columns, RowEncoder]]:
    first = 0
    for chunk in rows.chunks():
        yield chunk, types.encoder(chunk, first)
        first += len(chunk)


def _page(encoder: RowEncoder, index: NDArray[np.intp]) -> Page:
    return Page(None, len(index), memoryview(bytearray(encoder.encode(index))), has_more=False)


def _look(finder: LayoutFinder, encoder: RowEncoder, index: NDArray[np.intp]) -> None:
    for first in range(0, len(index), _CHUNK_ROWS):
        page = _page(encoder, index[first : first + _CHUNK_ROWS])
        finder.add(page.rows, page.num_rows)


def _telling_rows(chunk: Columns) -> NDArray[np.intp]:
    """Return rows that suffice to find the layout: with nulls and extreme lengths; all rows if a column has lists."""
    told = set(range(min(_LOOKED_AT, len(chunk))))
    for name, array in chunk.values.items():
        if name in chunk.nulls:
            told |= _first_of(chunk.nulls[name])
        elif array.dtype.kind == "M":
            told |= _first_of(np.isnat(array))
        elif array.dtype.kind == "O":
            if chunk.codes.get(name, TypeCode.STRING) not in _SIMPLE:
                return np.arange(len(chunk))
            lengths = np.fromiter(
                (len(item) if isinstance(item, bytes) else -(item is None) for item in array), np.int64
            )
            there = np.where(lengths < 0, lengths.max(initial=0), lengths)
            told |= _first_of(lengths < 0) | {int(there.argmin()), int(there.argmax())}
    return np.array(sorted(told), np.intp)


def _first_of(is_there: NDArray[np.bool_]) -> set[int]:
    found = int(is_there.argmax())
    return {found} if is_there[found] else set()


class _PackedFile(Closing):
    """Packed rows in a temporary file, which is removed by `close`."""

    def __init__(self, rows: UnpackedRows) -> None:
        self.num_rows = 0
        self._file: IO[bytes] = tempfile.TemporaryFile(prefix="ignite_tf_packed-")  # noqa: SIM115  closed by close()
        try:
            self._gather(rows)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Remove the file."""
        with suppress(OSError):  # closing first retries failed writes; the file is closed in any case
            self._file.close()

    def batches(self) -> Iterator[Batch]:
        """Yield the entries from the first one, with the columns of a packed cache."""
        self._file.seek(0)
        waiting: list[tuple[int, bytes]] = []
        waiting_bytes = 0
        while head := self._file.read(_HEAD.size):
            num_rows, num_bytes = _HEAD.unpack(head)
            waiting.append((num_rows, self._file.read(num_bytes)))
            waiting_bytes += num_bytes
            if waiting_bytes >= _BATCH_BYTES:
                yield _batch(waiting)
                waiting, waiting_bytes = [], 0
        if waiting:
            yield _batch(waiting)

    def _gather(self, rows: UnpackedRows) -> None:
        packer = RowPacker(rows.layout)
        with closing(rows.read()) as pieces:
            made = (packer.batch(columns) for columns in pieces)
            for batch in _regrouped(made, rows.num_rows):
                entry = packer.entry(batch)
                self._keep(_HEAD.pack(batch.num_rows, len(entry)) + entry, rows.name)
                self.num_rows += batch.num_rows

    def _keep(self, entry: bytes, name: str) -> None:
        try:
            self._file.write(entry)
            self._file.flush()
        except OSError as error:
            raise SourceError(
                f"the packed rows of {name} cannot be kept in {tempfile.gettempdir()} until they are written: "
                f"{error.strerror}. Make room there, or set TMPDIR to another directory"
            ) from error


def _batch(found: Sequence[tuple[int, bytes]]) -> Batch:
    counts, entries = zip(*found, strict=True)
    packed = np.empty(len(entries), object)
    packed[:] = entries
    return {
        NUM_ROWS: SourceColumn(np.array(counts, np.int32)),
        PACKED_ROWS: SourceColumn(packed, code=int(TypeCode.BYTE_ARRAY)),
    }


def _regrouped(batches: Iterable[Any], num_rows: int) -> Iterator[Any]:
    """Regroup Arrow batches so that each makes an entry of a suitable size; the last may be smaller."""
    waiting: list[Any] = []
    size = 0
    for batch in batches:
        size = size or _entry_rows(batch, num_rows)
        waiting.append(batch)
        total = sum(each.num_rows for each in waiting)
        if total >= size:
            whole, end = _joined(waiting), total - total % size
            yield from (whole.slice(first, size) for first in range(0, end, size))
            waiting = [whole.slice(end)] if end < total else []
    if waiting:
        yield _joined(waiting)


def _joined(batches: list[Any]) -> Any:
    table = arrow().Table.from_batches(batches).combine_chunks()
    return table.to_batches()[0]


def _entry_rows(batch: Any, num_rows: int) -> int:
    row_bytes = max(1, int(batch.nbytes) // max(int(batch.num_rows), 1))
    return max(1, min(ENTRY_BYTES // row_bytes, num_rows // MIN_ENTRIES))
