"""`python -m benchmarks.faults`: faults hit runs on real hosts at random moments; do the runs end as stated?

Every finished round is appended to results/faults_rounds.jsonl; a later sitting goes on where one stopped. Rounds of
other code than today's are dropped, and done again. results/faults.json sums them up.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import tables
from benchmarks.code_hash import hash_of_rooms
from benchmarks.fault_kinds import FAULTS, Fault
from benchmarks.fault_rounds import Outcome, Round, median
from benchmarks.fault_stage import BedKind, Stage

NAME = "faults"
DIVISOR = 4
_NUM_ROUNDS, _NUM_DEFAULT, _NUM_TENSORFLOW = 20, 3, 3


class Rounds:
    """The rounds that are done, in a file that only grows within one state of the code.

    Args:
        path: The file.
        code_hash: Of the code that is tested now.
    """

    def __init__(self, path: Path, code_hash: str, say: Callable[[str], None]) -> None:
        self._path = path
        self.code_hash = code_hash
        self.rows = self._read(say)

    def _read(self, say: Callable[[str], None]) -> list[dict[str, Any]]:
        if not self._path.exists():
            return []
        found = [json.loads(line) for line in self._path.read_text(encoding="utf-8").splitlines() if line]
        kept = [row for row in found if row["code_hash"] == self.code_hash]
        if len(kept) < len(found):
            say(f"{len(found) - len(kept)} rounds of other code are dropped, and done again")
            self._path.write_text("".join(f"{json.dumps(row)}\n" for row in kept), encoding="utf-8")
        return kept

    def add(self, outcome: Outcome) -> None:
        """Append a round."""
        row = {**outcome.to_json(), "code_hash": self.code_hash}
        self.rows.append(row)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(row)}\n")

    def of(self, fault: str, *, script: str = "light", divisor: int | None = None) -> list[dict[str, Any]]:
        """Give the rounds of a fault."""
        mine = [row for row in self.rows if row["fault"] == fault and row["script"] == script]
        return [row for row in mine if divisor in (None, row["divisor"])]

    def summary(self) -> list[dict[str, Any]]:
        """Give a row for each fault of which there are rounds.

        Raises:
            ValueError: They are of different code.
        """
        if len({row["code_hash"] for row in self.rows}) > 1:
            raise ValueError("rounds of different code cannot be summed up")
        return [self._row(fault) for fault in FAULTS if self.of(fault) or self.of(fault, script="tensorflow")]

    def _row(self, fault: str) -> dict[str, Any]:
        all_rounds = self.of(fault)
        default, quick = self.of(fault, divisor=1), self.of(fault, divisor=DIVISOR)
        heavy = self.of(fault, script="tensorflow")
        told = default or quick
        return {
            "fault": fault,
            "rounds": len(all_rounds),
            "finished": sum(not row["problems"] for row in all_rounds),
            "failed": sum(bool(row["problems"]) for row in all_rounds),
            **{
                name: sum(row[name] for row in all_rounds)
                for name in ("orphans", "lost_lines", "doubled_lines", "unreachable_lines")
            },
            "noticed_s_median": median([row["noticed_s"] for row in told]),
            "recovered_s_median": median([row["recovered_s"] for row in told]),
            "code_hash": self.code_hash,
            "rounds_with_default_timings": len(default),
            "rounds_with_timings_divided_by_4": len(quick),
            "noticed_s_median_divided_by_4": median([row["noticed_s"] for row in quick]),
            "recovered_s_median_divided_by_4": median([row["recovered_s"] for row in quick]),
            "detached_rounds": sum(row["detached"] for row in all_rounds),
            "restarts": sum(row["restarts"] for row in all_rounds),
            "tensorflow_rounds": len(heavy),
            "tensorflow_finished": sum(not row["problems"] for row in heavy),
        }


class Campaign:
    """Plays rounds. Close it.

    Args:
        folder: For beds, and for the evidence of rounds that failed.
        kind: Of the beds; None takes the best.
    """

    def __init__(
        self,
        folder: Path,
        say: Callable[[str], None],
        rounds: Rounds | None = None,
        kind: BedKind | None = None,
    ) -> None:
        self._folder = folder
        self._say = say
        self._rounds = rounds
        self._kind = kind
        self._stage: Stage | None = None
        self._has_spare = False

    def __enter__(self) -> Campaign:
        return self

    def __exit__(self, *error: object) -> None:
        if self._stage is not None:
            self._stage.close()

    def _stage_for(self, fault: Fault) -> Stage:
        if self._stage is not None and self._has_spare != fault.spare:
            self._stage.close()
            self._stage = None
        if self._stage is None:
            self._stage = Stage(self._folder / "stage", self._say, spare=fault.spare, kind=self._kind)
            self._has_spare = fault.spare
        return self._stage

    def play(
        self, fault: Fault, number: int, divisor: int, *, detached: bool, script: str = "light"
    ) -> Outcome:
        """Play one round, and mend the bed."""
        seed = random.SystemRandom().randrange(1 << 30)
        stage = self._stage_for(fault)
        stage.bed  # noqa: B018 - it is made when asked for
        outcome = Outcome(fault.name, number, divisor, detached, script, seed)
        folder = self._folder / "rounds" / f"{fault.name}-{number}-{seed}"
        playing = Round(stage, fault, outcome, folder, self._say)
        playing.play()
        stage.mend()
        playing.judge_return()
        playing.clean()
        if self._rounds is not None:
            self._rounds.add(outcome)
        self._tell(outcome)
        return outcome

    def _tell(self, outcome: Outcome) -> None:
        who = "detached" if outcome.detached else "attached"
        self._say(
            f"{outcome.fault} {outcome.round} (/{outcome.divisor}, {who}, {outcome.script}): at {outcome.moment_s} s "
            f"{outcome.struck}; {outcome.restarts} restarts, noticed {outcome.noticed_s}, recovered "
            f"{outcome.recovered_s}, unreachable {outcome.unreachable_lines}, {outcome.took_s} s"
            + "".join(f"\n    PROBLEM {each}" for each in outcome.problems)
        )


def is_detached(fault: Fault, number: int) -> bool:
    """Whether a round's run is detached: every other one, where both can be."""
    if fault.in_attached and fault.in_detached:
        return number % 2 == 1
    return fault.in_detached


