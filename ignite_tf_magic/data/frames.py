"""Converts pandas frames and series to columns. Whole numbers are never rounded, times are in UTC, NaN is a null.

pandas is imported only when needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ignite_tf_magic.data.arrow_columns import batch_of
from ignite_tf_magic.data.columns import Batch, SourceColumn, primitive, unique_names
from ignite_tf_magic.data.values import column_of
from ignite_tf_magic.errors import SourceError


def frame_columns(frame: Any, report: Callable[[str], None]) -> dict[str, Any]:
    """Return the columns of a DataFrame or Series by name, those of its index first.

    An unnamed index of integers does not become a column, because it only numbers the rows, as pandas does by default.

    Args:
        frame: The DataFrame or Series.
        report: Called with a line about a dropped index, unless it is the default index of pandas.

    Raises:
        SourceError: Two columns have the same name.
    """
    what = type(frame).__name__
    if frame.ndim == 1:
        frame = frame.to_frame("value" if frame.name is None else frame.name)
    index = frame.index
    if index.nlevels > 1 or index.name is not None or index.dtype.kind not in "iu":
        try:
            frame = frame.reset_index()
        except ValueError as error:
            raise SourceError(
                f"the index of the given {what} cannot become a column: {error}; name it with rename_axis, or drop it "
                "with reset_index(drop=True)"
            ) from error
    elif type(index).__name__ != "RangeIndex":
        report(
            f"the index of the given {what} is not loaded: it is integers without a name; rename_axis('row') keeps it"
        )
    names = unique_names([_flat_name(name) for name in frame.columns])
    return {name: frame.iloc[:, number] for number, name in enumerate(names)}


def _flat_name(name: Any) -> str:
    """Return a column's name. For a column with several levels it is `a_b`, like the names of struct fields."""
    return "_".join(str(part) for part in name if part != "") if isinstance(name, tuple) else str(name)


def series_batch(name: str, series: Any, *, keep_nan: bool) -> Batch:
    """Return a Series as a column, or as one column for each field of a struct.

    Args:
        name: Name of the column.
        series: The values.
        keep_nan: Keep NaN among floats as a number; otherwise it is a null.

    Raises:
        SourceError: The values cannot be stored in a cache.
    """
    dtype, its_type = series.dtype, type(series.dtype).__name__
    batch: Batch
    if isinstance(dtype, np.dtype) and dtype.kind in "biufM":
        batch = {name: primitive(name, series.to_numpy())}
    elif its_type == "ArrowDtype" or (dtype.kind in "biufM" and its_type != "SparseDtype"):
        import pyarrow as pa

        batch = batch_of(pa.table({name: pa.array(series)}))
    else:
        is_text = str(dtype) in ("str", "string")
        batch = {name: column_of(name, series.astype(object).tolist(), "text" if is_text else None)}
    return batch if keep_nan else {each: _with_nan_as_null(column) for each, column in batch.items()}


def _with_nan_as_null(column: SourceColumn) -> SourceColumn:
    if column.values.dtype.kind != "f" or column.values.ndim != 1:
        return column
    is_nan = np.isnan(column.values)
    return replace(column, nulls=is_nan if column.nulls is None else is_nan | column.nulls)
