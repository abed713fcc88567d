"""The options with which runs are started: the same words in a cell and in a shell. Does nothing but read."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ignite_tf_magic.session import OnRebalance


def count(text: str) -> int:
    """Read a whole number from 1 up."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 up")
    return int(text)


def whole(text: str) -> int:
    """Read a whole number from 0 up."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def seconds(text: str) -> float:
    """Read a number of seconds above 0."""
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return found


def add_config_options(parser: argparse.ArgumentParser) -> None:
    """Add what says which cluster is meant, and which way leads to it."""
    parser.add_argument(
        "-c", "--config", type=Path, metavar="FILE", help="ignite-tf.toml, or Ignite's Spring XML"
    )
    parser.add_argument("--via", metavar="HOST", help="SSH host through which all is reached")


def add_run_options(start: argparse.ArgumentParser) -> None:
    """Add what both ways to start a run know."""
    start.add_argument("--workers", type=count, metavar="N", help="processes to train with")
    start.add_argument("--hosts", metavar="A,B", help="only these get workers (all that hold partitions)")
    start.add_argument("--python", metavar="PATH", help="interpreter of the workers, on their hosts")
    start.add_argument("--name", metavar="NAME", help="the beginning of the run's id (the cache)")
    start.add_argument(
        "--gpus", type=whole, default=0, metavar="N", help="GPUs of each worker alone (0: all see all)"
    )
    start.add_argument(
        "--wait", action="store_true", help="queue the run until there are free GPUs and ports for it"
    )
    start.add_argument(
        "--requirements",
        type=Path,
        metavar="FILE",
        help="what the workers' Python has, built once on each host",
    )
    start.add_argument(
        "--wheels", type=Path, metavar="DIR", help="where that comes from, for hosts without a package index"
    )
    start.add_argument("--start-timeout", type=seconds, metavar="S", help="seconds for all to come up (180)")
    start.add_argument(
        "--max-restarts", type=whole, metavar="N", help="failures in a row that are retried (10)"
    )
    start.add_argument("--deadline", type=seconds, metavar="S", help="seconds that the run may take in all")
    start.add_argument(
        "--on-rebalance", choices=[each.value for each in OnRebalance], help="when partitions move (restart)"
    )
    start.add_argument("--explain", action="store_true", help="only tell who would read what, from where")
    start.add_argument(
        "--detach", action="store_true", help="the hosts answer for the run; it outlives this process"
    )


def given_options(options: argparse.Namespace) -> dict[str, Any]:
    """Give the fields of a `RunRequest` that these options say; what was not given is left out."""
    found = {
        "num_workers": options.workers,
        "hosts": tuple(part for part in (options.hosts or "").split(",") if part) or None,
        "python": options.python,
        "name": options.name,
        "num_gpus": options.gpus,
        "requirements": options.requirements,
        "wheels": options.wheels,
        "wait": options.wait,
        "start_timeout_s": options.start_timeout,
        "max_restarts": options.max_restarts,
        "deadline_s": options.deadline,
        "on_rebalance": OnRebalance(options.on_rebalance) if options.on_rebalance else None,
    }
    return {name: value for name, value in found.items() if value is not None}
