"""Runs that tests wait for."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from ignite_tf_magic.session import RunRequest, Session, TrainingRun


def succeeded(session: Session, request: RunRequest, timeout_s: float = 600) -> tuple[TrainingRun, str]:
    """Start a run and wait for its end; return it and what its workers have said."""
    run = session.start_run(request)
    text = "".join(chunk.text for chunk in run.follow())
    run.wait(timeout_s)
    assert run.failure() is None, text
    return run, text


def succeeded_though_killed(
    session: Session,
    request: RunRequest,
    task: int,
    is_time: Callable[[TrainingRun, str], bool],
    timeout_s: float = 600,
) -> tuple[TrainingRun, str]:
    """As `succeeded`, with one SIGKILL to a task of the run as soon as that is to be, by what was said until then."""
    run, text, is_killed = session.start_run(request), "", False
    for chunk in run.follow():
        text += chunk.text
        if not is_killed and is_time(run, text):
            pid = run.info().workers[task].pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            is_killed = True
    run.wait(timeout_s)
    assert run.failure() is None, text
    return run, text
