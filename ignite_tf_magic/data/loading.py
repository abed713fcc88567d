"""Makes a cache out of columns of data: its type, its SQL table, its rows.

Rows that are to replace others are gathered in a cache beside the old one first, as Ignite cannot rename caches: the
old one goes when all of them are there, and they are then written under its name. So at every moment the old rows or
the new ones are whole in the cluster, whatever fails or is killed, and what is not whole is marked (`cache_facts`).
"""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ignite_tf_magic.client.cache_facts import (
    LoadState,
    forget,
    load_mark,
    mark_complete,
    mark_loading,
    read_facts,
    spare_name,
)
from ignite_tf_magic.client.client import Cache, Client
from ignite_tf_magic.client.load import check_room, put_rows, region_watch, table_config
from ignite_tf_magic.client.regions import RegionWatch, region_use
from ignite_tf_magic.client.router import wait_for
from ignite_tf_magic.client.row_counts import counted_now, note_count
from ignite_tf_magic.data.sources import Columns, value_type_name
from ignite_tf_magic.errors import (
    CacheExists,
    CacheNameError,
    IgniteTfError,
    RegionFull,
    RowsLost,
    ServerError,
)
from ignite_tf_magic.protocol import sql
from ignite_tf_magic.protocol.affinity import partitions_of_hashes
from ignite_tf_magic.protocol.encode import RowEncoder
from ignite_tf_magic.runs.hosts.topology import topology_of

# Told the rows written so far and all rows.
_RECOUNT_S = 2.0
LoadProgress = Callable[[int, int], None]
_TABLES = "SELECT CACHE_NAME, TABLE_NAME FROM SYS.TABLES WHERE SCHEMA_NAME = 'PUBLIC'"
_MAX_TABLES = 100_000
_FREEING_S = 10.0


@dataclass(frozen=True, slots=True)
class LoadOutcome:
    """What was loaded.

    Attributes:
        seconds: Time for writing; reading the source is not counted.
    """

    cache: str
    rows: int
    backups: int
    seconds: float

    def __str__(self) -> str:
        copies = {0: "without backups", 1: "with 1 backup"}.get(self.backups, f"with {self.backups} backups")
        return f"{self.rows:,} rows in cache {self.cache} ({copies}), written in {self.seconds:.1f} s"


def load_columns(
    client: Client,
    cache: str,
    columns: Columns,
    *,
    backups: int | None,
    replace: bool,
    progress: LoadProgress | None,
) -> LoadOutcome:
    """Write columns into a new cache; see `Session.load`.

    Raises:
        CacheExists: The cache has rows and `replace` is not set.
        CacheNameError: Another cache has the name, or a table of it.
        RegionFull: A node has no room for the rows.
    """
    began = time.monotonic()
    if backups is None:
        backups = int(len(client.nodes()) > 1)
    load = _Load(client, cache, columns, backups, progress)
    if load.keeps_old(replace=replace):
        load.gather()
    load.write()
    return LoadOutcome(cache, len(columns), backups, time.monotonic() - began)


