"""Decodes the rows of pages into columns: fills buffers and returns them as arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ignite_tf_magic.errors import RemoteProtocolError, SchemaError
from ignite_tf_magic.protocol.buffer import Reader
from ignite_tf_magic.protocol.decimals import decimal_from_wire
from ignite_tf_magic.protocol.gathered import Gather
from ignite_tf_magic.protocol.layout import Leaf, RowLayout
from ignite_tf_magic.protocol.list_items import take_items
from ignite_tf_magic.protocol.objects import skip_value
from ignite_tf_magic.protocol.ops import TypeCode
from ignite_tf_magic.protocol.page_series import PageSeries
from ignite_tf_magic.protocol.read_values import read_value, uuid_from_wire
from ignite_tf_magic.protocol.value_texts import UnknownEnumValue, text_of
from ignite_tf_magic.protocol.walk import RowFault, Rule, Walker
from ignite_tf_magic.protocol.walk_compiled import CompiledWalker, make_walker

# TensorFlow uses a NumPy array without copying it if its data has this alignment.
ALIGNMENT_BYTES = 64


class UnknownSchema(RemoteProtocolError):
    """A page uses types newer than the layout: ask the cluster for them and decode again.

    Attributes:
        enum_type: Id of the enum type if the cause is an enum value without a name; None for an unknown schema.
    """

    def __init__(self, message: str, enum_type: int | None = None) -> None:
        super().__init__(message)
        self.enum_type = enum_type


@dataclass(frozen=True, slots=True)
class RaggedColumn:
    """A column of number arrays or lists of varying length.

    Attributes:
        values: The items of all rows, in row order.
        lengths: The number of items of each row. If these are lists themselves, the number of items of each follows,
            and so on for every level.
    """

    values: NDArray[Any]
    lengths: tuple[NDArray[np.int64], ...]

    @property
    def arrays(self) -> tuple[NDArray[Any], ...]:
        """The values, then the lengths."""
        return self.values, *self.lengths


Column = NDArray[Any] | RaggedColumn


Allocate = Callable[[tuple[int, ...], "np.dtype[Any]"], NDArray[Any]]


def aligned(raw: NDArray[np.uint8], shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return an array of this shape inside `raw` whose data starts at a multiple of 64 bytes."""
    skew = -raw.ctypes.data % ALIGNMENT_BYTES
    return raw[skew : skew + num_bytes(shape, dtype)].view(dtype).reshape(shape)


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Allocate an array whose data starts at a multiple of 64 bytes."""
    return aligned(np.empty(num_bytes(shape, dtype) + ALIGNMENT_BYTES, np.uint8), shape, dtype)


def num_bytes(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    """Return the size of an array in bytes."""
    return math.prod(shape) * dtype.itemsize


class ColumnChunk:
    """Columns that fill up page by page; the pages may come from different partitions."""

    def __init__(self, layout: RowLayout, capacity_rows: int, allocate: Allocate = aligned_empty) -> None:
        self.leaves = layout.leaves()
        self.capacity_rows = capacity_rows
        self.num_rows = 0
        self.fixed = [
            allocate((capacity_rows, *leaf.row_shape), leaf.dtype) if leaf.is_fixed else None
            for leaf in self.leaves
        ]
        self.parts: list[list[Any]] = [[] for _ in self.leaves]

    @property
    def free_rows(self) -> int:
        """The number of rows that still fit."""
        return self.capacity_rows - self.num_rows

    def columns(self) -> list[Column]:
        """Return the columns in the order of `RowLayout.leaves`, cut to the rows they hold.

        The arrays share the chunk's memory; do not decode into it afterwards.
        """
        return [self._column(number) for number in range(len(self.leaves))]

    def _column(self, number: int) -> Column:
        leaf, buffer, parts = self.leaves[number], self.fixed[number], self.parts[number]
        if buffer is not None:
            return buffer[: self.num_rows]
        if leaf.is_ragged or leaf.is_list:
            values = (
                np.concatenate([np.zeros((0, *leaf.row_shape), leaf.dtype), *(part[0] for part in parts)])
                if leaf.is_list
                else np.frombuffer(b"".join(part[0] for part in parts), leaf.dtype)
            )
            levels = [
                np.concatenate([np.zeros(0, np.int64), *(part[1][level] for part in parts)])
                for level in range(leaf.ragged_levels)
            ]
            return RaggedColumn(values, tuple(levels)) if levels else values
        items = [item for part in parts for item in part]
        if leaf.is_decimal:
            return np.array(items, np.float64)
        column = np.empty(len(items), object)
        column[:] = items
        return column


class PageDecoder:
    """Decodes pages of one layout into chunks. Not thread-safe: use one per thread.

    Args:
        layout: The layout of the rows.
        walker: The walker over the rows; None makes one.
        as_views: Whether texts and byte[] of varying length are memoryviews of the pages instead of copies.
    """

    def __init__(self, layout: RowLayout, walker: Walker | None = None, *, as_views: bool = False) -> None:
        self._copy: Callable[[memoryview], Any] = memoryview if as_views else bytes
        self._leaves, self._num_values = layout.leaves(), layout.num_values
        self._walker = make_walker(layout) if walker is None else walker
        self._spans: dict[int, NDArray[np.int64]] = {}  # for columns that are not fixed
        self._has_spans = not all(leaf.is_fixed for leaf in self._leaves)
        self._gathers = _gathers(self._walker, self._leaves, as_views=as_views)
        self._mixed: PageSeries | None = None  # a series that needs decoding page by page
        self._room_rows = -1
        self._chunk: ColumnChunk | None = None

    def decode(self, series: PageSeries, chunk: ColumnChunk) -> None:
        """Move rows from a series of pages into a chunk until the series is empty or the chunk is full.

        Raises:
            SchemaError: A row does not fit the layout. The message names the field and a remedy.
            UnknownSchema: A page uses types newer than the layout. Rows already moved are in the chunk; the others are
                still in the series.
            RemoteProtocolError: A page is truncated or corrupted.
        """
        try:
            if not self._gather(series, chunk):
                while series.num_rows and chunk.free_rows:
                    self._decode_page(series, chunk)
        except RowFault as fault:
            if fault.rule in (Rule.BYTES, Rule.SCHEMA):
                raise _explain(fault, self._leaves, f"row {fault.row} of a page") from None
            raise self._located(fault, series, chunk) from None

    def _gather(self, series: PageSeries, chunk: ColumnChunk) -> bool:
        """Decode many pages at once. Return False, with no row taken, if the series needs decoding page by page."""
        if not isinstance(self._walker, CompiledWalker) or self._gathers is None or series is self._mixed:
            return False
        mark = series.mark() if self._has_spans else None
        self._prepare(chunk, min(series.num_rows, chunk.free_rows) if self._has_spans else 0)
        num_rows = self._walker.decode_series(series, chunk.free_rows, chunk.num_rows)
        parts = {number: gather(self._spans[number][:num_rows]) for number, gather in self._gathers.items()}
        if mark is not None and any(part is None for part in parts.values()):
            series.return_to(mark)
            self._mixed = series
            return False
        for number, part in parts.items():
            chunk.parts[number].append(part)
        chunk.num_rows += num_rows
        return True

    def _located(self, fault: RowFault, series: PageSeries, chunk: ColumnChunk) -> Exception:
        """Return the error for a fault, naming the row by its key. The contents of `chunk` are invalid afterwards."""
        where = "a row"
        try:
            while series.num_rows and chunk.free_rows:
                self._decode_page(series, chunk)
        except RowFault as found:
            fault, where = found, _described(series.first().rows, found.row, 1 + self._num_values)
        return _explain(fault, self._leaves, where)

    def _decode_page(self, series: PageSeries, chunk: ColumnChunk) -> None:
        page = series.first()
        num_rows = min(page.num_rows, chunk.free_rows)
        self._prepare(chunk, num_rows)
        end = self._walker.decode(page, num_rows, chunk.num_rows)
        if self._has_spans:
            self._take_spans(page.rows, num_rows, chunk)
        chunk.num_rows += num_rows
        series.drop(num_rows, end)

    def _prepare(self, chunk: ColumnChunk, num_rows: int) -> None:
        if chunk is not self._chunk or num_rows > self._room_rows:
            self._bind(chunk, num_rows)

    def _take_spans(self, rows: memoryview, num_rows: int, chunk: ColumnChunk) -> None:
        taken: dict[int, Any] = {}
        lists: dict[int, Any] = {}  # shared by the columns made of one list
        for number, spans in self._spans.items():
            leaf, found = self._leaves[number], spans[:num_rows].tolist()
            taken[number] = (
                take_items(leaf, number, rows, found, lists)
                if leaf.is_list
                else _texts(leaf, rows, found, 1 + self._num_values)
                if leaf.as_text
                else _take(leaf, rows, found, self._copy)
            )
        for number, part in taken.items():  # all or none: after an unknown schema the page is decoded again
            chunk.parts[number].append(part)

    def _bind(self, chunk: ColumnChunk, num_rows: int) -> None:
        if num_rows > self._room_rows:
            self._room_rows = max(num_rows, 2 * self._room_rows)
            self._spans = {
                number: np.empty((self._room_rows, 2), np.int64)
                for number, leaf in enumerate(self._leaves)
                if not leaf.is_fixed
            }
        self._walker.bind(
            [self._spans[number] if buffer is None else buffer for number, buffer in enumerate(chunk.fixed)]
        )
        self._chunk = chunk


def _gathers(walker: Walker, leaves: Sequence[Leaf], *, as_views: bool) -> dict[int, Gather] | None:
    """Return a gather function per column that is not fixed, or None if one must be read value by value."""
    found: dict[int, Gather] = {}
    for number, leaf in enumerate(leaves):
        if not leaf.is_fixed:
            gather = walker.gather_of(leaf) if isinstance(walker, CompiledWalker) and not as_views else None
            if gather is None:
                return None
            found[number] = gather
    return found


def _take(
    leaf: Leaf, rows: memoryview, spans: Sequence[tuple[int, int]], copy: Callable[[memoryview], Any]
) -> Any:
    fill = leaf.fill or b""
    if leaf.is_decimal:
        return [float("nan") if start < 0 else _decimal(rows[start : start + size]) for start, size in spans]
    if leaf.code == TypeCode.UUID:
        return [fill if start < 0 else _uuid(rows[start : start + size]) for start, size in spans]
    if leaf.is_text:
        return [fill if start < 0 else copy(rows[start : start + size]) for start, size in spans]
    items = [fill if start < 0 else bytes(rows[start : start + size]) for start, size in spans]
    lengths = np.fromiter(map(len, items), np.int64, len(items)) // leaf.dtype.itemsize
    return b"".join(items), [lengths]


def _texts(leaf: Leaf, rows: memoryview, spans: Sequence[tuple[int, int]], row_values: int) -> list[bytes]:
    types, fill, found = {each.type_id: each for each in leaf.types}, leaf.fill or b"", list[bytes]()
    try:
        for start, size in spans:
            text = fill if start < 0 else text_of(rows[start : start + size], types)
            # A Java char may be half of a surrogate pair.
            found.append(text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text)
    except UnknownEnumValue as error:
        raise UnknownSchema(f"field {leaf.name}: {error}", error.type_id) from None
    except (SchemaError, RemoteProtocolError) as error:
        where = _described(rows, len(found), row_values)
        raise SchemaError(f"{where} has no text in {leaf.name}: {error}") from error
    return found


def _uuid(raw: memoryview) -> bytes:
    return str(uuid_from_wire(raw)).encode()


def _decimal(raw: memoryview) -> float:
    scale = int.from_bytes(raw[:4], "little", signed=True)
    return float(decimal_from_wire(scale, bytes(raw[8:])))


def _described(rows: memoryview, row: int, row_values: int) -> str:
    reader = Reader(rows)
    try:
        for _ in range(row_values * row):
            skip_value(reader)
        return f"the row with key {read_value(reader)!r}"
    except RemoteProtocolError:
        return f"row {row} of a page"


def _size(leaf: Leaf) -> str:
    return " by ".join(map(str, leaf.row_shape))


def _explain(fault: RowFault, leaves: Sequence[Leaf], where: str) -> Exception:
    name = leaves[fault.leaf].name if fault.leaf >= 0 else "an object"
    short = name.partition(".")[2] or name
    if fault.rule is Rule.NULL:
        return SchemaError(
            f"{where} has a null in {name}, and {leaves[fault.leaf].dtype} has no null; "
            f"replace nulls with fill={{{short!r}: 0}}, or add a boolean that flags them, nulls='mask'"
        )
    if fault.rule is Rule.ITEM_NULL:
        return SchemaError(
            f"{where} has a null in the list {name}, and {leaves[fault.leaf].dtype} has no null; "
            "add booleans that flag them: nulls='mask'"
        )
    if fault.rule is Rule.TYPE:
        return SchemaError(
            f"{where} has another type in {name} than the rows sampled; a dataset needs one type per field. "
            "Leave the field out by naming the others: fields=[...]"
        )
    if fault.rule is Rule.LENGTH:
        return SchemaError(
            f"{where} has an array in {name} that is not {_size(leaves[fault.leaf])} long like those "
            f"sampled; allow other lengths: variable=[{short!r}]"
        )
    if fault.rule is Rule.TIME:
        return SchemaError(
            f"{where} has a time in {name} outside of September 1677 to April 2262, which is what nanoseconds in an "
            f"int64 hold; read it as text, as_text=[{short!r}], or leave the field out: fields=[...]"
        )
    if fault.rule is Rule.SCHEMA:
        return UnknownSchema(f"{where} holds an object with a schema that the cluster did not send")
    return RemoteProtocolError(f"corrupted page: {where}, offset {fault.offset}, in {name}")
