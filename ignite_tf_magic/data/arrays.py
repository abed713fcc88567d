"""Converts arrays, lists and series to columns without loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ignite_tf_magic.data.arrow_columns import batch_of
from ignite_tf_magic.data.columns import Batch, SourceColumn, primitive, unique_names
from ignite_tf_magic.data.frames import frame_columns, series_batch
from ignite_tf_magic.data.lists import NO_MISSING
from ignite_tf_magic.data.values import column_of
from ignite_tf_magic.errors import SourceError

Arrays = Mapping[str, Any]


def array_batch(arrays: Arrays, *, keep_nan: bool = False) -> Batch:
    """Return columns by name.

    Args:
        arrays: Name -> values, one for each row: a NumPy or Arrow array, a list, or a series.
        keep_nan: Keep NaN in pandas series as a number.

    Raises:
        SourceError: A column cannot be stored in a cache, or two have the same name.
    """
    found: list[tuple[str, SourceColumn]] = []
    for name, values in arrays.items():
        found += _columns(name, values, keep_nan).items()
    unique_names([name for name, _ in found])
    return dict(found)


def is_frame(source: Any) -> bool:
    """Return whether the source is a pandas DataFrame or Series, which have an index."""
    return hasattr(source, "iloc") and hasattr(source, "reset_index")


def _module(values: Any) -> str:
    return type(values).__module__.partition(".")[0]


def _is_table(values: Any) -> bool:
    return _module(values) in ("pandas", "polars", "pyarrow") and hasattr(values, "columns")


def _is_column(values: Any) -> bool:
    """Return whether values are one column of pandas, polars or Arrow. NumPy would make floats of missing integers."""
    is_other = hasattr(values, "columns") or hasattr(values, "levels")
    return _module(values) in ("pandas", "polars", "pyarrow") and not is_other


def as_arrays(source: Any, report: Callable[[str], None]) -> Arrays:
    """Return the columns of a mapping, a pair (features, labels) or a structured array; else one column "value".

    Args:
        source: The values.
        report: Called with a line about an index that is not loaded.

    Raises:
        SourceError: Two columns have the same name.
    """
    if isinstance(source, Mapping):
        return {str(name): values for name, values in source.items()}
    if isinstance(source, tuple) and len(source) == 2:
        features, labels = source
        if not _is_table(features):
            return named_pair(features, labels)
        if is_frame(features):
            columns = frame_columns(features, report)
        else:
            columns = {name: features[name] for name in getattr(features, "column_names", features.columns)}
        unique_names([*columns, "label"])
        return {**columns, "label": labels}
    if names := getattr(getattr(source, "dtype", None), "names", None):
        return {name: source[name] for name in names}
    return {"value": source}


def named_pair(features: Any, labels: Any) -> Arrays:
    """Return features and labels by name. Features that are pictures are called "pixels"."""
    features, labels = (each if _is_column(each) else _as_array(each) for each in (features, labels))
    name = (
        "pixels"
        if not _is_column(features) and features.dtype == np.uint8 and features.ndim >= 2
        else "features"
    )
    return {name: features, "label": labels if _is_column(labels) else _as_labels(labels)}


def _as_labels(array: NDArray[Any]) -> NDArray[Any]:
    if array.ndim == 2 and array.shape[1] == 1:  # cifar10 has labels as a column
        array = array[:, 0]
    return array.astype(np.int32) if array.dtype.kind in "iu" and array.dtype.itemsize <= 2 else array


def _columns(name: str, values: Any, keep_nan: bool) -> Batch:
    if _is_column(values) and _module(values) == "pandas":
        import pandas as pd

        return series_batch(name, pd.Series(values), keep_nan=keep_nan)
    if _is_column(values):
        import pyarrow as pa

        return batch_of(pa.table({name: values}))
    if (
        _is_table(values)
        and len(set(values.schema.types if _module(values) == "pyarrow" else values.dtypes)) > 1
    ):
        raise SourceError(f"column {name!r} is a table with columns of several types; give them one by one")
    array = _as_array(values)
    if array.ndim == 0:
        raise SourceError(f"column {name!r} is a single value; give one value per row")
    return {name: _column(name, array)}


def _column(name: str, array: NDArray[Any]) -> SourceColumn:
    if isinstance(array, np.ma.MaskedArray):
        return _masked(name, array)
    if array.dtype.kind in "US":
        array = array.astype(object)
    if array.dtype != object:
        return primitive(name, array)
    if array.ndim > 1:
        array = _rows(array)
    if len(array) and all(isinstance(row, np.ndarray) and row.ndim > 1 for row in array):
        return _stacked_pictures(name, array)
    return column_of(name, list(array))


def _masked(name: str, array: np.ma.MaskedArray[Any, Any]) -> SourceColumn:
    """Return a masked array as a column. Masked values, and rows that are masked as a whole, are missing."""
    if array.dtype.kind == "M":
        return _column(name, array.filled(np.datetime64("NaT")))
    if array.dtype.kind not in "biuf":
        values = np.asarray(array.data).astype(object)
        values[np.ma.getmaskarray(array)] = None
        return _column(name, values)
    gone = np.ma.getmaskarray(array).reshape(len(array), -1)
    missing = np.asarray(gone.all(axis=1))
    column = primitive(name, array.filled(0), missing)
    in_part = np.flatnonzero(gone.any(axis=1) & ~missing).tolist()
    return replace(column, rejects={**column.rejects, **dict.fromkeys(in_part, NO_MISSING)})


def _as_array(values: Any) -> NDArray[Any]:
    """Return values as an array, without loss.

    NumPy turns numbers among texts into texts and integers among floats into floats. It also strips NUL characters from
    the end of text and bytes. So only numbers of one type become NumPy numbers here. Other values stay objects.
    """
    if not isinstance(values, (list, tuple)):
        return values if isinstance(values, np.ma.MaskedArray) else np.asarray(values)
    types = _types_within(values)
    if len(types) > 1 or not all(_is_number(each) for each in types):
        return _rows(values)
    try:
        array = np.asarray(values)
    except ValueError:  # rows of different lengths
        return _rows(values)
    return _rows(values) if types == {int} and array.dtype.kind not in "iu" else array  # beyond 64 bits


def _types_within(values: Sequence[Any]) -> set[Any]:
    """Return the types of the items of nested lists, and the dtypes of arrays among them."""
    while values and all(isinstance(each, (list, tuple)) for each in values):
        values = list(chain.from_iterable(values))
    return {each.dtype if isinstance(each, np.ndarray) else type(each) for each in values}


def _is_number(found: Any) -> bool:
    return found in (int, float, bool) or (isinstance(found, np.dtype) and found.kind in "biuf")


def _rows(values: Any) -> NDArray[Any]:
    rows = np.empty(len(values), object)
    for number, value in enumerate(values):
        rows[number] = value
    return rows


def _stacked_pictures(name: str, rows: NDArray[Any]) -> SourceColumn:
    try:
        return primitive(name, np.stack(list(rows)))
    except ValueError as error:
        raise SourceError(
            f"column {name!r} holds images of different sizes; resize them to one size"
        ) from error
