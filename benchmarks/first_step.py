"""`results/first_step.json`: time from running the cell to the first training step of two workers, cold and warm.

A cold run is the first one of a notebook. The warm run is the next one, for which the hosts keep processes ready. Like
a cell, this passes its script to `Session.start_run`. The script reports the duration of its TensorFlow import and the
time of its first step, by the clock that all processes of a machine share.
"""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any

import psutil

from benchmarks.cases import fill, mnist
from benchmarks.plan import Report
from benchmarks.process import VariantFailed
from ignite_tf_magic.client.client import connect
from ignite_tf_magic.runs.supervision.warm_hosts import WARM_HOSTS
from ignite_tf_magic.session import RunRequest, Session, open_session
from ignite_tf_magic.settings.options import ConnectOptions

NUM_WORKERS = 2
_ROWS = 2000
_MARK = "first step: "
_TIMEOUT_S = 180.0
_WARM_S = 600.0
_PARKED = "ignite_tf_magic.runs.parked"
_SCRIPT = Path(__file__).parent / "scripts" / "first_step.py"


def run(options: ConnectOptions, num_runs: int, report: Report) -> list[dict[str, Any]]:
    """Start the training script several times."""
    case = mnist(_ROWS)
    with connect(options) as client:
        fill(client, case)
        try:
            return [
                row for number in range(1, num_runs + 1) for row in _pair(options, case.cache, number, report)
            ]
        finally:
            client.destroy_cache(case.cache)


def _pair(options: ConnectOptions, cache: str, number: int, report: Report) -> list[dict[str, Any]]:
    """Start the script as the first cell of a notebook, and again once its hosts have processes ready."""
    cold = one_run(options, cache, f"run {number}", report)
    _await_parked()
    warm = one_run(options, cache, f"run {number}, warm", report)
    WARM_HOSTS.close()
    return [cold, warm]


def one_run(options: ConnectOptions, cache: str, name: str, report: Report) -> dict[str, Any]:
    """Start the script once, and return when its first step was done."""
    script = _SCRIPT.read_text(encoding="utf-8")
    began = time.time()
    with open_session(options, report=report) as session:
        request = RunRequest(
            cache, script, NUM_WORKERS, script_name="first_step", args=(cache,), warm_s=_WARM_S
        )
        told = _follow(session, request)
    first_step_s = max(each["first_step_at"] for each in told) - began
    import_s = max(each["import_s"] for each in told)
    # After the import begins the script's own work.
    above_script_s = max(each["started_at"] + each["import_s"] for each in told) - began
    report(
        f"first step, {name}: {first_step_s:.1f} s, of which import tensorflow {import_s:.1f} s; "
        f"{above_script_s:.2f} s above the script's own work"
    )
    return {
        "case": "first_step",
        "variant": f"{NUM_WORKERS} workers, {name}",
        "first_step_s": round(first_step_s, 3),
        "import_tensorflow_s": round(import_s, 3),
        "above_import_s": round(first_step_s - import_s, 3),
        "above_script_s": round(above_script_s, 3),
        "workers": told,
    }


def _await_parked() -> None:
    """Wait until the parked processes have finished their imports, as they would while a user reads."""
    deadline, used_s = time.monotonic() + _TIMEOUT_S, -1.0
    while time.monotonic() < deadline:
        now_s, num_parked = 0.0, 0
        for each in psutil.process_iter(["cmdline"]):
            if _PARKED in (each.info["cmdline"] or ()):
                with contextlib.suppress(psutil.Error):
                    now_s, num_parked = now_s + sum(each.cpu_times()[:2]), num_parked + 1
        if num_parked == NUM_WORKERS and now_s == used_s:
            return
        used_s = now_s
        time.sleep(1.0)
    raise VariantFailed(f"{NUM_WORKERS} processes were to be parked")


def _follow(session: Session, request: RunRequest) -> list[dict[str, Any]]:
    run = session.start_run(request)
    info = run.wait(_TIMEOUT_S)
    lines = "".join(chunk.text for chunk in run.follow()).splitlines()
    told = [json.loads(line.partition(_MARK)[2]) for line in lines if _MARK in line]
    if len(told) != NUM_WORKERS:
        raise VariantFailed(f"run {run.id} ended with {info.exit_code} and said:\n" + "\n".join(lines[-40:]))
    return told
