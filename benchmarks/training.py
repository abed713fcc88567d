"""`results/training.json`: a small convolutional net on two workers, from Ignite and from local files; our overhead.

The same processes train in all ways of a table in turn; ratios compare adjacent trainings.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from benchmarks.cases import fill, mnist
from benchmarks.plan import Report
from benchmarks.runs import run_script
from ignite_tf_magic.client.client import connect
from ignite_tf_magic.session import Session, TrainingRun, open_session
from ignite_tf_magic.settings.options import ConnectOptions

_NUM_EPOCHS = 4
_SCRIPT = Path(__file__).parent / "scripts" / "train_cnn.py"


def run(options: ConnectOptions, num_rows: int, num_rounds: int, report: Report) -> list[dict[str, Any]]:
    """Train `num_rounds` times in each way, a few epochs each time."""
    case = mnist(num_rows)
    with connect(options) as client, open_session(options, report=report) as session:
        fill(client, case)
        try:
            two = _train(session, case.cache, 2, num_rounds, ("tfrecord", "ignite"))
            one = _train(session, case.cache, 1, num_rounds, ("plain", "tfrecord"))
        finally:
            client.destroy_cache(case.cache)
    waits = [record.data_wait for record in _of_ignite(two)]
    return [
        *_rows("two_workers", num_rows, two.result, base="tfrecord", data_wait=statistics.median(waits)),
        *_rows("one_worker", num_rows, one.result, base="plain", data_wait=None),
    ]


def _of_ignite(run: TrainingRun) -> list[Any]:
    """Return the epochs read from Ignite: every other training, without the first, which compiles."""
    epochs = [record for record in run.records() if record.is_epoch and record.data_wait is not None]
    return [each for each in epochs if int(each.training.partition("-")[2]) % 2 == 1][1:]


def _train(
    session: Session, cache: str, num_workers: int, num_rounds: int, ways: tuple[str, ...]
) -> TrainingRun:
    arguments = (str(num_rounds), str(_NUM_EPOCHS), *ways)
    return run_script(session, cache, _SCRIPT, num_workers, arguments)


def _rows(
    case: str, num_rows: int, found: dict[str, list[float]], *, base: str, data_wait: float | None
) -> list[dict[str, Any]]:
    return [
        {
            "case": case,
            "variant": way,
            "rows_per_s": round(num_rows * _NUM_EPOCHS / min(times)),
            f"ratio_to_{base}": round(
                statistics.median(mine / own for mine, own in zip(found[base], times, strict=True)), 3
            ),
            "data_wait": round(data_wait, 3) if data_wait is not None and way == "ignite" else None,
        }
        for way, times in found.items()
    ]
