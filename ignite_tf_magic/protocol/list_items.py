"""Reads the items of lists: Java's object arrays, collections and maps, also nested.

Python reads them value by value: only reading an item shows where the next one begins.
"""

from __future__ import annotations

import datetime as dt
import decimal
import struct
import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ignite_tf_magic.protocol.buffer import Reader
from ignite_tf_magic.protocol.gathered import is_of_texts
from ignite_tf_magic.protocol.layout import VARIABLE, Leaf, LeafRole
from ignite_tf_magic.protocol.lazy_numpy import np
from ignite_tf_magic.protocol.objects import BinaryObject, UnknownObjectSchema
from ignite_tf_magic.protocol.ops import TypeCode
from ignite_tf_magic.protocol.read_values import read_value
from ignite_tf_magic.protocol.times import (
    MAX_MILLIS_AS_NANOS,
    MIN_MILLIS_AS_NANOS,
    instant_of,
    millis_of_time,
)
from ignite_tf_magic.protocol.typed_values import (
    INTEGERS,
    EnumValue,
    Float,
    JavaTime,
    SqlDate,
    Timestamp,
    TypedMap,
    UtilDate,
)
from ignite_tf_magic.protocol.walk import RowFault, Rule

if TYPE_CHECKING:
    from numpy.typing import NDArray


def take_items(
    leaf: Leaf,
    number: int,
    rows: memoryview,
    spans: Sequence[tuple[int, int]],
    known: dict[int, Any] | None = None,
) -> tuple[NDArray[Any], list[NDArray[np.int64]]]:
    """Return the items of a page's lists and, for each ragged level, the number of items of each list.

    A null list has no items.

    Args:
        leaf: The column, which is a list.
        number: The number of the column, for faults.
        rows: The rows of the page.
        spans: The (offset, bytes) of each row's value in the page; offset -1 for null.
        known: The values of the page read so far, by offset. New ones are added.

    Raises:
        RowFault: An item has another type than the leaf, is null in a column without nulls, has another length than
            all others, or is a time outside the range of int64 nanoseconds.
        RemoteProtocolError: A value is corrupted.
    """
    taking, types = _Taking(leaf), {each.type_id: each for each in leaf.types}
    known = {} if known is None else known
    has_texts = is_of_texts(leaf)
    for row, (start, size) in enumerate(spans):
        if has_texts and taking.put_texts(rows[start : start + size] if start >= 0 else None):
            continue
        try:
            value = None
            if start >= 0 and start not in known:
                known[start] = read_value(Reader(rows[: start + size], start), types.get)
            if start >= 0:
                value = _part(leaf, known[start])
        except (
            UnknownObjectSchema
        ) as error:  # an object of a type that the sampled rows lack, or of a newer schema
            raise RowFault(Rule.SCHEMA if error.type_id in types else Rule.TYPE, number, row, start) from None
        except _OtherItemError:
            raise RowFault(Rule.TYPE, number, row, start) from None
        rule = taking.put_row(value)
        if rule is not None:
            raise RowFault(rule, number, row, start)
    return taking.values(), [np.array(each, np.int64) for each in taking.lengths]


_INT32 = struct.Struct("<i").unpack_from
# Type code -> bytes before the items: a type code, the number of items and, for a collection, its kind.
_LIST_HEADS = {int(TypeCode.STRING_ARRAY): 5, int(TypeCode.COLLECTION): 6}
_STRING_HEAD = 5  # a type code and a length


class _OtherItemError(Exception):
    """An item of a list of objects is not an object."""


def _part(leaf: Leaf, value: Any) -> Any:
    if leaf.member:
        return [_member(item, leaf.member) for item in value] if isinstance(value, list) else value
    if leaf.role in (LeafRole.MAP_KEYS, LeafRole.NULL_KEYS):
        return [key for key, _ in value]
    return [item for _, item in value] if leaf.role in (LeafRole.MAP_VALUES, LeafRole.NULL_VALUES) else value


def _member(item: Any, names: Sequence[str]) -> Any:
    """Return the value of an object's field, or of a field nested in it; None if it is missing."""
    for name in names:
        if item is None:
            return None
        if not isinstance(item, BinaryObject):
            raise _OtherItemError
        item = item.fields.get(name)
    return item


