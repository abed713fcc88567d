"""One loop that follows a run: what its workers write, joined; how the training goes; how it ended."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from ignite_tf_magic.errors import RunFailed
from ignite_tf_magic.session import MetricsTail, OutputChunk, Run, RunInfo, RunState, TrainingRun
from ignite_tf_magic.ui.live_output import LiveOutput
from ignite_tf_magic.ui.metrics_views import last_words, speed_text
from ignite_tf_magic.ui.render import end_view, failure_view
from ignite_tf_magic.ui.run_views import run_as_json
from ignite_tf_magic.ui.stall_notices import telling

if TYPE_CHECKING:
    from ignite_tf_magic.ui.screen import Screen

_TAKE_INTERVAL_S = 0.05
_LOOK_INTERVAL_S = 1.0


def follow(
    run: TrainingRun,
    screen: Screen,
    *,
    notes: Sequence[str] = (),
    as_json: bool = False,
    with_chart: bool = True,
) -> None:
    """Show a run's output from its beginning until it has ended, then how it ended.

    Args:
        run: The run.
        screen: Where it is shown.
        notes: Lines that stand under its end.
        as_json: Print a line of JSON for each piece of output, and one for the end.
        with_chart: Draw the training, where the screen can.

    Raises:
        RunFailed: It did not succeed.
        KeyboardInterrupt: The person stopped watching; the run goes on.
    """
    workers = range(len(run.info().tasks))
    with run.tail() as tail, closing(run.follow(with_pauses=True)) as chunks:
        try:
            if as_json:
                print_as_json(run, telling(run, chunks, screen.note), screen)
            else:
                show_output(run, chunks, workers, screen, tail, with_chart=with_chart)
        except KeyboardInterrupt:
            screen.note(_after_watching(run, screen))
            raise
        words = last_words(tail.records())
    _show_end(run, screen, [*words, *notes], as_json=as_json)


def _after_watching(run: Run, screen: Screen) -> str:
    if not screen.outlives_commands and not run.info().detached and run.record().owner_pid == os.getpid():
        return (
            f"\nrun {run.id} ends with this command, which owns it\n"
            f"  go on with it: {screen.command_name} resume {run.id}"
        )
    return (
        f"\nnot watching any more; run {run.id} goes on\n"
        f"  watch it again: {screen.command_name} attach {run.id}\n"
        f"  stop it:        {screen.command_name} stop {run.id}"
    )


def show_output(
    run: Run,
    chunks: Iterable[OutputChunk],
    workers: Sequence[int],
    screen: Screen,
    tail: MetricsTail | None = None,
    *,
    with_chart: bool = False,
) -> None:
    """Show what workers write, as it comes; one alone is not named.

    Args:
        run: Whose workers they are.
        chunks: What they write, with chunks without text in its pauses.
        workers: Those that are followed.
        screen: Where it is shown.
        tail: What the training tells; its speed stands behind the last line.
        with_chart: Draw that, where the screen can.
    """
    stream, chart = screen.stream(), screen.chart() if with_chart and tail else None
    names = run.info().tasks
    output = LiveOutput([names[worker] for worker in workers], is_screen=stream.is_rewritable)
    places = {worker: place for place, worker in enumerate(workers)}
    looked = taken = rewritten = 0.0
    num_known = 0
    say = output.say if stream.is_rewritable else screen.note
    try:
        for chunk in telling(run, chunks, say):
            if chunk.text:  # those of pauses are of no worker
                output.feed(places[chunk.worker], chunk.text)
            now = time.monotonic()
            if tail and tail.num_records > num_known and now - looked >= _LOOK_INTERVAL_S:
                looked, num_known, records = now, tail.num_records, tail.records()
                output.note(speed_text(records[-1]))
                if chart:
                    chart.draw(records, lambda: stream.write(output.lift()))
            if now - taken >= _TAKE_INTERVAL_S:
                with_progress = now - rewritten >= stream.rewriting_interval_s
                stream.write(output.take(with_progress=with_progress))
                taken, rewritten = now, now if with_progress else rewritten
    finally:
        stream.write(output.finish())
    if tail and run.info().state is RunState.SUCCEEDED:
        tail.catch_up()
    if tail and chart:
        chart.draw(tail.records(), lambda: None)


def print_as_json(run: Run, chunks: Iterable[OutputChunk], screen: Screen) -> None:
    """Print each piece of output for programs."""
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
