"""Finds the columns of a cache: their types as stored, and in a dataset."""

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
        name: Name for `IgniteDataset(fields=)` and `profile`: "pixels", "owner.name", "key".
        is_key: Whether it is the key, or a part of it.
        type: Stored type: "int", "byte array", "string"; several are joined by "or".
        dtype: Type in a dataset: "int32", "string"; None if a dataset cannot represent it.
        shape: Shape of one row's value in a dataset; None in it is a variable length.
        sql_column: Its SQL name; None if it is not an SQL column.
        is_nullable: Whether SQL allows NULL; None if it is not an SQL column.
        num_nulls: Number of rows without a value.
        num_rows: Number of rows that were read and whose type has this column.
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
    """The columns of a cache.

    Attributes:
        rows: Number of rows of the whole cache.
        num_looked_at: Number of rows from which types and nulls were determined.
        table: The SQL table as a statement names it; None if there is none.
        kinds: Types of keys and values, the most frequent first.
        notes: Remarks for the user, such as why a dataset would refuse the cache.
        row_bytes: Mean stored size of the rows that were read, in bytes; None for packed or no rows.
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
        """Return the column that a name refers to; see `FieldNames.find`."""
        paths: dict[Path, ColumnInfo] = {
            (each.name,) if each.is_key or each.name == "val" else ("val", each.name): each
            for each in self.columns
        }
        sql = {path: each.sql_column for path, each in paths.items() if each.sql_column}
        return paths[FieldNames(paths, sql).find(name, asker)]


def look_at_columns(client: Client, query: Query, name: str) -> CacheColumns:
    """Return the columns of a cache; see `Session.columns`."""
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
    """Return the dataset's form of each field, and why a dataset would omit fields or refuse the cache."""
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
    """Return the columns of a cache without rows, as its SQL table and the type of its values declare them."""
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
        else "its columns are unknown"
    )
    note = f"cache {cache.name!r} has no rows; {known}"
    return CacheColumns(cache.name, 0, 0, table.name if table else None, (), tuple(columns), (note,))
