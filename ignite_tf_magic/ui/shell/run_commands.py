"""`ignite-tf start`, `attach`, `ps`, `describe`, `logs`, `stop`, `history`, `prune`, `doctor`: what the shell does."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

from ignite_tf_magic.errors import ConfigError
from ignite_tf_magic.ui.live_output import LiveOutput
from ignite_tf_magic.ui.metrics_views import as_json as records_as_json
from ignite_tf_magic.ui.metrics_views import comparison_view, history_view, last_words, speed_text
from ignite_tf_magic.ui.render import end_view, failure_view, pruned_text, runs_view
from ignite_tf_magic.ui.run_views import (
    describe_view,
    diagnosis_as_json,
    diagnosis_view,
    explain_as_json,
    explain_view,
    record_as_json,
    run_as_json,
)
from ignite_tf_magic.session import (
    MetricsTail,
    OutputChunk,
    Run,
    RunRequest,
    TrainingRun,
    attach_run,
    diagnose,
    get_run,
    list_runs,
    open_session,
    stop_run,
)
from ignite_tf_magic.ui.shared_options import (
    add_config_options,
    add_doctor_options,
    add_history_options,
    add_prune_options,
    add_run,
    add_run_options,
    chosen_workers,
    given_options,
    whole,
)
from ignite_tf_magic.ui.stall_notices import telling
from ignite_tf_magic.serialization.terminal_text import coloured, echo, whole_lines

_TAKE_INTERVAL_S = 0.05
_EXIT_LOST = 1

Add = Callable[[str, Callable[[argparse.Namespace], "int | None"], str], argparse.ArgumentParser]


def add_run_commands(add: Add) -> None:
    """Add the commands to a parser; `add` makes one and says what it does."""
    _add_start(add("start", _start, "run a command beside the data, on hosts that answer for it themselves"))
    ps = _with_config(add("ps", _ps, "list runs"))
    ps.add_argument("--all", action="store_true", help="also those that ended")
    attach = _of_run(add("attach", _attach, "show a run's output from its beginning, until it ends"))
    attach.epilog = "The exit code is the run's. Ctrl-C ends only the watching."
    resume = _of_run(add("resume", _resume, "start a run again that failed, was stopped or was lost"))
    resume.epilog = (
        "It goes on from its checkpoints, with its script, arguments and cache; this process owns it."
    )
    _of_run(add("describe", _describe, "tell all that is known of a run"))
    _of_run(add("stop", _stop, "end a run's processes"))
    history = _with_config(add("history", _history, "show what runs have told of their training"))
    add_history_options(history)
    logs = _of_run(add("logs", _logs, "print a run's output"))
    logs.add_argument("--worker", type=whole, metavar="I", help="of this worker only, counted from 0")
    logs.add_argument("-f", "--follow", action="store_true", help="go on until the run has ended")
    prune = _with_config(
        add("prune", _prune, "forget runs that ended, with their files in igfs and on hosts")
    )
    add_prune_options(prune)
    doctor = _with_config(add("doctor", _doctor, "look at all that runs need, and tell how to mend it"))
    add_doctor_options(doctor)
    doctor.epilog = "The exit code is 1 when something is wrong."


def _with_config(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    add_config_options(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _of_run(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    add_run(_with_config(parser))
    return parser


def _add_start(start: argparse.ArgumentParser) -> None:
    _with_config(start)
    add_run_options(start, default_workers="one for each node")
    start.usage = "ignite-tf start [-c FILE] [OPTIONS] CACHE_NAME JOB_DIR JOB_CMD [JOB_ARGS...]"
    start.add_argument("cache", metavar="CACHE_NAME", help="the cache that is read")
    start.add_argument(
        "job",
        nargs=argparse.REMAINDER,
        metavar="JOB_DIR JOB_CMD [JOB_ARGS...]",
        help="what every worker runs, where",
    )
    start.epilog = (
        "JOB_DIR is a directory or an archive; every worker gets a copy of it and runs JOB_CMD there. `python` is the "
        "run's interpreter. Our own options come before CACHE_NAME. The exit code is the run's. Ctrl-C leaves the run "
        "to its hosts."
    )


def _start(options: argparse.Namespace) -> int | None:
    request = _request(options)
    with open_session(report=_say, config=options.config, via=options.via) as session:
        if options.workers is None:
            request = replace(request, num_workers=session.default_num_workers())
        if options.explain:
            planned = session.plan_run(request)
            shown = explain_view(planned.rows).text
            echo(json.dumps(explain_as_json(planned), indent=1) if options.json else shown)
            return None
        run = session.start_run(request)
    _say(f"run {run.id} is in the hands of its hosts: {', '.join(run.info().hosts)}")
    if options.detach:
        echo(json.dumps(run_as_json(run.info())) if options.json else run.id)
        return None
    return _watch(run, as_json=options.json)


def _request(options: argparse.Namespace) -> RunRequest:
    if len(options.job) < 2:
        example = "ignite-tf start MNIST . python train.py"
        raise ConfigError(f"start needs JOB_DIR and JOB_CMD behind CACHE_NAME, as in: {example}")
    job_dir = Path(options.job[0])
    if not job_dir.exists():
        raise ConfigError(
            f"JOB_DIR {str(job_dir)!r} is neither a directory nor an archive; give one (`.` is this directory)"
        )
    return RunRequest(
        options.cache,
        script_name=" ".join(options.job[1:]),
        command=tuple(options.job[1:]),
        job_dir=job_dir,
        detach=True,
        **given_options(options),
    )


def _attach(options: argparse.Namespace) -> int | None:
    run = attach_run(options.run, options.config, options.via, report=_say)
    return _watch(run, as_json=options.json)


def _resume(options: argparse.Namespace) -> int | None:
    with open_session(report=_say, config=options.config, via=options.via) as session:
        run = session.resume_run(options.run)
    _say(f"run {run.id} goes on from its checkpoints; it belongs to this process, and ends with it")
    return _watch(run, as_json=options.json)


def _watch(run: TrainingRun, *, as_json: bool) -> int | None:
    """Show a run's output until it has ended; gives its exit code."""
    try:
        with run.tail() as tail, closing(run.follow(with_pauses=True)) as chunks:
            _print_chunks(run, chunks, run.info().num_workers, as_json=as_json, tail=tail)
            tail.catch_up()
            words = last_words(tail.records())
    except KeyboardInterrupt:
        _say(f"\nnot watching any more; run {run.id} goes on\n  watch it again: ignite-tf attach {run.id}")
        _say(f"  stop it:        ignite-tf stop {run.id}")
        raise
    return _say_end(run, words, as_json=as_json)


