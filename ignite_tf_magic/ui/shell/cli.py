"""The command `ignite-tf`: reads arguments, calls `session`, prints.

Exit codes: 0, 1 error, 2 usage, 130 interrupted, or, of `start` and `attach`, the run's own.
"""

from __future__ import annotations

import argparse
import codecs
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from shutil import which
from typing import Any

from ignite_tf_magic.session.tensorboards import list_tensorboards, open_tensorboard, stop_tensorboard
from ignite_tf_magic.ui.demo import run_demo
from ignite_tf_magic.errors import IgniteTfError
from ignite_tf_magic.session.files import CopyProgress
from ignite_tf_magic.ui.fs_commands import add_fs_commands, bar_after_a_while, run_fs
from ignite_tf_magic.ui.render import View, caches_view, nodes_view, table_view, tensorboards_view
from ignite_tf_magic.ui.shell.run_commands import add_run_commands
from ignite_tf_magic.session import (
    EmbeddedNode,
    EmbeddedOptions,
    LoadProgress,
    Session,
    get_run,
    local_down,
    local_status,
    local_up,
    open_session,
)
from ignite_tf_magic.ui.shared_options import (
    add_board_options,
    add_config_options,
    add_node_options,
    add_version,
    whole,
)
from ignite_tf_magic.serialization.terminal_text import coloured, echo


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; gives the exit code. Errors are one short message on standard error."""
    options = _parser().parse_args(argv)
    try:
        code = options.act(options)
        sys.stdout.flush()
    except IgniteTfError as error:
        echo(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        echo("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # as in `ignite-tf logs RUN | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code or 0


def _demo(_: argparse.Namespace) -> None:
    began = time.monotonic()
    outcome = run_demo(_write)
    echo(f"\n== Done after {time.monotonic() - began:.0f} s")
    echo(f"notebook  {outcome.notebook}")
    if outcome.run:
        echo(f"run       {outcome.run.id} ({outcome.run.state.value})")
        for worker in outcome.run.workers:
            echo(f"log       {get_run(outcome.run.id).directory.log(worker.worker)}")
    nodes = ", ".join(f"{node.host}:{node.port}" for node in outcome.cluster.nodes)
    echo(f"nodes     {nodes}; to stop them: {_own_name()} local down")


def _own_name() -> str:
    """How this command can be typed: by its name where that is found, else by its path."""
    path = Path(sys.argv[0])
    return "ignite-tf" if which("ignite-tf") or path.name != "ignite-tf" else os.path.relpath(path)


def _local_up(options: argparse.Namespace) -> None:
    asked = EmbeddedOptions(
        num_nodes=options.nodes, heap=options.heap, region=options.region, persist=options.persist
    )
    _print_nodes(local_up(asked, report=_report).nodes, as_json=options.json)


def _local_status(options: argparse.Namespace) -> None:
    cluster = local_status()
    if cluster is None:
        echo("[]" if options.json else "no embedded nodes run; to start some: ignite-tf local up")
        return
    _print_nodes(cluster.nodes, as_json=options.json)


def _local_down(options: argparse.Namespace) -> None:
    stopped = local_down(delete_data=options.delete_data, report=_report)
    if stopped is None:
        echo("no embedded nodes ran")
        return
    echo(f"{stopped.num_nodes} Ignite node{'s' * (stopped.num_nodes != 1)} stopped")
    if stopped.data:
        echo(f"their data is kept in {stopped.data}")


def _print_nodes(nodes: Sequence[EmbeddedNode], *, as_json: bool) -> None:
    if as_json:
        echo(json.dumps([node.to_dict() for node in nodes], indent=1))
        return
    echo(nodes_view(nodes).text)


def _open(options: argparse.Namespace) -> Session:
    return open_session(report=_report, config=options.config, via=options.via)


def _load(options: argparse.Namespace) -> None:
    with _open(options) as session, _progress_bar(options.cache) as progress:
        outcome = session.load(
            options.cache,
            options.source,
            key=options.key,
            split=options.split,
            backups=options.backups,
            replace=options.replace,
            progress=progress,
        )
    echo(outcome)


@contextmanager
def _progress_bar(title: str) -> Iterator[LoadProgress]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    console = Console(stderr=True)
    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), "rows", TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _caches(options: argparse.Namespace) -> None:
    with _open(options) as session:
        caches = session.caches()
    echo(caches_view(caches).text)


def _sql(options: argparse.Namespace) -> None:
    with _open(options) as session:
        result = session.query(options.statement, options.param, options.limit or None)
    cells = [["NULL" if value is None else str(value) for value in row] for row in result.rows]
    echo(table_view([column.name for column in result.columns], cells, upper=False).text)
    if result.truncated:
        _report(f"the first {len(cells)} rows; there are more (--limit N fetches N, --limit 0 all)")


def _tensorboard(options: argparse.Namespace) -> None:
    if options.list:
        echo(tensorboards_view(list_tensorboards()).text)
    elif options.stop:
        stopped = stop_tensorboard(options.run, logdirs=options.logdir, port=options.port, report=_report)
        for board in stopped:
            echo(f"stopped the TensorBoard at {board.url}")
        if not stopped:
            echo("no such TensorBoard runs")
    else:
        board = open_tensorboard(
            options.run, logdirs=options.logdir, host=options.host, port=options.port, report=_report
        )
        for note in board.notes:
            _report(note)
        echo(board.url)


def _fs(options: argparse.Namespace) -> None:
    run_fs(options, _Shell())


class _Shell:
    """The screen of a shell: answers alone on standard output, all else on standard error."""

    own_name = "ignite-tf"
    mounts_in_background = False

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def show(self, view: View) -> None:
        echo(view.text)

    def say(self, line: str) -> None:
        echo(line)

    def note(self, line: str) -> None:
        _report(line)

    def write(self, data: memoryview) -> None:
        if not sys.stdout.isatty():
            sys.stdout.buffer.write(data)
            return
        sys.stdout.write(coloured(self._decoder.decode(data)))

    @contextmanager
    def progress(self) -> Iterator[CopyProgress | None]:
        if not sys.stderr.isatty():
            yield None
            return
        from rich.console import Console

        with bar_after_a_while(Console(stderr=True)) as progress:
            yield progress


def _report(line: str) -> None:
    """Tell what goes on, beside the answer, which is alone on standard output."""
    echo(line, file=sys.stderr, flush=True)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "ignite-tf",
        description="Train TensorFlow on the Apache Ignite nodes that hold the data.",
        epilog="The cluster is IGNITE_TF_CLUSTER=HOST:PORT,... or the [cluster] of ignite-tf.toml; without "
        "them it is one of Ignite nodes on this machine, started when needed.",
    )
    add_version(parser)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add(commands, "demo", _demo, "start nodes, load digits, execute the quick start notebook")
    _add_local(_add(commands, "local", None, "Ignite nodes on this machine: up, status, down"))
    _add_load(_add(commands, "load", _load, "create a cache from data"))
    add_config_options(_add(commands, "caches", _caches, "list the cluster's caches"))
    _add_sql(_add(commands, "sql", _sql, "run a SQL statement"))
    add_run_commands(lambda name, act, what: _add(commands, name, act, what))
    add_board_options(_add(commands, "tensorboard", _tensorboard, "show and compare runs in TensorBoard"))
    add_fs_commands(_add(commands, "fs", _fs, "files in igfs, the file system inside Ignite"), add_version)
    return parser


def _add(
    commands: Any, name: str, act: Callable[[argparse.Namespace], int | None] | None, what: str
) -> argparse.ArgumentParser:
    added: argparse.ArgumentParser = commands.add_parser(name, help=what, description=what)
    added.set_defaults(act=act)
    add_version(added)
    return added


def _add_local(local: argparse.ArgumentParser) -> None:
    commands = local.add_subparsers(required=True, metavar="up|status|down")
    up = _add(commands, "up", _local_up, "start nodes; they stay until down")
    add_node_options(up)
    status = _add(commands, "status", _local_status, "list the nodes")
    for parser in (up, status):
        parser.add_argument("--json", action="store_true", help="print host, port, pid, log, alive of each")
    end = _add(commands, "down", _local_down, "stop the nodes")
    end.add_argument("--delete-data", action="store_true", help="also what --persist kept")


def _add_load(load: argparse.ArgumentParser) -> None:
    add_config_options(load)
    load.add_argument("cache", metavar="CACHE")
    load.add_argument(
        "source",
        metavar="SOURCE",
        help="an .npz, .csv or .parquet file, an MNIST IDX file (images or labels; .gz too), "
        "keras:mnist (needs internet), or digits",
    )
    load.add_argument(
        "--backups", type=whole, metavar="N", help="copies beside the first (1 if several nodes)"
    )
    load.add_argument("--key", metavar="COLUMN", help="column with the keys (rows are numbered)")
    load.add_argument("--split", choices=["train", "test"], help="part of a divided source")
    load.add_argument("--replace", action="store_true", help="destroy a cache of that name first")


def _add_sql(sql: argparse.ArgumentParser) -> None:
    add_config_options(sql)
    sql.add_argument("statement", metavar="STATEMENT")
    sql.add_argument(
        "-p", "--param", action="append", default=[], metavar="VALUE", help="for the next ?, as text"
    )
    sql.add_argument("--limit", type=whole, default=1000, metavar="N", help="most rows (1000; 0 is all)")


if __name__ == "__main__":
    sys.exit(main())
