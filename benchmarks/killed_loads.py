"""`python -m benchmarks.killed_loads`: kills loads with SIGKILL at increasing numbers of loaded rows.

Each load must be marked as unfinished, so that reading its cache or starting a run on it is refused. A round without
the mark fails the benchmark.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import tables
from ignite_tf_magic.client.cache_facts import check_complete, forget
from ignite_tf_magic.embedded import EmbeddedOptions, Lifetime, down, ensure_up
from ignite_tf_magic.errors import LoadIncomplete
from ignite_tf_magic.session import Session, open_session
from tests.data.test_loading import has_rows, kill_load

NAME = "killed_loads"
_NODES = EmbeddedOptions(heap="256m", num_nodes=3)
_CACHE, _ROWS, _MOST_BEFORE = "KILLED_LOAD", 300_000, 10_000


def play(session: Session, cluster: Any, number: int, num_rounds: int) -> dict[str, Any]:
    """Kill a load after some rows. Returns the number of rows in the cache, and whether it is marked."""
    least = 1 + number * _MOST_BEFORE // num_rounds
    kill_load(session, cluster, _CACHE, _ROWS, lambda: has_rows(session, _CACHE, least))
    try:
        check_complete(session.client, _CACHE)
        is_marked, rows = False, session.client.cache(_CACHE).size()
    except LoadIncomplete as error:
        is_marked, rows = True, error.rows
    session.client.destroy_cache(_CACHE)
    forget(session.client, _CACHE)
    return {"number": number, "rows_of_load": _ROWS, "rows_there": rows, "marked": is_marked}


def main(argv: list[str] | None = None) -> None:
    """Play the rounds and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--results", type=Path, default=tables.RESULTS)
    options = parser.parse_args(argv)
    home = Path(tempfile.mkdtemp(prefix="killed-loads-"))
    cluster = ensure_up(_NODES, Lifetime.UNTIL_IDLE, home=home).cluster
    try:
        with open_session(cluster.connect_options, report=lambda _: None) as session:
            rounds = [play(session, cluster, number, options.rounds) for number in range(options.rounds)]
    finally:
        down(home, delete_data=True)
    tables.write(options.results, NAME, rounds)
    tables.show(tables.console(), options.results, (NAME,))
    if not all(each["marked"] for each in rounds):
        raise SystemExit("a load that was killed looks complete")


if __name__ == "__main__":
    main()
