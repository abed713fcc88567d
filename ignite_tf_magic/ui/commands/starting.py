"""`start`: runs a script or a command on workers beside the data."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ignite_tf_magic.errors import ConfigError
from ignite_tf_magic.session import RunRequest, Session, TrainingRun, open_session, read_source
from ignite_tf_magic.ui.commands.command import Command, add_common_options, flags
from ignite_tf_magic.ui.commands.nodes import notes_on
from ignite_tf_magic.ui.following import follow
from ignite_tf_magic.ui.options import add_run_options, add_version, given_options, whole
from ignite_tf_magic.ui.render import where_it_runs
from ignite_tf_magic.ui.run_views import explain_as_json, explain_view, run_as_json
from ignite_tf_magic.ui.screen import RunView, Screen, say_json

_SURVIVES_S = 600
_BEGINNING = "connecting to the cluster, and placing workers beside its data"
WARM_S = 600.0  # for notebooks, which often start another run soon


def _start(options: argparse.Namespace, screen: Screen) -> None:
    if options.output is not None and screen.outlives_commands and not options.output.isidentifier():
        raise ConfigError(f"-o {options.output} is not the name of a variable")
    request = _request(options, screen)
    if options.explain:
        _explain(request, options, screen)
        return
    is_followed = not (options.detach or options.json)
    view = screen.run_view(with_chart=not options.no_chart) if is_followed else None
    with (
        view.busy(_BEGINNING) if view else nullcontext(),
        open_session(report=screen.note, config=options.config, via=options.via) as session,
    ):
        run = session.start_run(_with_workers(request, session, options))
        notes = notes_on(session, screen)
    _follow(run, request, options, screen, notes, view)


def _explain(request: RunRequest, options: argparse.Namespace, screen: Screen) -> None:
    with open_session(report=screen.note, config=options.config, via=options.via) as session:
        planned = session.plan_run(_with_workers(request, session, options))
    if options.json:
        say_json(screen, explain_as_json(planned))
    else:
        screen.show(explain_view(planned.rows))


def _with_workers(request: RunRequest, session: Session, options: argparse.Namespace) -> RunRequest:
    if options.num_workers is None and request.command:
        return replace(request, num_workers=session.default_num_workers())
    return request


def _follow(
    run: TrainingRun,
    request: RunRequest,
    options: argparse.Namespace,
    screen: Screen,
    notes: list[str],
    view: RunView | None,
) -> None:
    info = run.info()
    if view is None or not view.tells_where:
        screen.note(f"run {run.id}: {where_it_runs(info)}")
    if request.detach:
        screen.note(f"  its hosts supervise it; watch it: {screen.command_name} attach {run.id}")
    elif options.tunnel and not screen.outlives_commands:
        screen.note("  its connections go through this process, so the run ends with it")
    if options.output:
        screen.keep(run, options.output, None)
    if options.detach:
        if options.json:
            say_json(screen, run_as_json(info))
        elif not screen.outlives_commands:
            screen.say(run.id)  # the only line on standard output, for scripts
        return
    follow(run, screen, notes=notes, as_json=options.json, view=view)


def _request(options: argparse.Namespace, screen: Screen) -> RunRequest:
    return RunRequest(
        options.cache,
        args=options.args,
        push=screen.variables([name.strip() for name in (options.push or "").split(",") if name.strip()]),
        # A shell's process ends early, so the hosts own its runs. With --tunnel, this process carries the traffic.
        detach=options.detach or not (options.tunnel or (screen.outlives_commands and not options.job)),
        warm_s=WARM_S if screen.outlives_commands else 0.0,
        **(_command(options, screen) if options.job else _script(options)),
        **given_options(options),
    )


def _command(options: argparse.Namespace, screen: Screen) -> dict[str, Any]:
    """Return the fields of a `RunRequest` for a command."""
    if options.cell is not None or options.script is not None:
        raise ConfigError("a run has one script: leave JOB_DIR JOB_CMD out, or the cell and --script FILE")
    if len(options.job) < 2:
        raise ConfigError(
            "missing JOB_DIR or JOB_CMD after CACHE_NAME; example: "
            f"{screen.command_name} start DIGITS . python train.py"
        )
    job_dir = Path(options.job[0])
    if not job_dir.exists():
        raise ConfigError(
            f"JOB_DIR {str(job_dir)!r} is neither a directory nor an archive; give one (`.` is this directory)"
        )
    command = tuple(options.job[1:])
    return {"script_name": " ".join(command), "command": command, "job_dir": job_dir}


def _script(options: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of a `RunRequest` for a script."""
    if options.script is None:
        if options.cell is None and not options.explain:
            raise ConfigError(
                "missing JOB_DIR and JOB_CMD after CACHE_NAME; example: `start DIGITS . python train.py`; or pass "
                "--script FILE; in a notebook write a cell: %%ignite_tf start CACHE, and the script below it"
            )
        return {"script": f"\n{options.cell}" if options.cell else ""}  # line numbers equal those of the cell
    if options.cell and options.cell.strip():
        raise ConfigError("the cell and --script FILE exclude each other; leave one out")
    try:
        return {"script": read_source(options.script), "script_name": options.script.name}
    except (OSError, UnicodeDecodeError, SyntaxError) as error:
        raise ConfigError(f"--script {options.script} cannot be read: {error}") from error


