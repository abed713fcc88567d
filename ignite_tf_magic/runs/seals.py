"""Seals of rows: they show that a row was written by who has the run's key, and not by just anybody at Ignite's port.

A key is made when a run is handed to its hosts, goes to them over SSH, and lies in the run's private directories only.
"""

from __future__ import annotations

import hmac
import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from ignite_tf_magic.runs.directory import RunDirectory
from ignite_tf_magic.serialization.terminal_text import visible_line

_KEY_BYTES = 32
_NOT_TOLD = frozenset({"version"})
_MAX_TOLD = 5
_NOTHING = object()


@dataclass(frozen=True, slots=True)
class Seal:
    """A run's key, and what it does."""

    key: bytes = field(repr=False)

    @classmethod
    def new(cls) -> Seal:
        """Make a key up."""
        return cls(secrets.token_bytes(_KEY_BYTES))

    @classmethod
    def read(cls, directory: RunDirectory) -> Seal | None:
        """Read the key that lies in a run's directory; None when there is none."""
        try:
            key = bytes.fromhex(directory.seal_key.read_text(encoding="ascii"))
        except (OSError, ValueError):
            return None
        return cls(key) if len(key) == _KEY_BYTES else None

    def to_text(self) -> str:
        """Return what `read` reads."""
        return self.key.hex()

    def of(self, row_key: str, content: Any) -> str:
        """Compute the seal of a row, which counts for the row of that key alone (HMAC-SHA256)."""
        # As it comes back from JSON: keys that are numbers here are texts there, and sorted as such.
        read_back = json.loads(json.dumps(content))
        text = json.dumps([row_key, read_back], sort_keys=True, separators=(",", ":"))
        return hmac.new(self.key, text.encode(), "sha256").hexdigest()

    def fits(self, row_key: str, content: Any, found: Any) -> bool:
        """Tell whether a seal that was found with a row is the row's."""
        try:
            return isinstance(found, str) and hmac.compare_digest(
                self.of(row_key, content).encode(), found.encode()
            )
        except (
            RecursionError,
            ValueError,
        ):  # nested as deep as Python goes, or half a character: none of ours
            return False


def differences(found: Mapping[str, Any], own: Mapping[str, Any]) -> str:
    """Tell in words where a record that was refused differs from the run's own; the first few places."""
    told = list(islice(_differences(found, json.loads(json.dumps(own)), ""), _MAX_TOLD))
    return "; ".join(told) or "it says the same as the run's own"


def _differences(found: Any, own: Any, place: str) -> Iterator[str]:
    if isinstance(found, Mapping) and isinstance(own, Mapping):
        for name in sorted({*found, *own} - _NOT_TOLD if not place else {*found, *own}):
            key = visible_line(str(name))
            way = f"{place}.{key}" if place else key
            yield from _differences(found.get(name, _NOTHING), own.get(name, _NOTHING), way)
    elif _is_list(found) and _is_list(own) and len(found) == len(own):
        for number, (each, mine) in enumerate(zip(found, own, strict=True)):
            yield from _differences(each, mine, f"{place}[{number}]")
    elif found != own:
        yield f"{place} is {_shown(found)} instead of {_shown(own)}"


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _shown(value: Any) -> str:
    return "missing" if value is _NOTHING else f"{value!r:.200}"
