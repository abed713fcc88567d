"""Python's values as a column: what kind most of them are decides, and those of another one are rejected."""

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
        SourceError: Most values have no form in a cache.
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
    """Make a column out of values.

    Args:
        name: Of the column, for messages.
        values: One for each row.
        kind: Of the column; None finds it.
        items: Kind of the items of lists, where these values may not show it.
        parse: Whether text stands for a value of that kind.

    Raises:
        SourceError: It has no form in a cache.
    """
    if kind is None:
        kind = chosen_kind(name, count_kinds(values))
    return (
        list_column(name, values, items) if kind == "list" else scalar_column(name, values, kind, parse=parse)
    )
