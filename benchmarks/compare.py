"""`python -m benchmarks.compare REV`: runs an old commit's and the working tree's benchmarks in turn; writes ratios."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import tables

ROOT = Path(__file__).parent.parent
NAMES = ("scan", "load", "first_step", "igfs", "launch", "training")
# For other figures, neither direction is known to be better.
_MORE_IS_BETTER = re.compile(r"_per_s$|^ratio_to_")
_LESS_IS_BETTER = re.compile(r"_s$|_ms$|_mb$|_ms_per_|^ms_per_|^cpu_|^time_ratio$|^data_wait$")

Figures = dict[tuple[str, str, str, str], list[float]]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmarks, write the ratios, print the table. Returns 1 if a benchmark failed."""
    options = _options(argv)
    console = tables.console()
    folder = options.results or (
        Path(tempfile.mkdtemp(prefix="quick-compare-")) if options.quick else tables.RESULTS
    )
    failed = []
    with checked_out(options.rev) as old_tree, tempfile.TemporaryDirectory(prefix="compare-") as place:
        trees = {"old": old_tree, "new": ROOT}
        for tree in trees.values():
            check_imports(tree)
        known = set.intersection(*(_benchmarks_of(tree) for tree in trees.values()))
        measured: dict[str, Figures] = {side: defaultdict(list) for side in trees}
        for name in options.only:
            if name not in known:
                console.print(f"{name}: left out, as one of the trees does not have it")
                continue
            for turn in range(options.turns):
                for side in in_turn(trees, turn):
                    console.print(f"{name}, turn {turn + 1}: {side}")
                    results = Path(place) / f"{name}-{turn}-{side}"
                    if not _run(trees[side], name, results, quick=options.quick):
                        failed.append(f"{name} ({side})")
                        continue
                    _collect(measured[side], name, tables.read(results, name))
            tables.write(folder, "compare", _rows(measured, commit_of(options.rev)))
    tables.show(console, folder, ("compare",))
    console.print(f"{folder}/compare.json" + (f"; failed: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description=__doc__)
    parser.add_argument("rev", metavar="REV", help="the old commit")
    parser.add_argument(
        "--only",
        type=lambda text: tuple(text.split(",")),
        default=NAMES,
        metavar="NAME,...",
        help=f"which benchmarks ({','.join(NAMES)})",
    )
    parser.add_argument(
        "--turns", type=int, default=3, metavar="N", help="how often each tree has its turn (3)"
    )
    parser.add_argument("--quick", action="store_true", help="tiny sizes, only to see that everything runs")
    parser.add_argument("--results", type=Path, metavar="DIR", help="where compare.json is written")
    return parser.parse_args(argv)


def in_turn(trees: Iterable[str], turn: int) -> list[str]:
    """Return the trees in the order for a turn: over all turns, each is first as often as last."""
    return list(trees)[:: -1 if turn % 2 else 1]


@contextmanager
def checked_out(rev: str) -> Iterator[Path]:
    """Check out a commit in a temporary worktree, with its C libraries built."""
    with tempfile.TemporaryDirectory(prefix="compare-tree-") as folder:
        tree = Path(folder) / "tree"
        _git("worktree", "add", "--detach", str(tree), rev)
        try:
            build = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
            subprocess.run(build, cwd=tree, check=True)
            yield tree
        finally:
            _git("worktree", "remove", "--force", str(tree))


def _git(*words: str) -> str:
    command = ["git", "-C", str(ROOT), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def commit_of(rev: str) -> str:
    """Return the short hash of a commit."""
    return _git("rev-parse", "--short", f"{rev}^{{commit}}")


def _environment(tree: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(tree)}


def _ask(tree: Path, code: str) -> str:
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, cwd=tree, env=_environment(tree), check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def check_imports(tree: Path) -> None:
    """Check that a tree's processes import its own package, not an installed one."""
    where = Path(_ask(tree, "import ignite_tf_magic; print(ignite_tf_magic.__file__)"))
    if not where.resolve().is_relative_to(tree.resolve()):
        raise RuntimeError(f"in {tree} the package of {where} is imported")


def _benchmarks_of(tree: Path) -> set[str]:
    return set(_ask(tree, "from benchmarks.__main__ import NAMES; print(*NAMES)").split())


def _run(tree: Path, name: str, results: Path, *, quick: bool) -> bool:
    command = [sys.executable, "-m", "benchmarks", "--only", name, "--results", str(results)]
    command += ["--quick"] if quick else []
    log = results.with_suffix(".log")
    with log.open("w", encoding="utf-8") as output:
        done = subprocess.run(
            command, cwd=tree, env=_environment(tree), stdout=output, stderr=output, check=False
        )
    if done.returncode:
        print(log.read_text(encoding="utf-8", errors="replace")[-2000:], file=sys.stderr)
    return done.returncode == 0


def _collect(figures: Figures, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Add the figures of one turn; `run 1`, `run 2` of a variant also count as turns."""
    for row in rows:
        variant = re.sub(r", run \d+$", "", str(row.get("variant", "")))
        for figure, value in row.items():
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if is_number and _better(figure) is not None:
                figures[name, str(row.get("case", "")), variant, figure].append(float(value))


def _better(figure: str) -> Callable[[Sequence[float]], float] | None:
    """Return the function that chooses the best value of a figure, or None if the figure is not a measure."""
    if _MORE_IS_BETTER.search(figure):
        return max
    return min if _LESS_IS_BETTER.search(figure) else None


def _rows(measured: Mapping[str, Figures], commit: str) -> list[dict[str, Any]]:
    rows = []
    for key in measured["new"]:
        better = _better(key[3])
        if better is None or not measured["old"].get(key):
            continue
        old, new = (better(measured[side][key]) for side in ("old", "new"))
        if old == new == 1.0 and "ratio" in key[3]:
            continue  # the base variant of a ratio
        ratio = new / old if old else None
        as_good = ratio if better is max or not ratio else 1 / ratio
        rows.append(
            {
                "benchmark": key[0],
                **dict(zip(("case", "variant", "figure"), key[1:], strict=True)),
                "old": old,
                "new": new,
                "ratio": ratio and round(ratio, 3),
                "as_good": as_good and round(as_good, 3),
                "commits": {"old": commit},
            }
        )
    return json.loads(json.dumps(rows))


if __name__ == "__main__":
    sys.exit(main())
