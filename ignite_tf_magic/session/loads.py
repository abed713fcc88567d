"""The methods of a session that write rows into caches."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, Protocol

from ignite_tf_magic.client.client import Client
from ignite_tf_magic.client.packed_entries import num_packed_rows
from ignite_tf_magic.data.additions import EndedLoad, accept_load, undo_load
from ignite_tf_magic.data.load_options import LoadOptions, LoadOutcome, LoadProgress, LoadWay
from ignite_tf_magic.data.loading import load_rows
from ignite_tf_magic.data.packing import UnpackedRows, load_packed, unpacked
from ignite_tf_magic.data.sources import SourceOptions, read_source
from ignite_tf_magic.data.text_files import TextFormat
from ignite_tf_magic.dataset.options import ReadOptions, parse_nulls
from ignite_tf_magic.dataset.reader import ChunkReader
from ignite_tf_magic.dataset.source import Source, open_source
from ignite_tf_magic.errors import ConfigError, EmptyCache, SchemaError
from ignite_tf_magic.protocol.columns import Column
from ignite_tf_magic.settings.options import ConnectOptions


def _opened_whole(options: ReadOptions) -> Source:
    """Open a source; raise an error if reading would omit a field, since packing would lose it.

    Raises:
        SchemaError: A field has no tensor form, and `fields` does not select the wanted ones.
    """
    source = open_source(options, warns=False)
    if options.fields is None and (told := source.told_left_out()):
        raise SchemaError(f"nothing was packed: {told}. Name the fields to pack: fields=[...], --field NAME")
    return source


class ConnectedSession(Protocol):
    """The part of a session that loading uses."""

    options: ConnectOptions
    client: Client
    report: Callable[[str], None]


class Loading:
    """The methods of a session that write rows into caches."""

    def load(
        self: ConnectedSession,
        cache: str,
        source: Any,
        *,
        key: str | Sequence[str] = (),
        split: str | None = None,
        backups: int | None = None,
        replace: bool = False,
        append: bool = False,
        upsert: bool = False,
        resume: bool = False,
        packed: bool = False,
        rejects: Path | None = None,
        text: TextFormat | None = None,
        keep_nan: bool = False,
        drop: Sequence[str] = (),
        progress: LoadProgress | None = None,
    ) -> LoadOutcome:
        """Create a cache from data, or add rows to one; blocks until all rows are written.

        Checks all rows before it writes the first one. Text files, Parquet files and everything else that Arrow reads
        are never in memory as a whole.

        Args:
            cache: Name of the cache and of its SQL table. An existing cache may also be named by its table.
            source: A file, a known data set, a frame, a table or arrays; `sources.read_source` lists them.
            key: Column or columns whose values become the keys; by default rows are numbered from 0.
            split: "train" or "test" of a divided source.
            backups: Copies of each row in addition to the first; by default 1 if there is more than one node.
            replace: Replace a cache of that name. Its rows stay until the new ones are complete beside them, which
                needs room for both. A cache whose own load is unfinished is removed first.
            append: Add the rows to an existing cache; all of their keys must be new. Without keys, the numbering
                continues from the largest existing key. All rows are checked against the cache's table first. If an
                append dies, `undo_load` removes its rows.
            upsert: Write the rows into an existing cache, over rows with the same keys.
            resume: Continue an interrupted load of the same source.
            packed: Pack many rows into each entry, in Arrow's format. A dataset reads them much faster, but single rows
                cannot be read or changed, and SQL does not see them. Needs pyarrow here and in the reading processes.
            rejects: File for rows that a cache cannot represent, with reasons, as JSON lines. These rows are then
                skipped; without a file they are an error.
            text: How text files are read.
            keep_nan: Keep NaN among the floats of a pandas frame as a number; by default it is missing (NULL).
            drop: Columns to omit.
            progress: Called with the rows written so far and all rows, from other threads, one call at a time.

        Raises:
            ConfigError: Options contradict each other.
            SchemaError: Rows to be packed have a column without a tensor form.
            SourceError: The data cannot be read, a cache cannot represent it, or it does not fit the existing cache.
            CacheExists: The cache has rows, and none of `replace`, `append` and `upsert` is set.
            CacheNotFound: There is no cache to add rows to.
            CacheNameError: Another cache has the SQL table of this name, or the name is not valid for a table.
            KeysExist: Some of the rows to append have existing keys; nothing was written.
            LoadIncomplete: The cache to add rows to is itself incomplete.
            LoadNotResumed: There is no load to continue, or it had a different source.
            RegionFull: A node has no room for the rows. Written rows stay, and the cache is marked as incomplete; a
                cache that was to be replaced stays complete.
            RowsRefused: The cluster refused rows of an append or upsert. Rows that an append had written are removed.
        """
        asked = {LoadWay.REPLACE: replace, LoadWay.APPEND: append, LoadWay.UPSERT: upsert}
        ways = [way for way, is_asked in asked.items() if is_asked]
        if len(ways) > 1:
            raise ConfigError(f"rows can {' or '.join(way.value for way in ways)}, but not both; choose one")
        names = (key,) if isinstance(key, str) else tuple(key)
        reading = SourceOptions(names, split, text or TextFormat(), rejects, keep_nan, drop, self.report)
        rows = read_source(source, reading)
        way = ways[0] if ways else LoadWay.NEW
        options = LoadOptions(backups, way, resume, names, progress)
        if not packed:
            return load_rows(self.client, cache, rows, options)
        outcome = load_packed(self.client, cache, unpacked(cache, rows), options)
        return dataclasses.replace(outcome, rejected=rows.num_rejected)

    def undo_load(self: ConnectedSession, cache: str) -> EndedLoad:
        """Remove the rows of an append that did not finish, and mark the cache as complete.

        Make sure that the append does not run any more. An upsert cannot be undone: the rows that it replaced are gone.

        Args:
            cache: Name of the cache, or of its table.

        Raises:
            CacheNotFound: The cache does not exist.
            LoadNotUndone: Its last load has finished, or was not an append.
        """
        return undo_load(self.client, cache)

    def accept_load(self: ConnectedSession, cache: str) -> EndedLoad:
        """Keep the rows of a load that did not finish, and mark the cache as complete.

        Args:
            cache: Name of the cache, or of its table.

        Raises:
            CacheNotFound: The cache does not exist.
            LoadNotUndone: Its last load has finished.
        """
        return accept_load(self.client, cache)

    def pack(
        self: ConnectedSession,
        source: str,
        target: str,
        *,
        fields: Sequence[str] | None = None,
        where: str | None = None,
        where_args: Sequence[Any] = (),
        nulls: str | Sequence[str] | None = None,
        backups: int | None = None,
        replace: bool = False,
        resume: bool = False,
        progress: LoadProgress | None = None,
    ) -> LoadOutcome:
        """Pack the rows of a cache into another, as `load` with `packed`; blocks until all are written.

        Packs the rows that `IgniteDataset(source, ...)` yields, and reads them once. They must not change meanwhile.

        Args:
            source: The cache, or its SQL table.
            target: The cache to write. With `replace` it may be the source.
            fields: As for `IgniteDataset`, like `where`, `where_args` and `nulls`.
            where: As for `IgniteDataset`.
            where_args: As for `IgniteDataset`.
            nulls: As for `IgniteDataset`.
            backups: As for `load`, like all following arguments.
            replace: As for `load`.
            resume: As for `load`; the rows must arrive in the same order, from the same nodes.
            progress: As for `load`.

        Raises:
            ConfigError: An argument is invalid.
            CacheNotFound, EmptyCache: The source does not exist or is empty.
            SchemaError: The rows have no common layout.
            CacheExists, CacheNameError, LoadNotResumed, RegionFull: As `load`.
            LoadIncomplete, RowsLost, PartitionsLost: Some of the source's rows are missing.
        """
        names = None if fields is None else tuple(fields)
        reading = ReadOptions(
            source,
            self.options,
            fields=names,
            nulls=parse_nulls(nulls),
            where=where,
            where_args=tuple(where_args),
        )
        found = _opened_whole(reading)
        layout = found.picked.layout if found.picked else found.layout
        if layout is None:
            raise EmptyCache(f"cache {found.cache!r} holds no rows to pack")

        def read() -> Generator[Sequence[Column], None, None]:
            with ChunkReader(found) as reader:
                for chunk in reader.chunks():
                    yield chunk.columns()

        size = found.baseline.size
        num_rows = num_packed_rows(self.client.cache(found.cache), size) if found.entries else size
        rows = UnpackedRows(f"cache {found.cache!r}", layout, num_rows, read)
        way = LoadWay.REPLACE if replace else LoadWay.NEW
        return load_packed(self.client, target, rows, LoadOptions(backups, way, resume, (), progress))
