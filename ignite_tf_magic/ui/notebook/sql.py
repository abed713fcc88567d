"""Parses `%%ignite_sql`: leading options, and statements with notebook variables bound as parameters."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Mapping
from typing import Any

from ignite_tf_magic.errors import ConfigError
from ignite_tf_magic.serialization.sql_text import QUOTED, split_statements
from ignite_tf_magic.ui.commands.command import add_common_options
from ignite_tf_magic.ui.commands.data import add_sql_options
from ignite_tf_magic.ui.notebook.arguments import NotebookParser

USAGE = """\
%%ignite_sql [-o NAME] [--to KIND] [--limit N] [--engine NAME] [--json] [-c FILE] [--via HOST]
SELECT label, COUNT(*) FROM DIGITS WHERE label < :largest GROUP BY label

  :name         the notebook variable of that name, bound as a parameter, never pasted into the text
  -o NAME       put the DataFrame into the variable NAME instead of showing it
  --to KIND     pandas, polars or arrow: what the rows become (default pandas)
  --limit N     fetch at most N rows (default 1000; 0 for all)
  --engine NAME SQL engine to use, if the nodes have it: h2 or calcite
  --json        print JSON
  -c FILE, --via HOST   as in %ignite_tf
Several statements stand in one cell with a ; between them.
On one line: %ignite_sql [options] STATEMENT"""

_OPTION = re.compile(r"\s*(--?[A-Za-z][\w-]*)")
_VALUE = re.compile(r"(?:\s+|=)(\S+)")
_TOKEN = re.compile(rf"{QUOTED} | :: | :([A-Za-z_]\w*)", re.VERBOSE | re.DOTALL)


def parse_sql_magic(line: str, cell: str | None) -> argparse.Namespace | None:
    """Parse the magic's line and cell; return None if the line asks for help.

    The result has the options of `%ignite_tf sql`, `to`, and `statements`.

    Raises:
        ConfigError: An option is not valid, or there is no statement.
    """
    parser = NotebookParser("%ignite_sql", add_help=False)
    add_common_options(parser)
    add_sql_options(parser)
    parser.add_argument("--to", choices=("pandas", "polars", "arrow"), default="pandas")
    words, line = _leading_options(parser, line)
    if words is None:
        return None
    options = parser.parse_args(words)
    options.statements = split_statements("\n".join((line, cell or "")))
    if not options.statements:
        raise ConfigError(f"no SQL statement was given\n{USAGE}")
    if options.output is not None and not options.output.isidentifier():
        raise ConfigError(f"-o {options.output} is not the name of a variable")
    return options


def _leading_options(parser: argparse.ArgumentParser, line: str) -> tuple[list[str] | None, str]:
    """Split a line into its leading options and the rest, which is SQL and not shell words; None means help."""
    known = {name: action for action in parser._actions for name in action.option_strings}
    words: list[str] = []
    while match := _OPTION.match(line):
        if match[1] in ("-h", "--help"):
            return None, ""
        if match[1] not in known:
            near = difflib.get_close_matches(match[1], known, n=1)
            hint = (
                f"; did you mean {near[0]}?" if near else "" if match[1][1] != "-" else "; a comment: -- text"
            )
            raise ConfigError(f"unknown option {match[1]}{hint}\n{USAGE}")
        words, line = [*words, match[1]], line[match.end() :]
        if known[match[1]].nargs != 0 and (value := _VALUE.match(line)):
            words, line = [*words, value[1]], line[value.end() :]
    return words, line


def bind_names(statement: str, variables: Mapping[str, Any]) -> tuple[str, list[Any]]:
    """Replace each `:name` outside of strings and comments by `?`, and return the values to bind.

    Raises:
        ConfigError: The notebook has no variable with such a name.
    """
    values: list[Any] = []

    def bind(match: re.Match[str]) -> str:
        name = match[1]
        if name is None:
            return match[0]
        if name not in variables:
            raise ConfigError(f"the statement binds :{name}, but the notebook has no variable {name!r}")
        values.append(variables[name])
        return "?"

    return _TOKEN.sub(bind, statement), values
