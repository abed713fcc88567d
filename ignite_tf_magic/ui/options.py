"""Defines and parses the options of commands."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ignite_tf_magic import session
from ignite_tf_magic.errors import ConfigError
from ignite_tf_magic.serialization.terminal_text import visible
from ignite_tf_magic.settings.options import OnRebalance
from ignite_tf_magic.settings.toml_tables import SIZE_IS, parse_bytes
from ignite_tf_magic.version import __version__

if TYPE_CHECKING:
    from ignite_tf_magic.session import Run

_LOOPBACK = "127.0.0.1"
# Fields of a `RunRequest` that `start` builds from several arguments.
OTHERWISE_SAID = frozenset({"args", "cache", "command", "detach", "push", "script"})
# Upper limits: above any sensible value, and below the values that clocks, sockets or dates refuse.
_MOST, _MOST_DAYS, _MOST_PORT = 10**9, 10**6, 65535

VERSION = ("-V", "--version")


def count(text: str) -> int:
    """Parse an integer of at least 1."""
    return _number(text, 1, _MOST, "a whole number")


def whole(text: str) -> int:
    """Parse an integer of at least 0."""
    return _number(text, 0, _MOST, "a whole number")


def days(text: str) -> int:
    """Parse a number of days."""
    return _number(text, 0, _MOST_DAYS, "a number of days")


def port(text: str) -> int:
    """Parse a port number."""
    return _number(text, 1, _MOST_PORT, "a port")


def _number(text: str, least: int, most: int, what: str) -> int:
    # Check the length first: Python parses very long numbers slowly, or refuses to.
    if not text.isdecimal() or len(text) > len(str(most)) or not least <= int(text) <= most:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not {what} from {least} up ({most} at most)")
    return int(text)


def priority(text: str) -> int:
    """Parse an integer, which may be negative."""
    digits = text.removeprefix("-")
    if not digits.isdecimal() or len(digits) >= len(str(_MOST)):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a whole number of up to 9 digits")
    return int(text)


def size(text: str) -> int:
    """Parse a number of bytes, such as 500MB or 1.5GiB."""
    found = parse_bytes(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not {SIZE_IS}")
    return found


def assignment(text: str) -> tuple[str, str]:
    """Parse NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not NAME=VALUE")
    return name, value


def seconds(text: str) -> float:
    """Parse a number of seconds above 0."""
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found <= _MOST:
        raise argparse.ArgumentTypeError(
            f"{text[:40]!r} is not a number of seconds above 0 ({_MOST} at most)"
        )
    return found


RUN_IS = "the run's id (CLUSTER_ID), or the beginning of its id or name"
THE_ONLY = "the only live run"
THE_NEWEST = f"{THE_ONLY}, else the newest"
_STRATEGIES = ["auto", *(each.value for each in session.Strategy)]


def add_config_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that select the cluster and the SSH host through which to reach it."""
    parser.add_argument(
        "-c", "--config", type=Path, metavar="FILE", help="ignite-tf.toml, or Ignite's Spring XML"
    )
    parser.add_argument(
        "--via", metavar="HOST", help="SSH host through which to reach the cluster and all hosts"
    )


class _VersionAction(argparse._VersionAction):
    """An action that prints our version on the first line, for scripts, and related installed packages below."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        parts = session.installed()
        width = max(len(part.name) for part in parts)
        lines = [f"{part.name:<{width}}  {part.found or part.missing}" for part in parts]
        parser._print_message(
            "".join(f"{visible(line)}\n" for line in [str(self.version), *lines]), sys.stdout
        )
        parser.exit()


def add_version(parser: argparse.ArgumentParser) -> None:
    """Add -V and --version."""
    parser.add_argument(
        *VERSION,
        action=_VersionAction,
        version=f"ignite-tf {__version__}",
        help="show the version, and what is installed beside it",
    )


