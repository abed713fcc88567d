"""The options of a load, and its outcome."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from ignite_tf_magic.serialization.facts_html import facts_html

# Called with the number of rows written so far and the number of all rows.
LoadProgress = Callable[[int, int], None]


class LoadWay(str, Enum):
    """How rows are written into a cache."""

    NEW = "new"
    REPLACE = "replace"
    APPEND = "append"
    UPSERT = "upsert"


ADDING = (LoadWay.APPEND, LoadWay.UPSERT)


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How rows are loaded; see `Session.load`.

    Attributes:
        backups: Copies of each row besides the primary, in a new cache. None: 1 if there are several nodes, else 0.
        way: How rows are written into the cache.
        resume: Continue a load that was interrupted.
        key: The key columns.
        progress: Called with the number of rows written so far and the number of all rows.
    """

    backups: int | None = None
    way: LoadWay = LoadWay.NEW
    resume: bool = False
    key: tuple[str, ...] = ()
    progress: LoadProgress | None = None


@dataclass(frozen=True, slots=True)
class LoadOutcome:
    """The outcome of a load.

    Attributes:
        seconds: Time for writing, without reading the source.
        rows: Rows of the source that are in the cache.
        rejected: Rows of the source that cannot be stored in a cache.
        entries: Number of cache entries into which the rows were packed; None if each row is an entry.
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
            f"; {self.rejected:,} rows cannot be stored in a cache and were left out" if self.rejected else ""
        )
        packed = "" if self.entries is None else f", packed into {self.entries:,} entries"
        return f"{self.rows:,} rows in cache {self.cache} ({copies}){packed}, written in {self.seconds:.1f} s{left_out}"

    def _repr_html_(self) -> str:
        return facts_html(str(self), {})
