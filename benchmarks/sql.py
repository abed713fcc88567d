"""`results/sql.json`: reads a table of numbers, text and times into a frame, by this SQL client and by pyignite's."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import numpy as np

from benchmarks.cases import Case
from benchmarks.plan import Effort, Report
from benchmarks.process import python_variant
from benchmarks.scan import measure_rounds, row_of
from ignite_tf_magic.client.client import connect
from ignite_tf_magic.session import load
from ignite_tf_magic.settings.options import ConnectOptions

VARIANTS = ("pyignite", "rows", "pandas", "arrow", "polars")
_ROW_BYTES = 8 + 8 + 8 + 10 + 8 + 4 + 4


def run(options: ConnectOptions, num_rows: int, effort: Effort, report: Report) -> list[dict[str, Any]]:
    """Measure `SELECT *`. A pass of pyignite makes a DataFrame of its rows."""
    case = Case("mixed", num_rows, _ROW_BYTES, ("A", "B", "C", "D", "E", "F"), 0, (), num_rows, 0)
    _fill(options, case)
    endpoint = options.endpoints[0]
    task = {"host": endpoint.host, "port": endpoint.port, "num_rows": num_rows, "table": case.cache}
    try:
        with ExitStack() as ends:
            running = []
            for variant in VARIANTS:
                report(f"sql: preparing {variant}")
                process = ends.enter_context(python_variant(variant, "use_sql", {**task, "variant": variant}))
                process.answer()
                running.append(process)
            best = measure_rounds(running, effort, lambda line: report(f"sql: {line}"))
    finally:
        with connect(options) as client:
            client.destroy_cache(case.cache)
    base = best["pyignite"].rows_per_s
    return [
        {
            **row_of(case, variant, measured),
            "ratio_to_pyignite": round(measured.rows_per_s / base, 2),
        }
        for variant, measured in best.items()
    ]


def _fill(options: ConnectOptions, case: Case) -> None:
    random, num_rows = np.random.default_rng(20), case.num_rows
    columns = {
        "A": random.integers(0, 1 << 40, num_rows),
        "B": random.normal(size=num_rows),
        "C": np.array([f"name {number:05}" for number in range(num_rows)]),
        "D": np.datetime64("2020-01-01") + np.arange(num_rows) * np.timedelta64(1, "m"),
        "E": random.integers(0, 9, num_rows).astype(np.int32),
        "F": random.normal(size=num_rows).astype(np.float32),
    }
    load(case.cache, columns, options=options, backups=case.backups, replace=True, report=str)
