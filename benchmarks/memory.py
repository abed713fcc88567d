"""`results/memory.json`: growth of the reader's memory over a cache of 2 GB."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks.cases import Case, fill
from benchmarks.plan import Report
from benchmarks.process import VariantFailed, python_variant
from ignite_tf_magic.client.client import connect
from ignite_tf_magic.settings.options import ConnectOptions

_PASSES = 2


def run(options: ConnectOptions, case: Case, report: Report) -> list[dict[str, Any]]:
    """Load the rows of a case without backups, read them twice in one process, and remove them.

    The first pass measures the row sizes; the second reads in pages of a suitable size.
    """
    case = replace(case, backups=0)
    report(f"memory {case.name}: loading {case.num_rows:,} rows")
    endpoint = options.endpoints[0]
    task = {
        "cache": case.cache,
        "host": endpoint.host,
        "port": endpoint.port,
        "batch_rows": case.batch_rows,
        "row_bytes": case.row_bytes,
        "passes": _PASSES,
    }
    with connect(options) as client:
        fill(client, case)
        try:
            with python_variant("memory", "read_memory", task) as reader:
                return [_row_of(case, number, reader.answer(), report) for number in range(1, _PASSES + 1)]
        finally:
            client.destroy_cache(case.cache)


def _row_of(case: Case, number: int, answer: dict[str, Any], report: Report) -> dict[str, Any]:
    if answer["rows"] != case.num_rows:
        raise VariantFailed(f"pass {number} gave {answer['rows']} rows, and there are {case.num_rows}")
    growth_mb = answer["peak_mb"] - answer["base_mb"]
    report(f"memory {case.name}: after pass {number} {growth_mb:,.0f} MB more than after the first 100 MB")
    return {
        "case": case.name,
        "variant": f"dataset_batch, pass {number}",
        "rows": case.num_rows,
        "data_mb": round(case.num_rows * case.row_bytes / 1e6, 1),
        "rss_after_100_mb": round(answer["base_mb"], 1),
        "peak_rss_mb": round(answer["peak_mb"], 1),
        "growth_mb": round(growth_mb, 1),
    }
