"""Trains in one way of `scripts/train_cnn.py`, one turn at a time; as a program, also in older trees.

It is started by the path of this file, so that only `ignite_tf_magic` and `benchmarks.process` come from the tree. The
chief measures the time in its script.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.process import Stopwatch, VariantFailed, serve, task_of_this_process
from ignite_tf_magic.session import RunRequest, open_session

WAYS = (
    ("two_workers", "ignite"),
    ("two_workers", "tfrecord"),
    ("one_worker", "ignite"),
    ("one_worker", "plain"),
)
NUM_WORKERS = {"one_worker": 1, "two_workers": 2}
_SCRIPT = Path(__file__).parent / "scripts" / "train_cnn.py"
_NUM_EPOCHS = 2
_MOST_TURNS = 10_000
_TURN_S = 300.0
_PAUSE_S = 0.02


def main(task: dict[str, Any]) -> None:
    """Serve the harness."""
    os.environ["IGNITE_TF_CLUSTER"] = f"{task['host']}:{task['port']}"
    script, num_rows = _SCRIPT.read_text(encoding="utf-8"), int(task["num_rows"]) * _NUM_EPOCHS
    with tempfile.TemporaryDirectory() as folder, open_session(report=_say) as session:
        args = ("--turns", folder, str(_MOST_TURNS), str(_NUM_EPOCHS), task["way"])
        num_workers = NUM_WORKERS[task["case"]]
        run = session.start_run(
            RunRequest(task["cache"], script, num_workers, script_name=_SCRIPT.stem, args=args)
        )
        try:
            numbers = itertools.count()

            def one_pass(watch: Stopwatch) -> int:
                _take_turn(run, Path(folder) / str(next(numbers)), watch)
                return num_rows

            one_pass(Stopwatch())
            serve(one_pass, num_rows, {"run": run.id})
        finally:
            run.stop()


def _say(words: str) -> None:
    print(words, file=sys.stderr)


def _take_turn(run: Any, turn: Path, watch: Stopwatch) -> None:
    turn.touch()
    took, deadline = turn.with_suffix(".took"), time.monotonic() + _TURN_S
    while not took.exists():
        if run.info().state.has_ended or time.monotonic() > deadline:
            raise VariantFailed(f"run {run.id} has not done its turn; it is {run.info().state.value}")
        time.sleep(_PAUSE_S)
    (found,) = json.loads(took.read_text(encoding="utf-8")).values()
    watch.seconds += found["seconds"]
    watch.cpu_s += found["cpu_s"]


if __name__ == "__main__":
    main(task_of_this_process())