class _Load:
    """One load, and what it needs in each of its steps."""

    def __init__(
        self, client: Client, cache: str, columns: Columns, backups: int, progress: LoadProgress | None
    ) -> None:
        self._client, self._cache, self._backups = client, cache, backups
        self._spare = spare_name(cache)
        self._progress = progress
        self._done = 0
        self._all = self._rows = len(columns)
        self._keys = columns.keys
        self._text_keys = columns.keys is not None and columns.keys.dtype == object
        _check_table(client, cache)
        self._encoder = _encoder(client, cache, columns)

    def keeps_old(self, *, replace: bool) -> bool:
        """Look at the cache that has the name now; gives whether it has rows that must not be lost.

        Raises:
            CacheExists: It has rows and is not to be replaced.
        """
        if self._cache not in self._client.cache_names():
            return False
        rows = self._client.cache(self._cache).size()
        if rows and not replace:
            raise CacheExists(self._cache, rows)
        mark = load_mark(read_facts(self._client, self._cache))
        is_whole = mark is None or mark.state is LoadState.COMPLETE
        return bool(rows) and is_whole

    def gather(self) -> None:
        """Write the rows beside the old ones; when that fails, only the old ones are left.

        Raises:
            RegionFull: There is no room for both.
        """
        self._all = 2 * self._rows
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
                    f"them. To do without the old ones, drop the cache first (DROP TABLE). {error}"
                ) from error
            raise

    def _check_second_writing(self, before: dict[uuid.UUID, int]) -> None:
        """Refuse what would fill a region when the rows are written again, where the old ones were."""
        after = _used_bytes(self._client)
        grown = max((after[node] - before[node] for node in after.keys() & before.keys()), default=0)
        freed = grown * min(self._client.cache(self._cache).size() / self._rows, 1)
        if grown > freed:
            region_watch(self._client).check(round(grown - freed))

    def write(self) -> None:
        """Write the rows under the cache's name, in place of what has it; then the spare ones can go."""
        self._fill(self._cache)
        _drop(self._client, self._spare)

    def _fill(self, name: str) -> None:
        client = self._client
        mark = mark_loading(client, name, self._rows)  # also before what has the name goes
        is_there = name in client.cache_names()
        if is_there:
            client.destroy_cache(name)
        config = table_config(name, self._encoder, self._backups, text_keys=self._text_keys)
        try:
            watch = self._find_room(patience_s=_FREEING_S if is_there else 0)
            cache = client.create_cache(config)
        except ServerError as error:
            forget(client, name)
            raise IgniteTfError(f"cache {name!r} cannot be made: {error.server_message}") from error
        except RegionFull:
            forget(client, name)
            raise
        put_rows(cache, self._encoder, self._advance, watch)
        _note_count(cache, self._encoder, self._keys, self._backups)
        mark_complete(client, name, mark, self._rows)

    def _find_room(self, patience_s: float) -> RegionWatch:
        """Look for room for the rows; for some time, where a cache was destroyed that has not freed its own yet."""
        full: RegionFull | None = None

        def look() -> RegionWatch | None:
            nonlocal full
            try:
                return check_room(self._client, self._encoder, self._backups)
            except RegionFull as error:
                full = error
                return None

        watch = wait_for(look, patience_s)
        if watch is None and full is not None:
            raise full
        return watch or region_watch(self._client)

    def _advance(self, more: int) -> None:
        self._done += more
        if self._progress:
            self._progress(self._done * self._rows // self._all, self._rows)


def _note_count(cache: Cache, encoder: RowEncoder, keys: NDArray[Any] | None, backups: int) -> None:
    """Count what is there after a load, and note it for whoever reads the cache.

    Raises:
        RowsLost: A node took rows with it meanwhile.
    """
    client, hashes = cache.client, encoder.key_hashes()
    nodes, partition_map = client.nodes(), cache.partition_map()
    wanted = len(encoder) if keys is None else _num_distinct(keys)
    rows = wait_for(lambda: size if (size := cache.size()) >= wanted else None, _RECOUNT_S)
    if rows is None:
        evidence = (
            f"and {wanted:,} were written: a node took some with it meanwhile, as it keeps {backups} backups"
        )
        raise RowsLost(cache.name, cache.size(), evidence)
    filled = map(int, np.unique(partitions_of_hashes(hashes, partition_map.num_partitions)))
    count = counted_now("a load", rows, (node.node_id for node in nodes), topology_of(nodes), filled)
    note_count(client, cache.name, count)


def _num_distinct(keys: NDArray[Any]) -> int:
    return len(set(keys)) if keys.dtype == object else len(np.unique(keys))


def _drop(client: Client, cache: str) -> None:
    if cache in client.cache_names():
        client.destroy_cache(cache)
    forget(client, cache)


def _used_bytes(client: Client) -> dict[uuid.UUID, int]:
    return {use.node.node_id: use.used_bytes for use in region_use(client)}


def _check_table(client: Client, cache: str) -> None:
    """Refuse a name that would make a table which another cache has: SQL folds names to upper case."""
    if not cache or '"' in cache:
        raise CacheNameError(f"{cache!r} is no name for a cache with an SQL table; give one without quotes")
    request = sql.execute(_TABLES, [], _MAX_TABLES)
    try:
        tables = client.router.call(request, lambda payload: sql.parse_result(payload).rows)
    except ServerError:  # no SQL on these nodes
        return
    for other, table in tables:
        if table == cache.upper() and other != cache:
            raise CacheNameError(
                f"cache {cache!r} would have the SQL table PUBLIC.{table}, which cache {other!r} has; load into "
                "a cache of another name"
            )


def _encoder(client: Client, cache: str, columns: Columns) -> RowEncoder:
    """Encode rows with a type of the cache's name, or that and a number when it means another type."""
    keys = np.arange(len(columns)) if columns.keys is None else columns.keys
    name = value_type_name(cache)
    for number in itertools.count(2):
        encoder = RowEncoder(name, columns.values, keys)
        fields = encoder.binary_type.fields
        known = client.types.find(encoder.binary_type.type_id, refresh=True)
        if known is None:
            break
        # Names that differ by case have one id, and Ignite takes one of them only.
        if known.name == name and all(
            known.fields.get(each, fields[each]) == fields[each] for each in fields
        ):
            break
        name = f"{value_type_name(cache)}_{number}"
    return encoder
