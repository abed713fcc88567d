"""The interface of the two walkers, which decode the rows of scan pages, and what both share.

A walker writes fixed-width columns straight into the column buffers. For the other columns it records each row's
(offset, bytes) in the page, offset -1 for null. If the rows of a page differ only in their values, it compares
everything else with a template row and copies the values: with NumPy strides in `walk_python`, with memcmp and memcpy
in `walk_compiled`. It walks other pages row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Protocol

from ignite_tf_magic.protocol.layout import Leaf
from ignite_tf_magic.protocol.lazy_numpy import np
from ignite_tf_magic.protocol.messages import Page
from ignite_tf_magic.protocol.ops import TypeCode

if TYPE_CHECKING:
    from numpy.typing import NDArray


class PayloadKind(IntEnum):
    """How a leaf's payload is laid out. The numbers are the same in _rows.c."""

    FIXED = 0
    TIMESTAMP = 1
    ENUM = 2
    TEXT = 3
    ARRAY = 4
    DECIMAL = 5
    UUID = 6
    SQL_DATE = 7
    NULLNESS = 8
    LIST = 9  # or any other value whose type code is needed, too


class Rule(IntEnum):
    """The rule that a row breaks. The numbers are the same in _rows.c, which lacks ITEM_NULL."""

    BYTES = 1
    TYPE = 2
    NULL = 3
    LENGTH = 4
    SCHEMA = 5
    TIME = 6
    ITEM_NULL = 7


class RowFault(Exception):
    """A row that does not fit the layout.

    Attributes:
        rule: The rule that the row breaks.
        leaf: Number of the leaf, or -1 for an object.
        row: Number of the row in its page.
        offset: Offset of the fault in the page.
    """

    def __init__(self, rule: int, leaf: int, row: int, offset: int) -> None:
        super().__init__(rule, leaf, row, offset)
        self.rule, self.leaf, self.row, self.offset = Rule(rule), leaf, row, offset


class Walker(Protocol):
    """Decodes the rows of pages of one layout. Not thread-safe: use one per thread."""

    def bind(self, out: Sequence[NDArray[Any]]) -> None:
        """Set the output buffers: one per leaf, in the order of `RowLayout.leaves`.

        The buffers of columns that are not fixed are int64 (rows, 2) and receive spans: (offset, bytes) of each row.
        """

    def decode(self, page: Page, num_rows: int, first_row: int) -> int:
        """Write the first rows of a page: fixed columns from `first_row` on, spans from index 0.

        Returns:
            Offset after these rows. After the last row it is the end of the page.

        Raises:
            RowFault: A row does not fit. The contents of the buffers from `first_row` on are then invalid.
        """


def kind_of(leaf: Leaf) -> PayloadKind:
    """Return how a leaf's payload is laid out."""
    if leaf.is_nullness:
        return PayloadKind.NULLNESS
    if leaf.is_list or leaf.as_text:
        return PayloadKind.LIST
    if leaf.code in (TypeCode.ENUM, TypeCode.BINARY_ENUM):
        return PayloadKind.ENUM
    if leaf.code == TypeCode.TIMESTAMP:
        return PayloadKind.TIMESTAMP
    if leaf.code == TypeCode.OPTIMIZED:
        return PayloadKind.SQL_DATE
    if leaf.code == TypeCode.UUID:
        return PayloadKind.UUID
    if leaf.code == TypeCode.DECIMAL:
        return PayloadKind.DECIMAL
    if leaf.is_text:
        return PayloadKind.TEXT
    return PayloadKind.ARRAY if leaf.is_ragged else PayloadKind.FIXED


def item_bytes(leaf: Leaf) -> int:
    """Return the number of bytes on the wire per counted item."""
    return 1 if leaf.is_text else leaf.dtype.itemsize


def row_bytes(leaf: Leaf) -> int:
    """Return the number of bytes of one row in a fixed column; 0 for other columns."""
    return leaf.dtype.itemsize * int(np.prod(leaf.row_shape, dtype=np.int64)) if leaf.is_fixed else 0
