"""`python -m benchmarks.packed [--rounds N] [--rows N]`: compares packed rows with others (`results/packed.json`).

Small objects of two doubles and an int, and MNIST-like ones of 784 bytes and an int. `ChunkReader` ("drain": everything
before TensorFlow) and `IgniteDataset(...).batch(1024)` read each, packed and not, in turn in one process. The best
pass of each counts, and is compared with the same reader on rows that are not packed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import tables
from benchmarks.nodes import node_of_its_own
from ignite_tf_magic.dataset.options import read_options
from ignite_tf_magic.dataset.reader import ChunkReader
from ignite_tf_magic.dataset.source import open_source
from ignite_tf_magic.embedded import EmbeddedOptions
from ignite_tf_magic.session import load
from ignite_tf_magic.settings.options import ConnectOptions

NAME = "packed"
BATCH_ROWS = 1024
_MNIST_ROWS = 60_000


def columns(kind: str, num_rows: int) -> dict[str, Any]:
    """Make rows of a kind."""
    random = np.random.default_rng(1)
    label = random.integers(0, 10, num_rows, dtype=np.int32)
    if kind == "mnist":
        return {"pixels": random.integers(0, 256, (num_rows, 784), dtype=np.uint8), "label": label}
    return {"a": random.normal(size=num_rows), "b": random.normal(size=num_rows), "label": label}


def drain(cache: str, where: dict[str, Any]) -> Callable[[], int]:
    """Return a function that reads and counts all rows without TensorFlow."""
    source = open_source(read_options(cache, **where))

    def read() -> int:
        with ChunkReader(source) as reader:
            return sum(chunk.num_rows for chunk in reader.chunks())

    return read


def batched(cache: str, where: dict[str, Any]) -> Callable[[], int]:
    """Return a function that reads and counts all rows in tf.data batches."""
    from ignite_tf_magic import IgniteDataset

    dataset = IgniteDataset(cache, **where).batch(BATCH_ROWS)
    return lambda: sum(len(batch["key"]) for batch in dataset)


WAYS = {"drain": drain, "batch": batched}


def measure(options: ConnectOptions, kind: str, num_rows: int, rounds: int) -> list[dict[str, Any]]:
    """Fill a plain and a packed cache, read both in all ways, and return the rows of the table."""
    rows, where = (
        columns(kind, num_rows),
        {"host": options.endpoints[0].host, "port": options.endpoints[0].port},
    )
    caches = {False: f"PLAIN_{kind.upper()}", True: f"PACKED_{kind.upper()}"}
    for packed, cache in caches.items():
        load(cache, rows, options=options, backups=0, replace=True, packed=packed, report=str)
    readers = {
        (way, packed): make(cache, where) for way, make in WAYS.items() for packed, cache in caches.items()
    }
    best = dict.fromkeys(readers, float("inf"))
    for _ in range(rounds):
        for name, read in readers.items():
            began = time.perf_counter()
            assert read() == num_rows, name
            best[name] = min(best[name], time.perf_counter() - began)
    return [
        {
            "case": kind,
            "rows": num_rows,
            "variant": f"{way}, {'packed' if packed else 'not packed'}",
            "rows_per_s": round(num_rows / seconds),
            "ratio_to_not_packed": round(best[way, False] / seconds, 2),
        }
        for (way, packed), seconds in best.items()
    ]


def main(argv: list[str] | None = None) -> None:
    """Measure both kinds of rows and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--rows", type=int, nargs="+", default=[60_000, 1_000_000])
    parser.add_argument("--results", type=Path, default=tables.RESULTS)
    arguments = parser.parse_args(argv)
    with node_of_its_own(NAME, EmbeddedOptions(heap="1g", region="2g")) as options:
        rows = [row for size in arguments.rows for row in measure(options, "numbers", size, arguments.rounds)]
        rows += measure(options, "mnist", min(_MNIST_ROWS, max(arguments.rows)), arguments.rounds)
    tables.write(arguments.results, NAME, rows)
    tables.show(tables.console(), arguments.results, (NAME,))


if __name__ == "__main__":
    main()
