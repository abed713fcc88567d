"""Reads tables of a TOML file key by key. Errors name the file, the table and the key.

This module knows no option of this package; `options` defines the keys and their meaning.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from ignite_tf_magic.errors import ConfigError

T = TypeVar("T")
# Larger than any sensible value, but small enough for every clock and socket.
_MOST, _MOST_BYTES = 10**9, 2**63 - 1
SIZE_IS = 'a size above 0, as "500MB" or "1GiB", and below 8 EiB'
_UNITS = {"": 1, "b": 1}
_UNITS |= {f"{letter}ib": 1 << 10 * power for power, letter in enumerate("kmgt", 1)}
_UNITS |= {f"{letter}b": 1000**power for power, letter in enumerate("kmgt", 1)}


def parse_bytes(text: str) -> int | None:
    """Parse a size: "500MB", "1.5 GiB" or a number of bytes. Return None if the text is not a size."""
    match = re.fullmatch(r"(\d{1,20}(?:\.\d{1,20})?)\s*([kmgt]?i?b|)", text.strip().lower())
    size = float(match[1]) * _UNITS.get(match[2], 0) if match else 0.0
    return int(size) if 1 <= size <= _MOST_BYTES else None


@dataclass(frozen=True, slots=True)
class TomlTable:
    """One table of a TOML file.

    Attributes:
        file: The file. File names in the table are relative to its directory.
        name: The table's full name, such as "hosts.db1"; "" for the whole file.
        values: The table's keys and values. They never appear in a `repr`, because some are secrets.
    """

    file: Path
    name: str = ""
    values: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def allow(self, *known: str) -> None:
        """Raise ConfigError if the table has other keys than these."""
        for key in self.values:
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
                hint = f"did you mean {near[0]!r}?" if near else f"it may hold {', '.join(known)}"
                raise ConfigError(f"{self.file}: {self._where} has no key {key!r}; {hint}")

    def table(self, key: str) -> TomlTable:
        """Return the table of that name inside this one, or an empty one if there is none."""
        value = self.values.get(key, {})
        name = f"{self.name}.{key}" if self.name else key
        if not isinstance(value, dict):
            raise ConfigError(f"{self.file}: {key} must be a table; write [{name}] and its keys below")
        return TomlTable(self.file, name, value)

    def tables(self) -> Iterator[tuple[str, TomlTable]]:
        """Return the tables inside this one, with their names."""
        return ((key, self.table(key)) for key in self.values)

    def text(self, key: str) -> str | None:
        """Read a text that is not empty."""
        return self._take(key, str, "a text in quotes", lambda value: bool(value.strip()))

    def word(self, key: str) -> str | None:
        """Read a text that has no blanks or commas and does not begin with "-"."""
        return self._take(key, str, "a name without blanks, not beginning with '-'", is_word)

    def words(self, key: str) -> tuple[str, ...]:
        """Read a list of texts as `word` reads them. Return an empty tuple if the key is missing."""
        taken = self._take(
            key, list, 'a list of names, as in ["a", "b"]', lambda value: all(map(is_word, value))
        )
        return tuple(taken or ())

    def path(self, key: str) -> Path | None:
        """Read the name of a file, relative to the directory of the TOML file."""
        text = self.text(key)
        return None if text is None else self.file.parent / Path(text).expanduser()

    def flag(self, key: str) -> bool | None:
        """Read true or false."""
        return self._take(key, bool, "true or false", lambda _: True)

    def count(self, key: str) -> int | None:
        """Read a whole number from 0 up."""
        value = self.values.get(key)
        if value is not None and (type(value) is not int or not 0 <= value <= _MOST):
            self.refuse(key, f"a whole number from 0 up ({_MOST} at most)")
        return value

    def seconds(self, key: str, *, may_be_0: bool = False) -> float | None:
        """Read a number of seconds above 0, or from 0 up if `may_be_0`."""
        value = self.values.get(key)
        if value is None:
            return None
        is_number = type(value) in (int, float)
        if not is_number or not (0 < value <= _MOST or (may_be_0 and value == 0)):
            self.refuse(
                key, f"a number of seconds {'from 0 up' if may_be_0 else 'above 0'} ({_MOST} at most)"
            )
        return float(value)

    def num_bytes(self, key: str) -> int | None:
        """Read a size: "500MB", "1.5 GiB" or a number of bytes."""
        if (value := self.values.get(key)) is None:
            return None
        size = parse_bytes(str(value))
        if size is None:
            self.refuse(key, SIZE_IS)
        return size

    def port_range(self, key: str) -> tuple[int, int] | None:
        """Read "FIRST-LAST"."""
        if (value := self.values.get(key)) is None:
            return None
        match = re.fullmatch(r"\s*(\d{1,5})\s*-\s*(\d{1,5})\s*", value) if isinstance(value, str) else None
        first, last = (int(match[1]), int(match[2])) if match else (0, 0)
        if not 1 <= first <= last <= 65535:
            self.refuse(key, 'two port numbers, the lower first, as "40000-40999"')
        return first, last

    def refuse(self, key: str, needed: str) -> NoReturn:
        """Raise ConfigError, because a key has another value than is needed."""
        value = "" if "password" in key else f" = {self.values.get(key)!r}"
        raise ConfigError(f"{self.file}: {self._where} {key}{value}: {needed} is needed here")

    def _take(self, key: str, kind: type[T], needed: str, fits: Callable[[T], bool]) -> T | None:
        value = self.values.get(key)
        if value is not None and not (isinstance(value, kind) and fits(value)):
            self.refuse(key, needed)
        return value

    @property
    def _where(self) -> str:
        return f"[{self.name}]" if self.name else "the top of the file"


def is_word(value: object) -> bool:
    """Return whether a value is a text that has no blanks or commas and does not begin with "-"."""
    return isinstance(value, str) and re.fullmatch(r"[^\s,\-\x00-\x1f][^\s,\x00-\x1f]*", value) is not None


def parse_toml(data: bytes, file: Path) -> TomlTable:
    """Parse the content of a whole file.

    Raises:
        ConfigError: The content is not TOML in UTF-8.
    """
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]
    try:
        return TomlTable(file, "", tomllib.loads(data.decode("utf-8-sig")))
    except ValueError as error:
        raise ConfigError(f"cannot read {file}: {error}") from error