def add_run(parser: argparse.ArgumentParser) -> None:
    """Add the argument that names a run."""
    parser.add_argument("run", metavar="RUN", help=RUN_IS)


def add_run_or_none(parser: argparse.ArgumentParser, *, or_newest: bool = False) -> None:
    """Add the optional argument that names a run; None means the run that `session.only_run` returns."""
    parser.add_argument(
        "run", metavar="RUN", nargs="?", help=f"{RUN_IS} ({THE_NEWEST if or_newest else THE_ONLY})"
    )


def chosen_workers(run: Run, wanted: str | None) -> Sequence[int]:
    """Return the numbers of the wanted tasks; `wanted` is None (all), a worker's number, or a name such as "ps 0".

    Raises:
        ConfigError: The run has no such task.
    """
    names = run.info().tasks
    if wanted is None:
        return range(len(names))
    known = {name.replace(" ", ""): number for number, name in enumerate(names)}
    known |= {str(number): number for number in range(run.info().num_workers)}
    if (number := known.get(wanted.replace(" ", ""))) is None:
        raise ConfigError(f"run {run.id} has no worker {wanted[:40]}; it has {', '.join(names)}")
    return [number]


def host_names(text: str) -> tuple[str, ...]:
    """Parse host names separated by commas."""
    return tuple(part for part in text.split(",") if part)


def add_run_options(start: argparse.ArgumentParser) -> None:
    """Add the options that start a run. The `dest` of each option is a field of `RunRequest`."""
    add = start.add_argument
    _add_place(start, "number of worker processes (1; with JOB_CMD one for each node)")
    add(
        "--env",
        action="append",
        type=assignment,
        metavar="K=V",
        help="environment variable of the workers (no secrets)",
    )
    add(
        "--include",
        action="append",
        metavar="NAME",
        help="link in JOB_DIR to files outside it: ship these, too (a pattern)",
    )
    add(
        "--requirements",
        type=Path,
        metavar="FILE",
        help="packages that the workers get, installed once on each host",
    )
    add(
        "--wheels",
        type=Path,
        metavar="DIR",
        help="wheels of these packages, for hosts without a package index",
    )
    add(
        "--start-timeout",
        dest="start_timeout_s",
        type=seconds,
        metavar="S",
        help="seconds for several workers to start; later ones are reported (180)",
    )
    add("--strategy", choices=_STRATEGIES, default="auto", help="how workers work together (auto)")
    add(
        "--communication",
        choices=session.COMMUNICATION,
        help="with sync: how workers exchange tensors (auto)",
    )
    add("--ps", dest="num_ps", type=whole, default=0, metavar="N", help="number of parameter servers (0)")
    add(
        "--chief",
        metavar="HOST",
        help="with async, standalone: host that runs the script; or here, random (worker 0's)",
    )
    add(
        "--evaluator",
        dest="has_evaluator",
        action="store_true",
        help="add a task that runs the script to evaluate checkpoints",
    )
    add(
        "--compat",
        action="store_true",
        help="let workers import tensorflow.contrib.ignite, as in TensorFlow 1",
    )
    add("--max-restarts", type=whole, metavar="N", help="most restarts after failures in a row (10)")
    add(
        "--deadline",
        dest="deadline_s",
        type=seconds,
        metavar="S",
        help="seconds that the run may take in all (no limit)",
    )
    choices = [each.value for each in OnRebalance]
    add("--on-rebalance", choices=choices, help="what to do when partitions have moved (restart)")
    add("--tunnel", action="store_true", help="connect workers only through SSH, from this process")
    add("--stop-on-nan", action="store_true", help="fail when the loss becomes NaN or infinite")
    add(
        "--allow-partial",
        action="store_true",
        help="train on the remaining rows of a cache that has lost rows",
    )
    add("--wait", action="store_true", help="queue the run until there are GPUs, ports and memory for it")
    add("--priority", type=priority, metavar="N", help="with --wait: before runs with a lower one (0)")
    add("--explain", action="store_true", help="only show which worker would read which partitions")
    add("--detach", action="store_true", help="the hosts supervise the run; it outlives this process")


