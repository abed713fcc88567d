"""Signatures of registry rows. They prove that a row was written with the run's key, not by any client of Ignite.

A key is created when a run is submitted to its hosts, is sent to them over SSH, and is stored only in the run's private
directories.
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
    """A run's key, which signs rows and checks signatures."""

    key: bytes = field(repr=False)

    @classmethod
    def new(cls) -> Seal:
        """Return a new random key."""
        return cls(secrets.token_bytes(_KEY_BYTES))

    @classmethod
    def read(cls, directory: RunDirectory) -> Seal | None:
        """Read the key from a run's directory, or return None if there is none."""
        try:
            key = bytes.fromhex(directory.seal_key.read_text(encoding="ascii"))
        except (OSError, ValueError):
            return None
        return cls(key) if len(key) == _KEY_BYTES else None

    def to_text(self) -> str:
        """Return the content of the key's file, for `read`."""
        return self.key.hex()

    def of(self, row_key: str, content: Any) -> str:
        """Return the signature of a row (HMAC-SHA256). It is valid only for the row with this key."""
        # Sign what a JSON round trip returns: it turns number keys into texts, which sort differently.
        read_back = json.loads(json.dumps(content))
        text = json.dumps([row_key, read_back], sort_keys=True, separators=(",", ":"))
        return hmac.new(self.key, text.encode(), "sha256").hexdigest()

    def fits(self, row_key: str, content: Any, found: Any) -> bool:
        """Return whether a signature that was found with a row is valid."""
        try:
            return isinstance(found, str) and hmac.compare_digest(
                self.of(row_key, content).encode(), found.encode()
            )
        # Nested too deeply, or contains a lone surrogate, so we did not write it.
        except (RecursionError, ValueError):
            return False


def differences(found: Mapping[str, Any], own: Mapping[str, Any]) -> str:
    """Return as text where a rejected record differs from the run's own; the first few differences only."""
    told = list(islice(_differences(found, json.loads(json.dumps(own)), ""), _MAX_TOLD))
    return "; ".join(told) or "it has the same content as the run's own"


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
