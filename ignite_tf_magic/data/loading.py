"""Makes a cache out of rows, or writes them into one that is there.

Rows that are to replace others are gathered in a cache beside the old one first, as Ignite cannot rename caches: the
old one goes when all of them are there, and they are then written under its name. So at every moment the old rows or
the new ones are whole in the cluster, whatever fails or is killed, and what is not whole is marked (`cache_facts`).

A load that was killed is gone on with from the rows that its mark tells of: those behind them are written again, under
the same keys.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from ignite_tf_magic.client.cache_facts import (
    LoadMark,
    LoadState,
    change_mark,
    check_complete,
    forget,
    load_mark,
    mark_complete,
    mark_loading,
    new_mark,
    read_facts,
    spare_name,
)
from ignite_tf_magic.client.client import Cache, Client
from ignite_tf_magic.client.load import check_room, put_rows, region_watch, table_config
from ignite_tf_magic.client.regions import RegionWatch, region_use
from ignite_tf_magic.client.router import wait_for
from ignite_tf_magic.client.row_counts import counted_now, last_count, note_count
from ignite_tf_magic.client.table_names import list_tables
from ignite_tf_magic.data.checked_rows import CheckedRows
from ignite_tf_magic.data.row_types import RowTypes, check_zones, key_column, new_types, types_of
from ignite_tf_magic.errors import (
    CacheExists,
    CacheNameError,
    CacheNotFound,
    IgniteTfError,
    KeysExist,
    LoadNotResumed,
    RegionFull,
    RowsLost,
    ServerError,
    SourceError,
)
from ignite_tf_magic.protocol import key_value, sql
from ignite_tf_magic.protocol.affinity import partitions_of_hashes
from ignite_tf_magic.protocol.encode import RowEncoder
from ignite_tf_magic.runs.hosts.topology import topology_of
from ignite_tf_magic.serialization.facts_html import facts_html
from ignite_tf_magic.serialization.sql_text import quoted_name

# Told the rows written so far and all rows.
LoadProgress = Callable[[int, int], None]
_RECOUNT_S = 2.0
_FREEING_S = 10.0
_KEYS_AT_ONCE = 1024
_SHOWN = 5


class LoadWay(str, Enum):
    """How rows come into a cache."""

    NEW = "new"
    REPLACE = "replace"
    APPEND = "append"
    UPSERT = "upsert"


_ADDING = (LoadWay.APPEND, LoadWay.UPSERT)


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How rows are loaded; see `Session.load`.

    Attributes:
        backups: Copies of each row beside the first, of a new cache; None is 1 when there is more than one node.
        way: How they come into the cache.
        resume: Go on with a load that was ended before it was whole.
        key: Columns that are the key.
        progress: Told the rows written so far and all rows.
    """

    backups: int | None = None
    way: LoadWay = LoadWay.NEW
    resume: bool = False
    key: tuple[str, ...] = ()
    progress: LoadProgress | None = None


@dataclass(frozen=True, slots=True)
class LoadOutcome:
    """What was loaded.

    Attributes:
        seconds: Time for writing; reading the source is not counted.
        rows: Rows of the source that are in the cache.
        rejected: Rows of the source that have no form in a cache.
        entries: Into how many entries of the cache they were packed; None where each is one.
    """

    cache: str
    rows: int
    backups: int
    seconds: float
    rejected: int = 0
    entries: int | None = None

    def __str__(self) -> str:
        copies = {0: "without backups", 1: "with 1 backup"}.get(self.backups, f"with {self.backups} backups")
        left_out = (
            f"; {self.rejected:,} rows have no form in a cache and were left out" if self.rejected else ""
        )
        packed = "" if self.entries is None else f", packed into {self.entries:,} entries"
        return f"{self.rows:,} rows in cache {self.cache} ({copies}){packed}, written in {self.seconds:.1f} s{left_out}"

    def _repr_html_(self) -> str:
        return facts_html(str(self), {})


