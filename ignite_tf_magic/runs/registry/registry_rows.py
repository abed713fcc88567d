"""Rows of the registry: their keys, their texts, and the values that are read from them. Pure.

Anything may lie in a cache. What is not a row of ours is told from one here, and never raises but where said.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ignite_tf_magic.errors import ConfigError, RecordDamaged, RecordForged
from ignite_tf_magic.runs.seals import Seal

CACHE = "ignite-tf-runs"


@dataclass(frozen=True, slots=True)
class Stored:
    """A run's record as it was read or written; `Registry.replace` takes it as what is to be replaced.

    Attributes:
        record: The record. Its "version" counts the writes.
        row: The row as it lies in the cache.
        seal: With what it was sealed; empty when it was not.
    """

    record: Mapping[str, Any]
    row: str
    seal: str = ""

    @property
    def run_id(self) -> str:
        """The run's id."""
        return str(self.record["run_id"])

    @property
    def version(self) -> int:
        """How often the record was written."""
        return int(self.record["version"])


@dataclass(frozen=True, slots=True)
class Owner:
    """Who answers for a run.

    Attributes:
        instance: Differs between two processes of the same pid.
        counter: Grows with each sign of life.
    """

    host: str
    pid: int
    instance: str
    counter: int = 0


@dataclass(frozen=True, slots=True)
class RegistryEntry:
    """A run in a listing.

    Attributes:
        seal: What was found with the record; nobody has looked whether it fits.
        owner: Its owner's latest sign of life; None when there was none for `Timeouts.owner_lapse_s`.
    """

    record: Mapping[str, Any]
    owner: Owner | None
    seal: str = ""

    @property
    def owner_alive(self) -> bool:
        """Whether the owner has said lately that it lives."""
        return self.owner is not None


@dataclass(frozen=True, slots=True)
class Listing:
    """All runs of the registry; iterating gives the entries.

    Attributes:
        warnings: Rows that were passed over because they are not what this package writes, in words.
    """

    entries: tuple[RegistryEntry, ...] = ()
    warnings: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[RegistryEntry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


def key_of(kind: str, run: str) -> str:
    """Return the key of a row of a run.

    Raises:
        ConfigError: No run can have that id.
    """
    if "/" in checked_name(run):
        raise ConfigError(f"{run!r} cannot be the id of a run: it has a slash")
    return f"{kind}/{run}"


def checked_name(name: str) -> str:
    """Return a name back that can be part of a key.

    Raises:
        ConfigError: It is empty, or no Unicode text.
    """
    if is_name(name):
        return name
    raise ConfigError(f"{name!r} cannot be the name of a run or a host: it is no Unicode text")


def is_name(name: str) -> bool:
    """Tell whether a name can be part of a key."""
    try:
        return bool(name.encode())
    except UnicodeEncodeError:
        return False


def to_text(content: Mapping[str, Any]) -> str:
    """Write a row."""
    return json.dumps(content, separators=(",", ":"))


def read_object(row: Any) -> dict[str, Any] | None:
    """Read a row; None when it is not a JSON object."""
    try:
        content = json.loads(row) if isinstance(row, str) else None
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def read_stored(run: str, row: Any, seal: Seal | None = None) -> Stored:
    """Read the row of a record.

    Raises:
        RecordDamaged: It is none of that run.
        RecordForged: A key is given and it has not been sealed with that.
    """
    key = f"record/{run}"
    stored = _taken_apart(run, row) if isinstance(row, str) else None
    if stored is None:
        raise RecordDamaged(run, key, CACHE)
    if seal is not None and not seal.fits(key, stored.record, stored.seal):
        raise RecordForged(run, key, CACHE, stored.record)
    return stored


@lru_cache(maxsize=256)
def _taken_apart(run: str, row: str) -> Stored | None:
    """Read a row that mostly has been read before: who lists runs asks for those that have ended, too."""
    content = read_object(row) or {}
    record, seal = content.get("record"), content.get("seal")
    if not isinstance(record, dict) or record.get("run_id") != run or type(record.get("version")) is not int:
        return None
    return Stored(record, row, seal if isinstance(seal, str) else "")


def read_marks(row: Any) -> list[str]:
    """Read who wrote the row of a record, the latest first."""
    return read_strings((read_object(row) or {}).get("marks"))


def read_strings(value: Any) -> list[str]:
    """Of a list, the texts in it."""
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def read_names(row: Any, key: str, warnings: list[str]) -> list[str]:
    """Read a row of names; a row that is none has no names and makes a warning."""
    content = read_object(row)
    if row is not None and (content is None or not isinstance(content.get("names"), list)):
        warnings.append(f"row {key!r} of cache {CACHE} is not a list of names")
    return read_strings((content or {}).get("names"))


def read_owner(row: Any) -> Owner | None:
    """Read an owner's sign of life."""
    content = read_object(row) or {}
    try:
        return Owner(
            str(content["host"]), int(content["pid"]), str(content["instance"]), int(content["counter"])
        )
    except (KeyError, TypeError, ValueError):
        return None
