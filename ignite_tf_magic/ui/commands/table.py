"""All commands, and the parser that reads them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TypeVar

from ignite_tf_magic.ui.commands import boards, data, files, nodes, runs, starting
from ignite_tf_magic.ui.commands.command import add_commands, read
from ignite_tf_magic.ui.options import add_version

COMMANDS = (
    *starting.COMMANDS,
    *runs.COMMANDS,
    *boards.COMMANDS,
    *data.COMMANDS,
    *files.COMMANDS,
    *nodes.COMMANDS,
)
GROUPS = {"fs": files.GROUP, "local": nodes.GROUP}
# Words for people who know the commands of a system.
_SHORT = {"mount": ("fs", "mount"), "unmount": ("fs", "unmount")}

Parser = TypeVar("Parser", bound=argparse.ArgumentParser)


def make_parser(kind: type[Parser], name: str) -> Parser:
    """Make the parser of all commands.

    Args:
        kind: How it fails: as argparse does, by ending the process, or as a notebook does.
        name: How a person types our command.
    """
    parser = kind(
        name,
        description="Train TensorFlow on the Apache Ignite nodes that hold the data.",
        epilog="The cluster is IGNITE_TF_CLUSTER=HOST:PORT,... or the [cluster] of ignite-tf.toml; without "
        "them it is one of Ignite nodes on this machine, started when needed.",
    )
    add_version(parser)
    add_commands(parser, COMMANDS, GROUPS)
    return parser


def read_command(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace | None:
    """Read a command, which is `command` of the answer; None when only help was wanted, which is printed."""
    words = [*_SHORT.get(words[0], words[:1]), *words[1:]] if words else []
    if words in ([], ["help"]):
        parser.print_help()
        return None
    return read(parser, words)
