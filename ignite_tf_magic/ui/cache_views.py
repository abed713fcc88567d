"""Renders a cache's columns and rows. Pure functions, as in `render`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ignite_tf_magic.ui.render import View, message_view, scalar_as_json, size_text, table_view

if TYPE_CHECKING:
    from ignite_tf_magic.session import CacheColumns, CacheSample, ColumnInfo, RowKind

_MAX_TEXT_CHARS = 40
_SHOWN_ITEMS_CHARS = 16


def columns_view(found: CacheColumns) -> View:
    """List the columns of a cache."""
    several = len(found.kinds) > 1
    looked_at = f"types and nulls from {found.num_looked_at:,} of its {found.rows:,} rows"
    title = f"cache {found.cache}: {looked_at}" if found.num_looked_at else f"cache {found.cache}"
    title += f"; about {size_text(round(found.row_bytes * found.rows))}" if found.row_bytes else ""
    title += f"; SQL table {found.table}" if found.table else ""
    head = ["Column", "Of", "Type", "Dataset", "SQL", "Nulls"]
    rows = [
        [
            column.name,
            "key" if column.is_key else "value",
            column.type,
            tensor_text(column),
            _sql_text(column),
            _share_text(column.num_nulls, column.num_rows),
        ]
        for column in found.columns
    ]
    parts = [message_view(title)]
    if several:
        parts.append(kinds_view(found.kinds, found.num_looked_at))
    if rows:
        parts.append(table_view(head, rows, right={5}))
    parts += [message_view(note) for note in found.notes]
    return joined(parts)


def kinds_view(kinds: Sequence[RowKind], num_rows: int) -> View:
    """List the types of keys and values, and how many of `num_rows` rows have each."""
    rows = [[kind.key_type, kind.value_type, _share_text(kind.num_rows, num_rows)] for kind in kinds]
    return table_view(["Key", "Value", "Rows"], rows, right={2})


def _share_text(part: int, whole: int) -> str:
    """Return text such as "3 of 10"; empty if `whole` is 0."""
    if not whole:
        return ""
    return f"{part:,} of {whole:,}" if part else "0"


def tensor_text(column: ColumnInfo) -> str:
    """Return the dtype and shape of a column in a dataset, such as uint8[784]."""
    if column.dtype is None:
        return "-"
    sizes = ", ".join("?" if size is None else str(size) for size in column.shape)
    return f"{column.dtype}[{sizes}]" if column.shape else column.dtype


def _sql_text(column: ColumnInfo) -> str:
    if column.sql_column is None:
        return "-"
    return column.sql_column if column.is_nullable else f"{column.sql_column} NOT NULL"


def columns_as_json(found: CacheColumns) -> dict[str, Any]:
    """Return the columns of a cache for JSON output."""
    return {
        "cache": found.cache,
        "rows": found.rows,
        "rows_looked_at": found.num_looked_at,
        "row_bytes": found.row_bytes and round(found.row_bytes, 1),
        "table": found.table,
        "row_types": [
            {"key": kind.key_type, "value": kind.value_type, "rows": kind.num_rows} for kind in found.kinds
        ],
        "columns": [
            {
                "name": column.name,
                "of": "key" if column.is_key else "value",
                "type": column.type,
                "dtype": column.dtype,
                "shape": list(column.shape),
                "sql_column": column.sql_column,
                "nullable": column.is_nullable,
                "nulls": column.num_nulls,
                "rows": column.num_rows,
            }
            for column in found.columns
        ],
        "notes": list(found.notes),
    }


def sample_view(sample: CacheSample) -> View:
    """Show rows as a table."""
    cells = [[short_text(value) for value in row] for row in sample.rows]
    return table_view(list(sample.columns), cells, upper=False)


def sample_as_json(sample: CacheSample) -> list[dict[str, Any]]:
    """Return each row as a dictionary by column name, with arrays as lists."""
    return [
        dict(zip(sample.columns, (value_as_json(value) for value in row), strict=True)) for row in sample.rows
    ]


def short_text(value: Any) -> str:
    """Return a value as short text; an array as its dtype, length and first items."""
    if value is None:
        return "NULL"
    if _has_items(value):
        return _array_text(value)
    text = str(value)
    return text if len(text) <= _MAX_TEXT_CHARS else f"{text[: _MAX_TEXT_CHARS - 3]}..."


def _has_items(value: Any) -> bool:
    return isinstance(value, list) or bool(getattr(value, "shape", None))


def _array_text(value: Any) -> str:
    shown: list[str] = []
    for item in value[:_SHOWN_ITEMS_CHARS]:
        shown.append(short_text(item))
        if len(" ".join(shown)) > _SHOWN_ITEMS_CHARS:
            break
    items = " ".join([*shown, "..."] if len(shown) < len(value) else shown)
    return f"{getattr(value, 'dtype', 'list')}[{len(value)}] {items}"


def value_as_json(value: Any) -> Any:
    """Return a value that JSON can represent: as it is, an array as a list, or else as text."""
    if _has_items(value):
        items = value if isinstance(value, list) else value.tolist()
        return [value_as_json(item) for item in items]
    return scalar_as_json(value)


def joined(views: Sequence[View]) -> View:
    """Stack views vertically."""
    return View("\n".join(view.text for view in views), "".join(view.html for view in views))
