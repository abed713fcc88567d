"""Converts Python values to a column. Most values determine the column's kind; values of other kinds are rejected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ignite_tf_magic.data.columns import SourceColumn
from ignite_tf_magic.data.lists import list_column
from ignite_tf_magic.data.scalars import CODES, NUMBERS, count_kinds, listed, scalar_column
from ignite_tf_magic.errors import SourceError


def chosen_kind(name: str, counts: Mapping[str, int]) -> str:
    """Return the kind of a column: that of most values, float for int and float, text if all are missing.

    Raises:
        SourceError: Most values cannot be stored in a cache.
    """
    if not counts:
        return "text"
    kinds = [kind for kind in counts if kind != "nan"]
    if set(kinds) in (set(), {"int", "float"}):
        return "float"
    kind = max(kinds, key=lambda each: counts[each])
    if kind not in (*CODES, *NUMBERS, "timestamp", "list"):
        raise SourceError(
            f"column {name!r} holds {listed(counts)}; a column is all numbers, all str, all bytes, all of one kind of "
            "time, or all arrays: convert it first"
        )
    return kind


def column_of(
    name: str,
    values: Sequence[Any],
    kind: str | None = None,
    items: str | None = None,
    *,
    parse: bool = False,
) -> SourceColumn:
    """Convert values to a column.

    Args:
        name: The column's name, for messages.
        values: One value for each row.
        kind: The column's kind; None determines it from the values.
        items: Kind of the items of lists, if these values may not show it.
        parse: Whether to convert text to that kind.

    Raises:
        SourceError: The column cannot be stored in a cache.
    """
    if kind is None:
        kind = chosen_kind(name, count_kinds(values))
    return (
        list_column(name, values, items) if kind == "list" else scalar_column(name, values, kind, parse=parse)
    )
