"""`%ignite_tf`, `%%ignite_tf start` and `%%ignite_sql`: arguments in, `session` called, outcome shown.

Only here do errors of this package become short messages; whoever calls `session` gets exceptions.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import Any

from ignite_tf_magic.ui import render
from ignite_tf_magic.ui import run_views
from ignite_tf_magic.session.tensorboards import list_tensorboards, open_tensorboard, stop_tensorboard
from ignite_tf_magic.errors import ConfigError, IgniteTfError
from ignite_tf_magic.ui.fs_commands import run_fs
from ignite_tf_magic.ui.metrics_views import comparison_view, history_view
from ignite_tf_magic.ui.notebook.arguments import parse_line
from ignite_tf_magic.ui.notebook.chart import picture_of
from ignite_tf_magic.ui.notebook.panel import runs_panel
from ignite_tf_magic.ui.notebook.screen import NotebookScreen, say, show, show_picture, write
from ignite_tf_magic.ui.notebook.sql import USAGE as SQL_USAGE
from ignite_tf_magic.ui.notebook.sql import bind_names, parse_sql_magic
from ignite_tf_magic.ui.notebook.watching import watch
from ignite_tf_magic.session.registration import register_on_import
from ignite_tf_magic.session import (
    EmbeddedOptions,
    RunRequest,
    Session,
    attach_run,
    diagnose,
    get_run,
    left_runs,
    list_runs,
    local_down,
    local_status,
    local_up,
    open_session,
    stop_run,
)
from ignite_tf_magic.ui.shared_options import chosen_workers, given_options
from ignite_tf_magic.serialization.terminal_text import coloured, visible


def load_ipython_extension(ipython: Any) -> None:
    """Register the magics; called by `%load_ext ignite_tf_magic`."""
    register_on_import()
    magics = IgniteMagics(ipython)
    ipython.register_magic_function(magics.ignite_tf, "line_cell", "ignite_tf")
    ipython.register_magic_function(magics.ignite_sql, "line_cell", "ignite_sql")
    for info in left_runs():
        say(f"run {info.id}: {info.waiting_for}")


class IgniteMagics:
    """The magics of one IPython shell. Keeps nothing between two calls: runs and nodes live elsewhere."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell

    def ignite_tf(self, line: str, cell: str | None = None) -> Any:
        """Train on an Ignite cluster; `%ignite_tf help` tells all."""
        with _short_errors():
            options = parse_line(line)
            if options is None:
                return None
            if options.command == "start":
                return self._start(options, cell)
            if options.command == "model" and cell is None:
                return self._model(options)
            if cell is not None:
                raise ConfigError(
                    f"%%ignite_tf {options.command} takes no cell; write %ignite_tf {options.command}"
                )
            return _COMMANDS[options.command](options)

    def ignite_sql(self, line: str, cell: str | None = None) -> Any:
        """Run a SQL statement; `%ignite_sql --help` tells how."""
        with _short_errors():
            request = parse_sql_magic(line, cell)
            if request.help:
                say(SQL_USAGE)
                return None
            statement, values = bind_names(request.statement, self._shell.user_ns)
            with open_session(report=say) as session:
                result = session.query(statement, values, request.limit)
            frame = result.to_pandas()
            if result.truncated:
                say(f"the first {len(frame):,} rows; there are more: --limit N fetches N, --limit 0 all")
            if request.output is None:
                return frame
            self._shell.user_ns[request.output] = frame
            say(f"{request.output}: {len(frame):,} rows of {', '.join(map(str, frame.columns))}")
            return None

    # Python text in braces is IPython's way to splice; SQL gets values bound instead.
    ignite_sql._ipython_magic_no_var_expand = True  # type: ignore[attr-defined]

    def _start(self, options: argparse.Namespace, cell: str | None) -> None:
        request = RunRequest(
            options.cache,
            args=options.args,
            detach=options.detach,
            push=self._variables(options.push),
            survives_s=options.survive,
            **_script(options, cell),
            **given_options(options),
        )
        with open_session(report=say, config=options.config, via=options.via) as session:
            if options.explain:
                show(run_views.explain_view(session.plan_run(request).rows))
                return
            run = session.start_run(request)
            notes = _notes_on(session)
        if options.output:
            self._shell.user_ns[options.output] = run
        info = run.info()
        workers = "1 worker" if info.num_workers == 1 else f"{info.num_workers} workers"
        say(f"run {run.id}: {workers} on {', '.join(info.hosts)}, reading {info.cache}")
        if options.detach:
            say(f"  its hosts answer for it; watch it: %ignite_tf attach {run.id}")
            return
        watch(run, notes, with_chart=not options.no_chart)

    def _variables(self, names: str | None) -> dict[str, Any]:
        chosen = [name.strip() for name in (names or "").split(",") if name.strip()]
        if missing := [name for name in chosen if name not in self._shell.user_ns]:
            raise ConfigError(f"--push: the notebook has no variable {', '.join(missing)}")
        return {name: self._shell.user_ns[name] for name in chosen}

    def _model(self, options: argparse.Namespace) -> Any:
        run = get_run(options.run, options.config, options.via)
        model = run.model(options.model, trust=options.trust)
        if options.output is None:
            return model
        self._shell.user_ns[options.output] = model
        say(f"{options.output}: the model {model.name} of run {run.id}, {model.count_params():,} parameters")
        return None


def _script(options: argparse.Namespace, cell: str | None) -> dict[str, Any]:
    """Give the fields of a `RunRequest` for what is to run."""
    if options.script is None:
        if cell is None and not options.explain:
            raise ConfigError(
                "start needs a cell: %%ignite_tf start CACHE, and the script below it; or --script FILE"
            )
        return {"script": cell or ""}
    if cell and cell.strip():
        raise ConfigError("the cell and --script FILE are both a script; leave one out")
    try:
        return {"script": options.script.read_text(encoding="utf-8"), "script_name": options.script.name}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--script {options.script} cannot be read: {error}") from error


