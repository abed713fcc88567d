"""Creates a cache from rows, or adds rows to an existing cache.

Ignite cannot rename caches. So rows that replace others are first written to a spare cache next to the old one. When
all of them are there, the old cache is removed and the rows are written again under its name. So the cluster always has
either all old rows or all new rows, whatever fails or is killed. Incomplete caches are marked (`cache_facts`).

A killed load is resumed after the rows that its mark records. Rows after those are written again with the same keys.
"""

from __future__ import annotations

import time
import uuid
from contextlib import suppress
from dataclasses import replace

from ignite_tf_magic.client.cache_facts import (
    LoadMark,
    LoadState,
    forget,
    load_mark,
    mark_complete,
    mark_loading,
    read_facts,
    spare_name,
)
from ignite_tf_magic.client.client import Cache, Client
from ignite_tf_magic.client.load import check_room, region_watch, table_config
from ignite_tf_magic.client.regions import RegionWatch, region_use
from ignite_tf_magic.client.router import wait_for
from ignite_tf_magic.client.table_names import list_tables
from ignite_tf_magic.data.additions import Addition
from ignite_tf_magic.data.checked_rows import CheckedRows
from ignite_tf_magic.data.load_options import ADDING, LoadOptions, LoadOutcome, LoadWay
from ignite_tf_magic.data.row_types import check_zones, key_column, new_types
from ignite_tf_magic.data.row_writing import PutWriter, RowWriting, check_same, count_rows
from ignite_tf_magic.errors import (
    CacheExists,
    CacheNameError,
    CacheNotFound,
    IgniteTfError,
    LoadNotResumed,
    RegionFull,
    ServerError,
)
from ignite_tf_magic.protocol.encode import RowEncoder
from ignite_tf_magic.serialization.sql_text import folded_name

_FREEING_S = 10.0


def load_rows(client: Client, cache: str, rows: CheckedRows, options: LoadOptions) -> LoadOutcome:
    """Write rows into a cache; see `Session.load`.

    Raises:
        CacheExists: The cache has rows, and the options neither replace nor extend them.
        CacheNameError: The name conflicts with SQL tables of other caches, or cannot be the name of a table.
        CacheNotFound: There is no cache to add rows to.
        KeysExist: Rows to append have keys that exist already.
        LoadIncomplete: An earlier load into the cache was not finished.
        LoadNotResumed: There is no load to resume, or it had other rows.
        RegionFull: A node has no room for the rows.
        RowsRefused: The cluster refused rows to be added.
        SourceError: The rows do not fit the cache.
    """
    began = time.monotonic()
    check_zones(client, rows)
    cache, way = _cache_meant(client, cache, options), options.way
    known = load_mark(read_facts(client, cache)) if options.resume and cache in client.cache_names() else None
    if known is not None and known.state is LoadState.LOADING:
        way = LoadWay(known.way)
    if way in ADDING:
        backups = Addition(client, cache, rows, replace(options, way=way)).run()
    else:
        backups = _Load(client, cache, rows, options).run()
    return LoadOutcome(cache, rows.num_rows, backups, time.monotonic() - began, rows.num_rejected)


def _cache_meant(client: Client, name: str, options: LoadOptions) -> str:
    """Return the name of the cache for the rows. When rows are added, `name` may also be that of its SQL table.

    Raises:
        CacheNotFound: There is no cache to add rows to.
        CacheNameError: Several caches have tables of that name.
    """
    if options.way in ADDING:
        return client.find_cache(name).name
    if not options.resume:
        return name
    with suppress(CacheNotFound):
        found = client.find_cache(name).name
        mark = load_mark(read_facts(client, found))
        if mark is not None and mark.way in ADDING:
            return found
    return name


