"""Tests which names in statements need quotes, judged by the server itself."""

from __future__ import annotations

import pytest

from ignite_tf_magic.errors import QueryError
from ignite_tf_magic.serialization.sql_text import WORDS, quoted_name
from ignite_tf_magic.session import open_session

# Other SQL words that may be names of columns or tables.
_NAMES = """
    AND ANY AS ASC BY CACHE CAST COLUMN COUNT CURRENT DATE DAY DEFAULT DESC ELSE END ESCAPE HOUR ID IF IN INDEX INTERVAL
    KEY LEFT MAX MONTH NAME NEXT OF OR OUTER PARTITION RIGHT ROW SCHEMA SET SYS TABLE THEN TIMESTAMP TO TYPE USER USING
    VALUE WHEN
"""


@pytest.fixture(scope="module")
def query(ignite):
    """Query a cluster with a table whose columns are named like SQL words; each value is its column's name."""
    with open_session(ignite.connect_options, report=print) as session:
        words = sorted({*WORDS, *_NAMES.split()})
        columns = ", ".join(f'"{word}" VARCHAR' for word in words)
        session.query(f"CREATE TABLE SQL_NAMES (THE_KEY INT PRIMARY KEY, {columns})")
        try:
            marks = ", ".join("?" * len(words))
            session.query(f"INSERT INTO SQL_NAMES VALUES (1, {marks})", words)
            yield session.query
        finally:
            session.query("DROP TABLE SQL_NAMES")


def is_column(query, word, name):
    """Return whether a name refers to the column of that word everywhere in a statement."""
    statement = f"SELECT {name}, THE_KEY, UPPER({name}) FROM SQL_NAMES WHERE {name} = ?"
    try:
        return query(statement, [word]).rows == ((word, 1, word),)
    except QueryError:
        return False


def is_table(query, word, name):
    """Return whether a name refers to the table of that word. The table is missing, so the server's error names it."""
    with pytest.raises(QueryError) as refused:
        query(f"SELECT {name}.A FROM {name}")
    return f'Table "{word}" not found' in str(refused.value)


def test_names_that_are_words_of_sql(query):
    for word in sorted(WORDS):
        assert is_column(query, word, quoted_name(word)), word
        assert is_table(query, word, quoted_name(word)), word


def test_words_without_quotes_mean_something_else(query):
    plain = [word for word in sorted(WORDS) if is_column(query, word, word) and is_table(query, word, word)]
    assert plain == []


def test_no_more_names_than_these_need_quotes(query):
    for word in _NAMES.split():
        assert quoted_name(word) == word
        assert is_column(query, word, word), word
        assert is_table(query, word, word), word


def test_a_table_that_is_called_so(query):
    query(f"CREATE TABLE {quoted_name('GROUP')} ({quoted_name('ORDER')} INT PRIMARY KEY, X INT)")
    try:
        query('INSERT INTO PUBLIC."GROUP" VALUES (1, 2)')
        assert query(f"SELECT {quoted_name('ORDER')} FROM PUBLIC.{quoted_name('GROUP')}").rows == ((1,),)
    finally:
        query(f"DROP TABLE {quoted_name('GROUP')}")
