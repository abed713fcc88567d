"""Write the page of measured ratios out of benchmarks/results/*.json. No figure of it stands anywhere else."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from docs.markdown import write_page

RESULTS = Path(__file__).parent.parent / "benchmarks" / "results"
Row = Mapping[str, Any]

_NAMES = {
    "drain": "the bytes received and forgotten",
    "pyignite": "pyignite",
    "java_1": "Java thin client, one connection",
    "java_3": "Java thin client, one for each node",
    "dataset_batch": "`IgniteDataset(...).batch(n)`",
    "dataset_first_batch": "a dataset's first pass",
    "dataset_map_batch": "`.map(f).batch(n)`",
    "dataset_shuffle_batch": "`.shuffle(10_000).batch(n)`",
    "put_rows": "`load`",
    "pyignite_put_all": "pyignite's `put_all`",
    "raw_put": "puts of the same rows",
    "raw_get": "gets of the same rows",
    "fsspec": "fsspec",
    "tensorflow": "TensorFlow",
    "local_fsync": "local disk, synced",
}
_CASES = {
    "mnist": "images of 784 bytes",
    "numeric": "three numbers",
    "mnist_1m": "images, a million",
    "numeric_60k": "three numbers, 60,000",
    "mib": "1 MiB a row",
    "mnist_plain": "images, no SQL table",
    "numbers": "numbers",
    "texts": "wide rows with texts",
    "mixed": "seven columns",
}


def write(folder: Path) -> None:
    """Write the page."""
    write_page(folder / "performance.md", page())


def page() -> str:
    """Return the page; a benchmark without results is left out, and named."""
    parts = [_HEAD.format(machine=_machine())]
    missing = []
    for name, make in _SECTIONS.items():
        rows = _read(name)
        made = make(rows) if rows else ""
        if made:
            parts.append(made)
        else:
            missing.append(name)
    if missing:
        parts.append(f"Not measured yet: {', '.join(missing)}.\n")
    parts.append(_missed())
    return "\n".join(parts)


_HEAD = """\
% Made by docs/performance.py.

# Performance

    make bench                       # all of it, a quarter of an hour
    python -m benchmarks --show      # the tables of the results that are there

