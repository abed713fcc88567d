"""Runs that tests wait for."""

from __future__ import annotations

from ignite_tf_magic.session import RunRequest, Session, TrainingRun


def succeeded(session: Session, request: RunRequest, timeout_s: float = 600) -> tuple[TrainingRun, str]:
    """Start a run and wait for its end; return it and what its workers have said."""
    run = session.start_run(request)
    text = "".join(chunk.text for chunk in run.follow())
    run.wait(timeout_s)
    assert run.failure() is None, text
    return run, text
