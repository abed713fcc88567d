"""`predict`: writes a model's outputs for all rows of a cache to another cache."""

from __future__ import annotations

import argparse
from typing import Any

from ignite_tf_magic.errors import ConfigError
from ignite_tf_magic.session import open_session
from ignite_tf_magic.ui.commands.command import Command, flags
from ignite_tf_magic.ui.options import whole
from ignite_tf_magic.ui.screen import Screen, say_outcome


def _predict(options: argparse.Namespace, screen: Screen) -> None:
    model = _model(options.model, screen)
    prepare = screen.variables([options.prepare])[options.prepare] if options.prepare else None
    given = {"batch_size": options.batch_size} if options.batch_size else {}
    with (
        open_session(report=screen.note, config=options.config, via=options.via) as session,
        screen.loading(options.target) as progress,
    ):
        outcome = session.predict(
            model,
            options.source,
            options.target,
            workers=options.workers,
            prepare=prepare,
            fields=options.field or None,
            replace=options.replace,
            resume=options.resume,
            trust=options.trust,
            progress=progress,
            **given,
        )
    say_outcome(screen, outcome, as_json=options.json)


def _model(name: str, screen: Screen) -> Any:
    """Return the model: a notebook's variable with this name, or else the name, which is that of a file."""
    if not screen.outlives_commands or not name.isidentifier():
        return name
    try:
        return screen.variables([name])[name]
    except ConfigError:
        return name


def _add_predict(predict: argparse.ArgumentParser) -> None:
    predict.add_argument(
        "model", metavar="MODEL", help="a .keras file, here or igfs:///...; in a notebook a variable, a model"
    )
    predict.add_argument("source", metavar="CACHE", help="the cache whose rows are predicted")
    predict.add_argument("target", metavar="OUT", help="the cache that gets the outputs, under the same keys")
    predict.add_argument("--workers", type=whole, metavar="N", help="number of workers (one for each node)")
    predict.add_argument(
        "--batch-size", type=whole, metavar="N", help="rows that the model gets at once (1024)"
    )
    predict.add_argument(
        "--field", action="append", default=[], metavar="NAME", help="field of a row to read; may be repeated"
    )
    predict.add_argument(
        "--prepare",
        metavar="NAME",
        help="a notebook's function that turns a row's value into the model's input",
    )
    flags(
        predict,
        ("--replace", "replace a cache of that name; its rows are removed at once"),
        ("--resume", "continue an unfinished run of the same prediction"),
        ("--trust", "run code in the model's file"),
    )


COMMANDS = (
    Command(
        *("predict", "predict a cache's rows into another", _predict, _add_predict),
        "Each worker predicts its own partitions. OUT has a field for each output of the model (`prediction` for one) "
        "under the keys of CACHE. --resume continues a prediction that was killed; each row is written once.",
        example="model.keras DIGITS SCORES --batch-size 256",
    ),
)
