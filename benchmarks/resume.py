"""`results/resume.json`: trainings of 500 steps on two workers, one of which is killed at a random moment.

The run restarts by itself. It must make the same number of steps and reach the loss of an undisturbed training.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

from benchmarks.cases import fill, mnist
from benchmarks.plan import Report
from benchmarks.runs import check_succeeded
from ignite_tf_magic.client.client import connect
from ignite_tf_magic.session import RunRequest, Session, TrainingRun, open_session
from ignite_tf_magic.settings.options import ConnectOptions

NUM_WORKERS, NUM_STEPS = 2, 500
_ROWS = NUM_STEPS // 5 * 32
_LASTS_S = 9.0  # approximate seconds from the first step of a training to its last
_SCRIPT = Path(__file__).parent / "scripts" / "train_500.py"


def run(options: ConnectOptions, num_rounds: int, report: Report) -> dict[str, Any]:
    """Play the rounds. Rounds whose training ended before the kill do not count."""
    case = mnist(_ROWS)
    with connect(options) as client, open_session(options, report=report) as session:
        fill(client, case)
        try:
            undisturbed = _train(session, case.cache, None)
            rounds = []
            while len(rounds) < num_rounds:
                moment_s = random.uniform(0.0, _LASTS_S)
                found = _train(session, case.cache, moment_s)
                if found["restarts"]:
                    rounds.append(found)
                    report(f"round {len(rounds)}: struck after {moment_s:.1f} s; {found['steps']} steps")
        finally:
            client.destroy_cache(case.cache)
    return _summary(rounds, undisturbed)


def _train(session: Session, cache: str, moment_s: float | None) -> dict[str, Any]:
    request = RunRequest(cache, _SCRIPT.read_text(encoding="utf-8"), NUM_WORKERS, script_name=_SCRIPT.stem)
    started = session.start_run(request)
    begun_at = None
    for chunk in started.follow(with_pauses=True):
        if "begun" in chunk.text and begun_at is None:
            begun_at = time.monotonic()
        if moment_s is not None and begun_at is not None and time.monotonic() - begun_at > moment_s:
            _strike(started)
            moment_s = None
    check_succeeded(started)
    return {**started.result, "restarts": started.info().restarts}


def _strike(started: TrainingRun) -> None:
    """Kill one worker, as the system does when memory runs out."""
    pids = [worker.pid for worker in started.record().workers if worker.pid is not None]
    with contextlib.suppress(ProcessLookupError):
        os.kill(random.choice(pids), signal.SIGKILL)


def _summary(rounds: list[dict[str, Any]], undisturbed: dict[str, Any]) -> dict[str, Any]:
    losses = undisturbed["losses"]
    differences = [
        max(abs(mine - theirs) / theirs for mine, theirs in zip(found["losses"], losses, strict=True))
        for found in rounds
    ]
    return {
        "rounds": len(rounds),
        "exact_steps": sum(found["steps"] == NUM_STEPS for found in rounds),
        "worst_loss_difference": max(differences),
        "undisturbed_steps": undisturbed["steps"],
    }
