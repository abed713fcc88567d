"""`python -m benchmarks.faults`: faults hit runs on real hosts at random moments; do the runs end as documented?

Each completed round is appended to results/faults_rounds.jsonl. A later campaign continues there, and several can run
at once with different faults (--only) in separate folders. Rounds of other code than the current one are refused;
--anew drops them. results/faults.json is the summary.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from benchmarks import tables
from benchmarks.fault_kinds import FAULTS, Fault
from benchmarks.fault_outcome import Outcome
from benchmarks.fault_results import DIVISOR, NAME, Rounds
from benchmarks.fault_rounds import Round
from benchmarks.fault_stage import BedKind, Stage
from benchmarks.round_file import CodeChanged

_NUM_ROUNDS, _NUM_DEFAULT = 20, 3
_MAX_TRIES = 100


class Campaign:
    """Plays rounds. Close it.

    Args:
        folder: Directory for beds, and for evidence of failed rounds.
        kind: The kind of bed; None means the best available.
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
        stage.bed  # noqa: B018 - the property makes the bed
        outcome = Outcome(fault.name, number, divisor, detached, script, seed)
        folder = self._folder / "rounds" / f"{fault.name}-{number}-{seed}"
        playing = Round(stage, fault, outcome, folder, self._say)
        playing.play()
        with outcome.phase("mend"):
            stage.mend()
            playing.judge_return()
        with outcome.phase("clean"):
            playing.clean()
        self._tell(outcome)
        if self._rounds is not None and outcome.counts:
            self._rounds.add(outcome)
        return outcome

    def _tell(self, outcome: Outcome) -> None:
        who = "detached" if outcome.detached else "attached"
        self._say(
            f"{outcome.fault} {outcome.round} (/{outcome.divisor}, {who}, {outcome.script}): at {outcome.moment_s} s "
            f"{outcome.struck}; {outcome.restarts} restarts, noticed {outcome.noticed_s}, recovered "
            f"{outcome.recovered_s}, unreachable {outcome.unreachable_lines}, {outcome.took_s} s {outcome.phases_s}"
            + ("" if outcome.counts else "; it shows nothing, and is played again")
            + "".join(f"\n    PROBLEM {each}" for each in outcome.problems)
        )


def is_detached(fault: Fault, number: int) -> bool:
    """Return whether a round's run is detached: every other one, if the fault allows both."""
    if fault.in_attached and fault.in_detached:
        return number % 2 == 1
    return fault.in_detached


def plan(fault: Fault, rounds: Rounds, given: argparse.Namespace) -> Iterable[tuple[int, int, str]]:
    """Yield number, divisor and script of the missing rounds."""
    num_full = given.rounds if fault.full_timeouts else given.default_rounds
    for divisor, wanted in ((DIVISOR, given.rounds - num_full), (1, num_full)):
        for number in range(len(rounds.of(fault.name, divisor=divisor)), wanted):
            yield number, divisor, "light"
    for number in range(len(rounds.of(fault.name, script="tensorflow")), given.tensorflow_rounds):
        yield number, 1, "tensorflow"


def main(arguments: Sequence[str] | None = None) -> int:
    """Play the missing rounds."""
    given = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that SIGTERM also ends beds and runs
    rounds = Rounds(given.results)
    try:
        if not given.show:
            rounds.begin(anew=given.anew)
            _play(given, rounds, given.folder or Path(tempfile.mkdtemp(prefix="ignite-tf-faults-")))
        tables.write(given.results, NAME, rounds.summary())
    except CodeChanged as error:
        _say(str(error))
        return 2
    tables.show(tables.console(), given.results, (NAME,))
    return int(any(row["problems"] for row in rounds.rows))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=__doc__)
    parser.add_argument("--only", help="faults, separated by commas", default=",".join(FAULTS))
    parser.add_argument("--rounds", type=int, default=_NUM_ROUNDS, help="of each fault")
    parser.add_argument(
        "--default-rounds", type=int, default=_NUM_DEFAULT, help="of them with default timeouts"
    )
    parser.add_argument("--tensorflow-rounds", type=int, default=0, help="with TensorFlow, besides")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no round after so long")
    parser.add_argument("--results", type=Path, default=tables.RESULTS)
    parser.add_argument("--folder", type=Path, help="for beds and evidence; kept")
    parser.add_argument("--anew", action="store_true", help="drop rounds of other code")
    parser.add_argument("--show", action="store_true", help="only show what there is")
    return parser


def _playable(names: Sequence[str]) -> list[Fault]:
    """Return the faults that work on the hosts available here, and report the others."""
    kind = BedKind.best()
    missing = [name for name in names if FAULTS[name].needs_hosts and kind is not BedKind.NAMESPACES]
    if missing:
        _say(f"left out: {', '.join(missing)}; they need real hosts, which root may make; here: {kind.value}")
    return [FAULTS[name] for name in names if name not in missing]


def _play(given: argparse.Namespace, rounds: Rounds, folder: Path) -> None:
    _say(f"evidence of rounds that fail: {folder}/rounds; code {rounds.code_hash}")
    deadline = time.monotonic() + 60 * given.minutes
    with Campaign(folder, _say, rounds) as campaign:
        for fault in _playable(given.only.split(",")):
            for _ in range(_MAX_TRIES):  # repeat a round in which the fault came too early or too late
                missing = next(iter(plan(fault, rounds, given)), None)
                if missing is None:
                    break
                if time.monotonic() > deadline:
                    return
                number, divisor, script = missing
                campaign.play(fault, number, divisor, detached=is_detached(fault, number), script=script)


def _say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
