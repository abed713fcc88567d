"""The rows that are measured, and functions that load them into a cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ignite_tf_magic.client.client import Cache, Client
from ignite_tf_magic.client.load import put_rows, table_config
from ignite_tf_magic.protocol.encode import RowEncoder
from ignite_tf_magic.protocol.messages import CacheConfig

PIXELS = 784
MIB = 1024 * 1024
_BLOCK_ROWS = 100_000
_SEED = 20


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of rows.

    Attributes:
        row_bytes: Bytes of data in a row, its key and fields, without the encoding.
        fields: The fields of the value; empty if the value itself is a byte[].
        batch_rows: The batch size of `IgniteDataset`.
        page_rows: Page sizes from which pyignite and Java choose the best.
        sampled_rows: Rows after which a pass of pyignite ends; a multiple of its page sizes.
        backups: Copies of each row besides the primary one.
    """

    name: str
    num_rows: int
    row_bytes: int
    fields: tuple[str, ...]
    batch_rows: int
    page_rows: tuple[int, ...]
    sampled_rows: int
    backups: int

    @property
    def cache(self) -> str:
        """The name of the cache that holds the rows."""
        return f"BENCH_{self.name.upper()}"

    @property
    def is_bare(self) -> bool:
        """Whether the value is a byte[] instead of an object."""
        return not self.fields


def mnist(num_rows: int) -> Case:
    """Return a case with rows of MNIST's size: an object of byte[784] and an int."""
    sampled = min(num_rows, 5 * 4096)
    fields = ("pixels", "label")
    return Case("mnist", num_rows, 8 + PIXELS + 4, fields, 1024, (256, 1024, 4096), sampled, 1)


def numeric(num_rows: int) -> Case:
    """Return a case with small rows: an object of two doubles and an int."""
    sampled = min(num_rows, 3 * 16384)
    fields = ("x", "y", "n")
    return Case("numeric", num_rows, 8 + 8 + 8 + 4, fields, 1024, (1024, 4096, 16384), sampled, 1)


def named(case: Case, name: str) -> Case:
    """Rename a case, to show it beside one of another size."""
    return replace(case, name=name)


def mib(num_rows: int) -> Case:
    """Return a case with large rows: a byte[] of 1 MiB."""
    sampled = min(num_rows, 512)
    return Case("mib", num_rows, 8 + MIB, (), 4, (1, 4, 8), sampled, 0)


def columns_of(case: Case, first: int, last: int) -> dict[str, NDArray[Any]]:
    """Make the rows with keys `first` to `last` - 1 of a case that has fields."""
    keys = np.arange(first, last)
    random = np.random.default_rng([_SEED, first])
    if "pixels" in case.fields:
        pixels = random.integers(0, 256, (len(keys), PIXELS), np.uint8)
        return {"pixels": pixels, "label": (keys % 10).astype(np.int32)}
    return {"x": random.normal(size=len(keys)), "y": keys / 2, "n": (keys % 1000).astype(np.int32)}


def encoders(case: Case) -> Iterator[RowEncoder]:
    """Yield the rows of a case in blocks; all blocks have the same type."""
    for first in range(0, case.num_rows, _BLOCK_ROWS):
        last = min(first + _BLOCK_ROWS, case.num_rows)
        yield RowEncoder(type_name(case), columns_of(case, first, last), np.arange(first, last))


def type_name(case: Case) -> str:
    """Return the name of the value's type."""
    return f"Bench{case.name.capitalize()}"


def config_of(case: Case, cache: str, encoder: RowEncoder, *, with_sql: bool) -> CacheConfig:
    """Describe the cache for a case's rows: as `load` makes it, or without a SQL table."""
    if with_sql:
        return table_config(cache, encoder, case.backups)
    return CacheConfig(cache, backups=case.backups)


def fill(client: Client, case: Case) -> Cache:
    """Create the cache of a case and write its rows."""
    if case.is_bare:
        cache = client.create_cache(CacheConfig(case.cache, backups=case.backups))
        row = bytearray(np.random.default_rng(_SEED).bytes(MIB))
        for key in range(case.num_rows):
            row[:8] = key.to_bytes(8, "little")
            cache.put(key, bytes(row))
        return cache
    blocks = encoders(case)
    first = next(blocks)
    cache = client.create_cache(config_of(case, case.cache, first, with_sql=True))
    for encoder in chain([first], blocks):
        put_rows(cache, encoder)
    return cache
