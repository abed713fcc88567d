"""The words after `%ignite_tf`, read with argparse. Does nothing but read."""

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
    """Read a line; None when it asked for help only, which is printed.

    `command` of the answer is the `Command`.

    Raises:
        ConfigError: The line cannot be understood; the error shows the usage.
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
    """Leave out what stands behind a # that begins a word outside of quotes, as shells do."""
    found = (each for each in _QUOTED_OR_COMMENT.finditer(line) if each[0] == "#")
    comment = next(found, None)
    return line if comment is None else line[: comment.start()]


class _HelpShown(Exception):
    """--help, or --version, has printed its text."""


class NotebookParser(CommandParser):
    """Raises instead of ending the process, which is the kernel."""

    def error(self, message: str) -> NoReturn:
        """Say what cannot be read, and how it is written."""
        raise ConfigError(f"{message}\n{self.format_usage().strip()}")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:  # noqa: ARG002
        """End the reading."""
        raise _HelpShown
