"""The part of a session that brings rows into caches."""

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
    """Open a source; what would be left out of its rows is an error, as it would be lost.

    Raises:
        SchemaError: A field has no tensor form, and nobody has named the fields that are wanted.
    """
    source = open_source(options, warns=False)
    if options.fields is None and (told := source.told_left_out()):
        raise SchemaError(f"nothing was packed: {told}. Name the fields to pack: fields=[...], --field NAME")
    return source


class ConnectedSession(Protocol):
    """What of a session is needed to load."""

    options: ConnectOptions
    client: Client
    report: Callable[[str], None]


class Loading:
    """The part of a session that brings rows into caches."""

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
        """Create a cache from data, or give one more rows; blocks until all rows are written.

        All rows are looked at before the first is written. Files of text and parquet, and what Arrow reads, are never
        in memory as a whole.

        Args:
            cache: Name of the cache; its SQL table is called the same. One that gets more may be named by its table.
            source: A file, a known data set, a frame, a table or arrays; `sources.read_source` lists them.
            key: Column whose values become the keys, or several; rows are numbered from 0 by default.
            split: "train" or "test" of a divided source.
            backups: Copies of each row beside the first; by default 1 when there is more than one node.
            replace: Take the place of a cache of that name. Its rows stay until the new ones are whole beside them,
                which needs room for both; a load that was ended before leaves nothing to keep.
            append: Write the rows into a cache that is there, where all of their keys have to be new. Without keys
                they are numbered on from the largest. All rows are checked against the cache's table first. If an
                append dies, `undo_load` removes its rows.
            upsert: Write them into a cache that is there, over rows with the same keys.
            resume: Go on with a load of the same source that was ended before it was whole.
            packed: Pack many rows into each entry, in Arrow's format: a dataset reads them much faster, and no row
                alone can be read or changed, nor seen by SQL. Needs pyarrow here and where they are read.
            rejects: File for rows that have no form in a cache, with reasons, as JSON lines; these are left out then,
                and an error otherwise.
            text: How files of text are read.
            keep_nan: Keep NaN among the floats of a pandas frame as a number; it is missing (NULL) otherwise.
            drop: Columns that are left out.
            progress: Told the rows written so far and all rows, from other threads, one at a time.

        Raises:
            ConfigError: Options contradict each other.
            SchemaError: Rows that are to be packed have a column without a tensor form.
            SourceError: The data cannot be read, has no form in a cache, or does not fit the one that it is for.
            CacheExists: The cache has rows, and is neither to be replaced nor to get more.
            CacheNotFound: There is none to give more rows.
            CacheNameError: Another cache has the SQL table that this one would have, or no table can be called so.
            KeysExist: Rows that are to be appended have keys that are there; nothing was written.
            LoadIncomplete: The cache that is to get more is not whole itself.
            LoadNotResumed: There is no load to go on with, or it was one of another source.
            RegionFull: A node has no room for the rows. Those that are written stay, and the cache is marked; one that
                was to be replaced is whole.
            RowsRefused: The cluster refused rows of an append or upsert. Those that an append had written are removed.
        """
        asked = {LoadWay.REPLACE: replace, LoadWay.APPEND: append, LoadWay.UPSERT: upsert}
        ways = [way for way, is_asked in asked.items() if is_asked]
        if len(ways) > 1:
            raise ConfigError(f"rows can {' or '.join(way.value for way in ways)}, and not both; choose one")
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

        They are what `IgniteDataset(source, ...)` gives, and are read once; they have to stay as they are meanwhile.

        Args:
            source: The cache, or its SQL table.
            target: The cache that gets them. It may be the source, with `replace`.
            fields: As of `IgniteDataset`, like `where`, `where_args` and `nulls`.
            where: As there.
            where_args: As there.
            nulls: As there.
            backups: As of `load`, like all others.
            replace: As there.
            resume: As there; the rows have to come in the same order, from the same nodes.
            progress: As there.

        Raises:
            ConfigError: An argument is unusable.
            CacheNotFound, EmptyCache: There is no source, or nothing in it.
            SchemaError: The rows have no common layout.
            CacheExists, CacheNameError, LoadNotResumed, RegionFull: As `load`.
            LoadIncomplete, RowsLost, PartitionsLost: Only a part of the source's rows is there.
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
