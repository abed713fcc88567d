"""Finds the SQL table of a cache, and the column for each field of the rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ignite_tf_magic.client.client import Cache
from ignite_tf_magic.client.sql_result import QueryResult
from ignite_tf_magic.errors import QueryError, ServerError
from ignite_tf_magic.protocol import sql
from ignite_tf_magic.protocol.field_names import folded_path
from ignite_tf_magic.protocol.messages import CacheConfig, QueryEntity, QueryField
from ignite_tf_magic.protocol.row_fields import Path
from ignite_tf_magic.serialization.sql_text import in_quotes, quoted_name

Query = Callable[[str, Sequence[Any]], QueryResult]
_TABLES = (
    "SELECT SCHEMA_NAME, TABLE_NAME, KEY_ALIAS, VALUE_ALIAS FROM SYS.TABLES WHERE CACHE_NAME = ? "
    "ORDER BY TABLE_NAME"
)
_COLUMNS = (
    "SELECT COLUMN_NAME, TYPE, NULLABLE, PK, PRECISION, SCALE, DEFAULT_VALUE FROM SYS.TABLE_COLUMNS "
    "WHERE SCHEMA_NAME = ? AND TABLE_NAME = ?"
)
_COLUMNS_NOW = (
    "SELECT C.COLUMN_NAME, C.TYPE FROM SYS.TABLE_COLUMNS C JOIN SYS.TABLES T "
    "ON C.SCHEMA_NAME = T.SCHEMA_NAME AND C.TABLE_NAME = T.TABLE_NAME WHERE T.CACHE_NAME = ?"
)
_MOST_COLUMNS = 100_000
_WHOLE: dict[str, Path | None] = {"_KEY": ("key",), "_VAL": ("val",)}


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of a cache's SQL table.

    Attributes:
        name: The name in the SQL catalog.
        java_type: The Java type, such as "java.lang.Integer".
        path: The field's path in rows, as the table declares it; None if Ignite searches each row's key and value.
        precision: Largest number of characters, bytes or digits; -1 if there is no limit.
        scale: Largest number of decimal places; -1 if there is no limit.
        has_default: Whether INSERT writes a default if it omits the column.
    """

    name: str
    java_type: str
    is_nullable: bool
    is_key: bool
    path: Path | None = None
    precision: int = -1
    scale: int = -1
    has_default: bool = False

    @property
    def has_rules(self) -> bool:
        """Whether the table refuses some values of the type, or has a default."""
        is_needed = not self.is_nullable and not self.is_key
        return is_needed or self.has_default or self.precision >= 0 or self.scale >= 0


@dataclass(frozen=True, slots=True)
class CacheTable:
    """The SQL table of a cache.

    Attributes:
        name: The name with schema, quoted only where needed: PUBLIC.MNIST.
        quoted: The name with schema, always quoted.
    """

    name: str
    quoted: str
    columns: tuple[TableColumn, ...]

    @property
    def named(self) -> tuple[TableColumn, ...]:
        """The columns except _KEY and _VAL, which stand for the whole key and value."""
        return tuple(each for each in self.columns if each.name not in _WHOLE)

    def column_of(self, path: Path) -> TableColumn | None:
        """Return the column of a field. A user's column takes precedence over _KEY and _VAL."""
        found = [each for each in self.columns if each.path and folded_path(each.path) == folded_path(path)]
        return min(found, key=lambda each: each.name in _WHOLE, default=None)


def table_as_it_is(cache: Cache, config: CacheConfig) -> QueryEntity | None:
    """Return the only SQL table of a cache with its current columns; None if it has none or several.

    The columns come from a system view, because ALTER TABLE does not change the configuration.
    """
    entity = config.only_table
    if entity is None:
        return None
    try:
        rows = cache.client.router.call(
            sql.execute(_COLUMNS_NOW, [cache.name], _MOST_COLUMNS), sql.parse_result
        ).rows
    except ServerError:  # a cluster without SQL, or one that denies this user the views
        return entity
    if not rows:  # the table is being dropped
        return entity
    now = {column: java_type for column, java_type in rows if column not in _WHOLE}
    kept = [field for field in entity.fields if field.column in now]
    known = {field.column for field in kept}
    added = [QueryField(column, java, column=column) for column, java in now.items() if column not in known]
    return replace(entity, fields=(*kept, *added))


def table_of(query: Query, cache: Cache) -> tuple[CacheTable | None, str]:
    """Return the only SQL table of a cache; or None and the reason as text."""
    try:
        tables = query(_TABLES, [cache.name]).rows
    except QueryError as error:  # a cluster without SQL, or one that denies this user the views
        return None, f"the cluster does not list its SQL tables: {str(error).splitlines()[0]}"
    names = [f"{quoted_name(schema)}.{quoted_name(table)}" for schema, table, *_ in tables]
    if len(tables) != 1:
        return None, f"it has several SQL tables: {', '.join(names)}" if tables else "it has no SQL table"
    schema, table, key_alias, value_alias = tables[0]
    # The view marks a column for the whole key only if both names have the same case. It does not mark the column for
    # the whole value as NOT NULL.
    entity = cache.config().only_table
    if entity is None:
        return None, "its SQL table was just created or dropped"
    paths = {**_WHOLE, **{field.column: entity.path_of(field) for field in entity.fields}}
    columns = tuple(
        TableColumn(
            name,
            java_type,
            is_nullable and name.upper() != (value_alias or "").upper(),
            is_key or name.upper() == (key_alias or "").upper(),
            paths.get(name, ("val", name)),  # ALTER TABLE adds fields that the configuration does not name
            precision,
            scale,
            default is not None,
        )
        for name, java_type, is_nullable, is_key, precision, scale, default in query(
            _COLUMNS, [schema, table]
        ).rows
    )
    return CacheTable(names[0], f"{in_quotes(schema)}.{in_quotes(table)}", columns), ""
