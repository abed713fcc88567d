"""Follows a run: shows the merged output of its workers, the state of the training, and how the run ended."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from ignite_tf_magic.errors import RunFailed
from ignite_tf_magic.session import MetricsTail, OutputChunk, Run, RunInfo, RunState, TrainingRun
from ignite_tf_magic.ui.live_output import LiveOutput
from ignite_tf_magic.ui.metrics_views import last_words
from ignite_tf_magic.ui.progress import progress_of
from ignite_tf_magic.ui.render import end_view, failure_view
from ignite_tf_magic.ui.run_views import run_as_json
from ignite_tf_magic.ui.stall_notices import telling

if TYPE_CHECKING:
    from ignite_tf_magic.session import TrainingRecord
    from ignite_tf_magic.ui.screen import RunView, Screen

_TAKE_INTERVAL_S = 0.05
_LOOK_INTERVAL_S = 1.0
_HOLD_S = 3.0  # a process that fails with a traceback has ended by then


def follow(
    run: TrainingRun,
    screen: Screen,
    *,
    notes: Sequence[str] = (),
    as_json: bool = False,
    view: RunView | None = None,
) -> None:
    """Show a run's output from its beginning until it has ended, then how it ended.

    Args:
        run: The run.
        screen: Where it is shown.
        notes: Lines to show below the end of the run.
        as_json: Print a line of JSON for each piece of output, and one for the end.
        view: An open view in which to follow the run; None opens one.

    Raises:
        RunFailed: The run did not succeed.
        KeyboardInterrupt: The person stopped watching; the run continues.
    """
    workers = range(len(run.info().tasks))
    is_left = False
    with run.tail() as tail, closing(run.follow(with_pauses=True)) as chunks:
        try:
            if as_json:
                print_as_json(run, telling(run, chunks, screen.note), screen)
            else:
                view = view or screen.run_view()
                show_output(run, chunks, workers, view, screen, tail)
                is_left = view.is_left
        except KeyboardInterrupt:
            screen.note(_after_watching(run, screen))
            raise
        words = last_words(tail.records())
    if is_left:
        screen.note(_after_watching(run, screen))
    else:
        _show_end(run, screen, [*words, *notes], as_json=as_json)


def _after_watching(run: Run, screen: Screen) -> str:
    if not screen.outlives_commands and not run.info().detached and run.record().owner_pid == os.getpid():
        return (
            f"\nrun {run.id} ends with this command, which owns it\n"
            f"  go on with it: {screen.command_name} resume {run.id}"
        )
    return (
        f"\nno longer watching; run {run.id} goes on\n"
        f"  watch it again: {screen.command_name} attach {run.id}\n"
        f"  stop it:        {screen.command_name} stop {run.id}"
    )


def show_output(
    run: TrainingRun,
    chunks: Iterable[OutputChunk],
    workers: Sequence[int],
    view: RunView,
    screen: Screen,
    tail: MetricsTail | None = None,
) -> None:
    """Show the output of workers as it arrives. A single worker's lines do not show its name.

    Args:
        run: The run of the workers.
        chunks: The output of the workers, with empty chunks in pauses.
        workers: The numbers of the workers to follow.
        view: Where the output is shown.
        screen: Shows notices if the view cannot rewrite lines.
        tail: The metrics of the training; None shows only the output.
    """
    view.begin(run)
    info = run.info()
    output = LiveOutput(
        [info.tasks[worker] for worker in workers],
        is_screen=view.is_rewritable,
        holds_tracebacks=tail is not None and view.tells_failures_once,
    )
    places = {worker: place for place, worker in enumerate(workers)}
    looked = taken = float("-inf")
    records: list[TrainingRecord] = []
    num_known, held_at = 0, None
    say = output.say if view.is_rewritable else screen.note
    try:
        for chunk in telling(run, chunks, say):
            if chunk.text:  # empty chunks, from pauses, do not belong to a worker
                output.feed(places[chunk.worker], chunk.text)
            now = time.monotonic()
            if tail and now - looked >= _LOOK_INTERVAL_S:
                looked, info = now, run.info()
                if tail.num_records != num_known:
                    num_known, records = tail.num_records, tail.records()
                view.show(progress_of(info, records, datetime.now(timezone.utc)), records)
            held_at = (held_at or now) if output.holds else None
            if held_at and now - held_at > _HOLD_S and info.state is RunState.RUNNING:
                output.release()
            if now - taken >= _TAKE_INTERVAL_S:
                taken = now
                view.write(output)
            if view.is_left:
                break
    except BaseException:
        _close(view, output, info, records)
        raise
    info, told = run.info(), ""
    if tail and info.state is RunState.SUCCEEDED:
        tail.catch_up()
    if output.holds and not view.is_left and (failure := run.failure()) is not None:
        told = failure.traceback or ""
    _close(view, output, info, tail.records() if tail else [], told)


def _close(
    view: RunView, output: LiveOutput, info: RunInfo, records: Sequence[TrainingRecord], told: str = ""
) -> None:
    """Show all remaining output, except for the traceback `told`, which the end of the run shows."""
    output.end_lines()
    output.release(told)
    view.close(output, progress_of(info, records, datetime.now(timezone.utc)), records)


def print_as_json(run: Run, chunks: Iterable[OutputChunk], screen: Screen) -> None:
    """Print each piece of output as a line of JSON."""
    names = run.info().tasks
    for chunk in chunks:
        if chunk.text:
            screen.say(json.dumps({"worker": chunk.worker, "task": names[chunk.worker], "text": chunk.text}))


def _show_end(run: TrainingRun, screen: Screen, notes: Sequence[str], *, as_json: bool) -> None:
    info, failure = run.info(), run.failure()
    if as_json:
        screen.say(json.dumps(run_as_json(info)))
    else:
        screen.show_end(end_view(info, notes) if failure is None else failure_view(info, failure))
    if failure is not None:
        what = failure.summary.partition(". ")[0]
        if failure.traceback:
            what += f": {failure.traceback.rstrip().rpartition(chr(10))[2]}"
        raise _failed(info, what)
    if info.state is not RunState.SUCCEEDED:
        raise _failed(info, f"it is {info.state.value}")


def _failed(info: RunInfo, what: str) -> RunFailed:
    return RunFailed(info.id, info.exit_code, f"run {info.id} did not succeed: {what}")
