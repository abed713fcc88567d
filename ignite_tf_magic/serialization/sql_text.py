"""Analyses SQL text: where statements end, what kind they are, and which names need quotes."""

from __future__ import annotations

import re

from ignite_tf_magic.errors import ConfigError

# Strings, names in quotes and comments: a `;`, a word or a `?` in these has no meaning of its own.
QUOTED = r"""'(?:[^']|'')*' | "(?:[^"]|"")*" | --[^\n]* | /\*.*?\*/"""
_END = re.compile(rf"(?P<end>;) | {QUOTED}", re.VERBOSE | re.DOTALL)
_MARK = re.compile(rf"(?P<mark>\?) | {QUOTED}", re.VERBOSE | re.DOTALL)
_SELECT = re.compile(rf"(?P<select>(?i:\bSELECT\b)) | {QUOTED}", re.VERBOSE | re.DOTALL)
_COMMENTS = re.compile(r"(?:\s+|--[^\n]*(?:\n|$)|/\*.*?\*/)*", re.DOTALL)
_WORD = re.compile(r"[A-Za-z]+|\(")
_PLAIN_NAME = re.compile("[A-Z_][A-Z0-9_]*")
# Words that the H2 of Ignite 2.x does not accept as names. Its parser reserves the first ones everywhere, and takes the
# last line for something else in some places: TOP after SELECT, CASE and CURRENT_USER as a column, VALUES after FROM.
_WORDS = """
    ALL CHECK CONSTRAINT CROSS CURRENT_DATE CURRENT_TIME CURRENT_TIMESTAMP DISTINCT EXCEPT EXISTS FALSE FETCH FOR
    FOREIGN FROM FULL GROUP HAVING INNER INTERSECT IS JOIN LIKE LIMIT MINUS NATURAL NOT NULL OFFSET ON ORDER PRIMARY
    ROWNUM SELECT SYSDATE SYSTIME SYSTIMESTAMP TODAY TRUE UNION UNIQUE WHERE WITH
    CASE CURRENT_USER INTERSECTS TOP VALUES
"""
WORDS = frozenset(_WORDS.split())
_CHANGES_ROWS = frozenset(("INSERT", "UPDATE", "DELETE", "MERGE", "COPY"))
_GIVES_ROWS = frozenset(("SELECT", "WITH", "VALUES", "EXPLAIN", "TABLE", "CALL", "("))


def split_statements(text: str) -> list[str]:
    """Split a text at each `;` outside of strings, names in quotes and comments. Skip parts with comments only."""
    parts, begin = [], 0
    for match in _END.finditer(text):
        if match["end"]:
            parts.append(text[begin : match.start()])
            begin = match.end()
    parts.append(text[begin:])
    return [part.strip() for part in parts if _first_word(part)]


def is_one_condition(text: str) -> bool:
    """Return whether a text may follow WHERE: it is not empty, does not end the statement, and has no SELECT."""
    begin = _COMMENTS.match(text)
    if begin and begin.end() == len(text):
        return False
    has_end = any(match["end"] for match in _END.finditer(text))
    return not has_end and not any(match["select"] for match in _SELECT.finditer(text))


def num_marks(text: str) -> int:
    """Return the number of `?` in a text that are placeholders for values."""
    return sum(match["mark"] is not None for match in _MARK.finditer(text))


def gives_rows(statement: str) -> bool:
    """Return whether a statement asks for rows."""
    return _first_word(statement) in _GIVES_ROWS


def changes_rows(statement: str) -> bool:
    """Return whether a statement writes or removes rows. Its answer is then the number of rows."""
    return _first_word(statement) in _CHANGES_ROWS


def quoted_name(name: str) -> str:
    """Return a name as it is written in a statement: in quotes if SQL would change its case or reject it."""
    return name if _PLAIN_NAME.fullmatch(name) and name not in WORDS else in_quotes(name)


def in_capitals(name: str) -> str:
    """Return a name as SQL reads it without quotes. H2 converts letter by letter, so it keeps ß."""
    return "".join(each.upper() if len(each.upper()) == 1 else each for each in name)


def folded_name(name: str) -> str:
    """Return the name to create a table or column with. Statements then find it by the given name.

    SQL converts a name without quotes to capitals, so the result is in capitals. A name that needs quotes is unchanged.
    """
    folded = in_capitals(name)
    return folded if name.isidentifier() and folded not in WORDS else name


def with_engine(statement: str, engine: str) -> str:
    """Return a statement with a hint after its first SELECT that selects one of Ignite's SQL engines.

    Raises:
        ConfigError: The statement has no SELECT.
    """
    for match in _SELECT.finditer(statement):
        if match["select"]:
            return f"{statement[: match.end()]} /*+ QUERY_ENGINE('{engine}') */{statement[match.end() :]}"
    raise ConfigError(f"--engine {engine} is for statements with a SELECT, and this one has none")


def with_first_column(statement: str, column: str) -> str:
    """Return a SELECT with one more column, before all others."""
    for match in _SELECT.finditer(statement):
        if match["select"]:
            return f"{statement[: match.end()]} {column}, {statement[match.end() :]}"
    raise ConfigError(f"{statement!r} is not a SELECT")


def in_quotes(name: str) -> str:
    """Return a name in quotes, which may be a word of SQL such as ORDER. For statements that people do not see."""
    return '"' + name.replace('"', '""') + '"'


def _first_word(statement: str) -> str:
    begin = _COMMENTS.match(statement)
    word = _WORD.match(statement, begin.end() if begin else 0)
    return word[0].upper() if word else ""
