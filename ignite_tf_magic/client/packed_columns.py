"""Converts columns of a layout to Arrow arrays and back. Nulls are encoded as the layout specifies."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ignite_tf_magic.errors import ConfigError, SchemaError
from ignite_tf_magic.protocol.columns import Column, RaggedColumn
from ignite_tf_magic.protocol.layout import Leaf


def arrow() -> Any:
    """Return pyarrow.

    Raises:
        ConfigError: It is not installed.
    """
    try:
        import pyarrow as pa
        import pyarrow.ipc
    except ModuleNotFoundError as error:
        raise ConfigError(
            "packed rows are in Arrow's format, which needs pyarrow: pip install 'ignite_tf_magic[data]'"
        ) from error
    return pa


@dataclass(frozen=True, slots=True)
class ColumnForm:
    """A column of a layout and its Arrow type.

    Attributes:
        type: The Arrow type.
        dtype: The dtype of the items.
        num_levels: Number of leading row dimensions with variable length.
        row_shape: The row's dimensions after those.
        is_list: As in `Leaf`.
        is_fixed: As in `Leaf`.
    """

    name: str
    type: Any
    dtype: np.dtype[Any]
    num_levels: int
    row_shape: tuple[int, ...]
    is_list: bool
    is_fixed: bool

    @classmethod
    def of(cls, leaf: Leaf) -> ColumnForm:
        """Return the form of a layout's column."""
        pa = arrow()
        found = pa.binary() if leaf.dtype.kind == "O" else pa.from_numpy_dtype(leaf.dtype)
        for length in reversed(leaf.row_shape):
            found = pa.list_(found, length)
        for _ in range(leaf.ragged_levels):
            found = pa.list_(found)
        return cls(
            leaf.name, found, leaf.dtype, leaf.ragged_levels, leaf.row_shape, leaf.is_list, leaf.is_fixed
        )

    def to_arrow(self, column: Column) -> Any:
        """Return a column as an Arrow array."""
        pa = arrow()
        values, lengths = (
            (column.values, column.lengths) if isinstance(column, RaggedColumn) else (column, ())
        )
        items = pa.binary() if self.dtype.kind == "O" else None
        found = pa.array(np.ascontiguousarray(values).reshape(-1), items)
        shape = (len(values), *self.row_shape)
        for depth in range(len(self.row_shape), 0, -1):
            lists = pa.list_(found.type, shape[depth])
            found = pa.Array.from_buffers(lists, math.prod(shape[:depth]), [None], children=[found])
        for each in reversed(lengths):
            found = pa.ListArray.from_arrays(np.concatenate([[0], np.cumsum(each)]).astype(np.int32), found)
        return found

    def from_arrow(self, column: Any, where: str) -> Column:
        """Return an Arrow array as the column that it was made from.

        Raises:
            SchemaError: The array has nulls, or other items than the layout.
        """
        lengths = []
        for _ in range(self.num_levels):
            self._refuse_nulls(column, where)
            lengths.append(np.diff(column.offsets.to_numpy()).astype(np.int64))
            column = column.flatten()
        num_items = len(column)
        for _ in self.row_shape:
            self._refuse_nulls(column, where)
            column = column.flatten()
        self._refuse_nulls(column, where)
        if self.dtype.kind == "O":
            values = np.empty(len(column), object)
            values[:] = column.to_pylist()
        else:
            values = column.to_numpy(zero_copy_only=False)
        size = num_items * math.prod(self.row_shape)
        if values.dtype != self.dtype or len(values) != size:
            raise SchemaError(f"{where} has items in {self.name} that do not match its schema")
        if self.row_shape:
            values = values.reshape(num_items, *self.row_shape)
        return RaggedColumn(values, tuple(lengths)) if lengths else values

    def _refuse_nulls(self, column: Any, where: str) -> None:
        if column.null_count:
            raise SchemaError(f"{where} has nulls in {self.name}, which packed rows cannot have")

    def part(self, column: Any, cache: str) -> Any:
        """Return rows in the form in which a chunk stores variable lengths. Copies all data out of the entry."""
        found = self.from_arrow(column, f"an entry of cache {cache!r}")
        if isinstance(found, RaggedColumn):
            values = found.values.copy() if self.is_list else found.values.tobytes()
            return values, list(found.lengths)
        return (found.copy(), []) if self.is_list else found.tolist()