def _say_end(run: Run, words: Sequence[str], *, as_json: bool) -> int:
    info, failure = run.info(), run.failure()
    if as_json:
        echo(json.dumps(run_as_json(info)))
    else:
        _say((failure_view(info, failure) if failure else end_view(info, words)).text)
    return _EXIT_LOST if info.exit_code is None else info.exit_code


def _print_chunks(
    run: Run,
    chunks: Iterator[OutputChunk],
    num_workers: int,
    *,
    as_json: bool,
    tail: MetricsTail | None = None,
) -> None:
    is_screen = sys.stdout.isatty() and not as_json
    output = LiveOutput(num_workers, is_screen=is_screen)
    told = telling(run, chunks, output.say if is_screen else _say)
    if as_json:
        _print_lines(told)
    else:
        show_output(told, output, num_workers, tail)


def show_output(
    chunks: Iterator[OutputChunk], output: LiveOutput, num_workers: int, tail: MetricsTail | None
) -> None:
    """Print what workers write, as it comes; the only one of a run, or the only one followed, is not named.

    Args:
        chunks: What they write, with chunks without text in its pauses.
        output: Joins it.
        num_workers: How many are followed.
        tail: What the training tells; its speed stands behind the last line.
    """
    taken, known = 0.0, 0
    for chunk in chunks:
        if tail and tail.num_records > known:
            known = tail.num_records
            output.note(speed_text(tail.records()[-1]))
        output.feed(chunk.worker if num_workers > 1 else 0, chunk.text)
        if time.monotonic() - taken >= _TAKE_INTERVAL_S:
            _write(output.take())
            taken = time.monotonic()
    _write(output.finish())


