"""`results/first_step.json`: from running the cell to the first training step of two workers.

A cell hands its script to `Session.start_run`; so does this. The script says how long its import of TensorFlow
took and when its first step was done, by the clock that all processes of a machine share.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from benchmarks.cases import fill, mnist
from benchmarks.plan import Report
from benchmarks.process import VariantFailed
from ignite_tf_magic.client.client import connect
from ignite_tf_magic.config.options import ConnectOptions
from ignite_tf_magic.session import RunRequest, Session, open_session

NUM_WORKERS = 2
_ROWS = 2000
_MARK = "first step: "
_TIMEOUT_S = 180.0
_SCRIPT = Path(__file__).parent / "scripts" / "first_step.py"


def run(options: ConnectOptions, num_runs: int, report: Report) -> list[dict[str, Any]]:
    """Start the training script several times."""
    case = mnist(_ROWS)
    with connect(options) as client:
        fill(client, case)
        try:
            return [_one_run(options, case.cache, number, report) for number in range(1, num_runs + 1)]
        finally:
            client.destroy_cache(case.cache)


def _one_run(options: ConnectOptions, cache: str, number: int, report: Report) -> dict[str, Any]:
    script = _SCRIPT.read_text(encoding="utf-8")
    began = time.time()
    with open_session(options, report=report) as session:
        told = _follow(
            session, RunRequest(cache, script, NUM_WORKERS, script_name="first_step", args=(cache,))
        )
    first_step_s = max(each["first_step_at"] for each in told) - began
    import_s = max(each["import_s"] for each in told)
    report(
        f"first step, run {number}: {first_step_s:.1f} s, of which import tensorflow {import_s:.1f} s; "
        f"{first_step_s - import_s:.1f} s above it"
    )
    return {
        "case": "first_step",
        "variant": f"{NUM_WORKERS} workers, run {number}",
        "first_step_s": round(first_step_s, 3),
        "import_tensorflow_s": round(import_s, 3),
        "above_import_s": round(first_step_s - import_s, 3),
        "workers": told,
    }


def _follow(session: Session, request: RunRequest) -> list[dict[str, Any]]:
    run = session.start_run(request)
    info = run.wait(_TIMEOUT_S)
    lines = "".join(chunk.text for chunk in run.follow()).splitlines()
    told = [json.loads(line.partition(_MARK)[2]) for line in lines if _MARK in line]
    if len(told) != NUM_WORKERS:
        raise VariantFailed(f"run {run.id} ended with {info.exit_code} and said:\n" + "\n".join(lines[-40:]))
    return told
