"""Data frames, and files that are read as such, as NumPy columns: whole numbers are never rounded, times are in UTC.

pandas makes floats of whole numbers when one of a column is missing, and those of more than 53 bits then become
others. pandas and pyarrow are imported when they are needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ignite_tf_magic.errors import SourceError

_FIRST_INEXACT = 2**53  # from here on floats leave out whole numbers


def columns_of(frame: Any) -> dict[str, Any]:
    """Return the columns of a pandas DataFrame by their names.

    Raises:
        SourceError: Two have one name, or one has missing values and no form for them.
    """
    return {str(name): _series(frame.iloc[:, i]) for i, name in enumerate(_unique(frame.columns))}


def _unique(names: Sequence[object]) -> Sequence[object]:
    seen = [str(name) for name in names]
    twice = sorted({name for name in seen if seen.count(name) > 1})
    if twice:
        raise SourceError(f"columns must have different names; found twice: {', '.join(twice)}")
    return names


def _series(series: Any) -> Any:
    missing = series.isna()
    if missing.any() and series.dtype.kind in "iu":
        return _with_nan(series, missing)
    if missing.any() and series.dtype.kind != "f":
        raise SourceError(f"column {str(series.name)!r} {_missing(missing)}")
    if series.dtype.kind in "iu":
        return series.to_numpy(getattr(series.dtype, "numpy_dtype", series.dtype))
    if getattr(series.dtype, "tz", None) is not None:
        return series.dt.tz_convert("UTC").dt.tz_localize(None).to_numpy()
    if str(series.dtype) in ("str", "string", "category"):
        return series.astype(object).to_numpy()
    return series.to_numpy()


def _missing(missing: Any) -> str:
    row = int(np.flatnonzero(missing.to_numpy())[0])
    num = int(missing.sum())
    return f"has {num} missing values, the first in row {row}; fill them (fillna) or drop the rows (dropna)"


def _with_nan(series: Any, missing: Any) -> NDArray[Any]:
    """Return whole numbers some of which are missing as floats, if none of them loses a digit."""
    whole = series[~missing].to_numpy(series.dtype.numpy_dtype)
    large = whole[(whole > _FIRST_INEXACT) | (whole < -_FIRST_INEXACT)].tolist()
    inexact = next((value for value in large if int(float(value)) != value), None)
    if inexact is not None:
        raise SourceError(
            f"column {str(series.name)!r} holds whole numbers like {inexact}, which no float holds, and "
            f"{_missing(missing)}"
        )
    return np.asarray(series.to_numpy(np.float64, na_value=np.nan))


def read_csv(path: Path) -> dict[str, Any]:
    """Read comma-separated values, with the columns' names in the first line.

    Raises:
        SourceError: It cannot be read; otherwise as `columns_of`.
    """
    import pandas as pd

    try:
        frame = pd.read_csv(path)
        for name in frame.columns:
            if _may_be_rounded(frame[name]):
                frame[name] = pd.read_csv(path, usecols=[name], dtype={name: "Int64"})[name]
    except (ValueError, OSError) as error:  # pandas' ParserError and EmptyDataError are ValueErrors
        raise SourceError(f"cannot read {str(path)!r} as comma-separated values: {error}") from error
    return columns_of(frame)


def _may_be_rounded(column: Any) -> bool:
    """Tell whether floats may stand for whole numbers of more digits, as they do beside a missing one."""
    if column.dtype != np.float64 or not column.isna().any():
        return False
    values = column.dropna().to_numpy()
    large = np.abs(values).max(initial=0.0)
    return bool(_FIRST_INEXACT <= large < 2.0**63) and bool((values % 1 == 0).all())


def read_parquet(path: Path) -> dict[str, Any]:
    """Read a Parquet file.

    Raises:
        SourceError: It cannot be read; otherwise as `columns_of`.
    """
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

    # Whole numbers some of which are missing: pandas would round them to floats.
    kinds = ("Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64")
    nullable = {getattr(pa, kind.lower())(): getattr(pd, f"{kind}Dtype")() for kind in kinds}
    try:
        table = pq.read_table(path)
        _refuse_missing_items(table)
        frame = table.to_pandas(types_mapper=nullable.get)
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, SourceError):
            raise
        raise SourceError(f"cannot read {str(path)!r} as parquet: {error}") from error
    return columns_of(frame)


def _refuse_missing_items(table: Any) -> None:
    """Refuse lists of whole numbers some of which are missing, as pandas would round the others."""
    import pyarrow.compute as pc
    import pyarrow.types as pt

    def is_list(kind: Any) -> bool:
        return any(check(kind) for check in (pt.is_list, pt.is_large_list, pt.is_fixed_size_list))

    for name, column in zip(table.column_names, table.columns, strict=True):
        items = column
        while is_list(items.type):
            items = pc.list_flatten(items)
        if items is not column and pt.is_integer(items.type) and items.null_count:
            raise SourceError(
                f"column {name!r} holds lists with {items.null_count} missing numbers; fill them"
            )
