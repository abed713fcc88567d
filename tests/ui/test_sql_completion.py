"""Tests of completion in SQL statements."""

from __future__ import annotations

import pytest

from ignite_tf_magic.ui.sql_completion import beginning_of_word, sql_candidates

TABLES = {
    "KITTENS": ("ID", "NAME", '"petal width"', "_KEY", "_VAL"),
    "KINDS": ("ID", "LABEL"),
    '"MNIST".MNIST': ("IMAGE", "LABEL"),
}


@pytest.mark.parametrize(
    ("before", "first"),
    [
        ("", "SELECT"),
        ("sel", "select"),
        ("SELECT NA", "NAME"),
        ("SELECT na", "name"),
        ("SELECT * FR", "FROM"),
        ("SELECT * FROM ", "KITTENS"),
        ("SELECT * FROM kitt", "kittens"),
        ("SELECT * FROM KITTENS, KIN", "KINDS"),
        ("SELECT * FROM KITTENS JOIN KIN", "KINDS"),
        ("SELECT KITTENS.NA", "KITTENS.NAME"),
        ("SELECT kittens.na", "kittens.name"),
        ('SELECT "petal', '"petal width"'),
        ('SELECT * FROM "MNIST".', '"MNIST".MNIST'),
        ("INSERT INTO KIN", "KINDS"),
        ("SELECT 1; SELECT * FROM KIN", "KINDS"),
        ("SELECT COU", "COUNT("),
        ("SELECT x -- of all\nFROM KIN", "KINDS"),
        ("SELECT 'it''s' FROM KIN", "KINDS"),
    ],
)
def test_the_best_is_first(before, first):
    assert sql_candidates(before, "", TABLES)[:1] == [first]


def test_columns_of_the_tables_that_are_named_come_first_wherever_they_are_named():
    assert sql_candidates("SELECT ", " FROM kinds", TABLES)[:2] == ["ID", "LABEL"]
    assert "NAME" not in sql_candidates("SELECT ", " FROM kinds", TABLES)
    assert "NAME" in sql_candidates("SELECT ", "", TABLES)
    assert sql_candidates("SELECT ", " FROM KITTENS", TABLES)[3:5] == ["_KEY", "_VAL"]


@pytest.mark.parametrize("before", ["SELECT 'kit", "SELECT x -- kit", "SELECT /* kit", "SELECT zzz"])
def test_nothing_is_proposed(before):
    assert sql_candidates(before, "", TABLES) == []


@pytest.mark.parametrize(
    ("before", "word"),
    [
        ("SELECT a.b", "a.b"),
        ('SELECT "a b', '"a b'),
        ('"A".b', '"A".b'),
        ("SELECT ", ""),
        ("COUNT(x", "x"),
        ("", ""),
    ],
)
def test_where_the_word_begins(before, word):
    assert beginning_of_word(before) == word
