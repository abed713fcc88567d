"""Watching a run from a cell: its output at a pace that Jupyter can follow, a chart of its training, how it ended."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ignite_tf_magic.errors import RunFailed
from ignite_tf_magic.ui.live_output import LiveOutput
from ignite_tf_magic.ui.metrics_views import last_words, speed_text
from ignite_tf_magic.ui.notebook.chart import LiveChart
from ignite_tf_magic.ui.notebook.screen import say, show, write_through
from ignite_tf_magic.ui.render import end_view, failure_view
from ignite_tf_magic.session import MetricsTail, RunState, TrainingRun
from ignite_tf_magic.ui.stall_notices import telling

_TAKE_INTERVAL_S = 0.05
_PROGRESS_INTERVAL_S = 0.25
_LOOK_INTERVAL_S = 1.0
# Jupyter's server drops the output of kernels that write more than 1 MB a second for some seconds.
_MAX_CHARS_PER_S = 800_000
_MAX_BURST_CHARS = 2_000_000


def watch(run: TrainingRun, notes: Sequence[str] = (), *, with_chart: bool = True) -> None:
    """Show a run's output until it has ended, then how it ended.

    Raises:
        RunFailed: It did not succeed.
        KeyboardInterrupt: The person stopped watching; the run goes on.
    """
    output, chart = LiveOutput(run.info().num_workers), LiveChart() if with_chart else None
    with run.tail() as tail:
        try:
            _show_output(run, output, tail, chart)
        except KeyboardInterrupt:
            write_through(output.finish())
            say(
                f"not watching any more; run {run.id} goes on\n"
                f"  watch it again: %ignite_tf attach {run.id}\n  stop it:        %ignite_tf stop {run.id}"
            )
            raise
        write_through(output.finish())
        if run.info().state is RunState.SUCCEEDED:
            tail.catch_up()
        if chart:
            chart.draw(tail.records())
        _show_end(run, [*last_words(tail.records()), *notes])


def _show_output(run: TrainingRun, output: LiveOutput, tail: MetricsTail, chart: LiveChart | None) -> None:
    pace, taken, progressed, looked, known = _Pace(), 0.0, 0.0, 0.0, 0
    for chunk in telling(run, run.follow(with_pauses=True), output.say):
        output.feed(chunk.worker, chunk.text)
        now = time.monotonic()
        if now - looked >= _LOOK_INTERVAL_S and tail.num_records > known:
            looked, known = now, tail.num_records
            records = tail.records()
            output.note(speed_text(records[-1]))
            if chart:
                chart.draw(records, lambda: write_through(output.lift()))
        if now - taken >= _TAKE_INTERVAL_S:
            with_progress = now - progressed >= _PROGRESS_INTERVAL_S
            text = output.take(with_progress=with_progress)
            write_through(text)
            pace.wait(len(text))
            taken, progressed = now, now if with_progress else progressed


class _Pace:
    """Makes who shows a flood of output wait, so that all of it arrives."""

    def __init__(self) -> None:
        self._allowed = float(_MAX_BURST_CHARS)
        self._at = time.monotonic()

    def wait(self, num_chars: int) -> None:
        """Wait after so many characters, if they were too many."""
        now = time.monotonic()
        earned = (now - self._at) * _MAX_CHARS_PER_S
        self._allowed = min(self._allowed + earned, _MAX_BURST_CHARS) - num_chars
        self._at = now
        if self._allowed < 0:
            time.sleep(-self._allowed / _MAX_CHARS_PER_S)


def _show_end(run: TrainingRun, notes: Sequence[str]) -> None:
    info, failure = run.info(), run.failure()
    if failure is not None:
        show(failure_view(info, failure))
        what = failure.summary.partition(". ")[0]
        if failure.traceback:
            what += f": {failure.traceback.rstrip().rpartition(chr(10))[2]}"
        raise RunFailed(run.id, info.exit_code, f"run {run.id} did not succeed: {what}")
    show(end_view(info, notes))
    if info.state is not RunState.SUCCEEDED:
        raise RunFailed(run.id, info.exit_code, f"run {run.id} did not succeed: it is {info.state.value}")
