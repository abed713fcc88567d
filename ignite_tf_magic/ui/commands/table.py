"""Lists all commands, and creates the parser for them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib import import_module
from typing import TypeVar

from ignite_tf_magic.ui.commands.command import Command, CommandParser, Group, add_commands, read
from ignite_tf_magic.ui.options import VERSION, add_version

# The commands by module, in the order of the help text. Only the module of the wanted command is imported.
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
# Aliases for people who know system commands of these names.
_SHORT = {"mount": ("fs", "mount"), "unmount": ("fs", "unmount"), "top": ("panel",)}

Parser = TypeVar("Parser", bound=CommandParser)


def commands(first: str = "") -> tuple[tuple[Command, ...], dict[str, Group]]:
    """Return the commands of the module that has the command word `first`, or all, and their groups by name."""
    wanted = [module for module, names in NAMES_IN.items() if first in names.split()]
    found = [import_module(f"ignite_tf_magic.ui.commands.{module}") for module in wanted or NAMES_IN]
    grouped = {
        each.COMMANDS[0].name.partition(" ")[0]: each.GROUP for each in found if hasattr(each, "GROUP")
    }
    return tuple(command for each in found for command in each.COMMANDS), grouped


def make_parser(kind: type[Parser], name: str, words: Sequence[str] = ()) -> Parser:
    """Create the parser of the commands.

    Args:
        kind: The parser's class, which decides whether errors end the process or raise exceptions.
        name: How a person types our command.
        words: The words to parse. The parser has only the commands in the module of the first word, or all if unknown.
    """
    words = _in_full(words)
    parser = kind(
        name,
        description="Train TensorFlow on the Apache Ignite nodes that hold the data.",
        epilog="The cluster is IGNITE_TF_CLUSTER=HOST:PORT,... or the [cluster] of ignite-tf.toml; without "
        "them it is one of Ignite nodes on this machine, started when needed.",
    )
    add_version(parser)
    if words[:1] not in [[each] for each in VERSION]:  # --version needs none of the commands' imports
        add_commands(parser, *commands(words[0]))
    return parser


def read_command(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace | None:
    """Parse a command; print help and return None if the words only ask for help.

    The attribute `command` of the result is the `Command`. Without words, it is `status`.
    """
    words = _in_full(words)
    if words == ["help"]:
        parser.print_help()
        return None
    return read(parser, words)


def _in_full(words: Sequence[str]) -> list[str]:
    first, *rest = words or ["status"]
    return [*_SHORT.get(first, (first,)), *rest]