def load_rows(client: Client, cache: str, rows: CheckedRows, options: LoadOptions) -> LoadOutcome:
    """Write rows into a cache; see `Session.load`.

    Raises:
        CacheExists: The cache has rows and is neither to be replaced nor to get more.
        CacheNameError: Another cache has the name, or a table of it.
        CacheNotFound: There is none to append to.
        KeysExist: Rows that are to be new have keys of rows that are there.
        LoadIncomplete: An earlier load into it was not finished.
        LoadNotResumed: There is no load to go on with, or it was one of other rows.
        RegionFull: A node has no room for the rows.
        SourceError: The rows do not fit the cache.
    """
    began = time.monotonic()
    check_zones(client, rows)
    cache, way = _cache_meant(client, cache, options), options.way
    known = load_mark(read_facts(client, cache)) if options.resume and cache in client.cache_names() else None
    if known is not None and known.state is LoadState.LOADING:
        way = LoadWay(known.way)
    if way in _ADDING:
        backups = _Addition(client, cache, rows, replace(options, way=way)).run()
    else:
        backups = _Load(client, cache, rows, options).run()
    return LoadOutcome(cache, rows.num_rows, backups, time.monotonic() - began, rows.num_rejected)


def _cache_meant(client: Client, name: str, options: LoadOptions) -> str:
    """Return the name of the cache for the rows: of one that is to get more, it may be that of its SQL table.

    Raises:
        CacheNotFound: There is none to append to.
        CacheNameError: Several caches have tables of that name.
    """
    if options.way in _ADDING:
        return client.find_cache(name).name
    if not options.resume:
        return name
    with suppress(CacheNotFound):
        found = client.find_cache(name).name
        mark = load_mark(read_facts(client, found))
        if mark is not None and mark.way in _ADDING:
            return found
    return name


class _Writing:
    """Rows on their way into one cache, and how far they have come."""

    def __init__(self, rows: CheckedRows, progress: LoadProgress | None, times: int = 1) -> None:
        self.rows, self.times = rows, times
        self._progress = progress
        self._done = 0

    def advance(self, more: int) -> None:
        """Tell that more rows are written."""
        self._done += more
        if self._progress:
            self._progress(self._done // self.times, self.rows.num_rows)

    def write(
        self, cache: Cache, types: RowTypes, mark: LoadMark, watch: RegionWatch
    ) -> tuple[LoadMark, set[int] | None]:
        """Write the rows that the mark does not tell of yet; returns the new mark, and the partitions of all of them.

        The partitions are None where it is not known here to which a key belongs.
        """
        partition_map = cache.partition_map()
        is_known = partition_map.partitioned and partition_map.default_affinity
        filled: set[int] | None = set() if is_known else None
        first, begun_at = 0, mark.rows
        for chunk in self.rows.chunks():
            encoder = types.encoder(chunk, mark.first_key + first)
            if filled is not None:
                hashes = encoder.key_hashes()
                filled |= set(map(int, np.unique(partitions_of_hashes(hashes, partition_map.num_partitions))))
            first += len(chunk)
            if first <= begun_at:
                self.advance(len(chunk))
                continue
            put_rows(cache, encoder, self.advance, watch)
            if first < self.rows.num_rows:
                mark, old = replace(mark, rows=first), mark
                change_mark(cache.client, cache.name, old, mark)
        return mark, filled


class _Load:
    """A load into a new cache, and what it needs in each of its steps."""

    def __init__(self, client: Client, cache: str, rows: CheckedRows, options: LoadOptions) -> None:
        self._client, self._cache, self._rows, self._options = client, cache, rows, options
        self._backups = int(len(client.nodes()) > 1) if options.backups is None else options.backups
        self._spare = spare_name(cache)
        self._writing = _Writing(rows, options.progress)
        check_table(client, cache)
        self._types = new_types(client, cache, rows)

    def run(self) -> int:
        """Load the rows; returns the number of backups."""
        if self._options.resume:
            self._go_on()
        else:
            if self._keeps_old(replace=self._options.way is LoadWay.REPLACE):
                self._gather()
            self._write()
        return self._backups

    def _go_on(self) -> None:
        """Go on with a load that was ended, wherever that was.

        Raises:
            LoadNotResumed: There is none, or it was one of other rows.
        """
        mark = self._mark(self._cache)
        spare = self._mark(self._spare)
        if self._cache not in self._client.cache_names() and spare is None:
            self._write()  # it was ended before it had made anything
        elif mark is not None and mark.state is LoadState.LOADING:
            self._check_same(mark)
            self._write()
        elif spare is not None:
            self._check_same(spare)
            self._gather()
            self._write()
        elif mark is None or mark.source != self._rows.digest:
            raise LoadNotResumed(
                f"cache {self._cache!r} has no load that was not finished; --replace loads it again"
            )

    def _mark(self, name: str) -> LoadMark | None:
        return load_mark(read_facts(self._client, name))

    def _check_same(self, mark: LoadMark) -> None:
        check_same(self._cache, mark, self._rows)

    def _keeps_old(self, *, replace: bool) -> bool:
        """Look at the cache that has the name now; gives whether it has rows that must not be lost.

        Raises:
            CacheExists: It has rows and is not to be replaced.
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
        """Write the rows beside the old ones; when that fails, only the old ones are left.

        Raises:
            RegionFull: There is no room for both.
        """
        self._writing.times = 2
        try:
            before = _used_bytes(self._client)
            self._fill(self._spare)
            self._check_second_writing(before)
        except BaseException as error:
            with suppress(IgniteTfError):  # then it is left behind, marked, and the next load removes it
                _drop(self._client, self._spare)
            if isinstance(error, RegionFull):
                raise RegionFull(
                    f"cache {self._cache!r} stays as it is: the rows that are to replace its own have no room beside "
                    "them. To do without the old ones, remove the cache first: "
                    f"session.client.destroy_cache({self._cache!r}). {error}"
                ) from error
            raise

    def _check_second_writing(self, before: dict[uuid.UUID, int]) -> None:
        """Refuse what would fill a region when the rows are written again, where the old ones were."""
        after = _used_bytes(self._client)
        grown = max((after[node] - before[node] for node in after.keys() & before.keys()), default=0)
        freed = grown * min(self._client.cache(self._cache).size() / self._rows.num_rows, 1)
        if grown > freed:
            region_watch(self._client).check(round(grown - freed))

    def _write(self) -> None:
        """Write the rows under the cache's name, in place of what has it; then the spare ones can go."""
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
        )  # also before what has the name goes
        if known is None:
            cache, watch = self._make(name)
        else:
            cache, watch = client.cache(name), region_watch(client)
        mark, filled = self._writing.write(cache, self._types, mark, watch)
        _note_count(cache, filled, self._rows.num_rows, self._backups)
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
        """Look for room for the rows; for some time, where a cache was destroyed that has not freed its own yet."""
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


