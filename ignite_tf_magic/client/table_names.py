"""Maps the names of SQL tables to the caches that hold their rows.

SQL users know a cache by its table. CREATE TABLE KITTENS makes the cache SQL_PUBLIC_KITTENS, or the cache that the
CACHE_NAME option names.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from ignite_tf_magic.client.router import Router
from ignite_tf_magic.errors import CacheNameError, ServerError
from ignite_tf_magic.protocol import sql
from ignite_tf_magic.serialization.sql_text import in_capitals, quoted_name

_STATEMENT = "SELECT SCHEMA_NAME, TABLE_NAME, CACHE_NAME FROM SYS.TABLES"
_MOST_TABLES = 100_000
_MOST_NEAR = 3
_PUBLIC = "PUBLIC"
_PART = r'"(?:[^"]|"")+"|[^".]+'
_NAME = re.compile(rf"(?:(?P<schema>{_PART})\.)?(?P<table>{_PART})")


@dataclass(frozen=True, slots=True)
class TableName:
    """A SQL table and the cache that holds its rows, named as in the catalog."""

    schema: str
    table: str
    cache: str

    @property
    def is_public(self) -> bool:
        """Whether a statement finds the table without its schema."""
        return self.schema == _PUBLIC

    @property
    def in_full(self) -> str:
        """The name with schema, as in a statement: "MNIST".MNIST."""
        return f"{quoted_name(self.schema)}.{quoted_name(self.table)}"

    def __str__(self) -> str:
        """Return the shortest name that a statement accepts."""
        return quoted_name(self.table) if self.is_public else self.in_full


def list_tables(router: Router) -> list[TableName]:
    """Return all tables, sorted by schema and name; empty if nodes have no SQL or deny this user the view.

    Raises:
        ConnectionFailed: No node answers.
    """
    request = sql.execute(_STATEMENT, (), _MOST_TABLES)
    try:
        rows = router.call(request, lambda payload: sql.parse_result(payload).rows)
    except ServerError:
        return []
    return [TableName(*names) for names in sorted(rows)]


def cache_called(name: str, tables: Iterable[TableName]) -> str | None:
    """Return the cache of the table that a statement would find by this name; None if there is no such table.

    Letters outside quotes are converted to capitals. A name without a schema means the table of schema PUBLIC. If
    PUBLIC has no such table, it means the table in any other schema.

    Raises:
        CacheNameError: Tables of several caches match.
    """
    found = _tables_called(name, tables)
    if len({each.cache for each in found}) > 1:
        shown = ", ".join(f"{each.in_full} (cache {each.cache!r})" for each in found)
        raise CacheNameError(
            f"{name!r} names several SQL tables: {shown}; write one of them, or its cache's name"
        )
    return found[0].cache if found else None


def _tables_called(name: str, tables: Iterable[TableName]) -> list[TableName]:
    parts = _NAME.fullmatch(name)
    if parts is None:
        return []
    alike = [each for each in tables if each.table == _folded(parts["table"])]
    if parts["schema"]:
        return [each for each in alike if each.schema == _folded(parts["schema"])]
    return [each for each in alike if each.is_public] or alike


def _folded(part: str) -> str:
    return part[1:-1].replace('""', '"') if part.startswith('"') else in_capitals(part)


def near_names(
    name: str, caches: Iterable[str], tables: Iterable[TableName], *, as_tables: bool
) -> list[str]:
    """Return up to 3 existing names similar to an unknown one, best first, one for each cache.

    Args:
        name: The unknown name.
        caches: Names of the existing caches.
        tables: Tables of these caches.
        as_tables: Whether to return a similar table's own name; otherwise its cache's name is returned.
    """
    has_schema = "." in name
    known: dict[str, tuple[str, str]] = {}
    for each in tables:
        word = f"{each.schema}.{each.table}" if has_schema else each.table
        known[word.lower()] = (str(each) if as_tables else each.cache, each.cache)
    known.update((cache.lower(), (cache, cache)) for cache in caches)
    words = difflib.get_close_matches(name.replace('"', "").lower(), known, n=2 * _MOST_NEAR, cutoff=0.5)
    shown: dict[str, str] = {}
    for word in words:
        shown.setdefault(known[word][1], known[word][0])
    return list(shown.values())[:_MOST_NEAR]
