"""`ps`: lists runs. People type it most, so its separate module imports little."""

from __future__ import annotations

import argparse
from datetime import datetime, timezone

from ignite_tf_magic.session import damaged_words, kept_ready, list_runs
from ignite_tf_magic.ui.commands.command import Command, flags
from ignite_tf_magic.ui.render import message_view, runs_view
from ignite_tf_magic.ui.run_views import run_as_json
from ignite_tf_magic.ui.screen import Screen, say_json


def note_kept(screen: Screen) -> None:
    """Report how many processes of ended runs hold memory on this machine."""
    count, num_bytes = kept_ready()
    if count:
        processes = "process waits" if count == 1 else "processes wait"
        screen.note(
            f"{count} {processes} here with TensorFlow for the next run, with {num_bytes / 2**30:.1f} GiB: they end by "
            "themselves after some minutes, and when memory is short ([launch] warm_s = 0 keeps none)"
        )


def _ps(options: argparse.Namespace, screen: Screen) -> None:
    listed = list_runs(include_ended=options.all, config=options.config, via=options.via)
    for warning in listed.warnings:
        screen.note(warning)
    for path in listed.unreadable if options.all else ():
        screen.note(damaged_words(path))
    note_kept(screen)
    of = "".join(f" tagged {tag}" for tag in options.tags)
    runs = [run for run in listed.runs if set(options.tags) <= set(run.tags)]
    if options.json:
        say_json(screen, [run_as_json(run) for run in runs])
    elif runs:
        screen.show(runs_view(runs, datetime.now(timezone.utc)))
    else:
        screen.show(
            message_view(
                f"no runs{of}"
                if options.all
                else f"no runs{of} are going on; --all lists those that ended, too"
            )
        )


def _add_all(ps: argparse.ArgumentParser) -> None:
    flags(ps, ("--all", "also those that ended"))
    ps.add_argument(
        "--tag", dest="tags", action="append", default=[], metavar="T", help="only those with this tag"
    )


COMMANDS = (Command("ps", "list runs", _ps, _add_all, example="--all --tag first"),)
