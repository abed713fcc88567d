"""What the rows of a cache are made of: types as they are stored, and as a dataset has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ignite_tf_magic.client.client import Cache, Client
from ignite_tf_magic.client.sql_tables import CacheTable, Query, table_as_it_is, table_of
from ignite_tf_magic.errors import IgniteTfError
from ignite_tf_magic.profiling.packed import NULLS_NOTE, PackedRows, packed_rows
from ignite_tf_magic.profiling.rows import first_rows
from ignite_tf_magic.profiling.seen_fields import (
    RowKind,
    kinds_of,
    paths_of,
    stored_types,
    type_finder,
)
from ignite_tf_magic.protocol.field_names import FieldNames, short_name
from ignite_tf_magic.protocol.layout import Leaf, RowLayout
from ignite_tf_magic.protocol.layout_finder import LayoutFinder
from ignite_tf_magic.protocol.objects import FindType
from ignite_tf_magic.protocol.ops import TypeCode
from ignite_tf_magic.protocol.row_fields import Path, RowFields, read_row, type_name

LOOKED_AT_ROWS = 256
_LOOKED_AT_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ColumnInfo:
    """One column: the key, the value, or a field of one of them.

    Attributes:
        name: As `IgniteDataset(fields=)` and `profile` take it: "pixels", "owner.name", "key".
        is_key: It is the key, or a part of it.
        type: As it is stored: "int", "byte array", "string"; several with "or" between them.
        dtype: What a dataset has: "int32", "string"; None where it has no form for it.
        shape: Of one row in a dataset; None in it is a length that varies.
        sql_column: What SQL calls it; None where it has no such column.
        is_nullable: Whether SQL lets it be NULL; None without a column.
        num_nulls: Rows without a value.
        num_rows: Rows that were looked at and are of a type that has it.
    """

    name: str
    is_key: bool
    type: str
    dtype: str | None
    shape: tuple[int | None, ...]
    sql_column: str | None
    is_nullable: bool | None
    num_nulls: int
    num_rows: int


@dataclass(frozen=True, slots=True)
class CacheColumns:
    """What the rows of a cache are made of.

    Attributes:
        rows: Of the whole cache.
        num_looked_at: Rows of which types and nulls are told.
        table: The SQL table as a statement names it; None without one.
        kinds: Types of keys and values, those that most rows have first.
        notes: What a person should know, in words: why a dataset would refuse the cache.
        row_bytes: Mean size of the rows that were looked at, as they are stored; None of packed ones, and without any.
    """

    cache: str
    rows: int
    num_looked_at: int
    table: str | None
    kinds: tuple[RowKind, ...]
    columns: tuple[ColumnInfo, ...]
    notes: tuple[str, ...]
    row_bytes: float | None = None

    def find(self, name: str, asker: str) -> ColumnInfo:
        """Return the column that a name means; see `FieldNames.find`."""
        paths: dict[Path, ColumnInfo] = {
            (each.name,) if each.is_key or each.name == "val" else ("val", each.name): each
            for each in self.columns
        }
        sql = {path: each.sql_column for path, each in paths.items() if each.sql_column}
        return paths[FieldNames(paths, sql).find(name, asker)]


def look_at_columns(client: Client, query: Query, name: str) -> CacheColumns:
    """Tell what the rows of a cache are made of; see `Session.columns`."""
    cache = client.find_cache(name)
    baseline = cache.baseline()
    if packed := packed_rows(cache, baseline):
        return _packed_columns(client, packed, cache.name)
    encoded = first_rows(cache, baseline, LOOKED_AT_ROWS, _LOOKED_AT_BYTES)
    table, _ = table_of(query, cache)
    if not encoded:
        return _declared_columns(client, cache, table)
    find_type = type_finder(cache)
    rows = [read_row(memoryview(row), find_type) for row in encoded]
    leaves, notes = _leaves(encoded, find_type)
    columns = [_column(client, path, rows, leaves.get(path), table) for path in paths_of(rows)]
    return CacheColumns(
        cache.name,
        baseline.size,
        len(rows),
        table.name if table else None,
        kinds_of(rows),
        tuple(columns),
        tuple(notes),
        sum(map(len, encoded)) / len(encoded),
    )


def _packed_columns(client: Client, packed: PackedRows, cache: str) -> CacheColumns:
    rows = packed.first(LOOKED_AT_ROWS, _LOOKED_AT_BYTES)
    leaves = _by_path(packed.layout)
    columns = tuple(_column(client, path, rows, leaves.get(path), None) for path in paths_of(rows))
    return CacheColumns(cache, packed.num_rows, len(rows), None, kinds_of(rows), columns, (NULLS_NOTE,))


def _leaves(encoded: Sequence[bytes], find_type: FindType) -> tuple[Mapping[Path, Leaf], list[str]]:
    """Return what a dataset makes of each field, and why it would leave out some, or refuse the cache."""
    finder = LayoutFinder(find_type)
    finder.add(memoryview(b"".join(encoded)), len(encoded))
    try:
        layout = finder.layout()
    except IgniteTfError as error:
        return {}, [f"IgniteDataset refuses these rows: {error}"]
    return _by_path(layout), [f"IgniteDataset leaves it out: {error}" for error in finder.left_out.values()]


def _by_path(layout: RowLayout) -> dict[Path, Leaf]:
    return {leaf.path: leaf for leaf in layout.leaves()}


def _column(
    client: Client, path: Path, rows: Sequence[RowFields], leaf: Leaf | None, table: CacheTable | None
) -> ColumnInfo:
    kinds = {row.types for row in rows if path in row.fields}
    mine = [row.fields.get(path) for row in rows if row.types in kinds]
    there = [field for field in mine if field is not None and field.code != TypeCode.NULL]
    column = table.column_of(path) if table else None
    return ColumnInfo(
        short_name(path),
        path[0] == "key",
        stored_types(client, there),
        _dtype(leaf),
        _shape(leaf),
        column.name if column else None,
        column.is_nullable if column else None,
        len(mine) - len(there),
        len(mine),
    )


def _dtype(leaf: Leaf | None) -> str | None:
    if leaf is None:
        return None
    return "string" if leaf.dtype == object else str(leaf.dtype)


def _shape(leaf: Leaf | None) -> tuple[int | None, ...]:
    if leaf is None:
        return ()
    return (None,) * leaf.ragged_levels + leaf.row_shape


def _declared_columns(client: Client, cache: Cache, table: CacheTable | None) -> CacheColumns:
    """Tell of a cache without rows what its SQL table declares, and what is known of its values' type."""
    layout = LayoutFinder(client.types.find, table=table_as_it_is(cache, cache.config())).declared_layout()
    columns = []
    for leaf in layout.leaves() if layout else ():
        column = table.column_of(leaf.path) if table else None
        columns.append(
            ColumnInfo(
                short_name(leaf.path),
                leaf.path[0] == "key",
                type_name(leaf.code),
                _dtype(leaf),
                _shape(leaf),
                column.name if column else None,
                column.is_nullable if column else None,
                0,
                0,
            )
        )
    known = (
        "these are the columns that its SQL table and the type of its values declare"
        if columns
        else "nothing tells what its rows are"
    )
    note = f"cache {cache.name!r} has no rows; {known}"
    return CacheColumns(cache.name, 0, 0, table.name if table else None, (), tuple(columns), (note,))
