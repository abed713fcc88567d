"""Converts Python lists or NumPy arrays to a column of lists: of numbers, of text, or of lists of numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ignite_tf_magic.data.columns import SourceColumn, primitive
from ignite_tf_magic.data.scalars import (
    NUMBERS,
    count_kinds,
    is_missing,
    is_nan,
    kind_of,
    listed,
    number_maker,
    text_of,
)
from ignite_tf_magic.errors import SourceError
from ignite_tf_magic.protocol.objects import ARRAY_CODE_OF_DTYPE
from ignite_tf_magic.protocol.ops import TypeCode
from ignite_tf_magic.protocol.typed_values import TypedArray

NO_MISSING = "a list with a missing number; fill it"


def item_kinds(values: Iterable[Any]) -> Counter[str]:
    """Count the kinds of the items of lists. The kind of an inner list is "list"."""
    found: Counter[str] = Counter()
    for value in values:
        if isinstance(value, np.ndarray) and value.dtype.kind not in "OU":
            found[value.dtype.str[1:] if value.ndim == 1 else "list"] += 1
        elif kind_of(value) == "list":
            found.update("float" if kind == "nan" else kind for kind in count_kinds(value).elements())
            if not found and len(value):
                found["text"] += 0
    return found


def list_column(name: str, values: Sequence[Any], items: str | None = None) -> SourceColumn:
    """Return a column of lists: of numbers, of text, or of lists of numbers.

    Args:
        name: The column's name, for messages.
        values: One value for each row.
        items: Kind of the items, if these values may not show it.

    Raises:
        SourceError: Most items cannot be stored in a cache.
    """
    counts = item_kinds(values)
    kind = items or item_kind(name, counts)
    make: Callable[[Any], Any]
    if kind == "text":
        make, code = _text_list, int(TypeCode.STRING_ARRAY)
    elif kind == "list":
        inner = _inner_kind(name, values)
        make, code = (lambda value: [_number_list(item, inner) for item in value]), int(TypeCode.OBJECT_ARRAY)
    else:
        make, code = (lambda value: _number_list(value, kind)), int(_array_code(name, kind))
    rejects: dict[int, str] = {}
    made = np.empty(len(values), object)
    for row, value in enumerate(values):
        if is_missing(value) or is_nan(value):
            continue
        try:
            if kind_of(value) != "list":
                raise TypeError
            made[row] = make(value)
        except ValueError as error:
            rejects[row] = str(error)
        except TypeError:
            rejects[row] = f"not a list of {kind}, unlike most rows of column {name!r}; convert it first"
    if kind in ("text", "list"):
        return SourceColumn(made, code=code, rejects=rejects)
    return _stacked(made, code, rejects)


def _inner_kind(name: str, values: Iterable[Any]) -> str:
    inner = item_kind(
        name, item_kinds(item for value in values if kind_of(value) == "list" for item in value)
    )
    if inner in ("text", "list"):
        raise SourceError(
            f"column {name!r} holds lists of lists of {inner}; of these only numbers can be loaded"
        )
    return inner


def _array_code(name: str, kind: str) -> TypeCode:
    dtype = _dtype(kind)
    return ARRAY_CODE_OF_DTYPE[primitive(name, np.empty((0, 1), dtype)).values.dtype.str[1:]]


def _dtype(kind: str) -> np.dtype[Any]:
    found: np.dtype[Any] = np.dtype(NUMBERS.get(kind, kind))
    return found


def item_kind(name: str, counts: Mapping[str, int]) -> str:
    """Return the item kind of a column of lists from the counts of its items' kinds.

    Raises:
        SourceError: Most items cannot be stored in a cache.
    """
    kinds = set(counts)
    if not kinds:
        return "float"
    if len(kinds) == 1:
        kind = next(iter(kinds))
        if kind in ("text", "list", *NUMBERS) or _is_number(kind):
            return kind
    numbers = [np.dtype(NUMBERS.get(kind, kind)) for kind in kinds if kind in NUMBERS or _is_number(kind)]
    if len(numbers) == len(kinds) and "bool" not in kinds and np.dtype("?") not in numbers:
        return "float" if kinds == {"int", "float"} else np.result_type(*numbers).str[1:]
    most = max(counts, key=lambda each: counts[each])
    if most in ("text", "list", *NUMBERS):
        return most
    raise SourceError(
        f"column {name!r} holds lists of {listed(kinds)}; only lists of numbers, of text, and lists of lists of "
        "numbers can be loaded: make columns or text of them (json.dumps)"
    )


def _is_number(kind: str) -> bool:
    return len(kind) >= 2 and kind[0] in "biuf" and kind[1:].isdigit() and kind != "f16"


def _text_list(value: Any) -> TypedArray:
    """Return texts as an array of texts even if there are none; an empty list would become an array of objects."""
    items = (None if is_missing(item) else text_of(item) for item in value)
    return TypedArray(items, int(TypeCode.STRING_ARRAY))


def _number_list(value: Any, kind: str) -> NDArray[Any]:
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        if value.ndim != 1:
            raise TypeError
        cast = value.astype(_dtype(kind), casting="same_kind")
        if value.dtype.kind in "iu" and cast.dtype.kind == "f" and (cast.astype(value.dtype) != value).any():
            raise ValueError(
                "a whole number that no float can represent, in a list of floats; give text or Decimal"
            )
        return _widened(cast)
    if isinstance(value, str | bytes) or any(isinstance(item, str) for item in value):
        raise TypeError
    if any(is_missing(item) for item in value):
        raise ValueError(NO_MISSING)
    make = number_maker(kind) if kind in NUMBERS else number_maker("int" if kind[0] in "iu" else "float")
    return _widened(np.array([make(item) for item in value], _dtype(kind)))


def _widened(array: NDArray[Any]) -> NDArray[Any]:
    column = primitive("", array.reshape(1, -1))
    if column.rejects:
        raise ValueError(column.rejects[0])
    return np.asarray(column.values[0])


def _stacked(made: NDArray[Any], code: int, rejects: Mapping[int, str]) -> SourceColumn:
    """Return arrays of equal length as one array; others unchanged."""
    there = [each for each in made if each is not None]
    lengths = {len(each) for each in there}
    if len(lengths) != 1 or len({each.dtype for each in there}) != 1:
        return SourceColumn(made, code=code, rejects=rejects)
    nulls = np.fromiter((each is None for each in made), np.bool_, len(made))
    table = np.zeros((len(made), lengths.pop()), there[0].dtype)
    table[~nulls] = np.stack(there)
    return SourceColumn(table, nulls if nulls.any() else None, rejects=rejects)
