"""Runs `python -m benchmarks [--only NAME,...] [--quick] [--show] [--results DIR]`; the names are `NAMES`."""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import (
    cells,
    first_step,
    follow,
    igfs,
    launch,
    load,
    memory,
    parallel,
    resume,
    scan,
    skew,
    sql,
    steps,
    tables,
    training,
)
from benchmarks.cases import Case
from benchmarks.plan import FULL, QUICK, Plan, Report
from ignite_tf_magic.embedded import EmbeddedOptions, Lifetime, down, ensure_up
from ignite_tf_magic.settings.options import ConnectOptions

NAMES = (
    "scan",
    "load",
    "sql",
    "memory",
    "first_step",
    "igfs",
    "launch",
    "follow",
    "resume",
    "skew",
    "parallel",
    "training",
    "steps",
)
SMALL = EmbeddedOptions(heap="512m", region="1g")
LARGE = EmbeddedOptions(heap="1g", region="1g")
ROOMY = EmbeddedOptions(heap="1g", region="2g")
HUGE = EmbeddedOptions(heap="1g", region="3g")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmarks, write their results, and print the tables."""
    arguments = _arguments(argv)
    console = tables.console()
    folder = arguments.results or (
        Path(tempfile.mkdtemp(prefix="quick-bench-")) if arguments.quick else tables.RESULTS
    )
    if not arguments.show:
        began = time.monotonic()
        for name, rows in _results(QUICK if arguments.quick else FULL, arguments.only, _reporter(console)):
            tables.write(folder, name, rows)
        console.print(f"{time.monotonic() - began:.0f} s; results are in {folder}")
    tables.show(console, folder, ("machine", *arguments.only))


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--only", type=_names, default=NAMES, metavar="NAME,...", help=f"some of {', '.join(NAMES)}"
    )
    parser.add_argument("--quick", action="store_true", help="tiny sizes, only to see that everything runs")
    parser.add_argument("--show", action="store_true", help="print the tables of results that are there")
    parser.add_argument("--results", type=Path, metavar="DIR", help="where results are written")
    return parser.parse_args(argv)


def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    unknown = set(names) - set(NAMES)
    if unknown:
        raise argparse.ArgumentTypeError(
            f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}"
        )
    return names


def _reporter(console: Console) -> Report:
    return lambda line: console.print(line, style="dim", highlight=False, soft_wrap=True)


def _results(
    plan: Plan, names: Sequence[str], report: Report
) -> Iterator[tuple[str, list[dict[str, Any]] | dict[str, Any]]]:
    yield "machine", tables.machine()
    with home_of_benchmark() as home:
        if "scan" in names:
            yield (
                "scan",
                [
                    *_scans(home, SMALL, plan.small_rows, plan, report),
                    *_scans(home, ROOMY, plan.other_sizes, plan, report, scan.SIZED_VARIANTS),
                    *_scans(home, LARGE, plan.large_rows, plan, report),
                ],
            )
        if "load" in names:
            with nodes(home, SMALL, report) as options:
                yield "load", load.run(options, plan.load_rows, plan.effort, report)
        if "sql" in names:
            with nodes(home, SMALL, report) as options:
                yield "sql", sql.run(options, plan.sql_rows, plan.effort, report)
        if "memory" in names:
            with nodes(home, HUGE, report) as options:
                yield "memory", [row for case in plan.memory for row in memory.run(options, case, report)]
        if "first_step" in names:
            with nodes(home, SMALL, report) as options:
                yield "first_step", first_step.run(options, plan.effort.runs, report)
        if "igfs" in names:
            with nodes(home, ROOMY, report) as options:
                yield (
                    "igfs",
                    igfs.run(options, plan.file_mib, plan.checkpoint_mib, plan.effort.rounds, report),
                )
        if "resume" in names:
            with nodes(home, SMALL, report) as options:
                yield "resume", resume.run(options, plan.num_kills, report)
        if "skew" in names:
            with nodes(home, SMALL, report) as options:
                yield "skew", skew.run(options, plan.num_skewed, report)
        if "parallel" in names:
            with nodes(home, SMALL, report) as options:
                yield "parallel", parallel.run(options, plan.small_rows[0], plan.effort, report)
        if "training" in names:
            with nodes(home, SMALL, report) as options:
                yield "training", training.run(options, plan.train_rows, plan.train_rounds, report)
        if "steps" in names:
            with nodes(home, SMALL, report) as options:
                yield "steps", steps.run(options, plan.effort.rounds, plan.num_steps, report)
        if "follow" in names:
            with nodes(home, SMALL, report) as options:
                yield "follow", follow.run(options, plan.follow_s, report)
        if "launch" in names:
            yield (
                "launch",
                [
                    *launch.run(plan.num_hosts, plan.stream_mb, plan.num_lines, report),
                    *cells.run(plan.effort.rounds + 2, plan.num_lines, plan.stream_mb, report),
                ],
            )


def _scans(
    home: Path,
    size: EmbeddedOptions,
    cases: Sequence[Case],
    plan: Plan,
    report: Report,
    variants: Sequence[str] | None = None,
) -> list[dict[str, Any]]:
    with nodes(home, size, report) as options:
        return [row for case in cases for row in scan.run(options, case, plan.effort, report, variants)]


@contextmanager
def home_of_benchmark() -> Iterator[Path]:
    """Use a temporary home for nodes and runs during the benchmark, so that no other cluster is touched."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        before = os.environ.get("IGNITE_TF_HOME")
        os.environ["IGNITE_TF_HOME"] = folder
        try:
            yield Path(folder)
        finally:
            os.environ.pop("IGNITE_TF_HOME")
            if before is not None:
                os.environ["IGNITE_TF_HOME"] = before


@contextmanager
def nodes(home: Path, options: EmbeddedOptions, report: Report) -> Iterator[ConnectOptions]:
    """Start three nodes for a benchmark. Yields their connect options, and deletes the nodes at the end."""
    where = home / "embedded"
    where.mkdir(mode=0o700, exist_ok=True)
    try:
        yield ensure_up(options, Lifetime.UNTIL_IDLE, report, home=where).cluster.connect_options
    finally:
        down(where, delete_data=True)


if __name__ == "__main__":
    main()
