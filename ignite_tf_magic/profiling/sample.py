"""Reads some rows of a cache, to show them to the user."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ignite_tf_magic.client.client import Client
from ignite_tf_magic.profiling.packed import packed_rows
from ignite_tf_magic.profiling.rows import first_rows
from ignite_tf_magic.profiling.seen_fields import cell_of, paths_of, type_finder
from ignite_tf_magic.protocol.field_names import short_name
from ignite_tf_magic.protocol.row_fields import read_row

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class CacheSample:
    """Rows of a cache, from many partitions.

    Attributes:
        columns: Names of the columns, those of the key first.
        rows: Python and NumPy values, in the order of `columns`; None for a null, or a field that a row does not have.
        total_rows: Number of rows of the cache.
    """

    cache: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    total_rows: int

    def to_pandas(self, shorten: Callable[[Any], str] | None = None) -> pd.DataFrame:
        """Build a DataFrame. Integer and boolean columns that contain nulls have pandas' nullable dtypes.

        Args:
            shorten: Converts arrays and lists to text; by default they are kept.
        """
        import pandas as pd

        rows = self.rows
        if shorten is not None:
            rows = tuple(
                tuple(shorten(cell) if isinstance(cell, np.ndarray | list) else cell for cell in row)
                for row in rows
            )
        columns = {at: _pandas_column([row[at] for row in rows]) for at in range(len(self.columns))}
        frame: pd.DataFrame = pd.DataFrame(columns)
        frame.columns = pd.Index(list(self.columns))
        return frame


def look_at_rows(client: Client, name: str, num_rows: int) -> CacheSample:
    """Return rows from many partitions; see `Session.sample`."""
    cache = client.find_cache(name)
    baseline = cache.baseline()
    total_rows = baseline.size
    if packed := packed_rows(cache, baseline):
        rows, total_rows = packed.first(num_rows), packed.num_rows
    else:
        find_type = type_finder(cache)
        rows = [read_row(memoryview(row), find_type) for row in first_rows(cache, baseline, num_rows)]
    paths = paths_of(rows)
    cells = tuple(tuple(cell_of(row, path) for path in paths) for row in rows)
    return CacheSample(cache.name, tuple(map(short_name, paths)), cells, total_rows)


def _pandas_column(values: Sequence[Any]) -> Any:
    """Return the values in the form in which pandas stores a column."""
    import pandas as pd

    types = {type(value) for value in values if value is not None}
    kind: Any = types.pop() if len(types) == 1 else None
    if kind in (int, bool):
        dtype = ("Int64" if kind is int else "boolean") if None in values else kind.__name__
        return pd.Series(values, dtype=dtype)
    if kind is float:
        return np.array([np.nan if value is None else value for value in values])
    if kind is np.datetime64:
        moments = [np.datetime64("NaT") if value is None else value for value in values]
        is_near = all(np.datetime_data(value.dtype)[0] == "ns" for value in values if value is not None)
        return np.array(moments, "M8[ns]" if is_near else "M8[us]")
    if kind is str:
        return pd.Series(values, dtype="string")
    column = np.empty(len(values), object)
    for at, value in enumerate(values):
        column[at] = value
    return column
