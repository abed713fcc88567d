"""Tests of the verdicts of `benchmarks.modes`: correct rounds pass, and each kind of error is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from benchmarks import modes
from benchmarks.mode_verdicts import (
    FIT,
    NUM_ROWS,
    TRAINER,
    Cell,
    Evidence,
    Task,
    columns,
    descended,
    judge,
    steps_told,
    times_trained,
)
from benchmarks.round_file import CodeChanged

KEYS = [list(range(100)), list(range(100, NUM_ROWS))]
STEPS = {"sync": NUM_ROWS // FIT["batch"] * FIT["epochs"], "async": (9 + 12) * FIT["epochs"]}


def weights(times: int | np.ndarray = FIT["epochs"]) -> list[float]:
    return list(columns()["target"] * (1 - (1 - FIT["share"]) ** times))


def fitted(mode: str, **changes) -> dict:
    target = columns()["target"]
    losses = [float(np.mean((target * (1 - FIT["share"]) ** epoch) ** 2)) for epoch in range(FIT["epochs"])]
    found = {
        "weights": weights(),
        "iterations": STEPS[mode],
        "made": STEPS[mode],
        "losses": losses,
        "saved": 0,
        "first": 1,
    }
    return found | changes


def trained(**changes) -> dict:
    last = TRAINER["steps"]
    return {
        "slope": [1, -2, 3],
        "own": last // 2,
        "device": "/job:ps/task:0",
        "saved": f"model-{last}",
    } | changes


def output(found: dict | None, keys: list[int] | None = None, steps: tuple[int, ...] = ()) -> str:
    said = [f"STEP {step}" for step in steps]
    said += [f"KEYS {json.dumps(keys)}"] * (keys is not None) + [f"FOUND {json.dumps(found)}"] * (
        found is not None
    )
    return "".join(f"{line}\n" for line in said)


def evidence(cell: Cell, *, found: dict | None = None, keys: list[list[int]] = KEYS, **changes) -> Evidence:
    """Return the evidence of a correct round of two workers, with the given changes."""
    found, each = found or {}, [""] * 2
    others = [("ps 0", "")] * cell.num_ps
    if cell.mode == "sync":
        each = [output(fitted("sync", **found), own) for own in keys]
    elif cell.mode == "between":
        each = [output(trained(**found), own, (20, 21)) for own in keys]
    elif cell.mode == "async":
        others.append(("chief", output(fitted("async", **found))))
    else:
        right = {"slope": list(descended()), "device": "/job:ps/task:0", "keys": keys}
        others.append(("chief", output(right | found)))
    tasks = [Task(f"worker {i}", (2 * i, 2 * i + 1), len(KEYS[i]), said) for i, said in enumerate(each)]
    tasks += [Task(name, (), 0, said) for name, said in others]
    restarts = int(cell.victim is not None) - int(cell.is_replaced)
    causes = [f"{tasks[cell.victim or 0].name} ended by signal 9"] * restarts
    right_run = Evidence("succeeded", causes, int(cell.is_replaced), tasks)
    return replace(right_run, **changes)


GOING_ON = {mode: {"saved": 40, "first": 41} for mode in ("sync", "async")}


@pytest.mark.parametrize("fault", modes.FAULTS)
@pytest.mark.parametrize("mode", modes.MODES)
def test_what_is_right_passes(mode, fault):
    cell = Cell(mode, 2, fault)
    if fault == "ps" and not cell.num_ps:
        return
    found = {} if fault == "finish" else GOING_ON.get(mode, {})
    assert not judge(cell, evidence(cell, found=found)).problems


WRONG = {
    "not ended": ({"state": "failed"}, "the run is failed"),
    "a restart": ({"causes": ["worker 1 ended"]}, "1 restarts, not 0"),
    "a replacement": ({"replacements": 1}, "1 replacements, not 0"),
    "a process": ({"processes_left": 2}, "2 processes are left"),
    "a row twice": ({"keys": [KEYS[0], [99, *KEYS[1][1:]]]}, "not each row once"),
    "rows of others": ({"keys": [KEYS[0][:-1], [99, *KEYS[1]]]}, "were given"),
    "nothing said": (
        {"tasks": [Task("worker 0", (0,), 100, ""), Task("worker 1", (0,), 100, "")]},
        "cannot be read",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_with_a_run_is_seen(name):
    changes, told = WRONG[name]
    cell = Cell("sync", 2, "finish")
    assert told in "; ".join(judge(cell, evidence(cell, **changes)).problems)


def test_tasks_without_a_share_have_no_rows_and_workers_share_none():
    cell = Cell("async", 2, "finish")
    right = evidence(cell)
    first, second, ps, chief = right.tasks
    wrong = [replace(first, partitions=(2,)), second, replace(ps, rows=1), replace(chief, partitions=(1,))]
    problems = "; ".join(judge(cell, replace(right, tasks=wrong)).problems)
    assert all(each in problems for each in ("the same partition", "ps 0 has rows", "chief has rows"))


OFF = 2e-5
TOO_FEW, ONCE_MORE = np.full(NUM_ROWS, FIT["epochs"]), np.full(NUM_ROWS, FIT["epochs"])
TOO_FEW[5] -= 1
ONCE_MORE[:12] += 1
WRONG_RESULTS = [
    ("sync", "finish", {"weights": [each + OFF for each in weights()]}, "weights differ"),
    ("sync", "finish", {"losses": [1.0] * FIT["epochs"]}, "losses differ"),
    ("sync", "finish", {"iterations": 79}, "made 79 steps"),
    ("sync", "worker", {"saved": 40, "first": 1}, "step 1 came first, and step 40 was saved"),
    ("async", "finish", {"weights": [each + OFF for each in weights()]}, "not what any number of steps"),
    ("async", "finish", {"weights": weights(TOO_FEW)}, "1 rows were trained less than 4 times"),
    ("async", "finish", {"weights": weights(ONCE_MORE)}, "1 steps were done more than once; at most 0"),
    ("async", "worker", {"made": STEPS["async"] + 2}, "2 steps were done more than once; at most 1"),
    (
        "async",
        "ps",
        {"iterations": STEPS["async"] + 1, "saved": 40, "first": 42},
        "85 steps are counted, not 84",
    ),
    ("standalone", "ps", {"slope": [each + 2e-6 for each in descended()]}, "the slope differ"),
    ("standalone", "finish", {"device": "/job:worker/task:0"}, "the variable is on"),
    ("between", "finish", {"saved": "model-99"}, "step 99 is saved last"),
    ("between", "finish", {"own": 5}, "10 steps were made, and 100 are counted"),
    ("between", "finish", {"slope": [1, -2, 2.9]}, "slope differ"),
]


@pytest.mark.parametrize(("mode", "fault", "found", "told"), WRONG_RESULTS)
def test_what_is_wrong_with_a_result_is_seen(mode, fault, found, told):
    cell = Cell(mode, 2, fault)
    assert told in "; ".join(judge(cell, evidence(cell, found=found)).problems)


def test_the_killed_task_is_to_be_named():
    cell = Cell("standalone", 2, "ps")
    assert not judge(cell, evidence(cell)).problems
    assert "ps 0 was killed" in judge(cell, evidence(cell, causes=["worker 0 ended"])).problems[0]


def test_steps_that_were_done_again_are_counted():
    cell = Cell("async", 2, "worker")
    verdict = judge(cell, evidence(cell, found={"weights": weights(ONCE_MORE), "made": STEPS["async"] + 1}))
    assert (verdict.problems, verdict.repeated_steps) == ([], 1)
    assert times_trained(weights(ONCE_MORE)).tolist() == ONCE_MORE.tolist()


def test_a_step_counts_when_its_line_is_whole():
    assert steps_told("STEP 7\nelse\nSTEP 12\nSTEP 1") == [7, 12]


@pytest.mark.nightly
def test_a_later_sitting_goes_on(tmp_path):
    """Nightly. Shorter: tests/test_fault_results.py::test_a_campaign_goes_on_where_it_stopped"""
    row = {"mode": "async", "workers": 1, "fault": "ps", "restarts": 1, "replacements": 0, "steps_again": 2}
    modes.Rounds(tmp_path).add({**row, "seconds": 12.0, "problems": []})
    again = modes.Rounds(tmp_path)
    again.add({**row, "seconds": 14.0, "problems": ["the run is failed"]})
    assert len(again.of(Cell("async", 1, "ps"))) == 2 and not again.of(Cell("async", 2, "ps"))
    text = (tmp_path / "modes.md").read_text()
    assert "| async | 1 | ps | 1 / 2 | 1 | 0 | 4 | 13 |" in text
    assert "Wrong in async, 1 workers, ps: the run is failed" in text
    changed = modes.Rounds(tmp_path, lambda: "another one")
    with pytest.raises(CodeChanged, match="2 rounds in .* are of other code"):
        changed.begin(anew=False)
    changed.begin(anew=True)
    assert not changed.rows


def test_kinds_of_rounds_that_do_not_exist_are_left_out():
    kinds = list(modes.cells(modes._parser().parse_args([])))
    assert len(kinds) == 43
    assert Cell("sync", 2, "ps") not in kinds and Cell("between", 1, "chief") not in kinds
    assert {Cell("sync", 2, "chief").victim, Cell("async", 2, "chief").victim} == {0, 3}
