"""Defines a command and the parser of commands. The parsers of notebooks and shells differ only in how they fail."""

from __future__ import annotations

import argparse
import difflib
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from ignite_tf_magic.ui.options import add_config_options, add_version

if TYPE_CHECKING:
    from ignite_tf_magic.ui.screen import Screen

Add = Callable[[argparse.ArgumentParser], None]


def _no_arguments(parser: argparse.ArgumentParser) -> None:
    del parser


class CommandParser(argparse.ArgumentParser):
    """A parser that suggests a known word in place of an unknown one."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse words; fail on an unknown option in this subparser, which has the options to suggest."""
        known, left = super().parse_known_args(args, namespace)
        options = [word for word in left if word.startswith("-")]
        if options:
            self._fail_on(options[0].partition("=")[0], "option", self._option_string_actions)
        if left:
            self.error(f"unexpected words: {' '.join(left)}")
        return known, left

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Fail on a value that is not one of the choices, with a suggestion if it is a command."""
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            self._fail_on(str(value), "command", action.choices)
        super()._check_value(action, value)

    def _fail_on(self, word: str, kind: str, known: Iterable[str]) -> NoReturn:
        names = [name for name in known if kind != "option" or name.startswith("--")]
        near = difflib.get_close_matches(word, names, n=1)
        hint = f"did you mean {near[0]}?" if near else f"help lists them: {self.prog} --help"
        self.error(f"there is no {kind} {word[:40]}; {hint}")


class _HelpFormatter(argparse.HelpFormatter):
    """A formatter that fills paragraphs, and leaves indented lines unchanged."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = text.split("\n")
        filled = (
            each if each.startswith(" ") else textwrap.fill(each, width, break_long_words=False)
            for each in paragraphs
        )
        return textwrap.indent("\n".join(filled), indent)


@dataclass(frozen=True, slots=True)
class Command:
    """One command.

    Attributes:
        name: The words that a person types; two words if the command belongs to a group.
        summary: A line that says what the command does.
        act: Runs the command; returns an exit code, or None for 0.
        add_arguments: Adds the arguments of this command.
        epilog: The text at the end of the command's help.
        example: Example arguments; several examples are on a line each.
        of_cluster: Whether the command has the options --config and --via.
        has_json: Whether the command has the option --json.
    """

    name: str
    summary: str
    act: Callable[[argparse.Namespace, Screen], int | None]
    add_arguments: Add = _no_arguments
    epilog: str | None = None
    example: str = field(kw_only=True)
    of_cluster: bool = True
    has_json: bool = True


@dataclass(frozen=True, slots=True)
class Group:
    """A group of commands with the same first word.

    Attributes:
        summary: A line that says what the commands are about.
        epilog: The text at the end of the group's help.
    """

    summary: str
    epilog: str | None = None


def add_commands(
    parser: argparse.ArgumentParser, commands: Iterable[Command], groups: Mapping[str, Group]
) -> None:
    """Add the commands to a parser, whose results have the chosen command as `command`."""
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
            group = _parser(top, first, groups[first].summary, groups[first].epilog or "")
            within[first] = group.add_subparsers(required=True, metavar=names, parser_class=kind)
        _add(within[first] if second else top, second or first, command)


def _add(commands: Any, name: str, command: Command) -> None:
    added = _parser(commands, name, command.summary, command.epilog or "")
    examples = [f"  {added.prog} {each}".rstrip() for each in command.example.splitlines() or [""]]
    heading = "Example:" if len(examples) == 1 else "Examples:"
    added.epilog = "\n".join([*filter(None, [added.epilog]), heading, *examples])
    added.set_defaults(command=command)
    add_common_options(added, of_cluster=command.of_cluster, has_json=command.has_json)
    command.add_arguments(added)


def add_common_options(
    parser: argparse.ArgumentParser, *, of_cluster: bool = True, has_json: bool = True
) -> None:
    """Add the options that most commands share."""
    if of_cluster:
        add_config_options(parser)
    if has_json:
        flags(parser, ("--json", "print JSON"))


def _parser(commands: Any, name: str, summary: str, epilog: str) -> argparse.ArgumentParser:
    added: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary.replace("%", "%%"),
        description=summary,
        epilog=epilog,
        formatter_class=_HelpFormatter,
    )
    add_version(added)
    return added


def read(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
    """Parse the words of one command with a parser to which `add_commands` has added the commands."""
    options = parser.parse_args(list(words))
    if finish := getattr(options, "finish", None):
        finish(options, words)
    return options


def flags(parser: argparse.ArgumentParser, *named: Sequence[str]) -> None:
    """Add options without a value; each is given by its names and then its help text."""
    for *names, what in named:
        parser.add_argument(*names, action="store_true", help=what)
