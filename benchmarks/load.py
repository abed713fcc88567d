"""`results/load.json`: rows into a cache with one backup, by this package's bulk load and by pyignite's put_all."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from benchmarks.cases import mnist
from benchmarks.plan import Effort, Report
from benchmarks.process import python_variant
from benchmarks.scan import measure_rounds, row_of
from ignite_tf_magic.settings.options import ConnectOptions

MODULES = {"put_rows": "write_rows", "pyignite_put_all": "write_pyignite"}
HAS_SQL = {"mnist": True, "mnist_plain": False}
_BATCHES = (256, 1024, 4096)


def run(
    options: ConnectOptions,
    num_rows: int,
    effort: Effort,
    report: Report,
    cases: Sequence[str] = tuple(HAS_SQL),
) -> list[dict[str, Any]]:
    """Measure loading into a cache that is also a SQL table, as `load` makes it, and into a plain one."""
    return [row for name in cases for row in _run_case(options, name, num_rows, effort, report)]


def _run_case(
    options: ConnectOptions, name: str, num_rows: int, effort: Effort, report: Report
) -> list[dict[str, Any]]:
    endpoint = options.endpoints[0]
    task = {
        "host": endpoint.host,
        "port": endpoint.port,
        "num_rows": num_rows,
        "sampled_rows": min(num_rows, 8192),
        "batches": _BATCHES,
        "with_sql": HAS_SQL[name],
    }
    with ExitStack() as ends:
        running, chosen = [], {}
        for variant, module in MODULES.items():
            report(f"load {name}: preparing {variant}")
            cache = f"BENCH_LOAD_{variant.upper()}"
            process = ends.enter_context(python_variant(variant, module, {**task, "cache": cache}))
            chosen[variant] = process.answer()
            running.append(process)
        best = measure_rounds(running, effort, lambda line: report(f"load {name}: {line}"))
    base = best["pyignite_put_all"].rows_per_s
    case = mnist(num_rows)
    return [
        {
            **row_of(case, variant, measured),
            "case": name,
            "ratio_to_pyignite": round(measured.rows_per_s / base, 3),
            **chosen[variant],
        }
        for variant, measured in best.items()
    ]
