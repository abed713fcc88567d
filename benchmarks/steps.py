"""`results/steps.json`: milliseconds per step of small models on two workers, each on a core of its own.

The same processes measure all ways of a model in turn.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from benchmarks.cases import fill, mnist
from benchmarks.plan import Report
from benchmarks.runs import run_script
from ignite_tf_magic.client.client import connect
from ignite_tf_magic.session import open_session
from ignite_tf_magic.settings.options import ConnectOptions

_NUM_ROWS = 1000  # unused, but a run needs a cache
_SCRIPT = Path(__file__).parent / "scripts" / "step_times.py"


def run(options: ConnectOptions, num_rounds: int, num_steps: int, report: Report) -> list[dict[str, Any]]:
    """Measure `num_steps` steps in each way, `num_rounds` times."""
    case = mnist(_NUM_ROWS)
    with connect(options) as client, open_session(options, report=report) as session:
        fill(client, case)
        try:
            done = run_script(session, case.cache, _SCRIPT, 2, (str(num_rounds), str(num_steps)))
        finally:
            client.destroy_cache(case.cache)
    return [_row(model, found) for model, found in done.result.items()]


def _row(model: str, found: dict[str, list[float]]) -> dict[str, Any]:
    """Return a row with the milliseconds of each way."""
    rounds = [dict(zip(found, times, strict=True)) for times in zip(*found.values(), strict=True)]
    return {
        "case": model,
        **{f"{way}_ms": round(statistics.median(times), 3) for way, times in found.items()},
        "ours_ms": round(statistics.median(each["fit"] - each["alone"] - each["sum"] for each in rounds), 3),
        "ratio_to_mirrored": round(statistics.median(each["mirrored"] / each["fit"] for each in rounds), 2),
    }
