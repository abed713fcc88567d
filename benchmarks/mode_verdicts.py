"""The expected outcome of a `benchmarks.modes` round, computed in one process, and deviations from it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

CACHE, NUM_ROWS = "MODES", 240
_SEED = 11
_LINE = (1.0, -2.0, 3.0)
# Parameters of the scripts. `share`: a training step of a row moves its weight by this fraction towards the target.
# `save_by`: after that step, a training that will be struck takes `save_s` per step until there is a checkpoint of
# step `saved` or later. The slower checkpoints are, as on a busy machine, the rarer they become.
FIT = {"batch": 12, "epochs": 4, "share": 0.1, "pause_s": 0.05, "save_by": 20, "saved": 10, "save_s": 1.0}
CLIENT = {"steps": 60, "rate": 0.2, "pause_s": 0.05}
TRAINER = {"steps": 100, "rate": 0.2, "batch": 12, "save_steps": 20, "pause_s": 0.05}
_NEAR, _NEARER, _LEARNT = 1e-5, 1e-6, 0.02
_AHEAD = 2  # steps per worker that a chief's `fit` may have in flight


@dataclass(frozen=True)
class Cell:
    """A kind of round: the mode of the run, its number of workers, and the task to kill."""

    mode: str
    workers: int
    fault: str

    @property
    def num_ps(self) -> int:
        return 0 if self.mode == "sync" else 1

    @property
    def has_chief(self) -> bool:
        """Whether a task besides the workers drives them; otherwise worker 0 initializes and saves."""
        return self.mode in ("async", "standalone")

    @property
    def driver(self) -> int:
        """The number of the task that reports steps."""
        return self.workers + self.num_ps if self.has_chief else 0

    @property
    def victim(self) -> int | None:
        """The number of the task that is killed."""
        places = {"worker": self.workers - 1, "ps": self.workers, "chief": self.driver}
        return places.get(self.fault)

    @property
    def is_replaced(self) -> bool:
        """Whether only the killed task is restarted while the others continue."""
        return (self.mode, self.fault) == ("async", "worker")


@dataclass(frozen=True)
class Task:
    """A task as the run's record lists it, and the output of its last generation."""

    name: str
    partitions: tuple[int, ...] | None
    rows: int
    output: str


@dataclass(frozen=True)
class Evidence:
    """The evidence that a round leaves.

    Attributes:
        causes: Why each earlier generation ended.
        processes_left: Processes of the run on its hosts some time after its end.
    """

    state: str
    causes: Sequence[str]
    replacements: int
    tasks: Sequence[Task]
    processes_left: int = 0


@dataclass(frozen=True)
class Verdict:
    """The problems, and the number of repeated steps if it can be counted."""

    problems: Sequence[str]
    repeated_steps: int | None = None


def columns() -> dict[str, np.ndarray]:
    """Make the rows: a target for each one, and points of a line."""
    x = np.random.default_rng(_SEED).uniform(-1, 1, size=(NUM_ROWS, 3))
    number = np.arange(NUM_ROWS)
    return {"number": number, "target": 1 + number / NUM_ROWS, "x": x, "line": x @ np.array(_LINE)}


def judge(cell: Cell, evidence: Evidence) -> Verdict:
    """Compare a round's evidence with the expected outcome."""
    problems = [*_of_the_run(cell, evidence), *_of_shares(cell, evidence)]
    repeated = None
    try:
        found, repeated = _JUDGES[cell.mode](cell, evidence)
        problems += found
    except (LookupError, TypeError, ValueError) as error:
        problems.append(f"what was found cannot be read: {type(error).__name__}: {error}")
    return Verdict(problems, repeated)


def _of_the_run(cell: Cell, evidence: Evidence) -> Iterator[str]:
    if evidence.state != "succeeded":
        yield f"the run is {evidence.state}"
    replacements = int(cell.is_replaced)
    restarts = int(cell.fault != "finish") - replacements
    if len(evidence.causes) != restarts:
        yield f"{len(evidence.causes)} restarts, not {restarts}: {list(evidence.causes)}"
    if evidence.replacements != replacements:
        yield f"{evidence.replacements} replacements, not {replacements}"
    name = evidence.tasks[cell.victim].name if cell.victim is not None else ""
    if restarts and evidence.causes and name not in evidence.causes[0]:
        yield f"{name} was killed, and it is said: {evidence.causes[0]}"
    if evidence.processes_left:
        yield f"{evidence.processes_left} processes are left on the hosts"


