"""Commands for runs: `attach`, `resume`, `describe`, `stop`, `logs`, `history`, `model`, `prune`, `panel`, `doctor`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from ignite_tf_magic.errors import ConfigError, ConnectionFailed, RunNotFound
from ignite_tf_magic.serialization.terminal_text import coloured, whole_lines
from ignite_tf_magic.session import (
    OutputChunk,
    Run,
    TrainingRun,
    attach_run,
    diagnose,
    get_run,
    list_runs,
    only_run,
    open_session,
    stop_run,
)
from ignite_tf_magic.ui.commands.command import Command, flags
from ignite_tf_magic.ui.commands.nodes import notes_on
from ignite_tf_magic.ui.following import follow, print_as_json, show_output
from ignite_tf_magic.ui.metrics_views import KEPT_POINTS, comparison_view, history_view, series_of
from ignite_tf_magic.ui.metrics_views import as_json as records_as_json
from ignite_tf_magic.ui.options import (
    THE_NEWEST,
    add_doctor_options,
    add_prune_options,
    add_run,
    add_run_or_none,
    chosen_workers,
    count,
)
from ignite_tf_magic.ui.pictures import picture_of
from ignite_tf_magic.ui.render import failure_view, pruned_text
from ignite_tf_magic.ui.run_views import (
    describe_view,
    diagnosis_as_json,
    diagnosis_view,
    record_as_json,
    run_as_json,
)
from ignite_tf_magic.ui.screen import Screen, say_json

_LAST_EPOCHS = 10
_MOST_LINES = 8  # the number of lines that a reader can tell apart in a picture


def _meant(options: argparse.Namespace, screen: Screen, *, or_newest: bool = False) -> str:
    """Return the typed run id, which may be shortened, or else the id that `_only` returns."""
    return str(_only(options, screen, or_newest=or_newest) if options.run is None else options.run)


def _only(options: argparse.Namespace, screen: Screen, *, or_newest: bool) -> str:
    """Return the id of the only run that `session.only_run` finds, and report which run it is."""
    info = only_run(or_newest=or_newest, config=options.config, via=options.via)
    # Name the run: the choice changes over time, and a notebook keeps this output.
    screen.note(f"run {info.id}" + (f", {info.state.value}" if info.state.has_ended else ""))
    return info.id


def _run(options: argparse.Namespace, screen: Screen) -> TrainingRun:
    return get_run(_meant(options, screen, or_newest=True), options.config, options.via)


def _attach(options: argparse.Namespace, screen: Screen) -> None:
    run = attach_run(_meant(options, screen), options.config, options.via, report=screen.note)
    follow(run, screen, as_json=options.json)


def _resume(options: argparse.Namespace, screen: Screen) -> None:
    with open_session(report=screen.note, config=options.config, via=options.via) as session:
        run = session.resume_run(options.run)
        notes = notes_on(session, screen)
    ends = "" if screen.outlives_commands else "; it belongs to this process, and ends with it"
    screen.note(
        f"run {run.id} is started again; a training goes on where it has last saved a checkpoint{ends}"
    )
    follow(run, screen, notes=notes, as_json=options.json)


def _describe(options: argparse.Namespace, screen: Screen) -> None:
    run = _run(options, screen)
    if options.script:
        if options.json:
            raise ConfigError("--script prints the script as it is: leave --json out")
        screen.write(memoryview(run.script.encode()))
        return
    info, record, latest, failure = run.info(), run.record(), run.latest(), run.failure()
    given = _parameters(run)
    if options.json:
        say_json(screen, record_as_json(info, record, latest, given))
        return
    screen.show(describe_view(info, record, latest, given, datetime.now(timezone.utc)))
    if failure is not None:
        screen.show(failure_view(info, failure))


def _parameters(run: TrainingRun) -> dict[str, Any]:
    """Return the parameters of a run; none while no node answers, so that the other details can be shown."""
    try:
        return run.parameters
    except ConnectionFailed:
        return {}


def _stop(options: argparse.Namespace, screen: Screen) -> None:
    outcome = stop_run(_meant(options, screen), options.config, options.via)
    if options.json:
        say_json(screen, {**run_as_json(outcome.info), "outcome": outcome.kind.name.lower()})
    else:
        screen.say(f"run {outcome.info.id}: {outcome.kind.value}")


def _logs(options: argparse.Namespace, screen: Screen) -> None:
    run = _run(options, screen)
    workers = chosen_workers(run, options.worker)
    if options.follow:
        only = workers[0] if options.worker is not None else None
        with closing(run.follow(only, with_pauses=True)) as chunks:
            if options.json:
                print_as_json(run, chunks, screen)
            else:
                show_output(run, chunks, workers, screen.run_view(with_chart=False), screen)
        return
    lost = run.fetch()
    if options.json:
        print_as_json(run, _written(run, workers), screen)
    else:
        _show_files(run, workers, None if options.all else options.lines or screen.last_lines, screen)
    for each in lost:
        screen.note(str(each))


def _written(run: Run, workers: Sequence[int]) -> Iterator[OutputChunk]:
    for worker in workers:
        for path in run.logs(worker):
            yield from (OutputChunk(worker, text) for text in _pieces(path))


def _show_files(run: Run, workers: Sequence[int], num_lines: int | None, screen: Screen) -> None:
    stream, names = screen.stream(), run.info().tasks
    for worker in workers:
        if num_lines is not None:
            lines = run.last_lines(worker, num_lines)
            stream.write(coloured(f"--- {names[worker]}, the last {len(lines)} lines of {run.log(worker)}\n"))
            stream.write(coloured("\n".join(lines) + "\n"))
            continue
        for path in run.logs(worker):
            if len(workers) > 1:
                stream.write(coloured(f"--- {names[worker]}: {path}\n"))
            for text in whole_lines(_pieces(path)):
                stream.write(coloured(text))


def _pieces(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        while text := file.read(1 << 16):
            yield text


def _history(options: argparse.Namespace, screen: Screen) -> None:
    told = [(run, run.records(), run.parameters) for run in _runs_of(options, screen)]
    if options.json:
        say_json(screen, [records_as_json(*each) for each in told])
        return
    names = dict.fromkeys(name for _, records, _ in told for record in records for name in record.values)
    if options.best and options.best not in names:
        raise ConfigError(
            f"no run has reported {options.best}; they have reported {', '.join(names) or 'nothing'}"
        )
    is_one = len(told) == 1 and not options.best
    lines = [("" if is_one else run.id, records) for run, records, _ in told[-_MOST_LINES:]]
    screen.show_picture(lambda: picture_of(lines), lambda: series_of(lines, KEPT_POINTS))
    if is_one:
        screen.show(history_view(told[0][1], None if options.all else _LAST_EPOCHS))
    else:
        screen.show(comparison_view(told, options.best))


def _runs_of(options: argparse.Namespace, screen: Screen) -> list[TrainingRun]:
    """Return the named runs, or else the runs with all of the tags, newest last, or else the only run."""
    names = list(options.run)
    if not names and (options.tags or options.best):
        listed = list_runs(include_ended=True, config=options.config, via=options.via)
        for warning in listed.warnings:
            screen.note(warning)
        fitting = [run.id for run in listed if set(options.tags) <= set(run.tags)]
        names = fitting[-options.limit :]
        if len(fitting) > len(names):
            screen.note(f"the newest {len(names)} of {len(fitting)} runs; --limit takes more")
        if not names:
            raise RunNotFound(
                f"no run has the tag {', '.join(options.tags)}" if options.tags else "there are no runs"
            )
    names = names or [_only(options, screen, or_newest=True)]
    return [get_run(name, options.config, options.via) for name in names]


def _model(options: argparse.Namespace, screen: Screen) -> None:
    run = _run(options, screen)
    model = run.model(options.model, trust=options.trust)
    what = f"the model {model.name} of run {run.id}, {model.count_params():,} parameters"
    screen.keep(model, options.output, what)


def _prune(options: argparse.Namespace, screen: Screen) -> None:
    older_than = None if options.older_than is None else timedelta(days=options.older_than)
    with open_session(report=screen.note, config=options.config, via=options.via) as session:
        pruned = session.prune(keep=options.keep, older_than=older_than, dry_run=options.dry_run)
    if options.json:
        say_json(screen, [{"id": run.run_id, "bytes": run.num_bytes} for run in pruned])
    else:
        screen.say(pruned_text(pruned, options.keep, dry_run=options.dry_run))


def _panel(options: argparse.Namespace, screen: Screen) -> None:
    del options
    screen.show_panel()


def _doctor(options: argparse.Namespace, screen: Screen) -> int:
    checked = diagnose(options.cache, python=options.python, config=options.config, via=options.via)
    if options.json:
        say_json(screen, diagnosis_as_json(checked))
    else:
        screen.show(diagnosis_view(checked))
    return 0 if checked.is_healthy else 1


def _add_described(describe: argparse.ArgumentParser) -> None:
    add_run_or_none(describe, or_newest=True)
    flags(describe, ("--script", "print the script that its workers execute, instead"))


def _add_logs(logs: argparse.ArgumentParser) -> None:
    add_run_or_none(logs, or_newest=True)
    logs.add_argument("--worker", metavar="I", help="only of this worker, counted from 0; or of ps0, chief")
    logs.add_argument("--lines", type=count, metavar="N", help="the last N (a shell: all; a notebook: 200)")
    flags(
        logs,
        ("--all", "the whole output, in a notebook, too"),
        ("-f", "--follow", "show new output until the run has ended"),
    )


def _add_history(history: argparse.ArgumentParser) -> None:
    history.add_argument("run", nargs="*", metavar="RUN", help=f"one, or several side by side ({THE_NEWEST})")
    history.add_argument(
        "--tag",
        dest="tags",
        action="append",
        default=[],
        metavar="T",
        help="all runs with this tag, side by side",
    )
    history.add_argument(
        "--best", metavar="METRIC", help="sort by the best value of a metric, as val_loss; the best run first"
    )
    history.add_argument(
        "--limit", type=count, default=20, metavar="N", help="at most N of the newest runs (20)"
    )
    flags(history, ("--all", "all epochs of one run"))


def _add_model(model: argparse.ArgumentParser) -> None:
    add_run_or_none(model, or_newest=True)
    model.add_argument(
        "--model", metavar="NAME", help="the model's name in Keras, if there are several (the last)"
    )
    model.add_argument(
        "-o", "--output", metavar="NAME", help="a notebook's variable for it; in a shell a file"
    )
    flags(model, ("--trust", "run code in the model's file, such as that of Lambda layers"))


_SHOWN = "The exit code is the run's. An interrupt ends only the watching."

COMMANDS = (
    Command(
        "attach",
        "show a run's output from its beginning, until it ends",
        _attach,
        add_run_or_none,
        _SHOWN,
        example="k3f",
    ),
    Command(
        *(
            "resume",
            "restart a run that failed, was stopped or was lost, from its checkpoints",
            _resume,
            add_run,
        ),
        "It goes on with its script, arguments and cache; this process owns it.",
        example="k3f",
    ),
    Command("describe", "show the details of a run", _describe, _add_described, example="k3f\nk3f --script"),
    Command("stop", "end a run's processes", _stop, add_run_or_none, example="k3f"),
    Command("logs", "show a run's output", _logs, _add_logs, example="k3f --worker 1 --lines 50"),
    Command(
        *("history", "show the training metrics of runs, and compare them", _history, _add_history),
        example="k3f 9xw\n--tag first --best val_loss",
    ),
    Command(
        "model",
        "load the model that a run's fit has saved",
        _model,
        _add_model,
        example="k3f -o model",
        has_json=False,
    ),
    Command(
        *(
            "prune",
            "remove runs that ended, with their files in igfs and on hosts",
            _prune,
            add_prune_options,
        ),
        example="--keep 5 --dry-run",
    ),
    Command(
        "panel",
        "see runs, nodes and caches as they are, and stop runs; in a terminal also: top",
        _panel,
        example="",
        of_cluster=False,
        has_json=False,
    ),
    Command(
        *("doctor", "check all that runs need, and show how to fix it", _doctor, add_doctor_options),
        "The exit code is 1 when something is wrong.",
        example="DIGITS",
    ),
)
