"""`python -m benchmarks.picked [--rounds N]`: compares fields and rows picked by nodes with whole rows.

Rows of 20 fields, numbers alone and numbers with text, into `results/picked.json`: all fields, two of them from whole
rows, two of them by SQL, those that `fields=` picks itself, and a hundredth of the rows by `where=`. All ways read in
one process, in turn; the best round of each counts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import tables
from benchmarks.nodes import node_of_its_own
from ignite_tf_magic.dataset import row_queries
from ignite_tf_magic.dataset.options import read_options
from ignite_tf_magic.dataset.reader import ChunkReader
from ignite_tf_magic.dataset.source import Source, open_source
from ignite_tf_magic.embedded import EmbeddedOptions
from ignite_tf_magic.session import load
from ignite_tf_magic.settings.options import ConnectOptions, Endpoint

NAME = "picked"
FIELDS = ("F0", "F1")


def columns(kind: str, num_rows: int) -> dict[str, Any]:
    """Make 20 fields: 20 numbers, or 2 numbers and 18 texts of 100 letters."""
    random = np.random.default_rng(1)
    numbers = 20 if kind == "numbers" else 2
    found: dict[str, Any] = {f"F{n}": random.normal(size=num_rows) for n in range(numbers)}
    text = np.array([f"{row:0100}" for row in range(num_rows)], object)
    return found | {f"F{n}": text for n in range(numbers, 20)}


def ways(endpoint: Endpoint, cache: str, num_rows: int) -> dict[str, Callable[[], Source]]:
    """Return a function for each way of reading that opens the source."""
    where = {"host": endpoint.host, "port": endpoint.port}
    limit = float(np.quantile(np.random.default_rng(1).normal(size=num_rows), 0.01))

    def some() -> Source:
        return open_source(read_options(cache, fields=FIELDS, **where))

    def by_sql() -> Source:
        worth, row_queries.WORTH = row_queries.WORTH, 0
        try:
            return some()
        finally:
            row_queries.WORTH = worth

    return {
        "all": lambda: open_source(read_options(cache, **where)),
        "two_of_whole_rows": lambda: replace(some(), picked=None),
        "two_by_sql": by_sql,
        "two": some,
        "where": lambda: open_source(read_options(cache, where="F0 < ?", where_args=[limit], **where)),
    }


def _pass_s(source: Source) -> float:
    began = time.perf_counter()
    with ChunkReader(source) as reader:
        for _ in reader.chunks():
            pass
    return time.perf_counter() - began


def measure(options: ConnectOptions, kind: str, num_rows: int, rounds: int) -> list[dict[str, Any]]:
    """Fill a cache, read it in all ways, and return the rows of the table."""
    cache = f"PICKED_{kind.upper()}"
    load(cache, columns(kind, num_rows), options=options, backups=0, replace=True, report=str)
    sources = {name: make() for name, make in ways(options.endpoints[0], cache, num_rows).items()}
    best = dict.fromkeys(sources, float("inf"))
    for _ in range(rounds + 1):
        for name, source in sources.items():
            best[name] = min(best[name], _pass_s(source))
    return [
        {
            "case": kind,
            "variant": name,
            "by_sql": sources[name].picked is not None,
            "rows_per_s": round(num_rows / seconds),
            "ratio_to_all": round(best["all"] / seconds, 2),
        }
        for name, seconds in best.items()
    ]


def main(argv: list[str] | None = None) -> None:
    """Measure both kinds of rows and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--results", type=Path, default=tables.RESULTS)
    arguments = parser.parse_args(argv)
    with node_of_its_own(NAME, EmbeddedOptions(heap="1g", region="2g")) as options:
        rows = [
            row
            for kind in ("numbers", "texts")
            for row in measure(options, kind, arguments.rows, arguments.rounds)
        ]
    tables.write(arguments.results, NAME, rows)
    tables.show(tables.console(), arguments.results, (NAME,))


if __name__ == "__main__":
    main()
