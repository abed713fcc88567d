"""`results/modes.md`: each strategy x 1, 2 and 4 workers x nothing, a worker, a parameter server or the chief killed.

    python -m benchmarks.modes [--rounds 10] [--modes sync,async] [--workers 1,2] [--faults worker] [--anew]

It needs hosts that only root can make, as in `benchmarks.faults`. A task's process gets SIGKILL after a random part of
the training. Completed rounds are kept in results/modes_rounds.jsonl; a later campaign continues there, or another one
at the same time (--modes). `results/modes.md` is the summary table. Rounds of other code than the current one are
refused; --anew drops them.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks import tables
from benchmarks.code_hash import hash_of_rooms
from benchmarks.fault_stage import BedError, BedKind, Stage
from benchmarks.mode_rounds import ModeRound, NotStruck
from benchmarks.mode_verdicts import CACHE, Cell, Verdict, columns, judge
from benchmarks.round_file import CodeChanged, RoundFile
from ignite_tf_magic.errors import IgniteTfError
from ignite_tf_magic.session import open_session

NAME = "modes"
MODES = ("sync", "async", "standalone", "between")
WORKERS = (1, 2, 4)
FAULTS = ("finish", "worker", "ps", "chief")
_ROOMS = ("dataset", "launch", "runs", "training")
_MAX_TRIES = 5
_ERRORS = (IgniteTfError, BedError, RuntimeError, OSError, subprocess.SubprocessError)
_HEAD = """`finish`: nothing is killed; else `worker` is the last one, `chief` the task that drives the others. In
`sync` and `between` workers drive themselves; `chief` is worker 0 there, which begins and saves. `async`, `standalone`
and `between` have one parameter server. `steps again`: how many were done more than once, in all rounds, where that
can be counted.

Left out: `ps` of `sync`, which has no parameter server; `chief` of one worker in `sync` and `between`, which is the
same as `worker`.

"""


def cells(given: argparse.Namespace) -> Iterator[Cell]:
    """Yield the valid kinds of rounds."""
    for mode in given.modes:
        for workers in given.workers:
            for fault in given.faults:
                cell = Cell(mode, workers, fault)
                is_same = fault == "chief" and workers == 1 and not cell.has_chief
                if not is_same and not (fault == "ps" and not cell.num_ps):
                    yield cell


class Rounds:
    """The completed rounds of one version of the code.

    Args:
        folder: Directory of the results: modes_rounds.jsonl, and modes.md with its summary.
        code_hash: Returns the hash of the current code.
    """

    def __init__(
        self, folder: Path, code_hash: Callable[[], str] = lambda: hash_of_rooms(rooms=_ROOMS)
    ) -> None:
        self._table = folder / f"{NAME}.md"
        self._file = RoundFile(folder / f"{NAME}_rounds.jsonl", code_hash)
        self.begin = self._file.begin

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The completed rounds."""
        return self._file.rows

    def of(self, cell: Cell) -> list[dict[str, Any]]:
        """Return the rounds of one kind."""
        place = cell.mode, cell.workers, cell.fault
        return [row for row in self.rows if (row["mode"], row["workers"], row["fault"]) == place]

    def add(self, row: dict[str, Any]) -> None:
        """Append a round. Raises CodeChanged if the code has changed since the campaign began."""
        with self._file.locked():
            self._file.append(row)
            self._table.write_text(self.table(), encoding="utf-8")

    def table(self) -> str:
        """Return the summary in Markdown: a line for each kind, then the problems."""
        names = ("workers", "killed", "right / played", "restarts", "replacements", "steps again", "seconds")
        lines = [["mode", *names], ["---"] * (len(names) + 1)]
        kinds = product(MODES, WORKERS, FAULTS)
        lines += [_line(mine) for kind in kinds if (mine := self.of(Cell(*kind)))]
        text = _HEAD + "".join(f"| {' | '.join(line)} |\n" for line in lines)
        for row in self.rows:
            if row["problems"]:
                place = f"{row['mode']}, {row['workers']} workers, {row['fault']}"
                text += f"\nWrong in {place}: {'; '.join(row['problems'])}\n"
        return text


def _line(mine: Sequence[dict[str, Any]]) -> list[str]:
    again = [row["steps_again"] for row in mine if row["steps_again"] is not None]
    return [
        *(str(mine[0][name]) for name in ("mode", "workers", "fault")),
        f"{sum(not row['problems'] for row in mine)} / {len(mine)}",
        *(_range([row[name] for row in mine]) for name in ("restarts", "replacements")),
        str(sum(again)) if again else "",
        f"{statistics.median(row['seconds'] for row in mine):.0f}",
    ]


def _range(found: Sequence[int]) -> str:
    least, most = min(found), max(found)
    return str(least) if least == most else f"{least} to {most}"