def _of_shares(cell: Cell, evidence: Evidence) -> Iterator[str]:
    """Check that only workers have rows, without overlap, and that together they have all rows."""
    workers, others = evidence.tasks[: cell.workers], evidence.tasks[cell.workers :]
    dealt = [number for task in workers for number in task.partitions or ()]
    if cell.workers > 1 and len(dealt) != len(set(dealt)):
        yield "two workers have the same partition"
    if sum(task.rows for task in workers) != NUM_ROWS:
        yield f"the workers have {[task.rows for task in workers]} rows, not {NUM_ROWS} in all"
    if not all(task.rows for task in workers):
        yield "a worker has no rows"
    for task in others:
        if task.rows or task.partitions:
            yield f"{task.name} has rows"


def _of_keys(cell: Cell, evidence: Evidence, read: Sequence[Sequence[int]]) -> Iterator[str]:
    """Check that the workers actually read their assigned rows: each row exactly once."""
    if sorted(key for keys in read for key in keys) != list(range(NUM_ROWS)):
        yield f"the workers read {[len(keys) for keys in read]} rows, which are not each row once"
    if [len(keys) for keys in read] != (given := [task.rows for task in evidence.tasks[: cell.workers]]):
        yield f"the workers read {[len(keys) for keys in read]} rows, and were given {given}"


# Fit


def _judge_sync(cell: Cell, evidence: Evidence) -> tuple[list[str], None]:
    found = [said(task.output, "FOUND") for task in evidence.tasks]
    problems = list(_of_keys(cell, evidence, [said(task.output, "KEYS") for task in evidence.tasks]))
    steps = NUM_ROWS // FIT["batch"] * FIT["epochs"]
    target, left = columns()["target"], 1 - FIT["share"]
    losses = [float(np.mean((target * left**epoch) ** 2)) for epoch in range(round(FIT["epochs"]))]
    for number, each in enumerate(found):
        if each["iterations"] != steps:
            problems.append(f"worker {number} made {each['iterations']} steps, not {steps}")
        problems += _differ(
            f"worker {number}'s weights", each["weights"], target * (1 - left ** FIT["epochs"])
        )
        problems += _differ(f"worker {number}'s losses", each["losses"], losses)
        if each["weights"] != found[0]["weights"]:
            problems.append(f"worker {number} has other weights than worker 0")
    if cell.victim is not None:
        problems += _of_going_on(found[0], 1)
    return problems, None


def _judge_async(cell: Cell, evidence: Evidence) -> tuple[list[str], int]:
    found = said(evidence.tasks[cell.driver].output, "FOUND")
    shares = [task.rows for task in evidence.tasks[: cell.workers]]
    steps = sum(math.ceil(rows / FIT["batch"]) for rows in shares) * round(FIT["epochs"])
    problems, trained = [], times_trained(found["weights"])
    if found["iterations"] != steps:
        problems.append(f"{found['iterations']} steps are counted, not {steps}")
    if trained is None:
        problems.append("the weights are not what any number of steps comes to")
        return problems, 0
    if (fewest := int(trained.min())) < FIT["epochs"]:
        rows = int((trained < FIT["epochs"]).sum())
        problems.append(
            f"{rows} rows were trained less than {FIT['epochs']} times, one of them {fewest} times"
        )
    repeated = _repeated(trained, found["made"] - steps)
    # With one worker, the order of steps is that of one process, so nothing else can differ.
    allowed = 0 if cell.fault == "finish" else 1 if cell.is_replaced else _AHEAD * cell.workers
    if repeated > allowed:
        problems.append(f"{repeated} steps were done more than once; at most {allowed} were under way")
    if cell.fault in ("ps", "chief"):
        problems += _of_going_on(found, _AHEAD * cell.workers)
    return problems, repeated


def times_trained(weights: Sequence[float]) -> np.ndarray | None:
    """Return, from the weights, how often each row was trained; None if the numbers are not whole."""
    done = 1 - np.asarray(weights) / columns()["target"]
    if not ((done > 0) & (done <= 1)).all():
        return None
    times = np.rint(np.log(done) / math.log(1 - FIT["share"])).astype(int)
    near = np.abs(done - (1 - FIT["share"]) ** times) < _NEAR
    return times if near.all() else None


