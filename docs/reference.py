"""Write the reference of the documentation: commands, options, variables, exit codes, JSON, and what Python has.

Everything comes from the parser, the dataclasses and the constants of the package; where they have no words for a
thing, the words are here, and a thing without any ends the build. `docs/conf.py` calls `write` before pages are read.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from docs.markdown import block, cell, table, words, write_page
from docs.reference_answers import exit_codes_page, json_page
from docs.reference_api import client_page, errors_page, package_page, session_page
from docs.reference_options import configuration_page, environment_page
from ignite_tf_magic.ui.commands import table as command_table
from ignite_tf_magic.ui.commands.command import Command, CommandParser
from ignite_tf_magic.ui.commands.table import commands, make_parser
from ignite_tf_magic.ui.notebook.sql import USAGE as SQL_USAGE
from ignite_tf_magic.ui.shell import cli
from ignite_tf_magic.ui.shell.completion import USAGE as COMPLETION_USAGE

ROOT = Path(__file__).parent.parent
WIDTH = 100
MADE = "% Made by docs/reference.py.\n\n"


def write(folder: Path) -> None:
    """Write all pages into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        write_page(folder / name, text)


def pages() -> dict[str, str]:
    """Return all pages by the names of their files."""
    made = {
        "commands.md": commands_page(),
        "sql_magic.md": sql_magic_page(),
        "configuration.md": configuration_page(),
        "environment.md": environment_page(),
        "exit_codes.md": exit_codes_page(),
        "json.md": json_page(),
        "api.md": package_page(),
        "api_session.md": session_page(),
        "api_client.md": client_page(),
        "api_errors.md": errors_page(),
    }
    return {name: MADE + text.rstrip() + "\n" for name, text in made.items()}


# Commands


@dataclass(frozen=True, slots=True)
class Listed:
    """A command with its parser."""

    command: Command
    parser: argparse.ArgumentParser

    @property
    def anchor(self) -> str:
        """By which other pages lead to it."""
        return f"command-{self.command.name.replace(' ', '-')}"

    @property
    def options(self) -> list[argparse.Action]:
        """Its arguments and options, without what all commands have."""
        return [each for each in self.parser._actions if not isinstance(each, _EVERYWHERE)]


_EVERYWHERE = (argparse._HelpAction, argparse._VersionAction)


def listed_commands() -> list[Listed]:
    """Return all commands, in the order of their table."""
    top = make_parser(CommandParser, cli.NAME, ["help"])
    return [Listed(parser.get_default("command"), parser) for parser in _leaves(top)]


def _leaves(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    within = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    if not within:
        yield parser
    for action in within:
        for each in action.choices.values():
            yield from _leaves(each)


def commands_page() -> str:
    """Return the page of all commands."""
    listed = listed_commands()
    rows = [[f"[`{each.command.name}`](#{each.anchor})", words(each.command.summary)] for each in listed]
    groups = commands()[1]
    parts = [
        "# Commands\n",
        "In a shell a command stands behind `ignite-tf`, in a notebook behind `%ignite_tf`: `ignite-tf ps` is "
        "`%ignite_tf ps`. `start` may have a cell, which is the script: `%%ignite_tf start CACHE`. Without a command, "
        "both show `status`. `-h` tells a command's options, and `-V` the version, and what is installed beside it.\n",
        f"Short words: {_short_words()}. With `--json` the answer is [JSON](json.md); what is told beside it goes to "
        "standard error.\n",
        table(["command", "what it does"], rows),
    ]
    parts += ["## completion\n", "In a shell only.\n", block(COMPLETION_USAGE)]
    seen = set()
    for each in listed:
        first, _, second = each.command.name.partition(" ")
        if second and first not in seen:
            seen.add(first)
            parts += [
                f"## {first}\n",
                f"{words(groups[first].summary)}.\n",
                words(groups[first].epilog or "") + "\n",
            ]
        parts.append(_command(each, "###" if second else "##"))
    return "\n".join(parts)


def _short_words() -> str:
    return ", ".join(f"`{word}` for `{' '.join(full)}`" for word, full in command_table._SHORT.items())


def _command(listed: Listed, heading: str) -> str:
    command = listed.command
    examples = [f"{listed.parser.prog} {each}".rstrip() for each in command.example.splitlines() or [""]]
    notes = (command.epilog or "").replace("*", "\\*").replace("<", "\\<")
    parts = [
        f"({listed.anchor})=\n{heading} {command.name}\n",
        f"{words(command.summary[:1].upper() + command.summary[1:])}.\n",
        block(usage(listed.parser)),
    ]
    if listed.options:
        parts.append(
            table(["argument", "what it says"], [_option(listed.parser, each) for each in listed.options])
        )
    if notes:
        parts.append(f"{notes}\n")
    parts += ["Example:\n" if len(examples) == 1 else "Examples:\n", block("\n".join(examples))]
    return "\n".join(parts)


def usage(parser: argparse.ArgumentParser) -> str:
    """Return how a command is written, in lines of one width and without colours."""
    before = parser.formatter_class
    parser.formatter_class = functools.partial(before, width=WIDTH)  # type: ignore[assignment]
    if hasattr(parser, "color"):
        parser.color = False
    try:
        return parser.format_usage().removeprefix("usage: ").rstrip()
    finally:
        parser.formatter_class = before


def _option(parser: argparse.ArgumentParser, action: argparse.Action) -> list[str]:
    value = action.metavar if isinstance(action.metavar, str) else None
    if value is None and action.nargs != 0:
        value = "{" + ",".join(map(str, action.choices)) + "}" if action.choices else action.dest.upper()
    shown = ", ".join(action.option_strings)
    shown = f"{shown} {value or ''}".strip() if shown else str(value)
    told = parser._get_formatter()._expand_help(action) if action.help else _PLAIN_ARGUMENTS[str(value)]
    repeated = "; may be repeated" if isinstance(action, argparse._AppendAction) else ""
    return [f"`{cell(shown)}`", words(told.removesuffix(repeated)) + repeated]


# Arguments whose parsers leave their meaning to their names.
_PLAIN_ARGUMENTS = {
    "CACHE": "the cache, or its SQL table",
    "STATEMENT": "in SQL; several with a ; between them",
    "PATH": "igfs:///PATH, or /PATH",
    "TARGET": "where to, a path likewise",
    "FILE": "of this machine",
    "DIR": "of this machine",
    "NAME": "what it is called",
    "igfs://HOST:PORT/": "which cluster's file system (the configured one)",
}


def sql_magic_page() -> str:
    """Return the page of %%ignite_sql."""
    return (
        "# %%ignite_sql\n\nSQL in a notebook. The rows are a DataFrame; `--to` says of which library.\n\n"
        f"{block(SQL_USAGE)}\nStatements, times and types: [data.md](../data.md#sql). In a shell: "
        "[`sql`](commands.md#command-sql).\n"
    )


def _main() -> None:
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "_generated")


if __name__ == "__main__":
    _main()
