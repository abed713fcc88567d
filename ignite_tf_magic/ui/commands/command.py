"""A command, and the parser of a table of them. A notebook's parser and a shell's differ in how they fail only."""

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
    """Reads words, and says of one that nobody knows which was likely meant."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Read words; an option that is not known ends the reading here, where those that are known are at hand."""
        known, left = super().parse_known_args(args, namespace)
        options = [word for word in left if word.startswith("-")]
        if options:
            self._fail_on(options[0].partition("=")[0], "option", self._option_string_actions)
        if left:
            self.error(f"these words are too many: {' '.join(left)}")
        return known, left

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse a word that is none of those that may stand here."""
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            self._fail_on(str(value), "command", action.choices)
        super()._check_value(action, value)

    def _fail_on(self, word: str, kind: str, known: Iterable[str]) -> NoReturn:
        names = [name for name in known if kind != "option" or name.startswith("--")]
        near = difflib.get_close_matches(word, names, n=1)
        hint = f"did you mean {near[0]}?" if near else f"help lists them: {self.prog} --help"
        self.error(f"there is no {kind} {word[:40]}; {hint}")


class _HelpFormatter(argparse.HelpFormatter):
    """Fills paragraphs, and leaves lines that are indented as they are."""

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
        name: What a person types; of two words where it belongs to a group.
        summary: What it does, in a line.
        act: Does it; returns an exit code where 0 would not be true.
        add_arguments: Adds what only this command knows.
        epilog: What its help says at the end.
        example: What may stand behind its name; of several, each on a line.
        of_cluster: It takes a configuration file, and a way to the cluster.
        has_json: It can answer as JSON.
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
    """Add what most commands know."""
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
    """Read the words of one command with a parser that `add_commands` has made."""
    options = parser.parse_args(list(words))
    if finish := getattr(options, "finish", None):
        finish(options, words)
    return options


def flags(parser: argparse.ArgumentParser, *named: Sequence[str]) -> None:
    """Add options without a value: for each its names, then what it does."""
    for *names, what in named:
        parser.add_argument(*names, action="store_true", help=what)
