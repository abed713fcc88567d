"""Rounds that are done, one JSON object a line, in a file that several processes may append to; all of one code."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class CodeChanged(Exception):
    """Rounds are not all of one state of the code."""


class RoundFile:
    """The rounds of one state of the code.

    Args:
        path: The file.
        code_hash: Tells the hash of the code as it is now.

    Attributes:
        rows: The rounds that there were when they were last looked at.
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
        """Keep others out that share the folder; they may have added rounds meanwhile, which are in `rows` then."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._path.parent, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            self.rows = self._read()
            yield
        finally:
            os.close(descriptor)

    def begin(self, *, anew: bool) -> None:
        """Make sure that all rounds are of today's code.

        Args:
            anew: Drop those that are not.

        Raises:
            CodeChanged: There are such rounds, and they are not to be dropped.
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
        """Make sure that rounds are of one code, whichever it is; raises CodeChanged."""
        if len(hashes := {row["code_hash"] for row in self.rows}) > 1:
            raise CodeChanged(f"rounds of different code are not summed up: {', '.join(sorted(hashes))}")

    def append(self, row: Mapping[str, Any]) -> None:
        """Append a round. Call it within `locked`.

        Raises:
            CodeChanged: The code is not what it was when the campaign began, so nobody knows what was tested.
        """
        if self._hash_now() != self.code_hash:
            raise CodeChanged(f"the code has changed during a round: {row}")
        marked = {**row, "code_hash": self.code_hash}
        with self._path.open("ab", buffering=0) as file:
            file.write(_line(marked).encode())
        self.rows.append(marked)


def _line(row: Mapping[str, Any]) -> str:
    return f"{json.dumps(row)}\n"