def _add_start(start: argparse.ArgumentParser) -> None:
    start.usage = (
        "%(prog)s [OPTIONS] CACHE_NAME [OPTIONS] [JOB_DIR JOB_CMD [JOB_ARGS...] | -- SCRIPT_ARGS...]"
    )
    start.add_argument("cache", metavar="CACHE_NAME", help="the cache that is read, or its SQL table")
    _add_options(start)
    behind = type(start)(prog=start.prog, usage=start.usage)
    add_version(behind)
    add_common_options(behind)
    _add_options(behind)
    start.set_defaults(cell=None, args=(), finish=partial(_read_job, behind))


def _add_options(start: argparse.ArgumentParser) -> None:
    add_run_options(start)
    start.add_argument(
        "-o", "--output", metavar="NAME", help="a notebook's variable for the run; in a shell a file"
    )
    start.add_argument("--push", metavar="A,B", help="variables of the notebook that the script gets")
    start.add_argument(
        "--script", type=Path, metavar="FILE", help="the script, instead of a cell or a command"
    )
    start.add_argument(
        "--survive",
        dest="survives_s",
        type=whole,
        default=_SURVIVES_S,
        metavar="S",
        help=f"seconds that the run waits for attach after this kernel restarts ({_SURVIVES_S})",
    )
    flags(start, ("--no-chart", "draw no chart of the training"))
    start.add_argument(
        "job",
        nargs=argparse.REMAINDER,
        metavar="JOB_DIR JOB_CMD [JOB_ARGS...]",
        help="the directory and the command of every worker",
    )


def _read_job(
    behind_cache: argparse.ArgumentParser, options: argparse.Namespace, words: Sequence[str]
) -> None:
    """Parse the options after CACHE_NAME, and take the words after -- as the script's arguments."""
    if options.job == list(words[words.index("--") + 1 :] if "--" in words else ()):
        options.args, options.job = tuple(options.job), []  # argparse has removed the -- after CACHE_NAME
    elif options.job and options.job[0].startswith("-") and options.job[0] != "--":
        given, options.job = options.job, []
        behind_cache.parse_args(given, options)
    if options.job[:1] == ["--"]:
        options.args, options.job = tuple(options.job[1:]), []


COMMANDS = (
    Command(
        *("start", "run a script or a command on workers beside the data", _start, _add_start),
        "JOB_DIR is a directory or an archive; every worker gets a copy of it and runs JOB_CMD there; `python` is the "
        "run's interpreter. Hosts supervise such a run, and each run that a shell starts: an interrupt ends only "
        "the watching. In a notebook a script is a cell: %%ignite_tf start CACHE_NAME; words after -- are its "
        "sys.argv[1:]. -o NAME gives NAME.history, NAME.model() and NAME.result. --push sends numbers, texts, "
        "containers, arrays and tables, up to 256 MiB. The exit code is the run's.",
        example="DIGITS . python train.py --epochs 3\nDIGITS --script train.py --workers 2 --tag first",
    ),
)
