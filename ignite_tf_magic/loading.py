"""Makes a cache out of columns of data: its type, its SQL table, its rows."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ignite_tf_magic.client.client import Client
from ignite_tf_magic.client.load import put_rows, table_config
from ignite_tf_magic.errors import CacheExists
from ignite_tf_magic.protocol.encode import RowEncoder
from ignite_tf_magic.sources import Columns, value_type_name

# Told the rows written so far and all rows.
LoadProgress = Callable[[int, int], None]


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
    """
    began = time.monotonic()
    _make_way(client, cache, replace=replace)
    if backups is None:
        backups = int(len(client.nodes()) > 1)
    encoder = _encoder(client, cache, columns)
    has_text_keys = columns.keys is not None and columns.keys.dtype == object
    config = table_config(cache, encoder, backups, text_keys=has_text_keys)
    done = 0

    def advance(more: int) -> None:
        nonlocal done
        done += more
        if progress:
            progress(done, len(columns))

    rows = put_rows(client.create_cache(config), encoder, advance)
    return LoadOutcome(cache, rows, backups, time.monotonic() - began)


def _make_way(client: Client, cache: str, *, replace: bool) -> None:
    if cache not in client.cache_names():
        return
    rows = client.cache(cache).size()
    if rows and not replace:
        raise CacheExists(cache, rows)
    client.destroy_cache(cache)


def _encoder(client: Client, cache: str, columns: Columns) -> RowEncoder:
    """Encode rows with a type of the cache's name, or that and a number when it means another type."""
    keys = np.arange(len(columns)) if columns.keys is None else columns.keys
    name = value_type_name(cache)
    for number in itertools.count(2):
        encoder = RowEncoder(name, columns.values, keys)
        fields = encoder.binary_type.fields
        known = client.types.find(encoder.binary_type.type_id, refresh=True)
        if known is None or all(known.fields.get(each, fields[each]) == fields[each] for each in fields):
            break
        name = f"{value_type_name(cache)}_{number}"
    return encoder
