"""The completed rounds of the fault campaign, and their summary."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import tables
from benchmarks.code_hash import hash_of_rooms
from benchmarks.fault_kinds import FAULTS
from benchmarks.fault_outcome import Outcome, median
from benchmarks.round_file import RoundFile

NAME = "faults"
DIVISOR = 4
PROCESSES = ("worker_kill", "agent_kill", "sshd_kill", "node_kill", "owner_kill_attached")
NOTICED_WITHIN_S = {"process": 1.0, "link": 10.0}


class Rounds:
    """The rounds of one version of the code.

    Args:
        folder: Directory of the results: faults_rounds.jsonl, and faults.json with its summary.
        code_hash: Returns the hash of the current code.
    """

    def __init__(self, folder: Path, code_hash: Callable[[], str] = hash_of_rooms) -> None:
        self._folder = folder
        self._file = RoundFile(folder / f"{NAME}_rounds.jsonl", code_hash)
        self.code_hash, self.begin = self._file.code_hash, self._file.begin

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The completed rounds."""
        return self._file.rows

    def add(self, outcome: Outcome) -> None:
        """Append a round, and update the summary.

        Raises:
            CodeChanged: The code has changed since the campaign began, so the tested version is unknown.
        """
        with self._file.locked():
            self._file.append(outcome.to_json())
            tables.write(self._folder, NAME, self.summary())

    def of(self, fault: str, *, script: str = "light", divisor: int | None = None) -> list[dict[str, Any]]:
        """Return the rounds of a fault."""
        mine = [row for row in self.rows if row["fault"] == fault and row["script"] == script]
        return [row for row in mine if divisor in (None, row["divisor"])]

    def summary(self) -> list[dict[str, Any]]:
        """Return a row for each fault that has rounds.

        Raises:
            CodeChanged: The rounds are of different code.
        """
        self._file.check_one_code()
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