def plan(fault: Fault, rounds: Rounds, given: argparse.Namespace) -> Iterable[tuple[int, int, str]]:
    """Give number, divisor and script of the rounds that are missing."""
    if given.with_tensorflow:
        for number in range(len(rounds.of(fault.name, script="tensorflow")), given.tensorflow_rounds):
            yield number, 1, "tensorflow"
        return
    for divisor, wanted in ((DIVISOR, given.rounds - given.default_rounds), (1, given.default_rounds)):
        for number in range(len(rounds.of(fault.name, divisor=divisor)), wanted):
            yield number, divisor, "light"


def main(arguments: Sequence[str] | None = None) -> int:
    """Play what is missing."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=__doc__)
    parser.add_argument("--only", help="faults, separated by commas", default=",".join(FAULTS))
    parser.add_argument("--rounds", type=int, default=_NUM_ROUNDS, help="of each fault")
    parser.add_argument(
        "--default-rounds", type=int, default=_NUM_DEFAULT, help="of them with default timings"
    )
    parser.add_argument("--with-tensorflow", action="store_true", help="rounds with TensorFlow instead")
    parser.add_argument("--tensorflow-rounds", type=int, default=_NUM_TENSORFLOW)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no round after so long")
    parser.add_argument("--results", type=Path, default=tables.RESULTS)
    parser.add_argument("--folder", type=Path, help="for beds and evidence; kept")
    parser.add_argument("--show", action="store_true", help="only show what there is")
    given = parser.parse_args(arguments)
    rounds = Rounds(given.results / f"{NAME}_rounds.jsonl", hash_of_rooms(), _say)
    if not given.show:
        folder = given.folder or Path(tempfile.mkdtemp(prefix="ignite-tf-faults-"))
        _say(f"evidence of rounds that fail: {folder}/rounds; code {rounds.code_hash}")
        _play(given, rounds, folder)
    tables.write(given.results, NAME, rounds.summary())
    tables.show(tables.console(), given.results, (NAME,))
    return int(any(row["problems"] for row in rounds.rows))


def _play(given: argparse.Namespace, rounds: Rounds, folder: Path) -> None:
    deadline = time.monotonic() + 60 * given.minutes
    with Campaign(folder, _say, rounds) as campaign:
        for name in given.only.split(","):
            fault = FAULTS[name]
            for number, divisor, script in list(plan(fault, rounds, given)):
                if time.monotonic() > deadline:
                    return
                campaign.play(fault, number, divisor, detached=is_detached(fault, number), script=script)
                tables.write(given.results, NAME, rounds.summary())


def _say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
