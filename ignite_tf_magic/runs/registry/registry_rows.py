"""Rows of the registry: their keys, their texts, and the values read from them. Pure.

A cache may contain anything. Functions here recognize rows that are not ours and do not raise, except where stated.
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
    """A run's record as read or written; pass it to `Registry.replace` as the record to replace.

    Attributes:
        record: The record. Its "version" counts the writes.
        row: The row as stored in the cache.
        seal: Signature of the record; empty if it is unsigned.
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
        """Number of times that the record was written."""
        return int(self.record["version"])


@dataclass(frozen=True, slots=True)
class Owner:
    """A heartbeat of the process that owns a run.

    Attributes:
        instance: Distinguishes two processes with the same pid.
        counter: Grows with each heartbeat.
    """

    host: str
    pid: int
    instance: str
    counter: int = 0


@dataclass(frozen=True, slots=True)
class RegistryEntry:
    """A run in a listing.

    Attributes:
        seal: Signature stored with the record; it has not been checked.
        owner: The owner's latest heartbeat; None if it has expired.
    """

    record: Mapping[str, Any]
    owner: Owner | None
    seal: str = ""

    @property
    def owner_alive(self) -> bool:
        """Whether the owner's heartbeat has not expired."""
        return self.owner is not None


@dataclass(frozen=True, slots=True)
class Listing:
    """All runs of the registry; iterating yields the entries.

    Attributes:
        warnings: Messages about rows that were skipped because this package did not write them.
    """

    entries: tuple[RegistryEntry, ...] = ()
    warnings: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[RegistryEntry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


def key_of(kind: str, run: str) -> str:
    """Return the key of a run's row.

    Raises:
        ConfigError: The text cannot be the id of a run.
    """
    if "/" in checked_name(run):
        raise ConfigError(f"{run!r} cannot be the id of a run: it has a slash")
    return f"{kind}/{run}"


def checked_name(name: str) -> str:
    """Return the name if it can be part of a key.

    Raises:
        ConfigError: It is empty or not valid Unicode.
    """
    if is_name(name):
        return name
    raise ConfigError(f"{name!r} cannot be the name of a run or a host: it is no Unicode text")


def is_name(name: str) -> bool:
    """Return whether a name can be part of a key."""
    try:
        return bool(name.encode())
    except UnicodeEncodeError:
        return False


def to_text(content: Mapping[str, Any]) -> str:
    """Return the text of a row."""
    return json.dumps(content, separators=(",", ":"))


def read_object(row: Any) -> dict[str, Any] | None:
    """Return the content of a row, or None if it is not a JSON object."""
    try:
        content = json.loads(row) if isinstance(row, str) else None
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def read_stored(run: str, row: Any, seal: Seal | None = None) -> Stored:
    """Read the row of a record.

    Raises:
        RecordDamaged: It is not a record of that run.
        RecordForged: A key was passed and the record is not signed with it.
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
    """Parse the row of a record. Cached, because each listing reads the same rows of ended runs again."""
    content = read_object(row) or {}
    record, seal = content.get("record"), content.get("seal")
    if not isinstance(record, dict) or record.get("run_id") != run or type(record.get("version")) is not int:
        return None
    return Stored(record, row, seal if isinstance(seal, str) else "")


def read_marks(row: Any) -> list[str]:
    """Return the marks of the writers of a record's row, the latest first."""
    return read_strings((read_object(row) or {}).get("marks"))


def read_strings(value: Any) -> list[str]:
    """Return the texts in a list."""
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def read_names(row: Any, key: str, warnings: list[str]) -> list[str]:
    """Return the names in a row. A row that is not a list of names yields none, and adds a warning."""
    content = read_object(row)
    if row is not None and (content is None or not isinstance(content.get("names"), list)):
        warnings.append(f"row {key!r} of cache {CACHE} is not a list of names")
    return read_strings((content or {}).get("names"))


def read_owner(row: Any) -> Owner | None:
    """Read an owner's heartbeat, or return None if the row is not valid."""
    content = read_object(row) or {}
    try:
        return Owner(
            str(content["host"]), int(content["pid"]), str(content["instance"]), int(content["counter"])
        )
    except (KeyError, TypeError, ValueError):
        return None
