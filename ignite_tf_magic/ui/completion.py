"""What may come next in a command that is being typed: from the table of commands, and what there is of its things."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence

from ignite_tf_magic import session
from ignite_tf_magic.errors import IgniteTfError
from ignite_tf_magic.serialization.terminal_text import visible_line
from ignite_tf_magic.ui.commands.table import make_parser


def _run_ids() -> list[str]:
    try:
        return [run.id for run in reversed(session.list_runs(include_ended=True).runs)]
    except (IgniteTfError, OSError):
        return []


def _caches() -> list[str]:
    return session.cache_names()


# What a word stands for, by the way in which help shows it.
_THINGS: dict[str, Callable[[], list[str]]] = {
    "RUN": _run_ids,
    "CACHE": _caches,
    "CACHE_NAME": _caches,
}


def candidates(words: Sequence[str], beginning: str) -> list[str]:
    """Return the words that may come next.

    Blocks for a second or two where a cluster that does not answer is asked for its caches. Starts nothing.

    Args:
        words: Those behind our command's name that are whole.
        beginning: What is typed of the next one.
    """
    parser = make_parser(argparse.ArgumentParser, "ignite-tf", words)
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
    possible = (
        _values(option) if option is not None and option.nargs != 0 else _next(parser, num_given, beginning)
    )
    return [word for word in possible if word.startswith(beginning)]


def _next(parser: argparse.ArgumentParser, num_given: int, beginning: str) -> Iterable[str]:
    if beginning.startswith("-"):
        return [name for name in _options(parser) if name.startswith("--") or name == beginning]
    if below := _subparsers(parser):
        return list(below)
    places = [each for each in parser._actions if not each.option_strings]
    if not places:
        return []
    is_last = num_given >= len(places)
    place = places[-1] if is_last else places[num_given]
    return _values(place) if not is_last or place.nargs in ("*", "+") else []


def _values(action: argparse.Action) -> Iterable[str]:
    if action.choices:
        return [str(each) for each in action.choices]
    return [name for name in _THINGS.get(str(action.metavar), list)() if _is_plain(name)]


def _is_plain(name: str) -> bool:
    """Tell whether a name, which others may have given, is neither an option nor an order to a terminal."""
    return not name.startswith("-") and visible_line(name) == name


def _options(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    return parser._option_string_actions


def _subparsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    groups = (each for each in parser._actions if isinstance(each, argparse._SubParsersAction))
    return dict(next((each.choices for each in groups), {}))
