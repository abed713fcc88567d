"""Lists of values of one type, in Java's arrays of objects, collections and maps: their items, one behind the other.

They are read value by value, in Python: nothing else tells where an item begins.
"""

from __future__ import annotations

import datetime as dt
import decimal
import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ignite_tf_magic.protocol.buffer import Reader
from ignite_tf_magic.protocol.layout import Leaf, LeafRole
from ignite_tf_magic.protocol.lazy_numpy import np
from ignite_tf_magic.protocol.objects import UnknownObjectSchema
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
    UtilDate,
)
from ignite_tf_magic.protocol.walk import RowFault, Rule

if TYPE_CHECKING:
    from numpy.typing import NDArray


def take_items(
    leaf: Leaf, number: int, rows: memoryview, spans: Sequence[tuple[int, int]]
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the items of a page's lists, and how many each row has; a null has none.

    Args:
        leaf: Of lists.
        number: Which one it is, for faults.
        rows: The page.
        spans: Where each row has its value, and how many bytes it takes; -1 for null.

    Raises:
        RowFault: An item is of another type than those of the leaf, is null where its column has no null, or is a time
            that nanoseconds do not reach.
        RemoteProtocolError: A value is corrupted.
    """
    items: list[Any] = []
    lengths = np.zeros(len(spans), np.int64)
    for row, (start, size) in enumerate(spans):
        if start < 0:
            continue
        try:
            found = _part(leaf, read_value(Reader(rows[: start + size], start)))
        except UnknownObjectSchema:  # objects, where the rows sampled have none
            raise RowFault(Rule.TYPE, number, row, start) from None
        lengths[row] = len(found)
        for each in found:
            rule = _put(leaf, each, items)
            if rule is not None:
                raise RowFault(rule, number, row, start)
    column = np.empty(len(items), leaf.dtype)
    column[:] = items
    return column, lengths


def _part(leaf: Leaf, value: Any) -> Sequence[Any]:
    if leaf.role in (LeafRole.MAP_KEYS, LeafRole.NULL_KEYS):
        return [key for key, _ in value]
    return [item for _, item in value] if leaf.role in (LeafRole.MAP_VALUES, LeafRole.NULL_VALUES) else value


def _put(leaf: Leaf, value: Any, items: list[Any]) -> Rule | None:
    """Add an item as its column has it; tells what is wrong with one that is not added."""
    if leaf.role >= LeafRole.NULL_ITEMS:
        items.append(value is None)
        return None
    if value is None:
        if leaf.dtype.kind not in "fO" and not leaf.may_hold_null:
            return Rule.ITEM_NULL
        items.append({"f": float("nan"), "O": b""}.get(leaf.dtype.kind, 0))
        return None
    kind, convert = _OF_CODE[leaf.item_code]
    if type(value) not in kind:
        return Rule.TYPE
    if leaf.item_code == TypeCode.TIMESTAMP:
        millis, nanos = instant_of(value) or (0, 0)
        if not MIN_MILLIS_AS_NANOS <= millis <= MAX_MILLIS_AS_NANOS:
            return Rule.TIME
        items.append(millis * 1_000_000 + nanos)
    else:
        items.append(convert(value))
    return None


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
    TypeCode.UUID: ((uuid.UUID,), lambda value: str(value).encode()),
    TypeCode.DATE: ((UtilDate,), _millis),
    TypeCode.OPTIMIZED: ((SqlDate,), _millis),
    TypeCode.TIMESTAMP: ((Timestamp,), _millis),
    TypeCode.TIME: ((dt.time, JavaTime), _millis_of_time),
    TypeCode.DECIMAL: ((decimal.Decimal,), float),
    TypeCode.ENUM: ((EnumValue,), int),
    TypeCode.BINARY_ENUM: ((EnumValue,), int),
}
