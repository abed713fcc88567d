"""Variant `pyignite`: pyignite's scan over one connection, with its best page size."""

from __future__ import annotations

from itertools import islice
from typing import Any

from pyignite import Client

from benchmarks.process import Stopwatch, best_of, repeat, serve, task_of_this_process


def main(task: dict[str, Any]) -> None:
    """Serve the harness."""
    client = Client()
    with client.connect(task["host"], task["port"]):
        cache = client.get_cache(task["cache"])
        num_rows = task["sampled_rows"]

        def read(page_rows: int, watch: Stopwatch) -> int:
            with watch, cache.scan(page_size=page_rows) as cursor:
                return sum(1 for _ in islice(cursor, num_rows))

        def trial(page_rows: int) -> float:
            return repeat(lambda watch: read(page_rows, watch), num_rows, task["trial_s"]).rows_per_s

        page_rows = best_of(task["page_rows"], trial)
        serve(lambda watch: read(page_rows, watch), num_rows, {"page_rows": page_rows})


if __name__ == "__main__":
    main(task_of_this_process())
