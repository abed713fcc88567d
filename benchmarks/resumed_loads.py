"""`python -m benchmarks.resumed_loads`: kills one load with SIGKILL again and again, and always resumes it.

At the end every row must be there once. A cache that looks complete earlier, or has wrong rows at the end, fails the
benchmark.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import tables
from ignite_tf_magic.client.cache_facts import check_complete
from ignite_tf_magic.embedded import EmbeddedOptions, Lifetime, down, ensure_up
from ignite_tf_magic.errors import LoadIncomplete
from ignite_tf_magic.session import Session, open_session
from tests.data.test_loading import has_rows, kill_load

NAME = "resumed_loads"
_NODES = EmbeddedOptions(heap="256m", num_nodes=3)
_CACHE, _ROWS = "RESUMED_LOAD", 1_000_000


def kill(session: Session, cluster: Any, number: int, left: int, chance: random.Random) -> dict[str, Any]:
    """Resume the load, and kill it at a random moment. Returns the number of rows at that time."""
    there = session.client.cache(_CACHE).size() if _CACHE in session.client.cache_names() else 0
    least = there + chance.randint(1, max((_ROWS - there) // (left + 1), 1))
    kill_load(session, cluster, _CACHE, _ROWS, lambda: has_rows(session, _CACHE, least), "resume")
    try:
        check_complete(session.client, _CACHE)
        is_marked = False
    except LoadIncomplete:
        is_marked = True
    rows = session.client.cache(_CACHE).size()
    return {"number": number, "rows_of_load": _ROWS, "rows_there": rows, "marked": is_marked, "whole": False}


def finish(session: Session, number: int) -> dict[str, Any]:
    """Resume the load to its end. Returns whether every row is there once."""
    session.load(_CACHE, {"x": np.arange(_ROWS), "y": np.zeros((_ROWS, 64), np.uint8)}, resume=True)
    check_complete(session.client, _CACHE)
    (found,) = session.query(f"SELECT COUNT(*), SUM(x), MIN(x), MAX(x) FROM {_CACHE}").rows
    ((different,),) = session.query(f"SELECT COUNT(*) FROM (SELECT DISTINCT x FROM {_CACHE})").rows
    is_whole = (different, *map(int, found)) == (_ROWS, _ROWS, _ROWS * (_ROWS - 1) // 2, 0, _ROWS - 1)
    return {
        "number": number,
        "rows_of_load": _ROWS,
        "rows_there": different,
        "marked": False,
        "whole": is_whole,
    }


def main(argv: list[str] | None = None) -> None:
    """Kill the load repeatedly, finish it, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--results", type=Path, default=tables.RESULTS)
    options = parser.parse_args(argv)
    home = Path(tempfile.mkdtemp(prefix="resumed-loads-"))
    cluster = ensure_up(_NODES, Lifetime.UNTIL_IDLE, home=home).cluster
    chance = random.Random()
    try:
        with open_session(cluster.connect_options, report=lambda _: None) as session:
            rounds = [
                kill(session, cluster, number, options.kills - number, chance)
                for number in range(options.kills)
            ]
            rounds.append(finish(session, options.kills))
    finally:
        down(home, delete_data=True)
    tables.write(options.results, NAME, rounds)
    tables.show(tables.console(), options.results, (NAME,))
    if not rounds[-1]["whole"] or not all(each["marked"] for each in rounds[:-1]):
        raise SystemExit("a load that was killed looks complete, or has not every row once at its end")


if __name__ == "__main__":
    main()
