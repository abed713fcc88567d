"""Renders the profile of a cache. Pure functions, as in `render`. A ~ marks estimates."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ignite_tf_magic.ui.cache_views import joined, kinds_view, short_text, value_as_json
from ignite_tf_magic.ui.render import View, message_view, size_text, table_view

if TYPE_CHECKING:
    from ignite_tf_magic.session import CacheProfile, ColumnProfile, Histogram

_BLOCKS = "▁▂▃▄▅▆▇█"
_BAR_CHARS = 30
_MAX_QUANTILE_CHARS = 14
_FIRST_LARGE, _FIRST_WITH_EXPONENT = 1e5, 1e12
_MAX_EDGE_CHARS = 16
_TIMES = ("date", "time", "timestamp")


def profile_view(profile: CacheProfile) -> View:
    """Show the profile of a cache: a summary, its columns, its classes, and how its rows are distributed."""
    parts = [message_view("\n".join(_head(profile)))]
    if len(profile.kinds) > 1:
        parts.append(kinds_view(profile.kinds, sum(kind.num_rows for kind in profile.kinds)))
    if profile.columns:
        parts.append(_columns_view(profile.columns))
    numbers = [
        each for each in profile.columns if each.least is not None and each.kind not in (*_TIMES, "text")
    ]
    if numbers:
        parts.append(_numbers_view(numbers))
    if times := [each for each in profile.columns if each.least is not None and each.kind in _TIMES]:
        parts.append(_times_view(times))
    for column in profile.columns:
        if column.classes:
            parts.append(_classes_view(column))
    parts += _spread_views(profile)
    parts += [message_view(f"note: {note}") for note in profile.notes]
    return joined([part for at, each in enumerate(parts) for part in ([_gap()] if at else []) + [each]])


def _gap() -> View:
    return View("", "")


def _head(profile: CacheProfile) -> Iterable[str]:
    copies = {0: "no backups", 1: "1 backup"}.get(profile.backups, f"{profile.backups} backups")
    if not profile.rows:
        yield f"cache {profile.cache}: no rows"
        return
    mark = "" if profile.is_whole else "about "
    sizes = [size_text(round(each)) for each in (profile.row_bytes, profile.row_bytes * profile.rows)]
    size = f"{mark}{sizes[0]} each, {sizes[1]} in all"
    yield f"cache {profile.cache}: {profile.rows:,} rows, {size}, {copies}"
    of = f", chosen at random from {profile.read_from}" if profile.read_from else ""
    sample = f"a sample of {profile.num_sampled:,} rows{of}"
    if profile.is_whole:
        some = any(column.estimated for column in profile.columns)
        yield f"Numbers are those of all rows{'; of arrays with a ~, those of some rows' if some else ''}."
    elif profile.table:
        yield f"Numbers are those of all rows, by SQL from {profile.table}; those with a ~ are of {sample}."
    else:
        yield f"Numbers with a ~ are those of {sample}."


def _columns_view(columns: Sequence[ColumnProfile]) -> View:
    has_nans = any(each.num_nans or each.num_infinite for each in columns)
    head = ["Column", "Type", "Nulls", *(["NaN", "Infinite"] if has_nans else []), "Distinct", "Distribution"]
    rows = [
        [
            each.name,
            each.type,
            _count_text(each, "num_nulls"),
            *([_count_text(each, "num_nans"), _count_text(each, "num_infinite")] if has_nans else []),
            _distinct_text(each),
            _distribution_text(each),
        ]
        for each in columns
    ]
    return table_view(head, rows, right=set(range(2, len(head) - 1)), bars={len(head) - 1})


def _count_text(column: ColumnProfile, name: str) -> str:
    """Return the number of rows that a column's field `name` counts; their share if it is an estimate."""
    number = getattr(column, name)
    if name not in column.estimated:
        return f"{number:,}"
    return f"~{number / column.num_rows:.2%}" if number else "~0"


def _distinct_text(column: ColumnProfile) -> str:
    if column.num_distinct is None:
        return ""
    return f"{'≥' if 'num_distinct' in column.estimated else ''}{column.num_distinct:,}"


def _distribution_text(column: ColumnProfile) -> str:
    if column.histogram:
        return f"{'~' if 'histogram' in column.estimated else ''}{spark_text(column.histogram)}"
    if column.kind == "text" and column.least is not None and not column.classes:
        mark = "~" if "least" in column.estimated else ""
        return f"{mark}{_edge(column.least)!r} to {mark}{_edge(column.greatest)!r}"
    return ""


def _edge(text: str) -> str:
    return text if len(text) <= _MAX_EDGE_CHARS else f"{text[: _MAX_EDGE_CHARS - 3]}..."


