"""Completes a command that is being typed, with options and the names of commands, runs, caches and igfs files."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ignite_tf_magic import session
from ignite_tf_magic.errors import IgniteTfError
from ignite_tf_magic.serialization.terminal_text import visible_line
from ignite_tf_magic.ui.commands.command import CommandParser
from ignite_tf_magic.ui.commands.table import make_parser
from ignite_tf_magic.ui.sql_completion import beginning_of_word, sql_candidates


@dataclass(frozen=True, slots=True)
class Candidates:
    """Words that may come next.

    Attributes:
        words: The words, best first.
        or_files: Whether a file of this machine may come next as well.
    """

    words: tuple[str, ...] = ()
    or_files: bool = True


def _run_ids(_: str) -> list[str]:
    """List the ids of live runs, then those of ended runs, each newest first."""
    try:
        runs = list(reversed(session.list_runs(include_ended=True).runs))
    except (IgniteTfError, OSError):
        return []
    return [run.id for run in sorted(runs, key=lambda run: run.state.has_ended)]


def _caches(_: str) -> list[str]:
    return session.cache_names()


def _paths(beginning: str) -> list[str]:
    """List the paths in the igfs directory that is being typed, with the same scheme prefix."""
    directory, _, _ = beginning.rpartition("/")
    scheme = "igfs://" if beginning.startswith("igfs:///") else ""
    return [scheme + path for path in session.paths_in_directory(directory or "/")]


def _statements(beginning: str) -> list[str]:
    stem = beginning.removesuffix(beginning_of_word(beginning))
    found = sql_candidates(beginning, "", session.columns_of_tables())
    return [stem + word for word in found if '"' not in word]  # the shell puts the statement in double quotes


# Functions that list the values of an argument, by its metavar.
_THINGS: dict[str, Callable[[str], list[str]]] = {
    "RUN": _run_ids,
    "CACHE": _caches,
    "CACHE_NAME": _caches,
    "STATEMENT": _statements,
    "PATH": _paths,
    "TARGET": _paths,
    "FROM": _paths,
}
_FILES = {"FILE", "DIR", "PATH", "URI"}  # metavars of options that take files
_FILES_TOO = {"FROM"}
_NO_FILES = {"COLUMN"}  # takes neither a file nor another name that a notebook completes


def candidates(words: Sequence[str], beginning: str) -> Candidates:
    """Return the words that may come next.

    Blocks for a second or two if it needs a cluster that does not answer. Starts no nodes.

    Args:
        words: The complete words after our command's name.
        beginning: The typed part of the next word.
    """
    parser: argparse.ArgumentParser = make_parser(CommandParser, "ignite-tf", words or ["help"])
    num_given, option = 0, None
    for word in words:
        if option is not None and option.nargs != 0:
            option = None
        elif word in (options := _options(parser)):
            option = options[word]
        elif (below := _subparsers(parser)) and word in below:
            parser, num_given, option = below[word], 0, None
        else:
            num_given, option = num_given + 1, None
    name, equals, begun = beginning.partition("=")
    given = _options(parser).get(name) if equals else None
    if option is not None and option.nargs != 0:
        found = Candidates(tuple(_values(option, beginning)), _may_be_file(option))
    elif given is not None:
        values = tuple(f"{name}={value}" for value in _values(given, begun))
        found = Candidates(values, _may_be_file(given))
    else:
        found = _next(parser, num_given, beginning)
    begins = tuple(word for word in found.words if word.startswith(beginning))
    return Candidates(begins, found.or_files)


def _next(parser: argparse.ArgumentParser, num_given: int, beginning: str) -> Candidates:
    if beginning.startswith("-"):
        named = [name for name in _options(parser) if name.startswith("--") or name == beginning]
        return Candidates(tuple(named), or_files=False)
    if below := _subparsers(parser):
        return Candidates(tuple(below), or_files=False)
    places = [each for each in parser._actions if not each.option_strings]
    if not places:
        return Candidates(or_files=False)
    is_last = num_given >= len(places)
    place = places[-1] if is_last else places[num_given]
    if is_last and place.nargs not in ("*", "+"):
        return Candidates()
    return Candidates(tuple(_values(place, beginning)), _may_be_file(place))


def _may_be_file(action: argparse.Action) -> bool:
    if action.option_strings:
        return action.metavar in _FILES
    known = action.choices is not None or action.metavar in {*_THINGS, *_NO_FILES}
    return not known or action.metavar in _FILES_TOO


def _values(action: argparse.Action, beginning: str) -> Iterable[str]:
    if action.choices:
        return [str(each) for each in action.choices]
    list_them = _THINGS.get(str(action.metavar))
    if list_them is None or (action.option_strings and list_them is _paths):  # an option's PATH is on a host
        return []
    return [name for name in list_them(beginning) if _is_plain(name)]


def _is_plain(name: str) -> bool:
    """Return whether a name is neither an option nor contains terminal codes; other users may have chosen it."""
    return not name.startswith("-") and visible_line(name) == name


def _options(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    return parser._option_string_actions


def _subparsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    groups = (each for each in parser._actions if isinstance(each, argparse._SubParsersAction))
    return dict(next((each.choices for each in groups), {}))