class _Load:
    """A load into a new cache, with the state of its steps."""

    def __init__(self, client: Client, cache: str, rows: CheckedRows, options: LoadOptions) -> None:
        self._client, self._cache, self._rows, self._options = client, cache, rows, options
        self._backups = int(len(client.nodes()) > 1) if options.backups is None else options.backups
        self._spare = spare_name(cache)
        self._writing = RowWriting(rows, options.progress)
        check_table(client, cache)
        self._types = new_types(client, cache, rows)

    def run(self) -> int:
        """Load the rows. Return the number of backups."""
        if self._options.resume:
            self._go_on()
        else:
            if self._keeps_old(replace=self._options.way is LoadWay.REPLACE):
                self._gather()
            self._write()
        return self._backups

    def _go_on(self) -> None:
        """Resume an interrupted load at the step where it stopped.

        Raises:
            LoadNotResumed: There is no such load, or it had other rows.
        """
        mark = self._mark(self._cache)
        spare = self._mark(self._spare)
        if self._cache not in self._client.cache_names() and spare is None:
            self._write()  # it stopped before it had created anything
        elif mark is not None and mark.state is LoadState.LOADING:
            self._check_same(mark)
            self._write()
        elif spare is not None:
            self._check_same(spare)
            self._gather()
            self._write()
        elif mark is None or mark.source != self._rows.digest:
            raise LoadNotResumed(f"cache {self._cache!r} has no unfinished load; --replace loads it again")

    def _mark(self, name: str) -> LoadMark | None:
        return load_mark(read_facts(self._client, name))

    def _check_same(self, mark: LoadMark) -> None:
        check_same(self._cache, mark, self._rows)

    def _keeps_old(self, *, replace: bool) -> bool:
        """Return whether the existing cache of that name has rows that must be kept until the load succeeds.

        Raises:
            CacheExists: The cache has rows and `replace` is false.
        """
        if self._cache not in self._client.cache_names():
            return False
        rows = self._client.cache(self._cache).size()
        if rows and not replace:
            raise CacheExists(self._cache, rows)
        mark = self._mark(self._cache)
        is_whole = mark is None or mark.state is LoadState.COMPLETE
        return bool(rows) and is_whole

    def _gather(self) -> None:
        """Write the rows into the spare cache. If that fails, only the old rows are left.

        Raises:
            RegionFull: There is no room for both.
        """
        self._writing.times = 2
        try:
            before = _used_bytes(self._client)
            self._fill(self._spare)
            self._check_second_writing(before)
        except BaseException as error:
            with suppress(IgniteTfError):  # the marked spare cache may stay; the next load removes it
                _drop(self._client, self._spare)
            if isinstance(error, RegionFull):
                raise RegionFull(
                    f"cache {self._cache!r} was not changed: there is not enough memory for the old and the new rows "
                    "together. To give up the old rows, remove the cache first: "
                    f"session.client.destroy_cache({self._cache!r}). {error}"
                ) from error
            raise

    def _check_second_writing(self, before: dict[uuid.UUID, int]) -> None:
        """Refuse the load if writing the rows again, in place of the old ones, would fill a region."""
        after = _used_bytes(self._client)
        grown = max((after[node] - before[node] for node in after.keys() & before.keys()), default=0)
        freed = grown * min(self._client.cache(self._cache).size() / self._rows.num_rows, 1)
        if grown > freed:
            region_watch(self._client).check(round(grown - freed))

    def _write(self) -> None:
        """Write the rows under the cache's name, replacing an existing cache. Then remove the spare cache."""
        self._fill(self._cache)
        _drop(self._client, self._spare)

    def _fill(self, name: str) -> None:
        client = self._client
        known = self._mark(name) if self._options.resume and name in client.cache_names() else None
        if known is not None and known.source == self._rows.digest:
            if known.state is LoadState.COMPLETE:
                self._writing.advance(self._rows.num_rows)
                return
        else:
            known = None
        mark = mark_loading(
            client, name, self._rows.num_rows, rows=known.rows if known else 0, source=self._rows.digest
        )  # also before the existing cache is destroyed
        if known is None:
            cache, watch = self._make(name)
        else:
            cache, watch = client.cache(name), region_watch(client)
        mark, filled = self._writing.write(cache, PutWriter(cache, self._types), mark, watch)
        count_rows(cache, filled, self._rows.num_rows, self._backups)
        mark_complete(client, name, mark, self._rows.num_rows)

    def _make(self, name: str) -> tuple[Cache, RegionWatch]:
        client = self._client
        is_there = name in client.cache_names()
        if is_there:
            client.destroy_cache(name)
        encoder = self._types.encoder(next(self._rows.chunks()))
        config = table_config(name, encoder, self._backups, key_name=key_column(self._options.key))
        try:
            watch = self._find_room(encoder, patience_s=_FREEING_S if is_there else 0)
            return client.create_cache(config), watch
        except ServerError as error:
            forget(client, name)
            raise IgniteTfError(f"cache {name!r} cannot be made: {error.server_message}") from error
        except RegionFull:
            forget(client, name)
            raise

    def _find_room(self, encoder: RowEncoder, patience_s: float) -> RegionWatch:
        """Check that the rows fit; retry for a while if a destroyed cache has not freed its memory yet."""
        full: RegionFull | None = None

        def look() -> RegionWatch | None:
            nonlocal full
            try:
                return check_room(self._client, encoder, self._rows.num_rows, self._backups)
            except RegionFull as error:
                full = error
                return None

        watch = wait_for(look, patience_s)
        if watch is None and full is not None:
            raise full
        return watch or region_watch(self._client)


def _drop(client: Client, cache: str) -> None:
    if cache in client.cache_names():
        client.destroy_cache(cache)
    forget(client, cache)


def _used_bytes(client: Client) -> dict[uuid.UUID, int]:
    return {use.node.node_id: use.used_bytes for use in region_use(client)}


def check_table(client: Client, cache: str) -> None:
    """Refuse a name whose SQL table another cache has. SQL converts most names to capitals.

    Raises:
        CacheNameError: Another cache has the table, or no table can have that name.
    """
    if not cache or '"' in cache:
        raise CacheNameError(f"{cache!r} cannot name a cache with an SQL table; give a name without quotes")
    for table in list_tables(client.router):
        if table.is_public and table.table == folded_name(cache) and table.cache != cache:
            raise CacheNameError(
                f"cache {cache!r} needs the SQL table {table.in_full}, which belongs to cache {table.cache!r}; load "
                f"into a cache of another name, or add the rows to {table.cache!r}: --append or --upsert"
            )