class _Addition:
    """Rows for a cache that is there."""

    def __init__(self, client: Client, cache: str, rows: CheckedRows, options: LoadOptions) -> None:
        self._client, self._rows, self._options = client, rows, options
        self._cache = client.cache(cache)
        self._types = types_of(self._cache, rows)
        self._backups = self._cache.config().backups
        if options.way is LoadWay.UPSERT and not rows.key_codes:
            raise SourceError(
                f"rows that are to be written over those of cache {cache!r} need keys: --key COLUMN"
            )

    def run(self) -> int:
        """Write the rows; returns the number of the cache's backups."""
        name = self._cache.name
        known = load_mark(read_facts(self._client, name))
        if not self._options.resume:
            check_complete(self._client, name)
        elif known is None or known.state is LoadState.COMPLETE:
            if known is None or known.source != self._rows.digest:
                raise LoadNotResumed(f"cache {name!r} has no load that was not finished; leave --resume out")
            return self._backups
        else:
            check_same(name, known, self._rows)
        mark, watch = self._begun(known)
        change_mark(self._client, name, known, mark)
        mark, filled = _Writing(self._rows, self._options.progress).write(
            self._cache, self._types, mark, watch
        )
        count = last_count(read_facts(self._client, name))
        before = count.filled if count else None
        all_filled = None if filled is None or before is None else filled | before
        _note_count(self._cache, all_filled, mark.expected_rows, self._backups)
        mark_complete(self._client, name, mark, self._cache.size())
        return self._backups

    def _begun(self, known: LoadMark | None) -> tuple[LoadMark, RegionWatch]:
        """Return the mark of what is about to be written, after it was found that it can be."""
        source, way = self._rows.digest, self._options.way
        if self._options.resume and known is not None:
            mark = new_mark(
                known.expected_rows, rows=known.rows, source=source, way=way.value, first_key=known.first_key
            )
            return mark, region_watch(self._client)
        encoder = self._types.encoder(next(self._rows.chunks()))
        there = self._cache.size()
        if way is LoadWay.UPSERT:
            watch = region_watch(self._client)
            return new_mark(max(there, self._rows.num_rows), source=source, way=way.value), watch
        watch = check_room(self._client, encoder, self._rows.num_rows, self._backups)
        first_key = 0 if self._rows.key_codes else self._next_key()
        if self._rows.key_codes:
            self._refuse_known_keys()
        mark = new_mark(there + self._rows.num_rows, source=source, way=way.value, first_key=first_key)
        return mark, watch

    def _next_key(self) -> int:
        config = self._cache.config()
        entity, schema = config.query_entities[0], config.sql_schema or self._cache.name
        schema = schema.strip('"')  # that of CREATE TABLE has its quotes
        table = f"{quoted_name(schema)}.{quoted_name(entity.table.upper())}"
        statement = f"SELECT MAX(_KEY) FROM {table}"  # noqa: S608  the name is quoted
        request = sql.execute(statement, [], 1)
        try:
            ((largest,),) = self._client.router.call(request, lambda payload: sql.parse_result(payload).rows)
        except ServerError as error:
            raise IgniteTfError(
                f"the largest key of cache {self._cache.name!r} is not known, from which rows are numbered on: "
                f"{error.server_message}; give keys: --key COLUMN"
            ) from error
        return 0 if largest is None else int(largest) + 1

    def _refuse_known_keys(self) -> None:
        """Refuse rows whose keys are there.

        Raises:
            KeysExist: Some are; nothing was written.
        """
        if (
            self._types.key_type is not None
        ):  # where a part of the key decides, a node has to know which one that is
            self._client.types.put(self._types.key_type)
        for chunk in self._rows.chunks():
            keys = self._types.keys(chunk)
            for first in range(0, len(keys), _KEYS_AT_ONCE):
                request = key_value.get_all(self._cache.cache_id, list(keys[first : first + _KEYS_AT_ONCE]))
                there = self._client.cache_call(
                    self._cache.name,
                    request,
                    lambda payload: key_value.parse_rows(payload, self._client.types.find),
                )
                if there:
                    shown = ", ".join(_shown(key) for key, _ in there[:_SHOWN])
                    raise KeysExist(self._cache.name, shown)


