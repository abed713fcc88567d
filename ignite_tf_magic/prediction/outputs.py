"""Converts a model's outputs for a batch to columns of rows. Does not import TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ignite_tf_magic.errors import PredictionMismatch
from ignite_tf_magic.protocol.objects import ARRAY_CODE_OF_DTYPE, CODE_OF_DTYPE

ONLY = "prediction"
# Types that the wire format does not have -> the next one that holds all their values.
_WIDER = {"f2": "f4", "bfloat16": "f4", "u1": "i2", "u2": "i4", "u4": "i8"}
_WIDER_IN_ARRAYS = {**_WIDER, "i1": "i2"}
del _WIDER_IN_ARRAYS["u1"]

Columns = Mapping[str, NDArray[Any]]


def columns_of(outputs: Any, num_rows: int, names: Sequence[str] = ()) -> Columns:
    """Return a model's outputs as columns by field name, with one item for each row.

    An output with one number per row becomes a scalar, whether its shape is (rows,) or (rows, 1). An output with
    several numbers per row becomes an array, in C order if it has more dimensions. Types that the wire format does not
    have become the next larger type, so that no value changes.

    Args:
        outputs: An array, or a dict or list of arrays, whose first dimension is rows.
        num_rows: Number of rows that the model was given.
        names: Names of the outputs of a list.

    Raises:
        PredictionMismatch: An output does not have one item per row, or a cache cannot hold it.
    """
    return {name: _column(name, value, num_rows) for name, value in _named(outputs, names).items()}


def _named(outputs: Any, names: Sequence[str]) -> dict[str, Any]:
    if isinstance(outputs, Mapping):
        return {str(name): value for name, value in outputs.items()}
    if not isinstance(outputs, list | tuple):
        return {ONLY: outputs}
    if len(outputs) == 1:
        return {ONLY: outputs[0]}
    if len(set(names)) != len(outputs):
        names = [f"{ONLY}_{number}" for number in range(len(outputs))]
    return dict(zip(names, outputs, strict=True))


def _column(name: str, value: Any, num_rows: int) -> NDArray[Any]:
    array = np.asarray(value)
    if array.ndim == 0 or len(array) != num_rows:
        raise PredictionMismatch(
            f"the model's output {name!r} has the shape {array.shape} for {num_rows} rows; its first dimension must "
            "be the number of rows"
        )
    flat = array.reshape(num_rows, -1) if array.ndim > 1 else array
    if flat.ndim > 1 and flat.shape[1] == 1:
        flat = flat[:, 0]
    if flat.dtype.kind in "OSU":
        return _texts(name, flat)
    kind = flat.dtype.name if flat.dtype.kind == "V" or flat.dtype.name == "bfloat16" else flat.dtype.str[1:]
    kind = (_WIDER if flat.ndim == 1 else _WIDER_IN_ARRAYS).get(kind, kind)
    if kind not in (CODE_OF_DTYPE if flat.ndim == 1 else ARRAY_CODE_OF_DTYPE):
        raise PredictionMismatch(
            f"the model's output {name!r} is of {flat.dtype}, which cannot be stored in a cache; cast it in the model"
        )
    return np.ascontiguousarray(flat.astype(kind, copy=False))


def _texts(name: str, values: NDArray[Any]) -> NDArray[Any]:
    if values.ndim > 1:
        raise PredictionMismatch(
            f"the model's output {name!r} has several texts for each row, but a field holds one; join them in the model"
        )
    found = np.empty(len(values), object)
    found[:] = [each.decode() if isinstance(each, bytes) else str(each) for each in values.tolist()]
    return found
