"""The rounds of the fault campaign that are done, in a file that several processes may append to, and their sum."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import tables
from benchmarks.code_hash import hash_of_rooms
from benchmarks.fault_kinds import FAULTS
from benchmarks.fault_outcome import Outcome, median

NAME = "faults"
DIVISOR = 4
PROCESSES = ("worker_kill", "agent_kill", "sshd_kill", "node_kill", "owner_kill_attached")
NOTICED_WITHIN_S = {"process": 1.0, "link": 10.0}


class CodeChanged(Exception):
    """Rounds are not all of one state of the code."""


class Rounds:
    """The rounds of one state of the code, one JSON object a line.

    Args:
        folder: Of the results: faults_rounds.jsonl, and faults.json, which sums it up.
        code_hash: Tells the hash of the code as it is now.
    """

    def __init__(self, folder: Path, code_hash: Callable[[], str] = hash_of_rooms) -> None:
        self._folder = folder
        self._path = folder / f"{NAME}_rounds.jsonl"
        self._hash_now = code_hash
        self.code_hash = code_hash()
        self.rows = self._read()

    def _read(self) -> list[dict[str, Any]]:
        if not self._path.exists():
            return []
        return [json.loads(line) for line in self._path.read_text(encoding="utf-8").splitlines() if line]

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other campaigns out that share the folder."""
        self._folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._folder, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
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
            with self._locked():
                kept = [row for row in self._read() if row["code_hash"] == self.code_hash]
                self._path.write_text("".join(f"{json.dumps(row)}\n" for row in kept), encoding="utf-8")
                self.rows = kept

    def add(self, outcome: Outcome) -> None:
        """Append a round, and sum up all that there are by now.

        Raises:
            CodeChanged: The code is not what it was when the campaign began, so nobody knows what was tested.
        """
        if self._hash_now() != self.code_hash:
            raise CodeChanged(f"the code has changed during round {outcome.round} of {outcome.fault}")
        row = {**outcome.to_json(), "code_hash": self.code_hash}
        with self._locked():
            with self._path.open("ab", buffering=0) as file:
                file.write(f"{json.dumps(row)}\n".encode())
            self.rows = self._read()
            tables.write(self._folder, NAME, self.summary())

    def of(self, fault: str, *, script: str = "light", divisor: int | None = None) -> list[dict[str, Any]]:
        """Return the rounds of a fault."""
        mine = [row for row in self.rows if row["fault"] == fault and row["script"] == script]
        return [row for row in mine if divisor in (None, row["divisor"])]

    def summary(self) -> list[dict[str, Any]]:
        """Return a row for each fault of which there are rounds.

        Raises:
            CodeChanged: They are of different code.
        """
        if len(hashes := {row["code_hash"] for row in self.rows}) > 1:
            raise CodeChanged(f"rounds of different code are not summed up: {', '.join(sorted(hashes))}")
        return [self._row(fault) for fault in FAULTS if self.of(fault) or self.of(fault, script="tensorflow")]

    def _row(self, fault: str) -> dict[str, Any]:
        light, heavy = self.of(fault), self.of(fault, script="tensorflow")
        default, quick = self.of(fault, divisor=1), self.of(fault, divisor=DIVISOR)
        kind = "link" if FAULTS[fault].breaks_link else "process" if fault in PROCESSES else None
        return {
            "fault": fault,
            "rounds": len(light),
            **_sums(light),
            **_medians(default or quick),
            "code_hash": (light or heavy)[0]["code_hash"],
            "default_timings": {"rounds": len(default), **_sums(default), **_medians(default)},
            "timings_divided_by_4": {"rounds": len(quick), **_sums(quick), **_medians(quick)},
            "tensorflow": {"rounds": len(heavy), **_sums(heavy), **_medians(heavy)},
            "noticed_later_than_stated": sum(
                kind is not None and (row["noticed_s"] or 0.0) > NOTICED_WITHIN_S[kind]
                for row in (*default, *heavy)
            ),
            "detached_rounds": sum(row["detached"] for row in light),
            "restarts": sum(row["restarts"] for row in light),
            "took_s_median": median([row["took_s"] for row in light]),
        }


def _sums(rows: list[dict[str, Any]]) -> dict[str, int]:
    counted = ("orphans", "lost_lines", "doubled_lines", "unreachable_lines")
    return {
        "finished": sum(not row["problems"] for row in rows),
        "failed": sum(bool(row["problems"]) for row in rows),
        **{name: sum(row[name] for row in rows) for name in counted},
    }


def _medians(rows: list[dict[str, Any]]) -> dict[str, float | None]:
    return {f"{name}_median": median([row[name] for row in rows]) for name in ("noticed_s", "recovered_s")}
