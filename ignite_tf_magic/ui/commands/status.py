"""`status`, also the default command: shows the state of the cluster and the runs, and suggests next commands."""

from __future__ import annotations

import argparse
from datetime import datetime, timezone

from ignite_tf_magic import session
from ignite_tf_magic.ui.commands.command import Command
from ignite_tf_magic.ui.overview_view import overview_as_json, overview_view
from ignite_tf_magic.ui.screen import Screen, say_json


def _status(options: argparse.Namespace, screen: Screen) -> None:
    found = session.overview(options.config, options.via)
    for warning in found.warnings:
        screen.note(warning)
    if options.json:
        say_json(screen, overview_as_json(found))
    else:
        screen.show(overview_view(found, datetime.now(timezone.utc), screen.command_name))


COMMANDS = (
    Command(
        "status",
        "show the state of the cluster and its runs, and what to try next",
        _status,
        example="--json",
    ),
)