def _add_place(start: argparse.ArgumentParser, workers: str) -> None:
    add = start.add_argument
    add("--workers", dest="num_workers", type=count, metavar="N", help=workers)
    add(
        "--hosts",
        type=host_names,
        metavar="A,B",
        help="the only hosts that get workers (all that hold partitions)",
    )
    add(
        "--memory",
        dest="memory_bytes",
        type=size,
        metavar="SIZE",
        help="most memory for each worker, such as 4GiB (no limit)",
    )
    add(
        "--gpus",
        dest="num_gpus",
        type=whole,
        metavar="N",
        help="GPUs reserved for each worker (0: each worker sees all)",
    )
    add("--python", metavar="PATH", help="interpreter of the workers, on their hosts")
    add("--name", metavar="NAME", help="name in the run's id, after its mark (the cache)")
    add(
        "--tag",
        dest="tags",
        action="append",
        metavar="T",
        help="a word to find and compare runs by; may be repeated",
    )
    add("--note", metavar="TEXT", help="text to keep with the run")


def given_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of a `RunRequest` that the options set, without those left at None."""
    fields_said = {each.name for each in fields(session.RunRequest)} - OTHERWISE_SAID
    said = {name: value for name, value in vars(options).items() if name in fields_said and value is not None}
    if "env" in said:
        said["env"] = dict(said["env"])
    if "tags" in said:
        said["tags"] = tuple(dict.fromkeys(said["tags"]))
    if "on_rebalance" in said:
        said["on_rebalance"] = OnRebalance(said["on_rebalance"])
    return said


def add_doctor_options(doctor: argparse.ArgumentParser) -> None:
    """Add the options of `doctor`."""
    doctor.add_argument("cache", nargs="?", metavar="CACHE", help="cache whose data to look for")
    doctor.add_argument("--python", metavar="PATH", help="interpreter of the workers, on their hosts")


def add_prune_options(prune: argparse.ArgumentParser) -> None:
    """Add the options that select the runs to remove."""
    prune.add_argument(
        "--keep", type=whole, default=20, metavar="N", help="number of the newest runs that stay (20)"
    )
    prune.add_argument("--older-than", type=days, metavar="DAYS", help="only those that ended longer ago")
    prune.add_argument("--dry-run", action="store_true", help="only list them")


def add_board_options(board: argparse.ArgumentParser) -> None:
    """Add the options of `tensorboard`."""
    board.add_argument("run", nargs="*", metavar="RUN", help="the runs to show (all)")
    board.add_argument("--logdir", action="append", default=[], metavar="URI", help="other event files")
    board.add_argument("--port", type=port, metavar="N", help="port to listen at (the first free from 6006)")
    board.add_argument("--host", default=_LOOPBACK, help=f"where it is reached ({_LOOPBACK}: from here only)")
    board.add_argument("--list", action="store_true", help="list those that run")
    board.add_argument("--stop", action="store_true", help="end the one that shows this; without RUN, all")
    board.add_argument(
        "--height", type=count, default=800, metavar="PX", help="height in a notebook's page (800)"
    )


def add_node_options(up: argparse.ArgumentParser) -> None:
    """Add the options of embedded nodes."""
    default = session.EmbeddedOptions()
    up.add_argument(
        "--nodes", type=whole, default=default.num_nodes, metavar="N", help=f"how many ({default.num_nodes})"
    )
    up.add_argument(
        "--heap", default=default.heap, metavar="SIZE", help=f"Java heap of a node ({default.heap})"
    )
    up.add_argument(
        "--region",
        default=default.region,
        metavar="SIZE",
        help=f"memory for a node's data ({default.region})",
    )
    up.add_argument("--persist", action="store_true", help="keep the data on disk after `local down`")
