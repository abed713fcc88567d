"""`%%ignite_sql`: options in front, notebook variables bound as parameters."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ignite_tf_magic.errors import ConfigError

DEFAULT_LIMIT = 1000
USAGE = """\
%%ignite_sql [-o NAME] [--limit N]
SELECT label, COUNT(*) FROM MNIST WHERE label < :largest GROUP BY label

  :name         the notebook variable of that name, bound as a parameter, never pasted into the text
  -o NAME       put the DataFrame into the variable NAME instead of showing it
  --limit N     fetch at most N rows (default 1000; 0 for all)
On one line: %ignite_sql [options] STATEMENT"""

_OPTION = re.compile(r"\s*(-o|--output|--limit)(?:\s+|=)(\S+)(?:\s+|$)|\s*(-h|--help)\b")
_TOKEN = re.compile(
    r"""'(?:[^']|'')*' | "(?:[^"]|"")*" | --[^\n]* | /\*.*?\*/ | :: | :([A-Za-z_]\w*)""",
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class SqlRequest:
    """A statement as a person wrote it.

    Attributes:
        output: Name of the variable for the result; None shows it.
        limit: Most rows to fetch, None for all.
        help: Only the usage is asked for.
    """

    statement: str
    output: str | None = None
    limit: int | None = DEFAULT_LIMIT
    help: bool = False


def parse_sql_magic(line: str, cell: str | None) -> SqlRequest:
    """Read the magic's line and cell.

    Raises:
        ConfigError: An unusable option, or no statement.
    """
    output, limit = None, DEFAULT_LIMIT
    while match := _OPTION.match(line):
        option, value, wants_help = match.groups()
        if wants_help:
            return SqlRequest("", help=True)
        if option == "--limit":
            limit = _limit(value)
        else:
            output = _variable(value)
        line = line[match.end() :]
    if line.strip().startswith("-") and not line.strip().startswith("--"):
        raise ConfigError(f"unknown option {shlex.split(line)[0]!r}\n{USAGE}")
    statement = "\n".join(part for part in (line, cell or "") if part.strip()).strip().rstrip(";")
    if not statement:
        raise ConfigError(f"no SQL statement was given\n{USAGE}")
    return SqlRequest(statement, output, limit or None)


def _limit(value: str) -> int:
    if not value.isdecimal():
        raise ConfigError(f"--limit {value} is not a number of rows; give 0 for all rows")
    return int(value)


def _variable(value: str) -> str:
    if not value.isidentifier():
        raise ConfigError(f"-o {value} is not the name of a variable")
    return value


def bind_names(statement: str, variables: Mapping[str, Any]) -> tuple[str, list[Any]]:
    """Replace each `:name` outside of strings and comments by `?`, and collect the values to bind.

    Raises:
        ConfigError: There is no variable of that name.
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
