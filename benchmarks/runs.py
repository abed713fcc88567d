"""Runs that benchmarks start. Not imported by what is measured: it loads the session."""

from __future__ import annotations

from benchmarks.process import VariantFailed
from ignite_tf_magic.session import Run, RunState
from ignite_tf_magic.ui.render import failure_view


def check_succeeded(run: Run) -> None:
    """Refuse a run that has not succeeded, with the words of the worker that failed first."""
    info, failure = run.info(), run.failure()
    if info.state is not RunState.SUCCEEDED:
        words = failure_view(info, failure).text if failure else f"it is {info.state.value}"
        raise VariantFailed(f"run {run.id}: {words}")
