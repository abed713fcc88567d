"""The options of a load, and its outcome."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from ignite_tf_magic.serialization.facts_html import facts_html

# Told the rows written so far and all rows.
LoadProgress = Callable[[int, int], None]


class LoadWay(str, Enum):
    """How rows come into a cache."""

    NEW = "new"
    REPLACE = "replace"
    APPEND = "append"
    UPSERT = "upsert"


ADDING = (LoadWay.APPEND, LoadWay.UPSERT)


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
