"""`python -m benchmarks.killed_predictions`: kills one prediction again and again, and always resumes it.

With SIGKILL: in every second round first a worker, then the whole prediction; otherwise only the whole. At the end,
each row must have exactly one output row with the model's output. A cache that looks complete earlier, or has wrong
rows at the end, fails the benchmark.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import tables
from ignite_tf_magic.client.cache_facts import check_complete
from ignite_tf_magic.embedded import EmbeddedOptions, Lifetime, down, ensure_up
from ignite_tf_magic.errors import CacheNotFound, LoadIncomplete
from ignite_tf_magic.session import Session, open_session
from tests.prediction.predicted import content, expected, kill_prediction, linear_model, num_rows, rows_of

NAME = "killed_predictions"
_NODES = EmbeddedOptions(heap="256m", num_nodes=3)
_SOURCE, _TARGET, _ROWS = "KILLED_IN", "KILLED_OUT", 200_000


def kill(
    session: Session, cluster: Any, model: Path, number: int, left: int, chance: random.Random
) -> dict[str, Any]:
    """Resume the prediction, and kill it at random moments. Returns the number of output rows at that time."""
    there = num_rows(session, _TARGET)
    first, last = sorted(there + chance.randint(1, max((_ROWS - there) // (left + 1), 2)) for _ in range(2))
    kills_worker = number % 2 == 0
    kill_prediction(
        session,
        cluster.connect_options.endpoints[0].port,
        model,
        _SOURCE,
        _TARGET,
        lambda: num_rows(session, _TARGET) >= last,
        (lambda: num_rows(session, _TARGET) >= first) if kills_worker else None,
    )
    try:
        check_complete(session.client, _TARGET)
        is_marked = False
    except (LoadIncomplete, CacheNotFound):
        is_marked = True
    return {
        "number": number,
        "kills": 1 + kills_worker,
        "rows": _ROWS,
        "rows_there": num_rows(session, _TARGET),
        "marked": is_marked,
        "whole": False,
    }


def finish(session: Session, model: Path, number: int) -> dict[str, Any]:
    """Resume the prediction to its end. Returns whether each row has its own output exactly once."""
    session.predict(model, _SOURCE, _TARGET, workers=2, fields=["x"], resume=True)
    check_complete(session.client, _TARGET)
    found = content(session, _TARGET)
    is_whole = sorted(found) == list(range(_ROWS)) and np.array_equal(
        np.stack([found[key][0]["prediction"] for key in range(_ROWS)]), expected(rows_of(_ROWS))
    )
    return {
        "number": number,
        "kills": 0,
        "rows": _ROWS,
        "rows_there": len(found),
        "marked": False,
        "whole": bool(is_whole),
    }


def main(argv: list[str] | None = None) -> None:
    """Kill the prediction repeatedly, finish it, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--results", type=Path, default=tables.RESULTS)
    options = parser.parse_args(argv)
    home = Path(tempfile.mkdtemp(prefix="killed-predictions-"))
    os.environ["IGNITE_TF_HOME"] = str(home / "state")  # for the runs
    cluster = ensure_up(_NODES, Lifetime.UNTIL_IDLE, home=home / "cluster").cluster
    chance = random.Random()
    try:
        model = home / "model.keras"
        linear_model(model)
        with open_session(cluster.connect_options, report=lambda _: None) as session:
            session.load(_SOURCE, rows_of(_ROWS))
            rounds = [
                kill(session, cluster, model, number, options.kills - number, chance)
                for number in range(options.kills)
            ]
            rounds.append(finish(session, model, options.kills))
    finally:
        down(home / "cluster", delete_data=True)
    tables.write(options.results, NAME, rounds)
    tables.show(tables.console(), options.results, (NAME,))
    if not rounds[-1]["whole"] or not all(each["marked"] for each in rounds[:-1]):
        raise SystemExit("a prediction that was killed looks complete, or has not every row once at its end")


if __name__ == "__main__":
    main()
