"""`results/matrix.json`: Keras features x Keras 3 and tf_keras x 1, 2 and 3 workers x versions of TensorFlow.

`results/matrix.md` is the same as a table for people.

    python -m benchmarks.matrix [--tf 2.16,2.21] [--frameworks keras] [--workers 2] [--anew] [--venvs DIR]

Each row is a case of tests/training/cases.py, run by real processes connected by TF_CONFIG. `ok` means that the results
of all workers are identical to the bit, and equal those of one process with the same batches within 1e-5 (1e-4 with
BatchNormalization). Each version has its own virtual environment (1 GB). Existing rows are kept, so the matrix can be
filled in several runs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import tables
from tests.tfplugin.versions import KERAS, PACKAGES, venv
from tests.training.cases import CASES, cases_of
from tests.training.processes import Comparison, compare, run_cases

ROOT = Path(__file__).parent.parent
NAME = "matrix"
VERSIONS = ("2.16", "2.17", "2.18", "2.19", "2.20", "2.21")
FRAMEWORKS = ("keras", "tf_keras")
NUMBERS = (1, 2, 3)
# For the TensorBoard callback, which newer TensorFlow versions do not bring, and for a hyperparameter search.
_OF_CASES = ("tensorboard", "setuptools<82", "keras-tuner")
# Differences below these are 32-bit rounding noise. Early stopping trains for many epochs at a high rate.
_TOLERANCE = 1e-5
_TOLERANCES = {
    "early_stopping": 1e-3,
    **dict.fromkeys(("synchronised_batch_normalization", "adversarial", "mixed_precision"), 1e-4),
}


def result_rows(
    version: str, python: str, framework: str, num_workers: int, names: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """Run cases on this many workers and in one process. Yields a row for each case."""
    with tempfile.TemporaryDirectory(prefix="matrix-") as scratch:
        found = _compared(python, framework, num_workers, names, Path(scratch))
    for name in names:
        case = found.get(name)
        yield {
            "feature": name,
            "framework": framework,
            "tf": version,
            "workers": num_workers,
            "ok": bool(case and case.identical and case.largest < _TOLERANCES.get(name, _TOLERANCE)),
            "max_weight_difference": case and case.of_weights,
            "max_difference": case and case.largest,
        }


def _compared(
    python: str, framework: str, num_workers: int, names: Sequence[str], scratch: Path
) -> dict[str, Comparison]:
    """Run cases in the same processes one after the other; if that fails, each in its own processes."""
    alone, together = scratch / f"alone-{len(names)}", scratch / f"together-{len(names)}"
    timeout_s = 120.0 + 20.0 * len(names)
    try:
        for folder, is_together in ((alone, False), (together, True)):
            options: dict[str, Any] = {"together": is_together, "python": python, "timeout_s": timeout_s}
            run_cases(framework, num_workers, names, folder, **options)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        print(f"{framework}, {num_workers} workers, {', '.join(names)}: {error}", file=sys.stderr, flush=True)
        if len(names) == 1:
            return {}
        found = {}
        for name in names:
            found |= _compared(python, framework, num_workers, [name], scratch)
        return found
    return {name: compare(name, alone, together, num_workers) for name in names}


def main(arguments: Sequence[str] | None = None) -> int:
    """Fill the missing parts of the matrix."""
    given = _parser().parse_args(arguments)
    rows = [
        row
        for row in tables.read(given.results, NAME)
        if not (given.anew and (row["tf"] in given.tf and row["workers"] in given.workers))
    ]
    with tempfile.TemporaryDirectory() as scratch:
        for version in given.tf:
            packages = (f"tf_keras=={version}.*", KERAS, *PACKAGES, *_OF_CASES)
            python = str(venv(given.venvs or Path(scratch), f"{version}.*", given.uv, packages))
            for framework in given.frameworks:
                for number in given.workers:
                    if missing := _missing(rows, version, framework, number):
                        more = list(result_rows(version, python, framework, number, missing))
                        rows += more
                        tables.write(given.results, NAME, rows)
                        _tell(more)
    (given.results / f"{NAME}.md").write_text(table(rows), encoding="utf-8")
    return int(not all(row["ok"] for row in rows))


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return a Markdown table by feature and place: the TensorFlow versions that are right, else the wrong ones."""
    places = [(framework, number) for framework in FRAMEWORKS for number in NUMBERS]
    names = [f"{framework}, {number} worker{'s' * (number > 1)}" for framework, number in places]
    lines = [["feature", *names], ["---"] * (len(names) + 1)]
    for feature in CASES:
        of_feature = [row for row in rows if row["feature"] == feature]
        cells = [
            _cell(of_feature, *place) if feature in cases_of(place[0]) else "not in it" for place in places
        ]
        lines.append([f"`{feature}`", *cells])
    head = f"Where workers come to what one process comes to, of TensorFlow {', '.join(VERSIONS)}:\n\n"
    return head + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(rows: Sequence[dict[str, Any]], framework: str, num_workers: int) -> str:
    found = {
        row["tf"]: row["ok"] for row in rows if (row["framework"], row["workers"]) == (framework, num_workers)
    }
    wrong = [version for version in VERSIONS if found.get(version) is False]
    missing = [version for version in VERSIONS if version not in found]
    if wrong or missing:
        told = {"wrong": wrong, "not run": missing}
        return "; ".join(f"{word}: {', '.join(which)}" for word, which in told.items() if which)
    return f"all {len(found)} versions"


def _missing(rows: Sequence[dict[str, Any]], version: str, framework: str, num_workers: int) -> list[str]:
    place = version, framework, num_workers
    found = {row["feature"] for row in rows if (row["tf"], row["framework"], row["workers"]) == place}
    return [name for name in cases_of(framework) if name not in found]


def _tell(rows: Sequence[dict[str, Any]]) -> None:
    first = rows[0]
    bad = [row["feature"] for row in rows if not row["ok"]]
    place = {name: first[name] for name in ("tf", "framework", "workers")}
    print(json.dumps({**place, "features": len(rows), "not ok": bad}), flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.matrix", description=__doc__)
    listed = {"type": lambda text: tuple(text.split(","))}
    parser.add_argument("--tf", default=VERSIONS, metavar="VERSION,...", **listed)
    parser.add_argument("--frameworks", default=FRAMEWORKS, metavar="NAME,...", **listed)
    parser.add_argument(
        "--workers", default=NUMBERS, metavar="N,...", type=lambda text: tuple(map(int, text.split(",")))
    )
    parser.add_argument("--anew", action="store_true", help="run what is there again, too")
    parser.add_argument("--venvs", type=Path, metavar="DIR", help="for the environments; kept")
    parser.add_argument("--uv", default=str(Path(sys.executable).with_name("uv")))
    parser.add_argument("--results", type=Path, default=tables.RESULTS, metavar="DIR")
    return parser


if __name__ == "__main__":
    sys.exit(main())
