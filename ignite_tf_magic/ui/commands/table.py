"""All commands, and the parser that reads them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib import import_module
from typing import TypeVar

from ignite_tf_magic.ui.commands.command import Command, CommandParser, Group, add_commands, read
from ignite_tf_magic.ui.options import VERSION, add_version

# By their modules, as help lists them: only the module of the wanted one is loaded.
NAMES_IN = {
    "status": "status",
    "starting": "start",
    "listing": "ps",
    "runs": "attach resume describe stop logs history model prune panel doctor",
    "tensorboards": "tensorboard",
    "data": "load pack caches sql",
    "predicting": "predict",
    "looking": "columns sample draft profile",
    "files": "fs",
    "nodes": "local demo",
}
# Words for people who know the commands of a system.
_SHORT = {"mount": ("fs", "mount"), "unmount": ("fs", "unmount"), "top": ("panel",)}

Parser = TypeVar("Parser", bound=CommandParser)


def commands(first: str = "") -> tuple[tuple[Command, ...], dict[str, Group]]:
    """Return the commands, or those alone that come with the one that this word begins; and their groups by name."""
    wanted = [module for module, names in NAMES_IN.items() if first in names.split()]
    found = [import_module(f"ignite_tf_magic.ui.commands.{module}") for module in wanted or NAMES_IN]
    grouped = {
        each.COMMANDS[0].name.partition(" ")[0]: each.GROUP for each in found if hasattr(each, "GROUP")
    }
    return tuple(command for each in found for command in each.COMMANDS), grouped


def make_parser(kind: type[Parser], name: str, words: Sequence[str] = ()) -> Parser:
    """Make the parser of all commands.

    Args:
        kind: How it fails: as argparse does, by ending the process, or as a notebook does.
        name: How a person types our command.
        words: Those that it is to read: it knows the commands alone that the first of them may mean.
    """
    words = _in_full(words)
    parser = kind(
        name,
        description="Train TensorFlow on the Apache Ignite nodes that hold the data.",
        epilog="The cluster is IGNITE_TF_CLUSTER=HOST:PORT,... or the [cluster] of ignite-tf.toml; without "
        "them it is one of Ignite nodes on this machine, started when needed.",
    )
    add_version(parser)
    if words[:1] not in [[each] for each in VERSION]:  # which needs none of what commands import
        add_commands(parser, *commands(words[0]))
    return parser


def read_command(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace | None:
    """Read a command, which is `command` of the answer; None when only help was wanted, which is printed.

    Without a word the command is `status`.
    """
    words = _in_full(words)
    if words == ["help"]:
        parser.print_help()
        return None
    return read(parser, words)


def _in_full(words: Sequence[str]) -> list[str]:
    first, *rest = words or ["status"]
    return [*_SHORT.get(first, (first,)), *rest]
