"""Makes a cache out of columns of data: its type, its SQL table, its rows."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ignite_tf_magic.client.client import Cache, Client
from ignite_tf_magic.client.load import put_rows, table_config
from ignite_tf_magic.client.router import wait_for
from ignite_tf_magic.client.row_counts import counted_now, note_count
from ignite_tf_magic.cluster.topology import topology_of
from ignite_tf_magic.errors import CacheExists, RowsLost
from ignite_tf_magic.protocol.affinity import partitions_of_hashes
from ignite_tf_magic.protocol.encode import RowEncoder
from ignite_tf_magic.sources import Columns, value_type_name

# Told the rows written so far and all rows.
_RECOUNT_S = 2.0
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

    made = client.create_cache(config)
    rows = put_rows(made, encoder, advance)
    _note_count(made, encoder, columns.keys, backups)
    return LoadOutcome(cache, rows, backups, time.monotonic() - began)


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