Ratios, measured in one run on one machine, whose nodes, readers and trainers shared its cores: {machine}. Times would
tell of that machine; ratios tell of the code. What a person waits for has nothing to be compared with, and is told in
times. How each was measured: [Benchmarks](benchmarks.md).
"""


def _machine() -> str:
    (found,) = _read("machine") or [{}]
    packages = found.get("packages", {})
    return (
        f"{found.get('cores')} cores, Ignite {found.get('ignite')}, TensorFlow {packages.get('tensorflow')}"
    )


def _read(name: str) -> list[dict[str, Any]]:
    path = RESULTS / f"{name}.json"
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    return [found] if isinstance(found, dict) else list(found)


def _table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [heads, ["---"] + ["--:"] * (len(heads) - 1), *([str(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _by_case(rows: list[dict[str, Any]], ratio: str, first: str) -> str:
    """Return a table of variants by cases."""
    cases = list(dict.fromkeys(row["case"] for row in rows))
    variants = list(dict.fromkeys(row["variant"] for row in rows))
    known = {(row["case"], row["variant"]): row.get(ratio) for row in rows}
    return _table(
        [first, *(_CASES.get(case, case) for case in cases)],
        [
            [_NAMES.get(variant, variant), *(_times(known.get((case, variant))) for case in cases)]
            for variant in variants
        ],
    )


def _times(ratio: float | None) -> str:
    return (
        ""
        if ratio is None
        else f"{ratio:.2g}"
        if ratio < 0.1
        else f"{ratio:.2f}"
        if ratio < 10
        else f"{ratio:.0f}"
    )


def _scan(rows: list[dict[str, Any]]) -> str:
    return (
        "## Reading\n\nRows a second, where 1 is what the same requests bring when nobody looks at the answers: "
        "decoding, tf.data and Python would cost nothing then.\n\n"
        + _by_case(rows, "ratio_to_drain", "reader")
    )


def _packed(rows: list[dict[str, Any]]) -> str:
    found = [row for row in rows if row["variant"] == "batch, packed"]
    return (
        "### Packed caches\n\n`batch` of a packed cache, where 1 is the same rows in entries of their own.\n\n"
        + _table(
            ["rows", "faster"],
            [
                [
                    f"{row['rows']:,} of {_CASES.get(row['case'], row['case'])}",
                    _times(row["ratio_to_not_packed"]),
                ]
                for row in found
            ],
        )
    )


def _picked(rows: list[dict[str, Any]]) -> str:
    names = {
        "two": "two fields (`fields=`)",
        "where": "a part of the rows (`where=`), in rows that are looked through",
    }
    found = [row for row in rows if row["variant"] in names]
    return "### Some fields, some rows\n\nRows a second, where 1 is reading all of it.\n\n" + _by_case(
        [{**row, "variant": names[row["variant"]]} for row in found], "ratio_to_all", "picked out"
    )


def _load(rows: list[dict[str, Any]]) -> str:
    return "## Writing\n\nRows a second, where 1 is pyignite.\n\n" + _by_case(
        rows, "ratio_to_pyignite", "writer"
    )


def _sql(rows: list[dict[str, Any]]) -> str:
    return "## SQL\n\n100,000 rows to a frame; rows a second, where 1 is pyignite.\n\n" + _by_case(
        rows, "ratio_to_pyignite", "to"
    )


def _igfs(rows: list[dict[str, Any]]) -> str:
    names = {
        "write": "write 1 GiB", "read": "read 1 GiB", "checkpoint": "a checkpoint of 100 MiB", "stat": "look at a file",
        "create": "make a file", "rename_file": "rename a file", "rename_directory": "rename a directory",
    }  # fmt: skip
    found = [row for row in rows if row["variant"] not in ("raw", "raw_put", "raw_get", "local_fsync")]
    return (
        "## igfs\n\nSpeed, where 1 is the bare requests of the same rows; of the checkpoint, a local disk.\n\n"
        + _table(
            ["what", "by", "speed"],
            [
                [
                    names.get(row["case"], row["case"]),
                    _NAMES.get(row["variant"], row["variant"]),
                    _times(row["ratio_to_raw"]),
                ]
                for row in found
            ],
        )
    )


def _training(rows: list[dict[str, Any]]) -> str:
    known = {(row["case"], row["variant"]): row for row in rows}
    found = []
    if row := known.get(("two_workers", "ignite")):
        found.append(
            [
                "two workers from Ignite, where 1 is the same from TFRecord files",
                _times(row["ratio_to_tfrecord"]),
            ]
        )
        found.append(
            ["of that, the share of time in which a worker waited for data", _times(row["data_wait"])]
        )
    if row := known.get(("one_worker", "tfrecord")):
        found.append(
            ["`fit` of a run with one worker, where 1 is plain Keras", _times(row["ratio_to_plain"])]
        )
    return "## Training\n\nA small convolutional net, in turns in the same processes.\n\n" + _table(
        ["what", "ratio"], found
    )


def _steps(rows: list[dict[str, Any]]) -> str:
    found = [[row["case"], _times(row["ratio_to_mirrored"])] for row in rows]
    return (
        "## Steps of small models\n\nSteps a second of two workers on two cores, 64 rows a step, where 1 is tf_keras "
        "under MultiWorkerMirroredStrategy, in turns in the same processes.\n\n"
        + _table(["model", "ratio"], found)
    )


def _first_step(rows: list[dict[str, Any]]) -> str:
    cold = [row["first_step_s"] for row in rows if "warm" not in row["variant"]]
    warm = [row["first_step_s"] for row in rows if "warm" in row["variant"]]
    shares = [
        row["import_tensorflow_s"] / row["first_step_s"] for row in rows if "warm" not in row["variant"]
    ]
    return (
        "## From the cell to the first step\n\nA warm start takes "
        f"{_median(warm) / _median(cold):.2f} of the time of a cold one. Of a cold one, {_median(shares):.0%} is the "
        "import of TensorFlow.\n"
    )


def _sizes(rows: list[dict[str, Any]]) -> str:
    small, large = rows[0], rows[-1]
    return (
        f"Of a cache with {large['rows'] / small['rows']:.0f} times the rows, a start takes "
        f"{large['first_step_s'] / small['first_step_s']:.2f} times as long: rows are not read to be counted.\n"
    )


def _tunnel(rows: list[dict[str, Any]]) -> str:
    return "## Through SSH alone\n\nSteps a second with `--tunnel`, where 1 is without.\n\n" + _table(
        ["two workers add up", "speed"], [[row["case"], _times(row["ratio"])] for row in rows]
    )


def _parallel(rows: list[dict[str, Any]]) -> str:
    found = [row for row in rows if row.get("ratio_to_limit")]
    return (
        "## Readers side by side\n\nWhat several readers reach at once, where 1 is what the nodes and the cores of "
        "that machine could give.\n\n"
        + _table(
            ["readers", "of what is possible"],
            [[row["variant"].rpartition(", ")[2], _times(row["ratio_to_limit"])] for row in found],
        )
    )


def _memory(rows: list[dict[str, Any]]) -> str:
    most = max(row["growth_mb"] / row["data_mb"] for row in rows)
    return (
        f"## Memory\n\nA reader of 2 GB grows by {most:.1%} of what it reads, at most: reading is bounded.\n"
    )


def _panel(rows: list[dict[str, Any]]) -> str:
    names = {
        ("look", "first"): "the first look at all of it",
        ("look", "again"): "each later look",
        ("look", "again, the slowest"): "the slowest of these",
        ("draw", "runs"): "drawing the runs",
        ("draw", "cluster"): "drawing the cluster",
        ("draw", "caches"): "drawing the caches",
    }
    found = [
        [name, f"{row['ms']:,} ms"]
        for row in rows
        if (name := names.get((row["case"], row["variant"]))) and "ms" in row
    ]
    found += [
        [
            f"a panel that is open while nothing happens, with a look {row['variant']}",
            f"{row['cpu_percent']:.2g} % of a core",
        ]
        for row in rows
        if row["case"] == "idle"
    ]
    return _times_table(
        "## The panel\n\n50 runs of two workers, of which five go on; three nodes, ten caches of 1,024 partitions. "
        "Chromium draws them.",
        found,
    )


def _frontend(rows: list[dict[str, Any]]) -> str:
    names = {
        "first word": "a cell that starts a run, until it says anything",
        "longest silence": "the longest time in which it says nothing new, until the script prints",
        "typing": "a key, until its letter is seen, while a run prints 10,000 lines a second",
        "scrolling": "from one picture to the next, when the wheel turns meanwhile",
        "notebook": "the saved notebook after that",
        "new user": "a new user, from nothing to a trained model",
    }
    known = {row["case"]: row for row in rows}
    return _times_table(
        "## Before the screen\n\nJupyterLab and Chromium.",
        [[name, _waited(known[case])] for case, name in names.items() if case in known],
    )


def _waited(row: Row) -> str:
    if "s" in row:
        return f"{row['s']:.0f} s"
    if "median_s" in row:
        return f"{row['median_s']:.2f} s; {row['most_s']:.2f} at most"
    if "kb" in row:
        return f"{row['kb']:,} kB"
    return f"{row['median_ms']:.0f} ms; {row['most_ms']:.0f} at most"


def _times_table(told: str, found: list[list[str]]) -> str:
    return f"{told}\n\n{_table(['what', 'it takes'], found)}" if found else ""


def _faults(rows: list[dict[str, Any]]) -> str:
    return (
        "## When something fails\n\nRounds on three hosts, each with a fault at a random moment.\n\n"
        + _table(
            ["fault", "rounds", "ended as they should", "lines lost or doubled", "processes left"],
            [
                [
                    f"`{row['fault']}`",
                    row["rounds"],
                    row["finished"],
                    row["lost_lines"] + row["doubled_lines"],
                    row["orphans"],
                ]
                for row in rows
            ],
        )
    )


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


_SECTIONS = {
    "scan": _scan,
    "packed": _packed,
    "picked": _picked,
    "load": _load,
    "sql": _sql,
    "training": _training,
    "steps": _steps,
    "first_step": _first_step,
    "sizes": _sizes,
    "parallel": _parallel,
    "igfs": _igfs,
    "tunnel": _tunnel,
    "memory": _memory,
    "panel": _panel,
    "frontend": _frontend,
    "faults": _faults,
}
_HALF = 0.5


def _missed() -> str:
    """Name what is slower than half of what it is compared with, and rounds that did not end as they should."""
    found = [
        f"- {_NAMES[row['variant']]}, {_CASES[row['case']]}: {row['ratio_to_drain']:.2f} of what the network gives."
        for row in _read("scan")
        if row["variant"].startswith("dataset") and row["ratio_to_drain"] < _HALF
    ]
    by_others = {row["case"]: row["ratio_to_drain"] for row in _read("scan") if row["variant"] == "java_3"}
    found += [
        f"- {_NAMES[row['variant']]}, {_CASES[row['case']]}: slower than the Java thin client with a connection for "
        f"each node ({row['ratio_to_drain']:.2f} and {by_others[row['case']]:.2f}), which makes no tensors."
        for row in _read("scan")
        if row["variant"] == "dataset_batch" and row["ratio_to_drain"] < by_others.get(row["case"], 0)
    ]
    found += [
        f"- igfs, {row['case'].replace('_', ' ')}: {row['ratio_to_raw']:.2f} of what it is compared with."
        for row in _read("igfs")
        if row["ratio_to_raw"] < _HALF
    ]
    found += [
        f"- `--tunnel`, {row['case']}: {row['ratio']:.2f} of the steps. It goes through one process of Python."
        for row in _read("tunnel")
        if row["ratio"] < _HALF
    ]
    found += [
        f"- fault `{row['fault']}`: {row['rounds'] - row['finished']} of {row['rounds']} rounds ended otherwise."
        for row in _read("faults")
        if row["finished"] < row["rounds"]
    ]
    if any(row["ratio_to_tfrecord"] < 1 for row in _read("training") if row["variant"] == "ignite"):
        found.append("- Training from Ignite is slower than from TFRecord files on the local disk.")
    told = "\n".join(found) or "Nothing, by this measure."
    return f"## What is missed\n\nWhat reaches less than half of what it is compared with, and what failed:\n\n{told}\n"


if __name__ == "__main__":
    sys.stdout.write(page())