class _Taking:
    """Collects the items of a column's lists, in order.

    Attributes:
        lengths: For each ragged level, the number of items of each list.
    """

    def __init__(self, leaf: Leaf) -> None:
        self._leaf, self._innermost = leaf, leaf.innermost
        self._tells_of_nulls = leaf.role >= LeafRole.NULL_ITEMS
        self._may_hold_null = leaf.may_hold_null or leaf.dtype.kind in "fO"
        self._is_array = self._innermost.is_array and not self._innermost.is_text
        self._nothing = {"f": float("nan"), "O": b""}.get(leaf.dtype.kind, 0)
        self._items: list[Any] = []
        self.lengths: list[list[int]] = [[] for _ in range(leaf.ragged_levels)]

    def values(self) -> NDArray[Any]:
        shape = self._leaf.row_shape
        if self._is_array and not self._tells_of_nulls:
            nothing = np.zeros(0, self._leaf.dtype)
            return np.concatenate([nothing, *self._items]).reshape(-1, *shape)
        column = np.empty(len(self._items), self._leaf.dtype)
        column[:] = self._items
        return column

    def put_row(self, value: list[Any] | None) -> Rule | None:
        """Add the items of a row's list. Return the rule that the list breaks, or None."""
        if value is None and self._leaf.length != VARIABLE:
            self._items.append(np.frombuffer(self._leaf.fill or b"", self._leaf.dtype))
            return None
        return self._put(self._leaf, value, 0)

    def put_texts(self, array: memoryview | None) -> bool:
        """Add a row's strings and return True, or add nothing and return False if `put_row` must read them."""
        if array is None:
            self.lengths[0].append(0)
            return True
        texts = _texts_of(array)
        if texts is None:
            return False
        self._items += texts
        self.lengths[0].append(len(texts))
        return True

    def _put(self, leaf: Leaf, value: Any, level: int) -> Rule | None:
        if leaf.item is None:
            return self._put_array(leaf, value, level) if self._is_array else self._put_item(value)
        if value is None:
            value = ()
        elif not isinstance(value, list) or isinstance(value, TypedMap):
            return Rule.TYPE
        if leaf.length == VARIABLE:
            self.lengths[level].append(len(value))
        elif leaf.length != len(value):
            return Rule.LENGTH
        for each in value:
            rule = self._put(leaf.item, each, level + 1)
            if rule is not None:
                return rule
        return None

    def _put_array(self, leaf: Leaf, value: Any, level: int) -> Rule | None:
        if value is None:
            if leaf.length != VARIABLE and not self._may_hold_null:
                return Rule.ITEM_NULL
            value = np.full(max(leaf.length, 0), self._nothing, leaf.dtype)
        elif type(value) is bytes and leaf.code == TypeCode.BYTE_ARRAY:
            value = np.frombuffer(value, leaf.dtype)
        elif not isinstance(value, np.ndarray) or value.dtype != leaf.dtype:
            return Rule.TYPE
        if leaf.length == VARIABLE:
            self.lengths[level].append(len(value))
        elif leaf.length != len(value):
            return Rule.LENGTH
        self._items.append(value)
        return None

    def _put_item(self, value: Any) -> Rule | None:
        if self._tells_of_nulls:
            self._items.append(value is None)
            return None
        if value is None:
            self._items.append(self._nothing)
            return None if self._may_hold_null else Rule.ITEM_NULL
        kind, convert = _OF_CODE[self._innermost.code]
        if type(value) not in kind:
            return Rule.TYPE
        item = convert(value)
        self._items.append(item)
        return Rule.TIME if item is None else None


def _texts_of(array: memoryview) -> list[bytes] | None:
    """Read an array or a collection of strings at once. Return None if it is not one, has a null, or is damaged."""
    data, texts = bytes(array), list[bytes]()
    head = at = _LIST_HEADS.get(data[0], 0) if data else 0
    try:
        count = _INT32(data, 1)[0]
        if not head or count < 0:
            return None
        for _ in range(count):
            if data[at] != TypeCode.STRING:
                return None
            begin = at + _STRING_HEAD
            at = begin + _INT32(data, at + 1)[0]
            texts.append(data[begin:at])
        for text in texts:
            if not text.isascii():
                text.decode()
    except (struct.error, IndexError, UnicodeDecodeError):
        return None
    # With a negative length, or one beyond the end, the sum differs.
    is_whole = at == len(data) == head + _STRING_HEAD * len(texts) + sum(map(len, texts))
    return texts if is_whole else None


def _nanos(value: dt.datetime) -> int | None:
    """Return nanoseconds since 1970, or None if they do not fit into an int64."""
    millis, nanos = instant_of(value) or (0, 0)
    is_there = MIN_MILLIS_AS_NANOS <= millis <= MAX_MILLIS_AS_NANOS
    return millis * 1_000_000 + nanos if is_there else None


def _millis(value: dt.datetime) -> int:
    millis, _ = instant_of(value) or (0, 0)
    return millis


def _millis_of_time(value: dt.time) -> int:
    return value.millis if isinstance(value, JavaTime) else millis_of_time(value)


_OF_CODE: dict[int, tuple[tuple[type, ...], Callable[[Any], Any]]] = {
    **{int(code): ((kind,), int) for code, kind in INTEGERS.items()},
    TypeCode.LONG: ((int,), int),
    TypeCode.FLOAT: ((Float,), float),
    TypeCode.DOUBLE: ((float,), float),
    TypeCode.BOOL: ((bool,), bool),
    TypeCode.STRING: ((str,), str.encode),
    TypeCode.BYTE_ARRAY: ((bytes,), bytes),
    TypeCode.UUID: ((uuid.UUID,), lambda value: str(value).encode()),
    TypeCode.DATE: ((UtilDate,), _millis),
    TypeCode.OPTIMIZED: ((SqlDate,), _millis),
    TypeCode.TIMESTAMP: ((Timestamp, UtilDate), _nanos),
    TypeCode.TIME: ((dt.time, JavaTime), _millis_of_time),
    TypeCode.DECIMAL: ((decimal.Decimal,), float),
    TypeCode.ENUM: ((EnumValue,), int),
    TypeCode.BINARY_ENUM: ((EnumValue,), int),
}
