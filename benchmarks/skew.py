"""`results/skew.json`: trainings on two workers with rows split 10:1, 1:0 and 100:99; each epoch has each row once."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.plan import Report
from ignite_tf_magic.client.client import Client, connect
from ignite_tf_magic.client.load import put_rows, table_config
from ignite_tf_magic.client.page_sizes import PartitionStats
from ignite_tf_magic.protocol.encode import RowEncoder
from ignite_tf_magic.settings.options import ConnectOptions
from tests.training.assignments import assign
from tests.training.processes import Workers

ROOT = Path(__file__).parent.parent
RATIOS = ((10, 1), (1, 0), (100, 99))
_SCRIPT = Path(__file__).parent / "scripts" / "train_skewed.py"
_CACHE = "BENCH_SKEW"


def run(
    options: ConnectOptions, num_runs: int, report: Report, ratios: Sequence[tuple[int, int]] = RATIOS
) -> list[dict[str, Any]]:
    """Train this many times, alternating between the ratios, with random numbers of rows and batch sizes."""
    counts: Counter[tuple[str, str]] = Counter()
    with connect(options) as client:
        for number in range(num_runs):
            ratio = ratios[number % len(ratios)]
            name = ":".join(map(str, ratio))
            num_rows, batch_rows = random.randint(150, 1500), random.randint(2, 128)
            try:
                found = _train(options, _fill(client, num_rows), ratio, num_rows, batch_rows)
            finally:
                client.destroy_cache(_CACHE)
            is_exact = found is not None and _is_exact(found, num_rows, batch_rows)
            counts.update(
                {(name, "runs"): 1, (name, "ended"): int(found is not None), (name, "exact"): int(is_exact)}
            )
            report(f"run {number + 1}, {name}: {num_rows} rows by {batch_rows}: {found or 'did not end'}")
    names = [":".join(map(str, ratio)) for ratio in ratios]
    kinds = ("runs", "ended", "exact")
    return [{"case": "skew", "rows": name, **{kind: counts[name, kind] for kind in kinds}} for name in names]


def _fill(client: Client, num_rows: int) -> Mapping[int, PartitionStats]:
    encoder = RowEncoder(_CACHE, {"label": np.zeros(num_rows, np.int32)}, np.arange(1, num_rows + 1))
    cache = client.create_cache(table_config(_CACHE, encoder, 1))
    put_rows(cache, encoder)
    return cache.partition_stats()


def _train(
    options: ConnectOptions,
    stats: Mapping[int, PartitionStats],
    ratio: tuple[int, int],
    num_rows: int,
    batch_rows: int,
) -> list[dict[str, Any]] | None:
    """Return each worker's counts of seen rows; None if the training did not finish."""
    with tempfile.TemporaryDirectory(prefix="skew-") as scratch:
        folder = Path(scratch)
        assign(folder, options.endpoints[0], _CACHE, stats, _shares(stats, ratio, num_rows))
        try:
            Workers(folder, 2, _SCRIPT, arguments=(str(num_rows), str(batch_rows))).run()
        except (AssertionError, subprocess.TimeoutExpired) as error:
            print(error, file=sys.stderr)
            return None
        return [json.loads((folder / f"seen-{worker}.json").read_text()) for worker in range(2)]


def _shares(
    stats: Mapping[int, PartitionStats], ratio: tuple[int, int], num_rows: int
) -> tuple[list[int], list[int]]:
    """Assign partitions so that the rows are split in the given ratio, to within one partition."""
    first: list[int] = []
    rows = 0
    for partition in sorted(stats):
        if rows < num_rows * ratio[0] / sum(ratio):
            first.append(partition)
            rows += stats[partition].rows
    return first, [partition for partition in stats if partition not in set(first)]


def _is_exact(found: list[dict[str, Any]], num_rows: int, batch_rows: int) -> bool:
    expected = {"least": [1.0, 1.0], "most": [1.0, 1.0], "steps": 2 * -(-num_rows // batch_rows)}
    return all(each == expected for each in found)
