"""`results/pairs.json`: old commits and the working tree on the same nodes, in turns of one second.

    python -m benchmarks.pairs REV [REV ...] [--only scan,load,igfs,training,cells] [--turns 21]

A whole benchmark (`benchmarks.compare`) takes minutes, in which the speed of a shared machine varies more than the
expected difference. Here the processes of all trees use the same nodes, and each turn of the working tree is divided by
the old tree's adjacent turn. `less_cpu` is the processor time per row of the old tree's process divided by that of the
working tree's: other load on the machine affects it least.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import cells, scan, tables, use_igfs, use_training
from benchmarks.__main__ import LARGE, ROOMY, SMALL, home_of_benchmark, nodes
from benchmarks.cases import Case, fill, mib, mnist, numeric
from benchmarks.compare import ROOT, check_imports, checked_out, commit_of, in_turn
from benchmarks.load import HAS_SQL
from benchmarks.plan import FULL, Report
from benchmarks.process import Variant, python_variant
from ignite_tf_magic.client.client import connect
from ignite_tf_magic.settings.options import ConnectOptions

GROUPS = ("scan", "load", "igfs", "training", "cells")
_LOADED_ROWS = 20_000
_TRAINED_ROWS = 10_000
_DISK_MB = 128
_WAITS = ("running_s", "first_lines_s", "ps_s", "stop_s")
_CASES = ((SMALL, (mnist(60_000), numeric(1_000_000))), (LARGE, (mib(1_000),)))

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Pairs:
    """The trees to compare, and the number and length of turns.

    Attributes:
        trees: Directories by name: old ones first, the working tree last.
        turns: The number of turns of each tree.
        seconds: Least duration of a turn.
    """

    trees: Mapping[str, Path]
    turns: int
    seconds: float
    report: Report

    def rows(self, case: str, variant: str, start: Callable[[str, Path], Variant]) -> Iterator[Row]:
        """Let a process of each tree take its turns. Yields a row for each old tree."""
        rates: dict[str, list[float]] = defaultdict(list)
        costs: dict[str, list[float]] = defaultdict(list)
        with ExitStack() as ends:
            running = {name: ends.enter_context(start(name, tree)) for name, tree in self.trees.items()}
            for process in running.values():
                process.answer()
            for turn in range(self.turns):
                for name in in_turn(self.trees, turn):
                    found = running[name].measure(self.seconds)
                    rates[name].append(found.rows_per_s)
                    costs[name].append(found.cpu_s / found.rows)
        for row in self.compared(case, variant, rates):
            of_old = zip(costs[row["commit"]], costs[self.new], strict=True)
            yield row | {"less_cpu": round(statistics.median(old / new for old, new in of_old), 3)}

    @property
    def new(self) -> str:
        """The name of the working tree."""
        return list(self.trees)[-1]

    def compared(self, case: str, variant: str, rates: Mapping[str, Sequence[float]]) -> Iterator[Row]:
        """Divide the working tree's figures (more is better) by those of each old tree. Yields a row for each."""
        for old in list(self.trees)[:-1]:
            ratios = [ours / theirs for ours, theirs in zip(rates[self.new], rates[old], strict=True)]
            row = {"case": case, "variant": variant, "commit": old, "turns": len(ratios)}
            quarters = (round(each, 3) for each in statistics.quantiles(ratios, method="inclusive"))
            row |= dict(zip(("quarter", "median", "three_quarters"), quarters, strict=True))
            self.report(str(row))
            yield row


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, write the rows, and print the table."""
    options = _options(argv)
    console = tables.console()
    rows: list[Row] = []
    with ExitStack() as ends:
        trees = {commit_of(rev): ends.enter_context(checked_out(rev)) for rev in options.revs} | {"new": ROOT}
        for tree in trees.values():
            check_imports(tree)
        home = ends.enter_context(home_of_benchmark())
        pairs = Pairs(trees, options.turns, options.seconds, console.print)
        for group in options.only:
            for row in _GROUPS[group](pairs, home):
                rows.append({"benchmark": group, **row})
                tables.write(options.results, "pairs", rows)
    tables.show(console, options.results, ("pairs",))


def scan_pairs(pairs: Pairs, options: ConnectOptions, case: Case, variant: str) -> Iterator[Row]:
    """Compare a variant of `benchmarks.scan` on rows that are already loaded."""
    task, module = scan.task_of(variant, options, case, FULL.effort), f"read_{variant.partition('_')[0]}"
    return pairs.rows(case.name, variant, lambda _, tree: python_variant(variant, module, task, tree))


def load_pairs(pairs: Pairs, options: ConnectOptions, case: str) -> Iterator[Row]:
    """Compare the bulk load, into a separate cache for each tree."""

    def start(name: str, tree: Path) -> Variant:
        task = {"num_rows": _LOADED_ROWS, "with_sql": HAS_SQL[case], "cache": f"PAIRS_{name}"}
        return python_variant(name, "write_rows", {**_address(options), **task}, tree)

    return pairs.rows(case, "put_rows", start)


def igfs_pairs(pairs: Pairs, options: ConnectOptions, use: str) -> Iterator[Row]:
    """Compare one of `use_igfs.USES`, in a separate directory for each tree."""

    def start(name: str, tree: Path) -> Variant:
        task = {**_address(options), "use": use, "tree": name}
        return Variant(name, [sys.executable, use_igfs.__file__, json.dumps(task)], tree)

    return pairs.rows(use, "igfs", start)


def training_pairs(
    pairs: Pairs, options: ConnectOptions, case: Case, num_workers: str, way: str
) -> Iterator[Row]:
    """Compare one of `use_training.WAYS`; each tree has one run that takes turns."""
    task = {
        **_address(options),
        "cache": case.cache,
        "num_rows": case.num_rows,
        "case": num_workers,
        "way": way,
    }

    def start(name: str, tree: Path) -> Variant:
        return Variant(name, [sys.executable, use_training.__file__, json.dumps(task)], tree)

    return pairs.rows(num_workers, way, start)


def cell_pairs(pairs: Pairs) -> Iterator[Row]:
    """Compare waiting times in notebooks of all trees with the same three hosts."""
    speeds: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with cells.desks(pairs.trees, _DISK_MB, pairs.report) as (stage, kernels):
        for turn in range(-1, pairs.turns):  # the first turn transfers the package to the hosts
            for name in in_turn(pairs.trees, turn):
                took = cells.start_and_stop(stage, kernels[name], "", pairs.report)
                for figure in _WAITS if turn >= 0 else ():
                    speeds[figure][name].append(1 / took[figure])
    for figure, of_trees in speeds.items():
        yield from pairs.compared("cell", figure, of_trees)


def _scans(pairs: Pairs, home: Path) -> Iterator[Row]:
    for size, cases in _CASES:
        with nodes(home, size, pairs.report) as options, connect(options) as client:
            for case in cases:
                fill(client, case)
                for variant in scan.variants_of(case):
                    if variant == "drain" or variant.startswith("dataset"):
                        yield from scan_pairs(pairs, options, case, variant)
                client.destroy_cache(case.cache)


def _loads(pairs: Pairs, home: Path) -> Iterator[Row]:
    with nodes(home, SMALL, pairs.report) as options:
        for case in HAS_SQL:
            yield from load_pairs(pairs, options, case)


def _uses_of_igfs(pairs: Pairs, home: Path) -> Iterator[Row]:
    for use in use_igfs.USES:
        with nodes(home, ROOMY, pairs.report) as options:  # new nodes, not slowed by data of earlier uses
            yield from igfs_pairs(pairs, options, use)


def _trainings(pairs: Pairs, home: Path) -> Iterator[Row]:
    case = mnist(_TRAINED_ROWS)
    with nodes(home, SMALL, pairs.report) as options, connect(options) as client:
        fill(client, case)
        for num_workers, way in use_training.WAYS:
            yield from training_pairs(pairs, options, case, num_workers, way)


def _address(options: ConnectOptions) -> dict[str, Any]:
    return {"host": options.endpoints[0].host, "port": options.endpoints[0].port}


_GROUPS = {
    "scan": _scans,
    "load": _loads,
    "igfs": _uses_of_igfs,
    "training": _trainings,
    "cells": lambda pairs, _: cell_pairs(pairs),
}


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pairs", description=__doc__)
    parser.add_argument("revs", nargs="+", metavar="REV", help="an old commit")
    names = {"type": lambda text: tuple(text.split(",")), "metavar": "NAME,...", "help": ", ".join(GROUPS)}
    parser.add_argument("--only", default=GROUPS, **names)
    parser.add_argument("--turns", type=int, default=21, metavar="N", help="turns of each tree (21)")
    parser.add_argument("--seconds", type=float, default=1.0, metavar="S", help="of each turn (1)")
    parser.add_argument("--results", type=Path, default=tables.RESULTS, metavar="DIR")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
