"""`ps`: the command that is typed most, in a module of its own, so that it loads little."""

from __future__ import annotations

import argparse
from datetime import datetime, timezone

from ignite_tf_magic.session import list_runs
from ignite_tf_magic.ui.commands.command import Command, flags
from ignite_tf_magic.ui.render import message_view, runs_view
from ignite_tf_magic.ui.run_views import run_as_json
from ignite_tf_magic.ui.screen import Screen, say_json


def _ps(options: argparse.Namespace, screen: Screen) -> None:
    listed = list_runs(include_ended=options.all, config=options.config, via=options.via)
    for warning in listed.warnings:
        screen.note(warning)
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
