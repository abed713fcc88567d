"""`tensorboard`: opens, lists and stops TensorBoards for runs."""

from __future__ import annotations

import argparse

from ignite_tf_magic.session.tensorboards import list_tensorboards, open_tensorboard, stop_tensorboard
from ignite_tf_magic.ui.commands.command import Command
from ignite_tf_magic.ui.options import add_board_options
from ignite_tf_magic.ui.render import tensorboards_as_json, tensorboards_view
from ignite_tf_magic.ui.screen import Screen, say_json


def _tensorboard(options: argparse.Namespace, screen: Screen) -> None:
    if options.list:
        boards = list_tensorboards()
        if options.json:
            say_json(screen, tensorboards_as_json(boards))
        else:
            screen.show(tensorboards_view(boards))
    elif options.stop:
        stopped = stop_tensorboard(options.run, logdirs=options.logdir, port=options.port, report=screen.note)
        if options.json:
            say_json(screen, tensorboards_as_json(stopped))
            return
        for board in stopped:
            screen.say(f"stopped the TensorBoard at {board.url}")
        if not stopped:
            screen.say("no such TensorBoard runs")
    else:
        board = open_tensorboard(
            options.run, logdirs=options.logdir, host=options.host, port=options.port, report=screen.note
        )
        if options.json:
            say_json(screen, tensorboards_as_json([board]))
        else:
            screen.show_board(board, options.height)


COMMANDS = (
    Command(
        "tensorboard",
        "show and compare runs in TensorBoard",
        _tensorboard,
        add_board_options,
        example="k3f 9xw",
        of_cluster=False,
    ),
)
