"""The walker in Python, used if nothing was compiled. Tests compare the compiled walker with it."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ignite_tf_magic.errors import RemoteProtocolError
from ignite_tf_magic.protocol.buffer import Reader
from ignite_tf_magic.protocol.layout import Leaf, Node, ObjectNode, RowLayout
from ignite_tf_magic.protocol.lazy_numpy import np
from ignite_tf_magic.protocol.messages import Page
from ignite_tf_magic.protocol.objects import read_header, skip_value
from ignite_tf_magic.protocol.ops import ObjectFlag, TypeCode
from ignite_tf_magic.protocol.times import (
    MAX_MILLIS_AS_NANOS,
    MIN_MILLIS_AS_NANOS,
    SQL_DATE_BYTES,
    SQL_DATE_HEAD,
)
from ignite_tf_magic.protocol.walk import PayloadKind, RowFault, Rule, item_bytes, kind_of, row_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

_INT32 = struct.Struct("<i")
_TIMESTAMP = struct.Struct("<qi")
_DATE_BYTES = 8
_FNV_OFFSET = 0xCBF29CE484222325
_FNV_PRIME = 0x100000001B3


def index_rows(
    rows: memoryview,
    num_rows: int,
    row_starts: NDArray[np.int64],
    key_hashes: NDArray[np.uint64],
    num_values: int = 1,
) -> None:
    """Find where rows start and hash their encoded keys; see `walk_compiled.index_rows`."""
    reader = Reader(rows)
    for row in range(num_rows):
        start = reader.position
        skip_value(reader)
        row_starts[row] = start
        key_hashes[row] = _fnv(rows[start : reader.position])
        for _ in range(num_values):
            skip_value(reader)
    row_starts[num_rows] = reader.position
    if reader.remaining:
        raise RemoteProtocolError("corrupted page: its rows do not end where the page ends")


def measure_page(page: Page) -> int:
    """Return the size of the largest row in bytes; see `walk_compiled.measure_pages`."""
    starts = np.zeros(page.num_rows + 1, np.int64)
    index_rows(page.rows, page.num_rows, starts, np.zeros(page.num_rows, np.uint64))
    return int(np.diff(starts).max(initial=0))


def _fnv(data: memoryview) -> int:
    value = _FNV_OFFSET
    for byte in data:
        value = ((value ^ byte) * _FNV_PRIME) & 0xFFFFFFFFFFFFFFFF
    return value


def hash_rows(table: NDArray[np.uint8], start: int, num_bytes: int, at: int) -> None:
    """Hash bytes of each row; see `walk_compiled.hash_rows`."""
    hashes = np.ones(len(table), np.uint32)
    for column in table[:, start : start + num_bytes].T:
        hashes = hashes * np.uint32(31) + column.view(np.int8).astype(np.int32).view(np.uint32)
    table[:, at : at + 4] = hashes.view(np.uint8).reshape(-1, 4)


class PythonWalker:
    """Decodes a page with NumPy if its rows differ only in their values, else row by row."""

    def __init__(self, layout: RowLayout) -> None:
        self._layout = layout
        self._leaves = layout.leaves()
        self._number = {leaf.path: number for number, leaf in enumerate(self._leaves)}
        self._strides = all(
            kind_of(leaf)
            in (PayloadKind.FIXED, PayloadKind.TIMESTAMP, PayloadKind.SQL_DATE, PayloadKind.NULLNESS)
            for leaf in self._leaves
        )
        self._out: Sequence[NDArray[Any]] = ()
        self._row = 0
        self._spans: list[tuple[int, int]] = []
        self._hashes: list[int] = []

    def bind(self, out: Sequence[NDArray[Any]]) -> None:
        """See `Walker.bind`."""
        self._out = out

    def decode(self, page: Page, num_rows: int, first_row: int) -> int:
        """See `Walker.decode`."""
        out, rows = self._out, page.rows
        if num_rows == page.num_rows and self._decode_strided(rows, num_rows, first_row, out):
            return len(rows)
        at = 0
        for row in range(num_rows):
            at = self._walk_row(rows, row, at)
            self._put_row(rows, row, first_row, out)
        if num_rows == page.num_rows and at != len(rows):
            raise RowFault(Rule.BYTES, -1, num_rows, at)
        return at

    def _walk_row(self, rows: memoryview, row: int, at: int) -> int:
        self._row = row
        self._spans = [(-1, 0)] * len(self._leaves)
        self._hashes = []
        key_end = self._walk(rows, self._layout.key, at, len(rows))
        return self._walk(rows, self._layout.value, key_end, len(rows))

    def _decode_strided(
        self, rows: memoryview, num_rows: int, first_row: int, out: Sequence[NDArray[Any]]
    ) -> bool:
        if num_rows < 2 or len(rows) % num_rows or not self._strides:
            return False
        size = self._walk_row(rows, 0, 0)
        if size * num_rows != len(rows) or any(offset < 0 for offset, _ in self._spans):
            return False
        table = np.frombuffer(rows, np.uint8).reshape(num_rows, size)
        structure = np.ones(size, bool)
        for offset, width in [*self._spans, *((offset, 4) for offset in self._hashes)]:
            structure[offset : offset + width] = False
        if not (table[:, structure] == table[0, structure]).all():
            return False
        for leaf, (offset, width), column in zip(self._leaves, self._spans, out, strict=True):
            values = np.ascontiguousarray(table[:, offset : offset + width])
            found = _strided_values(leaf, values)
            if found is None:
                return False
            column[first_row : first_row + num_rows] = found
        return True

    def _put_row(self, rows: memoryview, row: int, first_row: int, out: Sequence[NDArray[Any]]) -> None:
        for leaf, (offset, width), column in zip(self._leaves, self._spans, out, strict=True):
            if not leaf.is_fixed:
                column[row] = (offset, width)
            elif offset < 0:
                column[first_row + row] = np.frombuffer(leaf.fill or b"", leaf.dtype).reshape(leaf.row_shape)
            elif leaf.is_nullness:
                column[first_row + row] = False
            elif leaf.code == TypeCode.TIMESTAMP:
                millis, nanos = _instant(rows, offset, width)
                column[first_row + row] = millis * 1_000_000 + nanos
            else:
                values = np.frombuffer(rows[offset : offset + width], leaf.dtype)
                column[first_row + row] = values.reshape(leaf.row_shape)

    def _fault(self, rule: Rule, leaf: int, offset: int) -> RowFault:
        return RowFault(rule, leaf, self._row, offset)

    def _walk(self, rows: memoryview, node: Node, at: int, limit: int) -> int:
        if isinstance(node, Leaf):
            return self._walk_leaf(rows, node, at, limit)
        if not node.types:
            return self._walk_cells(rows, node, at, limit)
        if at >= limit:
            raise self._fault(Rule.BYTES, -1, at)
        code = rows[at]
        if code == TypeCode.NULL:
            self._null(node, at)
            return at + 1
        if code == TypeCode.BINARY_OBJECT:
            return at + self._walk_object(rows, node, at, limit)
        if code != TypeCode.WRAPPED_OBJECT:
            raise self._fault(Rule.TYPE, -1, at)
        size = self._counted(rows, -1, at + 1, limit - 4, 1)
        (inner,) = _INT32.unpack_from(rows, at + 5 + size)
        if not 0 <= inner < size:
            raise self._fault(Rule.BYTES, -1, at)
        self._walk_object(rows, node, at + 5 + inner, at + 5 + size)
        return at + 9 + size

    def _walk_cells(self, rows: memoryview, node: ObjectNode, at: int, limit: int) -> int:
        cell, known_id = at, None
        for field_id, child in node.fields:
            if not isinstance(child, Leaf):
                raise self._fault(Rule.TYPE, -1, at)
            if field_id == known_id:
                self._walk_leaf(rows, child, cell, limit)
                continue
            cell, known_id = at, field_id
            at = self._walk_leaf(rows, child, at, limit)
        return at

    def _walk_object(self, rows: memoryview, node: ObjectNode, at: int, limit: int) -> int:
        if at + 24 > limit or rows[at] != TypeCode.BINARY_OBJECT:
            raise self._fault(Rule.BYTES, -1, at)
        try:
            header = read_header(Reader(rows[:limit]), at)
        except RemoteProtocolError:
            raise self._fault(Rule.BYTES, -1, at) from None
        binary_type = node.type_of(header.type_id)
        if binary_type is None:
            raise self._fault(Rule.TYPE, -1, at)
        self._hashes.append(at + 8)
        if not node.fields:  # no field is read, and the schema may be unknown
            return header.length
        if not header.flags & ObjectFlag.HAS_SCHEMA:
            self._null(node, at)
            return header.length
        if header.flags & ObjectFlag.COMPACT_FOOTER and header.schema_id not in binary_type.schemas:
            raise self._fault(Rule.SCHEMA, -1, at)
        try:
            offsets = header.field_offsets(rows[at : at + header.length], binary_type)
        except RemoteProtocolError:
            raise self._fault(Rule.BYTES, -1, at) from None
        first_of = dict(reversed(offsets))
        for field_id, child in node.fields:
            offset = first_of.get(field_id)
            if offset is None:
                self._null(child, at)
            elif not 24 <= offset < header.footer:
                raise self._fault(Rule.BYTES, -1, at)
            else:
                self._walk(rows, child, at + offset, at + header.footer)
        return header.length

    def _null(self, node: Node, at: int) -> None:
        if isinstance(node, ObjectNode):
            for _, child in node.fields:
                self._null(child, at)
        elif node.fill is None:
            raise self._fault(Rule.NULL, self._number[node.path], at)

    def _counted(self, rows: memoryview, leaf: int, at: int, limit: int, width: int) -> int:
        if at + 4 > limit:
            raise self._fault(Rule.BYTES, leaf, at)
        (count,) = _INT32.unpack_from(rows, at)
        if count < 0 or count * width > limit - at - 4:
            raise self._fault(Rule.BYTES, leaf, at)
        return int(count) * width

    def _walk_leaf(self, rows: memoryview, leaf: Leaf, at: int, limit: int) -> int:
        number = self._number[leaf.path]
        if at >= limit:
            raise self._fault(Rule.BYTES, number, at)
        if rows[at] == TypeCode.NULL:
            self._null(leaf, at)
            return at + 1
        if leaf.is_nullness:
            self._spans[number] = (at, 0)
            return at + 1
        is_date = leaf.code == TypeCode.TIMESTAMP and rows[at] == TypeCode.DATE
        if rows[at] != leaf.code and not is_date:
            raise self._fault(Rule.TYPE, number, at)
        payload, size = self._payload(rows, leaf, number, at, limit)
        if payload + size > limit:
            raise self._fault(Rule.BYTES, number, at)
        is_instant = kind_of(leaf) == PayloadKind.TIMESTAMP
        if is_instant and not _is_in_nanos(*_instant(rows, payload, size)):
            raise self._fault(Rule.TIME, number, at)
        self._spans[number] = (payload, size)
        return payload + size

    def _payload(self, rows: memoryview, leaf: Leaf, number: int, at: int, limit: int) -> tuple[int, int]:
        payload, kind = at + 1, kind_of(leaf)
        if kind == PayloadKind.LIST:
            return at, self._value_bytes(rows, number, at, limit)
        if kind == PayloadKind.TIMESTAMP:
            return payload, _TIMESTAMP.size if rows[at] == TypeCode.TIMESTAMP else _DATE_BYTES
        if kind == PayloadKind.UUID:
            return payload, 16
        if kind == PayloadKind.DECIMAL:
            return payload, 8 + self._counted(rows, number, payload + 4, limit, 1)
        if kind == PayloadKind.ENUM:
            return self._enum_payload(rows, number, payload, limit), 4
        if kind == PayloadKind.SQL_DATE:
            size = self._counted(rows, number, payload, limit, 1)
            if size != SQL_DATE_BYTES or bytes(rows[payload + 4 : payload + 9]) != SQL_DATE_HEAD:
                raise self._fault(Rule.TYPE, number, at)
            return payload + 4 + SQL_DATE_BYTES - 8, 8
        if kind == PayloadKind.FIXED and not leaf.is_array:
            return payload, leaf.dtype.itemsize
        size = self._counted(rows, number, payload, limit, item_bytes(leaf))
        if kind == PayloadKind.FIXED and size != row_bytes(leaf):
            raise self._fault(Rule.LENGTH, number, at)
        return payload + 4, size

    def _value_bytes(self, rows: memoryview, number: int, at: int, limit: int) -> int:
        reader = Reader(rows[:limit], at)
        try:
            skip_value(reader)
        except RemoteProtocolError:
            raise self._fault(Rule.BYTES, number, at) from None
        return reader.position - at

    def _enum_payload(self, rows: memoryview, number: int, payload: int, limit: int) -> int:
        """Return the offset of an enum's ordinal, after its type id and, if the id is 0, its class name."""
        if payload + 4 > limit:
            raise self._fault(Rule.BYTES, number, payload - 1)
        if _INT32.unpack_from(rows, payload)[0] == 0:
            if payload + 5 > limit or rows[payload + 4] != TypeCode.STRING:
                raise self._fault(Rule.BYTES, number, payload - 1)
            payload += 5 + self._counted(rows, number, payload + 5, limit, 1)
        return payload + 4


