"""SQL as text: where a statement ends, and what kind of statement it is."""

from __future__ import annotations

import re

from ignite_tf_magic.errors import ConfigError

# What a `;`, a name or a mark may stand in without being one.
QUOTED = r"""'(?:[^']|'')*' | "(?:[^"]|"")*" | --[^\n]* | /\*.*?\*/"""
_END = re.compile(rf"(?P<end>;) | {QUOTED}", re.VERBOSE | re.DOTALL)
_MARK = re.compile(rf"(?P<mark>\?) | {QUOTED}", re.VERBOSE | re.DOTALL)
_SELECT = re.compile(rf"(?P<select>(?i:\bSELECT\b)) | {QUOTED}", re.VERBOSE | re.DOTALL)
_COMMENTS = re.compile(r"(?:\s+|--[^\n]*(?:\n|$)|/\*.*?\*/)*", re.DOTALL)
_WORD = re.compile(r"[A-Za-z]+|\(")
_PLAIN_NAME = re.compile("[A-Z_][A-Z0-9_]*")
# Words that are no names to the H2 of Ignite 2.x: those that its parser knows everywhere, and those that it takes for
# something else at some places, as TOP behind SELECT, CASE and CURRENT_USER for a column, VALUES behind FROM.
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
    """Split a text at each `;` outside of strings, names in quotes and comments; comments alone are no statement."""
    parts, begin = [], 0
    for match in _END.finditer(text):
        if match["end"]:
            parts.append(text[begin : match.start()])
            begin = match.end()
    parts.append(text[begin:])
    return [part.strip() for part in parts if _first_word(part)]


def is_one_condition(text: str) -> bool:
    """Tell whether a text may stand behind WHERE: it neither ends the statement nor has a statement in it."""
    begin = _COMMENTS.match(text)
    if begin and begin.end() == len(text):
        return False
    has_end = any(match["end"] for match in _END.finditer(text))
    return not has_end and not any(match["select"] for match in _SELECT.finditer(text))


def num_marks(text: str) -> int:
    """Count the `?` of a text that stand for values."""
    return sum(match["mark"] is not None for match in _MARK.finditer(text))


def gives_rows(statement: str) -> bool:
    """Tell whether a statement asks for rows."""
    return _first_word(statement) in _GIVES_ROWS


def changes_rows(statement: str) -> bool:
    """Tell whether a statement writes or removes rows, and the answer says how many."""
    return _first_word(statement) in _CHANGES_ROWS


def quoted_name(name: str) -> str:
    """Return a name as it is written in a statement: in quotes where SQL would fold or refuse it."""
    return name if _PLAIN_NAME.fullmatch(name) and name not in WORDS else in_quotes(name)


def folded_name(name: str) -> str:
    """Return the table or column to make for a name: a statement then finds it as the name is written there.

    Without quotes SQL reads a name in capitals, so it is in capitals; a name that needs quotes is spelled as it is.
    """
    folded = "".join(
        each.upper() if len(each.upper()) == 1 else each for each in name
    )  # as H2 does: ß is no capital
    return folded if name.isidentifier() and folded not in WORDS else name


def with_engine(statement: str, engine: str) -> str:
    """Return a statement for one of Ignite's SQL engines, which a hint behind its first SELECT names.

    Raises:
        ConfigError: It has no SELECT.
    """
    for match in _SELECT.finditer(statement):
        if match["select"]:
            return f"{statement[: match.end()]} /*+ QUERY_ENGINE('{engine}') */{statement[match.end() :]}"
    raise ConfigError(f"--engine {engine} is for statements with a SELECT, and this one has none")


def with_first_column(statement: str, column: str) -> str:
    """Return a SELECT that gives a column more, before all others."""
    for match in _SELECT.finditer(statement):
        if match["select"]:
            return f"{statement[: match.end()]} {column}, {statement[match.end() :]}"
    raise ConfigError(f"{statement!r} is no SELECT")


def in_quotes(name: str) -> str:
    """Return a name in quotes, for a statement that nobody reads: it may be a word of SQL, as ORDER."""
    return '"' + name.replace('"', '""') + '"'


def _first_word(statement: str) -> str:
    begin = _COMMENTS.match(statement)
    word = _WORD.match(statement, begin.end() if begin else 0)
    return word[0].upper() if word else ""