class Campaign:
    """Plays rounds on a stage of its own. Close it.

    Args:
        folder: Directory for the bed, and for evidence of failed rounds.
    """

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._say = say
        self._stage = Stage(folder / "stage", say)
        self._num_filled = 0

    def __enter__(self) -> Campaign:
        return self

    def __exit__(self, *error: object) -> None:
        self._stage.close()

    def play(self, cell: Cell, number: int) -> dict[str, Any]:
        """Play a round, again if it ended before the task could be killed, and return its result."""
        for _ in range(_MAX_TRIES):
            try:
                return self._play(cell, number)
            except NotStruck as error:
                self._say(f"{error}; it shows nothing, and is played again")
        raise RuntimeError(f"{cell}: nothing was killed in {_MAX_TRIES} rounds")

    def _play(self, cell: Cell, number: int) -> dict[str, Any]:
        self._prepare()
        playing = ModeRound(self._stage, cell, detached=number % 2 == 1)
        began = time.monotonic()
        evidence, verdict = None, Verdict([])
        try:
            with open_session(report=_unheard, config=self._stage.config) as session:
                evidence = playing.play(session)
                verdict = judge(cell, evidence)
                session.prune(keep=0)
        except _ERRORS as error:
            self._stage.close()  # its state is unknown
            if playing.run_id is None:
                raise NotStruck(f"no run began: {error}") from None
            verdict = Verdict([*verdict.problems, f"{type(error).__name__}: {error}"])
        if verdict.problems:
            place = f"{cell.mode}-{cell.workers}-{cell.fault}-{time.time():.0f}"
            playing.keep_evidence(self._folder / "wrong" / place)
        return {
            **asdict(cell),
            "detached": number % 2 == 1,
            "restarts": len(evidence.causes) if evidence else 0,
            "replacements": evidence.replacements if evidence else 0,
            "steps_again": verdict.repeated_steps,
            "seconds": round(time.monotonic() - began, 1),
            "problems": list(verdict.problems),
        }

    def _prepare(self) -> None:
        """Make the bed and fill its cache. Retry, as nodes on a busy machine may lose each other."""
        for tries_left in reversed(range(_MAX_TRIES)):
            try:
                self._stage.bed  # noqa: B018 - the property makes the bed
                if self._num_filled != self._stage.num_beds:
                    with open_session(report=_unheard, config=self._stage.config) as session:
                        session.load(CACHE, columns(), backups=1, replace=True)
                    self._num_filled = self._stage.num_beds
                return
            except _ERRORS as error:
                self._say(f"the bed cannot be used: {error}")
                self._stage.close()
                if not tries_left:
                    raise


def main(arguments: Sequence[str] | None = None) -> int:
    """Play the missing rounds."""
    given = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that SIGTERM also ends beds and runs
    if BedKind.best() is not BedKind.NAMESPACES:
        _say("these rounds need real hosts, which root may make")
        return 2
    rounds = Rounds(given.results)
    folder = given.folder or Path(tempfile.mkdtemp(prefix="ignite-tf-modes-"))
    _say(f"evidence of rounds that go wrong: {folder}/wrong")
    os.environ["IGNITE_TF_HOME"] = str(folder / "home")
    try:
        rounds.begin(anew=given.anew)
        with Campaign(folder, _say) as campaign:
            _play(given, rounds, campaign)
    except CodeChanged as error:
        _say(str(error))
        return 2
    print(rounds.table())
    return int(any(row["problems"] for row in rounds.rows))


def _play(given: argparse.Namespace, rounds: Rounds, campaign: Campaign) -> None:
    """Play one round of each kind, then the next, so that every campaign covers all kinds."""
    deadline = time.monotonic() + 60 * given.minutes
    for number in range(given.rounds):
        for cell in cells(given):
            if time.monotonic() > deadline:
                return
            if len(rounds.of(cell)) <= number:
                row = campaign.play(cell, number)
                rounds.add(row)
                _say(" ".join(f"{name} {row[name]}" for name in row))


def _parser() -> argparse.ArgumentParser:
    def words(text: str) -> tuple[str, ...]:
        return tuple(text.split(","))

    parser = argparse.ArgumentParser(prog="python -m benchmarks.modes", description=__doc__)
    parser.add_argument("--rounds", type=int, default=10, help="of each kind")
    parser.add_argument("--modes", type=words, default=MODES, metavar="MODE,...")
    parser.add_argument(
        "--workers", type=lambda text: tuple(map(int, text.split(","))), default=WORKERS, metavar="N,..."
    )
    parser.add_argument("--faults", type=words, default=FAULTS, metavar="FAULT,...")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no round after so long")
    parser.add_argument("--results", type=Path, default=tables.RESULTS)
    parser.add_argument("--folder", type=Path, help="for the bed and evidence; kept")
    parser.add_argument("--anew", action="store_true", help="drop rounds of other code")
    return parser


def _say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


def _unheard(line: str) -> None:
    del line


if __name__ == "__main__":
    sys.exit(main())
