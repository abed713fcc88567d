"""Converts Arrow arrays to columns, value for value. A struct becomes one column `a_b` for each of its fields."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ignite_tf_magic.data.columns import Batch, SourceColumn, primitive, unique_names
from ignite_tf_magic.data.lists import NO_MISSING
from ignite_tf_magic.data.scalars import CODES
from ignite_tf_magic.data.values import column_of
from ignite_tf_magic.errors import SourceError

if TYPE_CHECKING:
    import pyarrow as pa

_MILLI = {"s": 1, "ms": 1, "us": 1000, "ns": 1_000_000}


def batch_of(table: pa.Table | pa.RecordBatch) -> Batch:
    """Return the columns of a table.

    Raises:
        SourceError: A column cannot be stored in a cache, or two have the same name.
    """
    import pyarrow as pa

    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    found: list[tuple[str, SourceColumn]] = []
    for name, column in zip(unique_names(table.column_names), table.columns, strict=True):
        found += _columns(name, column.combine_chunks())
    unique_names([name for name, _ in found])
    return dict(found)


def _columns(name: str, array: Any) -> Iterator[tuple[str, SourceColumn]]:
    """Yield a column, or for a struct one column for each field."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(array, pa.ChunkedArray):  # more data than one array can hold
        array = pa.concat_arrays(array.chunks)
    if isinstance(array.type, pa.BaseExtensionType) and array.type.extension_name == "arrow.uuid":
        yield name, _uuids(array)
        return
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        if pa.types.is_string_view(array.type.value_type):  # Arrow cannot decode these
            array = pa.DictionaryArray.from_arrays(array.indices, array.dictionary.cast(pa.large_string()))
        array = array.dictionary_decode()
    if pa.types.is_struct(array.type):
        for number in range(array.type.num_fields):
            yield from _columns(f"{name}_{array.type.field(number).name}", pc.struct_field(array, [number]))
    else:
        yield name, _column(name, array)


def _column(name: str, array: Any) -> SourceColumn:
    import pyarrow.types as pt

    kind = array.type
    if pt.is_integer(kind) or pt.is_floating(kind) or pt.is_boolean(kind):
        return primitive(name, _numbers(array), _nulls(array))
    if pt.is_timestamp(kind):
        return primitive(name, _ticks(array, f"M8[{kind.unit}]"))
    if pt.is_time(kind):
        return _times_of_day(array)
    if any(check(kind) for check in (pt.is_list, pt.is_large_list, pt.is_fixed_size_list)):
        return _lists(name, array)
    named = {
        "text": (pt.is_string, pt.is_large_string, pt.is_string_view, pt.is_null),
        "bytes": (pt.is_binary, pt.is_large_binary, pt.is_binary_view, pt.is_fixed_size_binary),
        "decimal": (pt.is_decimal,),
    }
    for word, checks in named.items():
        if any(check(kind) for check in checks):
            values = np.empty(len(array), object)
            values[:] = array.to_pylist()
            return SourceColumn(values, code=CODES[word])
    if pt.is_date(kind):
        return column_of(name, array.to_pylist(), "date")
    raise SourceError(
        f"column {name!r} is of Arrow's type {kind}, which a cache cannot store; convert it first"
    )


def _nulls(array: Any) -> NDArray[np.bool_]:
    return np.asarray(array.is_null().to_numpy(zero_copy_only=False))


def _numbers(array: Any) -> NDArray[Any]:
    import pyarrow.types as pt

    if array.null_count:
        array = array.fill_null(False if pt.is_boolean(array.type) else 0)
    return np.asarray(array.to_numpy(zero_copy_only=False))


def _ticks(array: Any, dtype: str) -> NDArray[Any]:
    """Return times as a NumPy array, in their own unit, with NaT for each null."""
    import pyarrow as pa

    nat = int(np.iinfo(np.int64).min)
    ticks = array.cast(pa.int64()).fill_null(nat).to_numpy(zero_copy_only=False)
    return np.asarray(ticks).view(dtype)


def _times_of_day(array: Any) -> SourceColumn:
    import pyarrow as pa

    per_milli = _MILLI[array.type.unit]
    whole = array.cast(pa.int32() if array.type.bit_width == 32 else pa.int64()).to_pylist()
    per_second = 1000 if array.type.unit != "s" else 1
    values = np.empty(len(whole), object)
    rejects = {}
    for row, ticks in enumerate(whole):
        if ticks is None:
            continue
        millis, rest = divmod(ticks, per_milli)
        if rest:
            rejects[row] = (
                f"a time with parts of a millisecond ({ticks} {array.type.unit} of the day), which TIME cannot hold"
            )
            continue
        seconds, part = divmod(millis, per_second)
        values[row] = dt.time(seconds // 3600, seconds // 60 % 60, seconds % 60, part * 1000)
    return SourceColumn(values, code=CODES["time"], rejects=rejects)


def _uuids(array: Any) -> SourceColumn:
    values = np.empty(len(array), object)
    values[:] = [None if raw is None else uuid.UUID(bytes=raw) for raw in array.storage.to_pylist()]
    return SourceColumn(values, code=CODES["uuid"])


def _lists(name: str, array: Any) -> SourceColumn:
    """Return lists of equal length without missing items as one array; other lists row by row."""
    import pyarrow.types as pt

    item = array.type.value_type
    if not (pt.is_integer(item) or pt.is_floating(item) or pt.is_boolean(item)):
        return _other_lists(name, array)
    nulls = _nulls(array)
    flat = array.flatten()  # without the items of null lists
    lengths = array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    there = lengths[~nulls]
    if flat.null_count == 0 and len(there) and (there == there[0]).all() and there[0]:
        items = _numbers(flat)
        table = np.zeros((len(array), int(there[0])), items.dtype)
        table[~nulls] = items.reshape(-1, int(there[0]))
        return primitive(name, table, nulls)
    ends = np.cumsum(lengths)
    is_gap = _nulls(flat)
    items = _numbers(flat)
    rows: list[Any] = [
        None if null else items[end - length : end]
        for end, length, null in zip(ends, lengths, nulls, strict=True)
    ]
    gaps = [
        row
        for row, (end, length) in enumerate(zip(ends, lengths, strict=True))
        if is_gap[end - length : end].any()
    ]
    for row in gaps:
        rows[row] = None
    made = column_of(name, rows, "list", items.dtype.str[1:])
    return SourceColumn(
        made.values, made.nulls, made.code, {**made.rejects, **dict.fromkeys(gaps, NO_MISSING)}
    )


def _other_lists(name: str, array: Any) -> SourceColumn:
    import pyarrow.types as pt

    item = array.type.value_type
    if pt.is_string(item) or pt.is_large_string(item) or pt.is_string_view(item):
        return column_of(name, array.to_pylist(), "list", "text")
    inner = getattr(item, "value_type", None)
    if inner is None or not (pt.is_integer(inner) or pt.is_floating(inner) or pt.is_boolean(inner)):
        raise SourceError(
            f"column {name!r} holds lists of {item}; only lists of numbers, of text, and lists of lists of numbers can "
            "be loaded: make columns of it"
        )
    dtype = inner.to_pandas_dtype()
    rows: list[Any] = []
    rejects = {}
    for row, value in enumerate(array.to_pylist()):
        if value is not None and any(each is None or None in each for each in value):
            rejects[row], value = NO_MISSING, None
        rows.append(None if value is None else [np.asarray(each, dtype) for each in value])
    made = column_of(name, rows, "list", "list")
    return SourceColumn(made.values, made.nulls, made.code, {**made.rejects, **rejects})
