"""Parses the line of `%ignite_tf` with argparse."""

from __future__ import annotations

import argparse
import re
import shlex
from typing import NoReturn

from ignite_tf_magic.errors import ConfigError
from ignite_tf_magic.ui.commands.command import CommandParser
from ignite_tf_magic.ui.commands.table import make_parser, read_command

NAME = "%ignite_tf"
_QUOTED_OR_COMMENT = re.compile(r"""\\.|'[^']*'|"(?:\\.|[^"\\])*"|(?<!\S)#""")


def parse_line(line: str) -> argparse.Namespace | None:
    """Parse a line; print help and return None if the line only asks for help.

    The attribute `command` of the result is the `Command`.

    Raises:
        ConfigError: The line is not valid; the error shows the usage.
    """
    try:
        words = shlex.split(_without_comment(line))
    except ValueError as error:
        raise ConfigError(f"the line cannot be read: {error}") from error
    try:
        return read_command(make_parser(NotebookParser, NAME, words), words)
    except _HelpShown:
        return None


def _without_comment(line: str) -> str:
    """Remove a comment, which begins as in shells with a # at the start of a word outside of quotes."""
    found = (each for each in _QUOTED_OR_COMMENT.finditer(line) if each[0] == "#")
    comment = next(found, None)
    return line if comment is None else line[: comment.start()]


class _HelpShown(Exception):
    """The signal that --help or --version has printed its text."""


class NotebookParser(CommandParser):
    """A command parser that raises errors instead of ending the process, which is the kernel."""

    def error(self, message: str) -> NoReturn:
        """Raise a `ConfigError` with the message and the usage."""
        raise ConfigError(f"{message}\n{self.format_usage().strip()}")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:  # noqa: ARG002
        """Raise `_HelpShown` to end the parsing."""
        raise _HelpShown