def spark_text(histogram: Histogram) -> str:
    """Draw a histogram in one line: a space for an empty bin, the full block for the largest bin."""
    largest = max(histogram.counts)
    return "".join(
        _BLOCKS[-(-count * len(_BLOCKS) // largest) - 1] if count else " " for count in histogram.counts
    )


def _numbers_view(columns: Sequence[ColumnProfile]) -> View:
    percents = sorted({percent for each in columns for percent in each.quantiles})
    head = ["Column", "Min", *(f"{percent}%" for percent in percents), "Max", "Mean", "Std"]
    rows = [
        [
            each.name,
            _marked(each, "least", each.least),
            *(_marked(each, "quantiles", _shorter(each.quantiles.get(percent))) for percent in percents),
            _marked(each, "greatest", each.greatest),
            _marked(each, "mean", None if each.mean is None else float(each.mean)),
            _marked(each, "std", each.std),
        ]
        for each in columns
    ]
    return table_view(head, rows, right=set(range(1, len(head))))


def _times_view(columns: Sequence[ColumnProfile]) -> View:
    percents = (25, 50, 75)
    head = ["Column", "First", *(f"{percent}%" for percent in percents), "Last"]
    rows = [
        [
            each.name,
            _marked(each, "least", each.least),
            *(_marked(each, "quantiles", each.quantiles.get(percent)) for percent in percents),
            f"{_marked(each, 'greatest', each.greatest)}{' UTC' if each.kind == 'timestamp' else ''}",
        ]
        for each in columns
    ]
    return table_view(head, rows)


def _marked(column: ColumnProfile, name: str, value: Any) -> str:
    """Return a number as text, with a ~ in front if it is an estimate from a sample."""
    if value is None:
        return ""
    return f"{'~' if name in column.estimated else ''}{number_text(value)}"


def _shorter(value: Any) -> Any:
    """Convert a long exact number to a float, because the row of a table has several such numbers."""
    is_long = not isinstance(value, float | None) and len(number_text(value)) > _MAX_QUANTILE_CHARS
    return float(value) if is_long else value


def number_text(value: Any) -> str:
    """Format a number or a time for people: integers and decimals with all digits, timestamps to the second."""
    if isinstance(value, float):
        is_large = _FIRST_LARGE <= abs(value) < _FIRST_WITH_EXPONENT
        return f"{value:,.0f}" if is_large else f"{value:.6g}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    return str(value.astype("M8[s]")).replace("T", " ")


def _classes_view(column: ColumnProfile) -> View:
    total = sum(each.count for each in column.classes)
    largest = max(each.count for each in column.classes)
    mark = "~" if "classes" in column.estimated else ""
    imbalance = column.imbalance
    title = f"{column.name}: {len(column.classes)} {'value' if len(column.classes) == 1 else 'values'}"
    if imbalance == 1:
        title += f", all {mark}equally frequent"
    elif imbalance is not None:
        title += f", the most frequent {mark}{imbalance:.3g} times as frequent as the rarest"
    rows = [
        [
            short_text(each.value),
            "" if mark else f"{each.count:,}",
            f"{mark}{each.count / total:.1%}",
            bar_text(each.count, largest),
        ]
        for each in column.classes
    ]
    return joined(
        [message_view(title), table_view(["Value", "Rows", "Share", ""], rows, right={1, 2}, bars={3})]
    )


def bar_text(number: int, largest: int) -> str:
    """Draw a bar of blocks, with at least one block for any number above 0."""
    return "█" * max(round(_BAR_CHARS * number / max(largest, 1)), bool(number))


def _spread_views(profile: CacheProfile) -> list[View]:
    views = []
    if (skew := profile.partitions) is not None:
        of = "" if skew.num_counted == skew.num_partitions else f" that were read, of {skew.num_partitions:,}"
        views.append(
            message_view(
                f"{skew.num_counted:,} partitions{of}: {skew.least:,} to {skew.greatest:,} rows each, "
                f"median {skew.median:,g}; {skew.num_empty:,} are empty"
            )
        )
    counted = [node for node in profile.nodes if node.rows is not None]
    largest, total = (
        max((node.rows or 0 for node in counted), default=0),
        sum(node.rows or 0 for node in counted),
    )
    rows = [
        [
            node.address,
            f"{node.num_partitions:,}",
            "" if node.rows is None else f"{node.rows:,}",
            "" if node.rows is None or not total else f"{node.rows / total:.1%}",
            bar_text(node.rows or 0, largest),
        ]
        for node in profile.nodes
    ]
    if rows:
        views.append(table_view(["Node", "Partitions", "Rows", "Share", ""], rows, right={1, 2, 3}, bars={4}))
    return views


def profile_as_json(profile: CacheProfile) -> dict[str, Any]:
    """Return the profile of a cache for JSON output, with times in UTC."""
    skew = profile.partitions
    return {
        "cache": profile.cache,
        "rows": profile.rows,
        "backups": profile.backups,
        "table": profile.table,
        "rows_sampled": profile.num_sampled,
        "partitions_read": profile.num_read_partitions,
        "read_from": profile.read_from,
        "is_whole": profile.is_whole,
        "row_bytes": round(profile.row_bytes, 1),
        "row_types": [
            {"key": kind.key_type, "value": kind.value_type, "rows": kind.num_rows} for kind in profile.kinds
        ],
        "columns": [_column_as_json(column) for column in profile.columns],
        "partitions": skew
        and {
            "partitions": skew.num_partitions,
            "counted": skew.num_counted,
            "empty": skew.num_empty,
            "min": skew.least,
            "median": skew.median,
            "max": skew.greatest,
        },
        "nodes": [
            {"address": node.address, "partitions": node.num_partitions, "rows": node.rows}
            for node in profile.nodes
        ],
        "notes": list(profile.notes),
    }


_NAMES_IN_JSON = {
    "num_nulls": "nulls",
    "num_nans": "nans",
    "num_infinite": "infinite",
    "num_distinct": "distinct",
    "least": "min",
    "greatest": "max",
    "mean": "mean",
    "std": "std",
}


def _column_as_json(column: ColumnProfile) -> dict[str, Any]:
    found = {"name": column.name, "type": column.type, "kind": column.kind, "rows": column.num_rows}
    found |= {told: value_as_json(getattr(column, name)) for name, told in _NAMES_IN_JSON.items()}
    return {
        **found,
        "quantiles": {str(percent): value_as_json(value) for percent, value in column.quantiles.items()},
        "classes": [{"value": value_as_json(each.value), "rows": each.count} for each in column.classes],
        "imbalance": column.imbalance,
        "histogram": column.histogram
        and {
            "edges": [value_as_json(edge) for edge in column.histogram.edges],
            "counts": list(column.histogram.counts),
        },
        "estimated": sorted(_NAMES_IN_JSON.get(name, name) for name in column.estimated),
    }