def _shown(key: object) -> str:
    fields = getattr(key, "fields", None)
    return repr(tuple(fields.values()) if fields else key)


def check_same(cache: str, mark: LoadMark, rows: CheckedRows) -> None:
    """Refuse to go on with a load of other rows.

    Raises:
        LoadNotResumed: It was one.
    """
    if mark.source != rows.digest:
        raise LoadNotResumed(
            f"the load of cache {cache!r} that {mark.by} began had other rows than {rows.name}: their columns, types, "
            "number or some of the rows differ. Give the same source with the same options, or load again: --replace"
        )


def _note_count(cache: Cache, filled: set[int] | frozenset[int] | None, wanted: int, backups: int) -> None:
    """Count what is there after a load, and note it for whoever reads the cache.

    Raises:
        RowsLost: A node took rows with it meanwhile.
    """
    client = cache.client
    nodes = client.nodes()
    rows = wait_for(lambda: size if (size := cache.size()) >= wanted else None, _RECOUNT_S)
    if rows is None:
        evidence = (
            f"and {wanted:,} were written: a node took some with it meanwhile, as it keeps {backups} backups"
        )
        raise RowsLost(cache.name, cache.size(), evidence)
    count = counted_now("a load", rows, (node.node_id for node in nodes), topology_of(nodes), filled)
    note_count(client, cache.name, count)


def _drop(client: Client, cache: str) -> None:
    if cache in client.cache_names():
        client.destroy_cache(cache)
    forget(client, cache)


def _used_bytes(client: Client) -> dict[uuid.UUID, int]:
    return {use.node.node_id: use.used_bytes for use in region_use(client)}


def check_table(client: Client, cache: str) -> None:
    """Refuse a name that would make a table which another cache has: SQL folds names to upper case.

    Raises:
        CacheNameError: It would, or no table can be called so.
    """
    if not cache or '"' in cache:
        raise CacheNameError(f"{cache!r} is no name for a cache with an SQL table; give one without quotes")
    for table in list_tables(client.router):
        if table.is_public and table.table == cache.upper() and table.cache != cache:
            raise CacheNameError(
                f"cache {cache!r} would have the SQL table {table.in_full}, which cache {table.cache!r} has; load into "
                "a cache of another name, or give that one more rows: --append or --upsert"
            )
