"""The words after `%ignite_tf`, read with argparse. Does nothing but read."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import Any, NoReturn

from ignite_tf_magic.errors import ConfigError
from ignite_tf_magic.ui.fs_commands import add_fs_commands
from ignite_tf_magic.ui.shared_options import (
    add_board_options,
    add_config_options,
    add_doctor_options,
    add_history_options,
    add_node_options,
    add_prune_options,
    add_run,
    add_run_options,
    add_version,
    count,
    whole,
)

_LAST_LINES = 200
_SURVIVES_S = 600


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
    """--help, or --version, has printed its text."""


class _Parser(argparse.ArgumentParser):
    """Raises instead of ending the process, which is the kernel."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}\n{self.format_usage().strip()}")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:  # noqa: ARG002
        raise _HelpShown


def _parser() -> _Parser:
    parser = _Parser("%ignite_tf", description="Train TensorFlow on the Ignite nodes that hold the data.")
    add_version(parser)
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=_Parser)
    _add_start(commands)
    _add_run_commands(commands)
    add_config_options(_add(commands, "caches", "list the cluster's caches"))
    _add_tensorboard(
        _add(commands, "tensorboard", "show and compare runs in TensorBoard, inside the notebook")
    )
    fs = _add(commands, "fs", "files in igfs, the file system inside Ignite")
    add_fs_commands(fs, add_version, parser_class=_Parser)
    _add(commands, "panel", "a widget to see and stop runs")
    _add(commands, "help", "this text")
    local = _add(commands, "local", "Ignite nodes on this machine: up, status, down")
    _add_local(local.add_subparsers(required=True, metavar="up|status|down", parser_class=_Parser))
    return parser


def _add(commands: Any, name: str, what: str, command: str | None = None) -> argparse.ArgumentParser:
    added: argparse.ArgumentParser = commands.add_parser(name, help=what, description=what.replace("%%", "%"))
    added.set_defaults(command=command or name)
    add_version(added)
    return added


def _add_start(commands: Any) -> None:
    what = "in a cell (%%%%ignite_tf start CACHE): run the script on workers beside the data"
    start = _add(commands, "start", what)
    start.add_argument("cache", metavar="CACHE", help="the cache that is read")
    add_config_options(start)
    add_run_options(start, default_workers="1")
    start.add_argument("-o", "--output", metavar="NAME", help="variable for the run")
    start.add_argument("--push", metavar="A,B", help="variables of the notebook that the script finds")
    start.add_argument("--script", type=Path, metavar="FILE", help="the script, instead of a cell")
    start.add_argument(
        "--survive",
        type=whole,
        default=_SURVIVES_S,
        metavar="S",
        help=f"seconds for which the run lives on when this kernel is restarted, for attach ({_SURVIVES_S})",
    )
    start.add_argument("--no-chart", action="store_true", help="draw no chart of the training")
    start.epilog = (
        "Words after -- are the script's sys.argv[1:]. NAME.history, NAME.model() and NAME.result are what the run has "
        "left. --push sends numbers, texts, containers, arrays and tables, up to 256 MiB."
    )


def _add_run_commands(commands: Any) -> None:
    def add(name: str, what: str, *, of_run: bool = False) -> argparse.ArgumentParser:
        added = _add(commands, name, what)
        add_config_options(added)
        if of_run:
            add_run(added)
        return added

    add("ps", "list runs").add_argument("--all", action="store_true", help="also those that ended")
    add("attach", "show a run's output from its beginning, until it ends", of_run=True)
    add("resume", "start a run again that failed, was stopped or was lost, from its checkpoints", of_run=True)
    add("describe", "tell all that is known of a run", of_run=True)
    add("stop", "end a run's processes", of_run=True)
    model = add("model", "load the model that a run's fit has left", of_run=True)
    model.add_argument("--model", metavar="NAME", help="of several the one of that name in Keras (the last)")
    model.add_argument("-o", "--output", metavar="NAME", help="variable for it")
    model.add_argument(
        "--trust", action="store_true", help="run the code that it may bring, as of Lambda layers"
    )
    logs = add("logs", "show the last lines of a run's output", of_run=True)
    logs.add_argument("--worker", type=whole, metavar="I", help="of this worker only, counted from 0")
    logs.add_argument(
        "--lines", type=count, default=_LAST_LINES, metavar="N", help=f"how many ({_LAST_LINES})"
    )
    add_history_options(add("history", "show what runs have told of their training, and compare them"))
    add_prune_options(add("prune", "forget runs that ended, with their files in igfs and on hosts"))
    add_doctor_options(add("doctor", "look at all that runs need, and tell how to mend it"))


def _add_tensorboard(board: argparse.ArgumentParser) -> None:
    add_board_options(board)
    board.add_argument("--height", type=count, default=800, metavar="PX", help="height in the page (800)")


def _add_local(commands: Any) -> None:
    add_node_options(_add(commands, "up", "start nodes; they stay until down", "local up"))
    _add(commands, "status", "list the nodes", "local status")
    _add(commands, "down", "stop the nodes", "local down")