def _print_lines(chunks: Iterator[OutputChunk]) -> None:
    for chunk in chunks:
        if chunk.text:
            echo(json.dumps({"worker": chunk.worker, "text": chunk.text}), flush=True)


def _ps(options: argparse.Namespace) -> None:
    listed = list_runs(include_ended=options.all, config=options.config, via=options.via)
    for warning in listed.warnings:
        _say(warning)
    if options.json:
        echo(json.dumps([run_as_json(run) for run in listed.runs], indent=1))
    elif not listed.runs:
        echo("no runs" if options.all else "no runs are going on; --all lists those that ended, too")
    else:
        echo(runs_view(listed.runs, datetime.now(timezone.utc)).text)


def _describe(options: argparse.Namespace) -> None:
    run = get_run(options.run, options.config, options.via)
    info, record, latest = run.info(), run.record(), run.latest()
    if options.json:
        echo(json.dumps(record_as_json(info, record, latest), indent=1))
        return
    echo(describe_view(info, record, latest, datetime.now(timezone.utc)).text)
    if (failure := run.failure()) is not None:
        echo(failure_view(info, failure).text)


def _history(options: argparse.Namespace) -> None:
    runs = [get_run(name, options.config, options.via) for name in options.run]
    found = [(run, run.records()) for run in runs]
    if options.json:
        echo(json.dumps([records_as_json(run, records) for run, records in found], indent=1))
    else:
        echo((history_view(found[0][1]) if len(found) == 1 else comparison_view(found)).text)


def _stop(options: argparse.Namespace) -> None:
    outcome = stop_run(options.run, options.config, options.via)
    if options.json:
        echo(json.dumps({**run_as_json(outcome.info), "outcome": outcome.kind.name.lower()}))
        return
    echo(f"run {outcome.info.id}: {outcome.kind.value}")


def _doctor(options: argparse.Namespace) -> int:
    found = diagnose(options.cache, python=options.python, config=options.config, via=options.via)
    if options.json:
        echo(json.dumps(diagnosis_as_json(found), indent=1))
    else:
        echo(diagnosis_view(found).text)
    return 0 if found.is_healthy else 1


def _prune(options: argparse.Namespace) -> None:
    older_than = None if options.older_than is None else timedelta(days=options.older_than)
    with open_session(report=_say, config=options.config, via=options.via) as session:
        pruned = session.prune(keep=options.keep, older_than=older_than, dry_run=options.dry_run)
    if options.json:
        echo(json.dumps([{"id": run.run_id, "bytes": run.num_bytes} for run in pruned], indent=1))
    else:
        echo(pruned_text(pruned, options.keep, dry_run=options.dry_run))


def _logs(options: argparse.Namespace) -> None:
    run = get_run(options.run, options.config, options.via)
    workers = chosen_workers(run, options.worker)
    if options.follow:
        with closing(run.follow(options.worker, with_pauses=True)) as chunks:
            _print_chunks(run, chunks, len(workers), as_json=options.json)
        return
    lost = run.fetch()
    if options.json:
        _print_lines(_written(run, workers))
    else:
        _print_files(run, workers)
    for each in lost:
        _say(str(each))


def _written(run: Run, workers: Sequence[int]) -> Iterator[OutputChunk]:
    for worker in workers:
        for path in run.logs(worker):
            yield from (OutputChunk(worker, text) for text in _pieces(path))


def _print_files(run: Run, workers: Sequence[int]) -> None:
    for worker in workers:
        for path in run.logs(worker):
            if len(workers) > 1:
                echo(f"--- worker {worker}: {path}", flush=True)
            for text in whole_lines(_pieces(path)):
                _write(coloured(text))


def _pieces(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        while text := file.read(1 << 16):
            yield text


def _write(text: str) -> None:
    """Write what has been made fit for a terminal."""
    sys.stdout.write(text)
    sys.stdout.flush()


def _say(line: str) -> None:
    echo(line, file=sys.stderr, flush=True)
