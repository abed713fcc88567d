"""The words after `%ignite_tf`, read with argparse. Does nothing but read."""

from __future__ import annotations

import argparse
import shlex
from typing import Any, NoReturn

from ignite_tf_magic.boards import LOOPBACK
from ignite_tf_magic.errors import ConfigError
from ignite_tf_magic.fs_commands import add_fs_commands
from ignite_tf_magic.run_options import add_config_options, add_run_options, count
from ignite_tf_magic.session import EmbeddedOptions

_LAST_LINES = 200


def parse_line(line: str) -> argparse.Namespace | None:
    """Read a line; None when it asked for help only, which is printed.

    `command` of the answer is "start", "ps", "local up" and so on; `args` is what follows " -- ".

    Raises:
        ConfigError: The line cannot be understood; the error shows the usage.
    """
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise ConfigError(f"the line cannot be read: {error}") from error
    own, script_args = words, []
    if "--" in words:
        own, script_args = words[: words.index("--")], words[words.index("--") + 1 :]
    if own[:1] in (["mount"], ["unmount"]):
        own = ["fs", *own]
    parser = _parser()
    if own in ([], ["help"]):
        parser.print_help()
        return None
    try:
        return parser.parse_args(own, argparse.Namespace(args=tuple(script_args)))
    except _HelpShown:
        return None


class _HelpShown(Exception):
    """--help has printed its text."""


class _Parser(argparse.ArgumentParser):
    """Raises instead of ending the process, which is the kernel."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}\n{self.format_usage().strip()}")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:  # noqa: ARG002
        raise _HelpShown


def _parser() -> _Parser:
    parser = _Parser("%ignite_tf", description="Train TensorFlow on the Ignite nodes that hold the data.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=_Parser)

    def command(name: str, what: str) -> argparse.ArgumentParser:
        return _command(commands, name, name, what)

    def of_cluster(name: str, what: str) -> argparse.ArgumentParser:
        added = command(name, what)
        add_config_options(added)
        return added

    start = command(
        "start", "in a cell (%%%%ignite_tf start CACHE): run the script on workers beside the data"
    )
    start.add_argument("cache", metavar="CACHE")
    add_config_options(start)
    add_run_options(start)
    start.add_argument("-o", "--output", metavar="NAME", help="variable for the run")
    start.epilog = "Words after -- are the script's sys.argv[1:]."
    of_cluster("ps", "list runs").add_argument("--all", action="store_true", help="also those that ended")
    of_cluster("stop", "end a run's processes").add_argument("run", metavar="RUN")
    logs = of_cluster("logs", "show the last lines of a run's output")
    logs.add_argument("run", metavar="RUN")
    logs.add_argument("--worker", type=int, metavar="I")
    logs.add_argument("--lines", type=count, default=_LAST_LINES, metavar="N")
    of_cluster("attach", "watch a run again, from the beginning").add_argument("run", metavar="RUN")
    of_cluster("describe", "tell all that is known of a run").add_argument("run", metavar="RUN")
    doctor = of_cluster("doctor", "look at all that runs need, and tell how to mend it")
    doctor.add_argument("cache", nargs="?", metavar="CACHE")
    doctor.add_argument("--python", metavar="PATH", help="interpreter of the workers, on their hosts")
    prune = command("prune", "forget runs that ended, with their files in igfs")
    prune.add_argument("--keep", type=int, default=20, metavar="N", help="so many of the newest stay (20)")
    prune.add_argument("--older-than", type=count, metavar="DAYS", help="only those that ended longer ago")
    prune.add_argument("--dry-run", action="store_true", help="only tell which")
    command("caches", "list the cluster's caches")
    _add_tensorboard(command("tensorboard", "show and compare runs in TensorBoard, inside the notebook"))
    add_fs_commands(command("fs", "files in igfs, the file system inside Ignite"), parser_class=_Parser)
    command("panel", "a widget to see and stop runs")
    command("help", "this text")
    local = command("local", "Ignite nodes on this machine: up, down, status")
    _add_local(local.add_subparsers(required=True, metavar="up|down|status", parser_class=_Parser))
    return parser


def _command(commands: Any, name: str, command: str, what: str) -> argparse.ArgumentParser:
    added: argparse.ArgumentParser = commands.add_parser(name, help=what, description=what)
    added.set_defaults(command=command)
    return added


def _add_tensorboard(board: argparse.ArgumentParser) -> None:
    board.add_argument("run", nargs="*", metavar="RUN", help="the runs to show (all)")
    board.add_argument("--logdir", action="append", default=[], metavar="URI", help="other event files")
    board.add_argument("--port", type=count, metavar="N", help="where it listens (the first free from 6006)")
    board.add_argument("--host", default=LOOPBACK, help=f"where it is reached ({LOOPBACK}: from here only)")
    board.add_argument("--height", type=count, default=800, metavar="PX", help="height in the page (800)")
    board.add_argument("--list", action="store_true", help="list those that run")
    board.add_argument("--stop", action="store_true", help="end the one that shows this; without RUN, all")


def _add_local(commands: Any) -> None:
    up = _command(commands, "up", "local up", "start nodes; they stay until down")
    default = EmbeddedOptions()
    up.add_argument("--nodes", type=count, default=default.num_nodes, metavar="N")
    up.add_argument("--heap", default=default.heap, help="Java heap of a node, as 512m")
    up.add_argument("--region", default=default.region, help="memory for the data of a node, as 1g")
    up.add_argument("--persist", action="store_true", help="keep the data on disk")
    _command(commands, "down", "local down", "stop them")
    _command(commands, "status", "local status", "list them")
