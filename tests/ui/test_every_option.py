"""Tests of each option of each command, in the parser that shell and cells share: values and refusals."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from ignite_tf_magic.ui.commands.command import CommandParser
from ignite_tf_magic.ui.commands.table import make_parser
from tests.test_docs import leaves

# For each kind of value: an argument, its parsed value, and an invalid argument (None if all are valid).
WORDS = {
    None: ("words", "words", None),
    "Path": ("some/where", Path("some/where"), None),
    "host_names": ("db1,db2", ("db1", "db2"), None),
    "count": ("7", 7, "0"),
    "whole": ("7", 7, "-1"),
    "priority": ("-3", -3, "-1x"),
    "days": ("7", 7, "-1"),
    "port": ("6007", 6007, "65536"),
    "seconds": ("2.5", 2.5, "0"),
    "size": ("2GiB", 2 * 1024**3, "much"),
    "assignment": ("NAME=some=thing", ("NAME", "some=thing"), "NAME"),
    "_column_kind": ("zip=text", ("zip", "text"), "zip"),
    "_separator": ("tab", "tab", ";;"),
    "_engine": ("CALCITE", "calcite", "h2;"),
}
PARSER = make_parser(CommandParser, "ignite-tf", ["help"])
OPTIONS = [
    pytest.param(command, leaf, action, spelling, id=f"{command} {spelling}")
    for command, leaf in leaves(PARSER).items()
    for action in leaf._actions
    if not isinstance(action, argparse._HelpAction | argparse._VersionAction)
    for spelling in action.option_strings
]


def line(command: str, leaf: argparse.ArgumentParser, *option: str) -> list[str]:
    """Return a command line with an option, and a word for each required argument."""
    needed = [
        each for each in leaf._actions if not each.option_strings and each.nargs not in ("?", "*", "...")
    ]
    return [*command.split(), *option, *("ARGUMENT" for _ in needed)]


@pytest.mark.parametrize(("command", "leaf", "action", "spelling"), OPTIONS)
def test_an_option_gives_its_value_and_nothing_else(command, leaf, action, spelling):
    without = vars(PARSER.parse_args(line(command, leaf)))
    if action.nargs == 0:
        words, value = [spelling], True
    elif action.choices:
        value = next(each for each in action.choices if each != action.default)
        words = [spelling, value]
    else:
        word, value, _ = WORDS[getattr(action.type, "__name__", None)]
        words = [spelling, word]
    if isinstance(action, argparse._AppendAction):
        words, value = [*words, *words], [value, value]
    given = vars(PARSER.parse_args(line(command, leaf, *words)))
    assert given[action.dest] == value
    assert given == {**without, action.dest: value}
    assert without[action.dest] != value, "a default that nobody could tell from what was given"


REFUSING = [
    option
    for option in OPTIONS
    if option.values[2].choices or WORDS[getattr(option.values[2].type, "__name__", None)][2]
    if option.values[2].nargs != 0
]


@pytest.mark.parametrize(("command", "leaf", "action", "spelling"), REFUSING)
def test_a_word_that_is_no_value_is_refused_by_name(command, leaf, action, spelling, capsys):
    bad = "none-of-these" if action.choices else WORDS[getattr(action.type, "__name__", None)][2]
    with pytest.raises(SystemExit) as ended:
        PARSER.parse_args(line(command, leaf, f"{spelling}={bad}" if spelling[1] == "-" else spelling + bad))
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert spelling in said
    assert repr(bad) in said


def test_every_kind_of_value_is_tried():
    kinds = {getattr(option.values[2].type, "__name__", None) for option in OPTIONS}
    assert kinds == set(WORDS)
    assert len(OPTIONS) > 150
