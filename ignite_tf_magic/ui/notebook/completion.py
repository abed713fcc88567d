"""Completes lines of `%ignite_tf` and cells of `%%ignite_sql`."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Mapping
from typing import Any

from ignite_tf_magic.serialization.terminal_text import visible_line
from ignite_tf_magic.session import columns_of_tables
from ignite_tf_magic.ui.completion import candidates
from ignite_tf_magic.ui.sql_completion import beginning_of_word, sql_candidates

_MAGIC = re.compile(r"^\s*(?:[\w, ]+=\s*)?%{1,2}ignite_tf\s")
_SQL_CELL = re.compile(r"^\s*%%ignite_sql\b")
_SQL_LINE = re.compile(r"^\s*(?:[\w, ]+=\s*)?%ignite_sql\s")
_KNOWN_S = 5.0
_PARAMETER = re.compile(r"(?<!:):(\w*)$")


def register_completion(shell: Any) -> None:
    """Register completion of our magics with IPython's completer, which front ends use."""
    from IPython.core.completer import context_matcher

    @context_matcher()  # type: ignore[untyped-decorator]
    def ignite_matcher(context: Any) -> dict[str, Any]:
        lines = context.full_text.split("\n")
        line = lines[context.cursor_line][: context.cursor_position]
        if _MAGIC.match(line):
            return _words(line)
        if magic := _SQL_LINE.match(line):
            return _sql(line[magic.end() :], "", shell.user_ns)
        if _SQL_CELL.match(context.full_text) and context.cursor_line:
            before = "\n".join([*lines[1 : context.cursor_line], line])
            after = "\n".join(lines[context.cursor_line :])[context.cursor_position :]
            return _sql(before, after, shell.user_ns)
        return {"completions": []}

    shell.Completer.custom_matchers.append(ignite_matcher)


def _words(line: str) -> dict[str, Any]:
    """Complete a line of `%ignite_tf`.

    Omits names that need quoting: others may have chosen them, and IPython evaluates text in braces or after a $.
    """
    beginning = line[max(line.rfind(" "), line.rfind("\t")) + 1 :]
    try:
        words = shlex.split(line[: len(line) - len(beginning)].partition("ignite_tf")[2])
    except ValueError:  # an open quote
        return {"completions": []}
    found = candidates(words, beginning)
    return _result([word for word in found.words if shlex.quote(word) == word], beginning, not found.or_files)


def _sql(before: str, after: str, variables: Mapping[str, Any]) -> dict[str, Any]:
    if parameter := _PARAMETER.search(before):
        names = [name for name in variables if name.startswith(parameter[1]) and not name.startswith("_")]
        return _result(sorted(names), parameter[1], True)
    words = sql_candidates(before, after, _tables())
    return _result([word for word in words if visible_line(word) == word], beginning_of_word(before), True)


_known: tuple[float, dict[str, tuple[str, ...]]] = float("-inf"), {}


def _tables() -> dict[str, tuple[str, ...]]:
    """Return tables with their columns, cached for some seconds because people press Tab often."""
    global _known
    if time.monotonic() - _known[0] > _KNOWN_S:
        _known = time.monotonic(), columns_of_tables()
    return _known[1]


def _result(words: list[str], fragment: str, is_whole: bool) -> dict[str, Any]:
    """Return a result for IPython; `is_whole` suppresses the results of other matchers, such as file names."""
    from IPython.core.completer import SimpleCompletion

    return {
        "completions": [SimpleCompletion(text=word, type="magic") for word in words],
        "matched_fragment": fragment,
        "ordered": True,
        "suppress": is_whole or bool(words),
    }
