"""pandas' data frames as columns: whole numbers are never rounded, times are in UTC, what is missing is a null.

NaN in a column of NumPy's floats is a number, as it is everywhere with floats. pandas is imported when it is needed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ignite_tf_magic.data.arrow_columns import batch_of
from ignite_tf_magic.data.columns import Batch, SourceColumn, primitive, unique_names
from ignite_tf_magic.data.values import column_of


def frame_batch(frame: Any) -> Batch:
    """Return the columns of a pandas DataFrame by their names.

    Raises:
        SourceError: Two have one name, or one has no form in a cache.
    """
    found: dict[str, SourceColumn] = {}
    for number, name in enumerate(unique_names(frame.columns)):
        found |= _series(name, frame.iloc[:, number])
    return found


def _series(name: str, series: Any) -> Batch:
    kind = series.dtype
    if type(kind).__name__ == "ArrowDtype":
        import pyarrow as pa

        return batch_of(pa.table({name: pa.chunked_array(series.array.__arrow_array__())}))
    if getattr(kind, "tz", None) is not None:
        series = series.dt.tz_convert("UTC").dt.tz_localize(None)
        kind = series.dtype
    if isinstance(kind, np.dtype) and kind.kind in "biufM":
        return {name: primitive(name, series.to_numpy())}
    if (
        exact := getattr(kind, "numpy_dtype", None)
    ) is not None:  # pandas' numbers with missing ones beside them
        nulls = series.isna().to_numpy()
        fill = np.nan if exact.kind == "f" else 0
        return {name: primitive(name, series.to_numpy(exact, na_value=fill), nulls)}
    if str(kind) in ("str", "string"):
        series = series.astype(object)
        return {
            name: column_of(
                name,
                [None if gone else text for text, gone in zip(series, series.isna(), strict=True)],
                "text",
            )
        }
    return {name: column_of(name, _objects(series))}


def _objects(series: Any) -> list[Any]:
    """Return Python's values; among others than floats, NaN is pandas' way to say that one is missing."""
    values = series.astype(object).tolist()
    is_nan = [isinstance(value, float) and value != value for value in values]
    if any(is_nan) and any(value is not None and not isinstance(value, int | float) for value in values):
        return [None if nan else value for value, nan in zip(values, is_nan, strict=True)]
    return list(values)
