"""Adds rows to an existing cache, and undoes or accepts an addition that died.

If the cache is exactly what a load would create for the rows, they are written with key-value puts. Rows for any other
table are written with SQL MERGE, so that Ignite itself makes the keys, values and defaults.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

from ignite_tf_magic.client.cache_facts import (
    LoadMark,
    LoadState,
    change_mark,
    check_complete,
    load_mark,
    mark_complete,
    new_mark,
    read_facts,
)
from ignite_tf_magic.client.client import Cache, Client
from ignite_tf_magic.client.load import Progress, check_room, region_watch
from ignite_tf_magic.client.regions import RegionWatch
from ignite_tf_magic.client.row_counts import last_count
from ignite_tf_magic.client.sql import SqlClient
from ignite_tf_magic.client.sql_tables import CacheTable, table_of
from ignite_tf_magic.client.table_statements import TableStatements
from ignite_tf_magic.data.added_keys import AddedKeys
from ignite_tf_magic.data.checked_rows import CheckedRows
from ignite_tf_magic.data.columns import Columns
from ignite_tf_magic.data.load_options import LoadOptions, LoadWay
from ignite_tf_magic.data.row_types import loaded_types
from ignite_tf_magic.data.row_writing import ChunkWriter, PutWriter, RowWriting, check_same, count_rows
from ignite_tf_magic.data.table_fit import TableFit, key_columns
from ignite_tf_magic.errors import (
    IgniteTfError,
    KeysExist,
    LoadNotResumed,
    LoadNotUndone,
    RowsRefused,
    ServerError,
    SourceError,
)
from ignite_tf_magic.serialization.facts_html import facts_html

_SHOWN = 5


class StatementWriter:
    """Writes rows into a table by SQL."""

    def __init__(self, statements: TableStatements, fit: TableFit) -> None:
        self._statements, self._fit = statements, fit

    def write(self, chunk: Columns, first_key: int, progress: Progress, watch: RegionWatch) -> None:
        """See `ChunkWriter`."""
        for more in self._statements.merge(self._fit.columns, self._fit.arguments(chunk, first_key), watch):
            progress(more)

    def partitions(self, chunk: Columns, first_key: int) -> set[int] | None:
        """See `ChunkWriter`."""
        del chunk, first_key
        return None


class NotingWriter:
    """Records the keys of rows before another writer writes the rows."""

    def __init__(self, writer: ChunkWriter, fit: TableFit, added: AddedKeys) -> None:
        self._writer, self._fit, self._added = writer, fit, added
        self.partitions = writer.partitions

    def write(self, chunk: Columns, first_key: int, progress: Progress, watch: RegionWatch) -> None:
        """See `ChunkWriter`."""
        self._added.note([each.name for each in self._fit.keys], self._fit.key_arguments(chunk, first_key))
        self._writer.write(chunk, first_key, progress, watch)


class Addition:
    """Adds the rows of a source to a cache.

    Raises:
        SourceError: The cache does not have exactly one SQL table, or the columns do not fit it.
    """

    def __init__(self, client: Client, cache: str, rows: CheckedRows, options: LoadOptions) -> None:
        self._client, self._rows, self._options = client, rows, options
        self._cache = client.cache(cache)
        self._backups = self._cache.config().backups
        self._is_append = options.way is LoadWay.APPEND
        self._table = _one_table(client, cache)
        self._fit = TableFit(self._table, rows, whole_rows=not self._is_append)
        if not self._is_append and not rows.key_codes:
            raise SourceError(f"an upsert into cache {cache!r} needs keys: --key COLUMN")
        self._statements = TableStatements(client, self._table)
        self._types = loaded_types(self._cache, self._table, rows)
        self._added = AddedKeys(client, cache)

    def run(self) -> int:
        """Write the rows; return the number of the cache's backups.

        Raises:
            RowsRefused: The cluster refused rows. The rows that an append had written are removed.
        """
        name = self._cache.name
        known = load_mark(read_facts(self._client, name))
        if not self._options.resume:
            check_complete(self._client, name)
        elif known is None or known.state is LoadState.COMPLETE:
            if known is None or known.source != self._rows.digest:
                raise LoadNotResumed(f"cache {name!r} has no unfinished load; leave --resume out")
            return self._backups
        else:
            check_same(name, known, self._rows)
        mark, watch = self._begun(known)
        change_mark(self._client, name, known, mark)
        try:
            mark, filled = RowWriting(self._rows, self._options.progress).write(
                self._cache, self._writer(), mark, watch
            )
        except ServerError as error:
            raise self._refused(error) from error
        count = last_count(read_facts(self._client, name))
        before = count.filled if count else None
        all_filled = None if filled is None or before is None else filled | before
        count_rows(self._cache, all_filled, mark.expected_rows, self._backups)
        mark_complete(self._client, name, mark, self._cache.size())
        self._added.forget()
        return self._backups

    def _writer(self) -> ChunkWriter:
        writer: ChunkWriter = StatementWriter(self._statements, self._fit)
        if self._types is not None:
            writer = PutWriter(self._cache, self._types)
        return NotingWriter(writer, self._fit, self._added) if self._is_append else writer

    def _refused(self, error: ServerError) -> IgniteTfError:
        """Undo an append that the cluster refused; return the error to raise."""
        table = self._table.name
        if not self._is_append:
            return RowsRefused(
                f"table {table} refused rows of {self._rows.name}: {error.server_message}. Some rows are written; go "
                "on (--resume), or keep the rows that are there (--accept)"
            )
        with suppress(IgniteTfError):
            undone = undo_load(self._client, self._cache.name)
            return RowsRefused(
                f"table {table} refused rows of {self._rows.name}: {error.server_message}. The table is as it was "
                f"before: the {undone.removed:,} rows that were already written are removed"
            )
        return RowsRefused(
            f"table {table} refused rows of {self._rows.name}: {error.server_message}. Some rows are written, and "
            "removing them failed; try again with --undo"
        )

    def _begun(self, known: LoadMark | None) -> tuple[LoadMark, RegionWatch]:
        """Check that the rows can be written; return the mark to set before the first one."""
        source, way = self._rows.digest, self._options.way
        if self._options.resume and known is not None:
            mark = new_mark(
                known.expected_rows, rows=known.rows, source=source, way=way.value, first_key=known.first_key
            )
            return mark, region_watch(self._client)
        first_key = 0 if self._rows.key_codes else self._next_key()
        if self._types is None:
            self._fit.check(first_key)
        there = self._cache.size()
        if not self._is_append:
            watch = region_watch(self._client)
            return new_mark(max(there, self._rows.num_rows), source=source, way=way.value), watch
        watch = self._find_room()
        if self._rows.key_codes:
            self._refuse_known_keys()
        self._added.forget()
        mark = new_mark(there + self._rows.num_rows, source=source, way=way.value, first_key=first_key)
        return mark, watch

    def _find_room(self) -> RegionWatch:
        if self._types is None:
            return region_watch(self._client)
        encoder = self._types.encoder(next(self._rows.chunks()))
        return check_room(self._client, encoder, self._rows.num_rows, self._backups)

    def _next_key(self) -> int:
        try:
            largest = self._statements.largest(self._fit.keys[0])
        except ServerError as error:
            raise IgniteTfError(
                f"the largest key of cache {self._cache.name!r}, after which rows are numbered, cannot be read: "
                f"{error.server_message}; pass keys: --key COLUMN"
            ) from error
        return 0 if largest is None else largest + 1

    def _refuse_known_keys(self) -> None:
        """Refuse rows whose keys exist.

        Raises:
            KeysExist: A key exists; nothing was written.
        """
        for chunk in self._rows.chunks():
            values = self._fit.key_arguments(chunk, 0)
            there = chain.from_iterable(self._statements.find(self._fit.keys, values))
            shown = [_shown([each[index] for each in values]) for index, _ in islice(there, _SHOWN)]
            if shown:
                raise KeysExist(self._cache.name, ", ".join(shown))


def _shown(key: list[Any]) -> str:
    return repr(key[0]) if len(key) == 1 else repr(tuple(key))


def _one_table(client: Client, cache: str) -> CacheTable:
    """Return the SQL table of a cache.

    Raises:
        SourceError: The cache has no table, or several.
    """
    table, why = table_of(SqlClient(client.router.options).query, client.cache(cache))
    if table is None or not table.named:
        raise SourceError(
            f"rows cannot be added to cache {cache!r} by their columns: {why or 'its SQL table has none'}; write them "
            "with SQL, or with the client (Cache.put_all)"
        )
    return table


@dataclass(frozen=True, slots=True)
class EndedLoad:
    """The outcome of undoing or accepting a load.

    Attributes:
        removed: Number of rows that were removed.
        rows: Number of rows in the cache.
    """

    cache: str
    removed: int
    rows: int

    def __str__(self) -> str:
        return f"{self.removed:,} rows removed from cache {self.cache}; it has {self.rows:,} rows and is complete"

    def _repr_html_(self) -> str:
        return facts_html(str(self), {})


def undo_load(client: Client, name: str) -> EndedLoad:
    """Remove the rows of an append that did not finish; see `Session.undo_load`."""
    cache, mark = _unfinished(client, name)
    if mark.way != LoadWay.APPEND.value:
        why = (
            "the rows that it replaced are gone: go on with it (--resume), or keep the rows that are there (--accept)"
            if mark.way == LoadWay.UPSERT.value
            else "it creates the cache: load again (--replace), or keep the rows that are there (--accept)"
        )
        raise LoadNotUndone(
            f"the load into cache {cache.name!r} that {mark.by} began cannot be undone: {why}"
        )
    # A loader that still writes stops at its next mark; a later --resume starts again with the first row.
    taken = new_mark(mark.expected_rows, source=mark.source, way=mark.way, first_key=mark.first_key)
    change_mark(client, cache.name, mark, taken)
    removed = sum(_removed(client, cache))
    return _ended(cache, taken, removed)


def _removed(client: Client, cache: Cache) -> Iterator[int]:
    """Remove the rows whose keys an append has recorded; yield the number of rows of each batch."""
    table = _one_table(client, cache.name)
    statements, known = TableStatements(client, table), {each.name: each for each in key_columns(table)}
    for names, values in AddedKeys(client, cache.name).chunks():
        for found in statements.find([known[name] for name in names], values):
            cache.remove_all(key for _, key in found)
            yield len(found)


def accept_load(client: Client, name: str) -> EndedLoad:
    """Mark a cache as complete although its load did not finish; see `Session.accept_load`."""
    cache, mark = _unfinished(client, name)
    taken = new_mark(
        mark.expected_rows, rows=mark.rows, source=mark.source, way=mark.way, first_key=mark.first_key
    )
    change_mark(client, cache.name, mark, taken)
    return _ended(cache, taken, 0)


def _unfinished(client: Client, name: str) -> tuple[Cache, LoadMark]:
    cache = client.find_cache(name)
    mark = load_mark(read_facts(client, cache.name))
    if mark is None or mark.state is LoadState.COMPLETE:
        raise LoadNotUndone(f"cache {cache.name!r} has no unfinished load; nothing was changed")
    return cache, mark


def _ended(cache: Cache, mark: LoadMark, removed: int) -> EndedLoad:
    rows = cache.size()
    count_rows(cache, None, rows, cache.config().backups)
    whole = replace(mark, state=LoadState.COMPLETE, rows=rows, expected_rows=rows, source="")
    change_mark(cache.client, cache.name, mark, whole)
    AddedKeys(cache.client, cache.name).forget()
    return EndedLoad(cache.name, removed, rows)
