"""A command, and the parser of a table of them. A notebook's parser and a shell's differ in how they fail only."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ignite_tf_magic.ui.options import add_config_options, add_version

if TYPE_CHECKING:
    from ignite_tf_magic.ui.screen import Screen

Add = Callable[[argparse.ArgumentParser], None]


def _no_arguments(parser: argparse.ArgumentParser) -> None:
    del parser


@dataclass(frozen=True, slots=True)
class Command:
    """One command.

    Attributes:
        name: What a person types; of two words where it belongs to a group.
        summary: What it does, in a line.
        act: Does it; returns an exit code where 0 would not be true.
        add_arguments: Adds what only this command knows.
        epilog: What its help says at the end.
        of_cluster: It takes a configuration file, and a way to the cluster.
        has_json: It can answer as JSON.
    """

    name: str
    summary: str
    act: Callable[[argparse.Namespace, Screen], int | None]
    add_arguments: Add = _no_arguments
    epilog: str | None = None
    of_cluster: bool = True
    has_json: bool = True


@dataclass(frozen=True, slots=True)
class Group:
    """What commands of two words have in common.

    Attributes:
        summary: What they are about.
        epilog: What the group's help says at the end.
    """

    summary: str
    epilog: str | None = None


def add_commands(
    parser: argparse.ArgumentParser, commands: Iterable[Command], groups: Mapping[str, Group]
) -> None:
    """Give a parser the commands; what it reads has the chosen one as `command`."""
    kind = type(parser)
    listed = list(commands)
    top = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=kind)
    within: dict[str, Any] = {}
    for command in listed:
        first, _, second = command.name.partition(" ")
        if second and first not in within:
            names = "|".join(
                each.name.partition(" ")[2] for each in listed if each.name.startswith(f"{first} ")
            )
            group = _parser(top, first, groups[first].summary, groups[first].epilog)
            within[first] = group.add_subparsers(required=True, metavar=names, parser_class=kind)
        _add(within[first] if second else top, second or first, command)


def _add(commands: Any, name: str, command: Command) -> None:
    added = _parser(commands, name, command.summary, command.epilog)
    added.set_defaults(command=command)
    add_common_options(added, of_cluster=command.of_cluster, has_json=command.has_json)
    command.add_arguments(added)


def add_common_options(
    parser: argparse.ArgumentParser, *, of_cluster: bool = True, has_json: bool = True
) -> None:
    """Add what most commands know."""
    if of_cluster:
        add_config_options(parser)
    if has_json:
        flags(parser, ("--json", "print JSON"))


def _parser(commands: Any, name: str, summary: str, epilog: str | None) -> argparse.ArgumentParser:
    added: argparse.ArgumentParser = commands.add_parser(
        name, help=summary.replace("%", "%%"), description=summary, epilog=epilog
    )
    add_version(added)
    return added


def read(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
    """Read the words of one command with a parser that `add_commands` has made."""
    options = parser.parse_args(list(words))
    if finish := getattr(options, "finish", None):
        finish(options, words)
    return options


def flags(parser: argparse.ArgumentParser, *named: Sequence[str]) -> None:
    """Add options without a value: for each its names, then what it does."""
    for *names, what in named:
        parser.add_argument(*names, action="store_true", help=what)
