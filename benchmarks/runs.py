"""Runs that benchmarks start. Measured processes must not import it, because it loads the session."""

from __future__ import annotations

from pathlib import Path

from benchmarks.process import VariantFailed
from ignite_tf_magic.session import Run, RunRequest, RunState, Session, TrainingRun
from ignite_tf_magic.ui.render import failure_view

_TIMEOUT_S = 1800.0


def run_script(
    session: Session, cache: str, script: Path, num_workers: int, arguments: tuple[str, ...]
) -> TrainingRun:
    """Run a script to its end. Raises if it does not succeed."""
    source = script.read_text(encoding="utf-8")
    run = session.start_run(RunRequest(cache, source, num_workers, script_name=script.stem, args=arguments))
    run.wait(_TIMEOUT_S)
    check_succeeded(run)
    return run


def check_succeeded(run: Run) -> None:
    """Raise if a run has not succeeded, with the output of the first failed worker."""
    info, failure = run.info(), run.failure()
    if info.state is not RunState.SUCCEEDED:
        words = failure_view(info, failure).text if failure else f"it is {info.state.value}"
        raise VariantFailed(f"run {run.id}: {words}")