def _instant(rows: memoryview, payload: int, size: int) -> tuple[int, int]:
    """Return milliseconds and nanoseconds; the latter are 0 for a java.util.Date."""
    millis, nanos = _TIMESTAMP.unpack(bytes(rows[payload : payload + size]).ljust(_TIMESTAMP.size, b"\0"))
    return millis, nanos


def _is_in_nanos(millis: Any, nanos: Any) -> Any:
    return (
        (millis >= MIN_MILLIS_AS_NANOS) & (millis <= MAX_MILLIS_AS_NANOS) & (nanos >= 0) & (nanos < 1_000_000)
    )


def _strided_values(leaf: Leaf, values: NDArray[np.uint8]) -> NDArray[Any] | None:
    """Return a column's values, or None if one does not fit into the column."""
    if leaf.is_nullness:
        return np.zeros(len(values), bool)
    if leaf.code == TypeCode.TIMESTAMP:
        millis = np.ascontiguousarray(values[:, :8]).view("<i8")[:, 0]
        has_nanos = values.shape[1] > _DATE_BYTES
        nanos = np.ascontiguousarray(values[:, 8:]).view("<i4")[:, 0] if has_nanos else np.int32(0)
        return np.asarray(millis * 1_000_000 + nanos) if _is_in_nanos(millis, nanos).all() else None
    typed = values.view(leaf.dtype)
    return typed if leaf.is_array else typed[:, 0]