def _notes_on(session: Session) -> list[str]:
    """How to stop the nodes, when they are embedded ones."""
    cluster = session.embedded_cluster
    if cluster is None:
        return []
    plural = "s" * (len(cluster.nodes) != 1)
    return [f"Ignite: {len(cluster.nodes)} embedded node{plural}; to stop: %ignite_tf local down"]


# The commands of %ignite_tf


def _ps(options: argparse.Namespace) -> None:
    listed = list_runs(include_ended=options.all, config=options.config, via=options.via)
    for warning in listed.warnings:
        say(warning)
    show(render.runs_view(listed.runs, datetime.now(timezone.utc)))


def _stop(options: argparse.Namespace) -> None:
    outcome = stop_run(options.run, options.config, options.via)
    say(f"run {outcome.info.id}: {outcome.kind.value}")


def _logs(options: argparse.Namespace) -> None:
    run = get_run(options.run, options.config, options.via)
    workers = chosen_workers(run, options.worker)
    lost = run.fetch()
    for worker in workers:
        lines = run.last_lines(worker, options.lines)
        say(f"--- worker {worker}, the last {len(lines)} lines of {run.directory.log(worker)}")
        write(coloured("\n".join(lines)) + "\n")
    for each in lost:
        say(str(each))


def _describe(options: argparse.Namespace) -> None:
    run = get_run(options.run, options.config, options.via)
    info, failure = run.info(), run.failure()
    show(run_views.describe_view(info, run.record(), run.latest(), datetime.now(timezone.utc)))
    if failure is not None:
        show(render.failure_view(info, failure))


def _attach(options: argparse.Namespace) -> None:
    watch(attach_run(options.run, options.config, options.via, report=say))


def _history(options: argparse.Namespace) -> None:
    runs = [get_run(name, options.config, options.via) for name in options.run]
    found = [(run, run.records()) for run in runs]
    show(history_view(found[0][1]) if len(found) == 1 else comparison_view(found))
    show_picture(picture_of([(run.id if len(found) > 1 else "", records) for run, records in found]))


def _doctor(options: argparse.Namespace) -> None:
    found = diagnose(options.cache, python=options.python, config=options.config, via=options.via)
    show(run_views.diagnosis_view(found))


def _caches(options: argparse.Namespace) -> None:
    with open_session(report=say, config=options.config, via=options.via) as session:
        show(render.caches_view(session.caches()))


def _tensorboard(options: argparse.Namespace) -> None:
    if options.list:
        show(render.tensorboards_view(list_tensorboards()))
    elif options.stop:
        stopped = stop_tensorboard(options.run, logdirs=options.logdir, port=options.port, report=say)
        say(
            "\n".join(f"stopped the TensorBoard at {each.url}" for each in stopped)
            or "no such TensorBoard runs"
        )
    else:
        board = open_tensorboard(
            options.run, logdirs=options.logdir, host=options.host, port=options.port, report=say
        )
        show(render.tensorboard_view(board, options.height))


def _fs(options: argparse.Namespace) -> None:
    run_fs(options, NotebookScreen())


def _panel(_: argparse.Namespace) -> Any:
    return runs_panel()


def _local_up(options: argparse.Namespace) -> None:
    asked = EmbeddedOptions(
        num_nodes=options.nodes, heap=options.heap, region=options.region, persist=options.persist
    )
    show(render.nodes_view(local_up(asked, report=say).nodes))


def _local_down(_: argparse.Namespace) -> None:
    stopped = local_down(report=say)
    num_nodes = stopped.num_nodes if stopped else 0
    say(f"{num_nodes} Ignite node{'s' * (num_nodes != 1)} stopped" if stopped else "no embedded nodes ran")


def _local_status(_: argparse.Namespace) -> None:
    cluster = local_status()
    show(render.nodes_view(cluster.nodes if cluster else ()))


def _prune(options: argparse.Namespace) -> None:
    older_than = None if options.older_than is None else timedelta(days=options.older_than)
    with open_session(report=say, config=options.config, via=options.via) as session:
        pruned = session.prune(keep=options.keep, older_than=older_than, dry_run=options.dry_run)
    say(render.pruned_text(pruned, options.keep, dry_run=options.dry_run))


def _resume(options: argparse.Namespace) -> None:
    with open_session(report=say, config=options.config, via=options.via) as session:
        run = session.resume_run(options.run)
        notes = _notes_on(session)
    say(f"run {run.id} goes on from its checkpoints")
    watch(run, notes)


_COMMANDS: dict[str, Callable[[argparse.Namespace], Any]] = {
    "ps": _ps,
    "stop": _stop,
    "logs": _logs,
    "attach": _attach,
    "resume": _resume,
    "describe": _describe,
    "history": _history,
    "doctor": _doctor,
    "prune": _prune,
    "caches": _caches,
    "panel": _panel,
    "tensorboard": _tensorboard,
    "fs": _fs,
    "local up": _local_up,
    "local down": _local_down,
    "local status": _local_status,
}


@contextmanager
def _short_errors() -> Iterator[None]:
    """Let IPython show the message alone; the exception itself is what a caller in Python gets."""
    try:
        yield
    except (IgniteTfError, KeyboardInterrupt) as error:
        text = f"\x1b[31m{type(error).__name__}\x1b[0m{f': {visible(str(error))}' if str(error) else ''}"
        setattr(error, "_render_traceback_", lambda: [text])  # noqa: B010  IPython's protocol
        raise