def _repeated(trained: np.ndarray, made_again: float) -> int:
    """Count repeated steps, both by the steps' own counter and by the rows that they moved."""
    extra_rows = int(np.maximum(trained - round(FIT["epochs"]), 0).sum())
    return max(round(made_again), math.ceil(extra_rows / FIT["batch"]))


def _of_going_on(found: Mapping[str, Any], ahead: int) -> Iterator[str]:
    """Check that a restarted training continues from its last checkpoint: its first step follows that one."""
    saved, first = found["saved"], found["first"]
    if saved < FIT["saved"] or not saved <= first <= saved + ahead:
        yield f"after the restart step {first} came first, and step {saved} was saved"


# Graphs


def _judge_standalone(cell: Cell, evidence: Evidence) -> tuple[list[str], None]:
    found = said(evidence.tasks[cell.driver].output, "FOUND")
    problems = list(_of_keys(cell, evidence, found["keys"]))
    problems += _differ("the slope", found["slope"], descended(), _NEARER)
    if "/job:ps" not in found["device"]:
        problems.append(f"the variable is on {found['device']}")
    return problems, None


def descended() -> np.ndarray:
    """Compute in this process the expected result of the client's steps."""
    rows, slope = columns(), np.zeros(3)
    for _ in range(round(CLIENT["steps"])):
        error = rows["x"] @ slope - rows["line"]
        slope = slope - CLIENT["rate"] * 2 * (error @ rows["x"]) / NUM_ROWS
    return slope


def _judge_between(cell: Cell, evidence: Evidence) -> tuple[list[str], None]:
    workers = evidence.tasks[: cell.workers]
    found = [said(task.output, "FOUND") for task in workers]
    problems = list(_of_keys(cell, evidence, [said(task.output, "KEYS") for task in workers]))
    saved = int((found[0]["saved"] or "-0").rpartition("-")[2])
    # Each worker may make one extra step per generation, even a second generation that begins after the last step.
    num_lives = 1 if cell.fault == "finish" else 2
    if not TRAINER["steps"] <= saved <= TRAINER["steps"] + num_lives * cell.workers:
        problems.append(f"step {saved} is saved last, not {TRAINER['steps']}")
    first = min(number for task in workers for number in steps_told(task.output)[:1])
    made = sum(each["own"] for each in found)
    if cell.fault == "finish" and abs(made - saved) > cell.workers:
        problems.append(f"{made} steps were made, and {saved} are counted")
    if cell.fault != "finish" and first < TRAINER["save_steps"]:
        problems.append(f"after the restart step {first} came first: it did not go on from a checkpoint")
    for number, each in enumerate(found):
        problems += _differ(f"worker {number}'s slope", each["slope"], _LINE, _LEARNT)
        if not each["own"]:
            problems.append(f"worker {number} made no step")
        if "/job:ps" not in each["device"]:
            problems.append(f"the variable is on {each['device']}")
    if any(later < before for task in workers for before, later in pairwise(steps_told(task.output))):
        problems.append("the global step went back")
    return problems, None


_JUDGES: Mapping[str, Callable[[Cell, Evidence], tuple[list[str], int | None]]] = {
    "sync": _judge_sync,
    "async": _judge_async,
    "standalone": _judge_standalone,
    "between": _judge_between,
}


def _differ(what: str, found: Sequence[float], wanted: Any, tolerance: float = _NEAR) -> Iterator[str]:
    wanted = np.asarray(wanted)
    if np.shape(found) != wanted.shape:
        yield f"{what}: {np.shape(found)} numbers, not {wanted.shape}"
    elif not (off := float(np.abs(np.asarray(found) - wanted).max())) <= tolerance:
        yield f"{what} differ from those of one process by {off:.2g}"


# Output of scripts


def said(output: str, word: str) -> Any:
    """Return the JSON after a word at the start of a line; the last such line counts."""
    found = [line for line in output.splitlines() if line.startswith(f"{word} ")]
    if not found:
        raise LookupError(f"no {word} was told")
    return json.loads(found[-1].partition(" ")[2])


def steps_told(output: str) -> list[int]:
    """Return the steps that a task has reported."""
    whole = output[: output.rfind("\n") + 1]
    return [int(line.partition(" ")[2]) for line in whole.splitlines() if line.startswith("STEP ")]
