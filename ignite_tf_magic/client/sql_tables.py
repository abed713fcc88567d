"""The SQL table of a cache, and which of its columns holds which field of the rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ignite_tf_magic.client.sql_result import QueryResult
from ignite_tf_magic.errors import QueryError
from ignite_tf_magic.protocol.row_fields import Path
from ignite_tf_magic.serialization.sql_text import in_quotes, quoted_name

Query = Callable[[str, Sequence[Any]], QueryResult]
_TABLES = "SELECT SCHEMA_NAME, TABLE_NAME, KEY_ALIAS FROM SYS.TABLES WHERE CACHE_NAME = ? ORDER BY TABLE_NAME"
_COLUMNS = (
    "SELECT COLUMN_NAME, TYPE, NULLABLE, PK FROM SYS.TABLE_COLUMNS WHERE SCHEMA_NAME = ? AND TABLE_NAME = ?"
)
_WHOLE = {("key",): "_KEY", ("val",): "_VAL"}


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of a cache's SQL table.

    Attributes:
        name: As SQL knows it.
        java_type: As "java.lang.Integer".
    """

    name: str
    java_type: str
    is_nullable: bool
    is_key: bool


@dataclass(frozen=True, slots=True)
class CacheTable:
    """The SQL table of a cache.

    Attributes:
        name: As a person writes it in a statement: PUBLIC.MNIST.
        quoted: As it is written in any case.
    """

    name: str
    quoted: str
    columns: tuple[TableColumn, ...]

    def column_of(self, path: Path) -> TableColumn | None:
        """Find the column of a field; fields of fields have none that is known."""
        if len(path) > 2:
            return None
        keys = [each for each in self.columns if each.is_key and each.name not in _WHOLE.values()]
        if path == ("key",) and len(keys) == 1:
            return keys[0]
        name = _WHOLE[path] if len(path) == 1 else path[1]
        alike = [each for each in self.columns if each.name.upper() == name.upper()]
        if len(alike) != 1 or (len(path) == 2 and alike[0].is_key != (path[0] == "key")):
            return None
        return alike[0]


def table_of(query: Query, cache_name: str) -> tuple[CacheTable | None, str]:
    """Find the one SQL table of a cache; without one, say why in words."""
    try:
        tables = query(_TABLES, [cache_name]).rows
    except QueryError as error:  # a cluster without SQL, or one that lets this user not look
        return None, f"the cluster tells nothing of SQL tables: {str(error).splitlines()[0]}"
    names = [f"{quoted_name(schema)}.{quoted_name(table)}" for schema, table, _ in tables]
    if len(tables) != 1:
        return None, f"it has several SQL tables: {', '.join(names)}" if tables else "it has no SQL table"
    schema, table, key_alias = tables[0]
    # The view marks a column that stands for the whole key only where both are spelled alike.
    columns = tuple(
        TableColumn(name, java_type, is_nullable, is_key or name.upper() == (key_alias or "").upper())
        for name, java_type, is_nullable, is_key in query(_COLUMNS, [schema, table]).rows
    )
    return CacheTable(names[0], f"{in_quotes(schema)}.{in_quotes(table)}", columns), ""
