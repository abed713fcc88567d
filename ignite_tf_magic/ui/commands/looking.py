"""`columns`, `sample`, `draft` and `profile`: commands that examine a cache before a training."""

from __future__ import annotations

import argparse

from ignite_tf_magic.session import SAMPLED_ROWS, open_session
from ignite_tf_magic.ui.cache_views import (
    columns_as_json,
    columns_view,
    sample_as_json,
    sample_view,
    short_text,
)
from ignite_tf_magic.ui.commands.command import Command
from ignite_tf_magic.ui.drafts import chosen_label, draft_of, start_words
from ignite_tf_magic.ui.options import count
from ignite_tf_magic.ui.profile_pictures import picture_of_profile
from ignite_tf_magic.ui.profile_views import profile_as_json, profile_view
from ignite_tf_magic.ui.screen import Screen, say_json

DEFAULT_ROWS = 10


def _columns(options: argparse.Namespace, screen: Screen) -> None:
    with open_session(report=screen.note, config=options.config, via=options.via) as session:
        found = session.columns(options.cache)
    if options.json:
        say_json(screen, columns_as_json(found))
    else:
        screen.show(columns_view(found))


def _sample(options: argparse.Namespace, screen: Screen) -> None:
    with open_session(report=screen.note, config=options.config, via=options.via) as session:
        sample = session.sample(options.cache, options.rows)
    if options.output:
        what = f"{len(sample.rows):,} of {sample.total_rows:,} rows of {', '.join(sample.columns)}"
        screen.keep(sample.to_pandas(), options.output, what)
    elif options.json:
        say_json(screen, sample_as_json(sample))
    elif not sample.rows:
        screen.say(f"cache {options.cache} has no rows")
    else:
        screen.show_rows(lambda: sample.to_pandas(short_text), sample_view(sample))


def _profile(options: argparse.Namespace, screen: Screen) -> None:
    with open_session(report=screen.note, config=options.config, via=options.via) as session:
        profile = session.profile(options.cache, options.columns, num_rows=options.limit)
    if options.json:
        say_json(screen, profile_as_json(profile))
        return
    screen.show(profile_view(profile))
    screen.show_picture(lambda: picture_of_profile(profile))


def _draft(options: argparse.Namespace, screen: Screen) -> None:
    with open_session(report=screen.note, config=options.config, via=options.via) as session:
        columns = session.columns(options.cache)
        [numbers] = session.profile(options.cache, [chosen_label(columns, options.label)]).columns
    way = ["--config", str(options.config)] if options.config else []
    way += ["--via", options.via] if options.via else []
    words = start_words(options.cache, ["--workers", str(options.workers), *way])
    screen.write_cell(words, draft_of(columns, numbers))


def _add_cache(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("cache", metavar="CACHE")


def _add_sample(sample: argparse.ArgumentParser) -> None:
    _add_cache(sample)
    sample.add_argument(
        "-n",
        "--rows",
        type=count,
        default=DEFAULT_ROWS,
        metavar="N",
        help=f"number of rows ({DEFAULT_ROWS}), from as many partitions",
    )
    sample.add_argument(
        "-o",
        "--output",
        metavar="NAME",
        help="a notebook's variable for the rows, a DataFrame; in a shell a file",
    )


def _add_draft(draft: argparse.ArgumentParser) -> None:
    _add_cache(draft)
    draft.add_argument(
        "--label", metavar="COLUMN", help="column to predict (one that is called label, else the last)"
    )
    draft.add_argument(
        "--workers", type=count, default=1, metavar="N", help="number of workers in the generated cell (1)"
    )


def _add_profile(profile: argparse.ArgumentParser) -> None:
    _add_cache(profile)
    profile.add_argument("columns", metavar="COLUMN", nargs="*", help="columns to show (all)")
    profile.add_argument(
        "--limit",
        type=count,
        default=SAMPLED_ROWS,
        metavar="N",
        help=f"rows of the sample, for what SQL cannot tell ({SAMPLED_ROWS}); a cache of no more is read whole",
    )


COMMANDS = (
    Command("columns", "list the columns of a cache", _columns, _add_cache, example="DIGITS"),
    Command("sample", "show some rows of a cache", _sample, _add_sample, example="DIGITS -n 5"),
    Command(
        "draft",
        "write a first script that trains on a cache",
        _draft,
        _add_draft,
        example="DIGITS --label label",
        has_json=False,
    ),
    Command(
        *(
            "profile",
            "show statistics of a cache: nulls, distributions, classes, skew",
            _profile,
            _add_profile,
        ),
        example="DIGITS label",
    ),
)
