"""A file of completed rounds, one JSON object per line. Several processes may append; all rounds are of one code."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class CodeChanged(Exception):
    """Rounds are of different versions of the code."""


class RoundFile:
    """The rounds of one version of the code.

    Args:
        path: The file.
        code_hash: Returns the hash of the current code.

    Attributes:
        rows: The rounds at the last read of the file.
    """

    def __init__(self, path: Path, code_hash: Callable[[], str]) -> None:
        self._path = path
        self._hash_now = code_hash
        self.code_hash = code_hash()
        self.rows = self._read()

    def _read(self) -> list[dict[str, Any]]:
        if not self._path.exists():
            return []
        return [json.loads(line) for line in self._path.read_text(encoding="utf-8").splitlines() if line]

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock out other processes that share the folder, and read the rounds that they have added into `rows`."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._path.parent, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            self.rows = self._read()
            yield
        finally:
            os.close(descriptor)

    def begin(self, *, anew: bool) -> None:
        """Ensure that all rounds are of the current code.

        Args:
            anew: Drop those that are not.

        Raises:
            CodeChanged: There are other rounds, and `anew` is False.
        """
        other = [row for row in self.rows if row["code_hash"] != self.code_hash]
        if other and not anew:
            raise CodeChanged(
                f"{len(other)} rounds in {self._path} are of other code ({other[0]['code_hash']}) than today's "
                f"({self.code_hash}); drop them, and do them again, with --anew"
            )
        if other:
            with self.locked():
                self.rows = [row for row in self.rows if row["code_hash"] == self.code_hash]
                self._path.write_text("".join(map(_line, self.rows)), encoding="utf-8")

    def check_one_code(self) -> None:
        """Raise CodeChanged unless all rounds are of the same code, current or not."""
        if len(hashes := {row["code_hash"] for row in self.rows}) > 1:
            raise CodeChanged(f"rounds of different code are not summed up: {', '.join(sorted(hashes))}")

    def append(self, row: Mapping[str, Any]) -> None:
        """Append a round. Call it within `locked`.

        Raises:
            CodeChanged: The code has changed since the campaign began, so the tested version is unknown.
        """
        if self._hash_now() != self.code_hash:
            raise CodeChanged(f"the code has changed during a round: {row}")
        marked = {**row, "code_hash": self.code_hash}
        with self._path.open("ab", buffering=0) as file:
            file.write(_line(marked).encode())
        self.rows.append(marked)


def _line(row: Mapping[str, Any]) -> str:
    return f"{json.dumps(row)}\n"
