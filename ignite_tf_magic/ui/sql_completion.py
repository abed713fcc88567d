"""Completes a SQL statement with keywords, tables and their columns. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

# A name or the beginning of one, perhaps with an open quote, after the names of its schema or table.
_PART = r'(?:"(?:[^"]|"")*"?|\w+)'
_TOKEN = re.compile(rf"(?:{_PART}\.)*{_PART}?$")
_CLOSED = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|--[^\n]*\n|/\*.*?\*/""", re.DOTALL)
_OPEN = re.compile(r"'|--|/\*")
_WORD = re.compile(r"\w+")
_BEFORE_TABLES = {"FROM", "JOIN", "INTO", "UPDATE", "TABLE"}
_STATEMENTS = (
    "SELECT",
    "INSERT INTO",
    "UPDATE",
    "DELETE FROM",
    "MERGE INTO",
    "CREATE TABLE",
    "DROP TABLE",
    "EXPLAIN",
)
_KEYWORDS = (
    *("FROM", "WHERE", "GROUP BY", "ORDER BY", "HAVING", "LIMIT", "OFFSET", "JOIN", "LEFT JOIN", "ON", "AS"),
    *(
        "AND",
        "OR",
        "NOT",
        "IN",
        "IS NULL",
        "IS NOT NULL",
        "LIKE",
        "BETWEEN",
        "DISTINCT",
        "CASE",
        "WHEN",
        "THEN",
    ),
    *("ELSE", "END", "DESC", "ASC", "UNION ALL", "VALUES", "SET", "NULL", "TRUE", "FALSE"),
    *("COUNT(", "SUM(", "AVG(", "MIN(", "MAX(", "CAST(", "COALESCE(", "ABS(", "ROUND("),
)


def beginning_of_word(before: str) -> str:
    """Return the unfinished name or word at the end of a text."""
    found = _TOKEN.search(before)
    return found[0] if found else ""


def sql_candidates(before: str, after: str, tables: Mapping[str, Iterable[str]]) -> list[str]:
    """Return the candidates for the word at the end of `before`.

    Args:
        before: The statement up to the cursor.
        after: The rest of the statement, which may name its tables.
        tables: The columns of each table; all names as they are written in SQL.

    Returns:
        The candidates, best first. Those without quotes are in lower case if the typed word is.
    """
    if _OPEN.search(_CLOSED.sub(" ", before)):  # the cursor is in a string or a comment
        return []
    word = beginning_of_word(before)
    stem = before[: len(before) - len(word)]
    owner, dot, last = word.rpartition(".")
    if dot:
        within = [table for table in tables if _is_called(table, owner)]
        below = [f"{owner}.{column}" for table in within for column in tables[table]]
        wanted = below or [table for table in tables if table.startswith(owner + dot)]
    else:
        wanted = _at(stem, stem + after, tables)
    return list(dict.fromkeys(_cased(each, last) for each in wanted if _begins(each, word)))


def _at(stem: str, statement: str, tables: Mapping[str, Iterable[str]]) -> list[str]:
    words = [word.upper() for word in _WORD.findall(_CLOSED.sub(" x ", stem).rpartition(";")[2])]
    if not words:
        return list(_STATEMENTS)
    if words[-1] in _BEFORE_TABLES or (stem.rstrip().endswith(",") and _clause(words) in _BEFORE_TABLES):
        return list(tables)
    named = [table for table in tables if _names(statement, table)]
    columns = [column for table in named or tables for column in tables[table]]
    return [*sorted(columns, key=lambda name: name.startswith("_")), *_KEYWORDS, *tables]


def _clause(words: list[str]) -> str:
    """Return the last word that begins a clause of a statement."""
    clauses = {*_BEFORE_TABLES, "SELECT", "WHERE", "BY", "SET", "ON", "VALUES", "HAVING"}
    return next((word for word in reversed(words) if word in clauses), "")


def _names(statement: str, table: str) -> bool:
    """Return whether a statement contains a table's name, at least without its schema."""
    bare = table.rpartition(".")[2]
    return bool(re.search(rf"(?<!\w){re.escape(bare)}(?!\w)", statement, 0 if '"' in bare else re.IGNORECASE))


def _is_called(table: str, name: str) -> bool:
    return table == name or table.upper() == name.upper() or table.rpartition(".")[2].upper() == name.upper()


def _begins(candidate: str, word: str) -> bool:
    return candidate.upper().startswith(word.upper())


def _cased(candidate: str, typed: str) -> str:
    return candidate.lower() if typed.islower() and '"' not in candidate else candidate
