"""`results/parallel.json`: parallel readers of separate partitions, like the workers of a run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import psutil

from benchmarks.cases import Case, fill
from benchmarks.plan import Effort, Report
from benchmarks.process import Variant, python_variant
from benchmarks.scan import task_of
from ignite_tf_magic.client.client import connect
from ignite_tf_magic.client.page_sizes import PartitionStats
from ignite_tf_magic.settings.options import ConnectOptions

READERS = (1, 2, 4)
_MODULES = {"dataset_batch": "read_dataset", "drain": "read_drain"}


@dataclass(frozen=True, slots=True)
class _Rates:
    """Rows per second of some readers.

    Attributes:
        alone: The sum of the readers' rates when each reads alone.
        at_once: The rate of all readers together.
        by_cores: The limit set by this machine's cores, given the processor time per row of a reader alone,
            including the nodes and all other processes.
    """

    alone: float
    at_once: float
    by_cores: float


def run(
    options: ConnectOptions, case: Case, effort: Effort, report: Report, numbers: Sequence[int] = READERS
) -> list[dict[str, Any]]:
    """Measure each number of readers, one after the other and all at once."""
    with connect(options) as client:
        cache = fill(client, case)
        try:
            known = cache.partition_stats()
            return [row for number in numbers for row in _rows(options, case, known, number, effort, report)]
        finally:
            client.destroy_cache(case.cache)


def _rows(
    options: ConnectOptions,
    case: Case,
    known: dict[int, PartitionStats],
    number: int,
    effort: Effort,
    report: Report,
) -> list[dict[str, Any]]:
    """Measure datasets, and drains, which show what the nodes can deliver to this many readers on this machine."""
    found = {}
    for variant in _MODULES:
        with ExitStack() as ends:
            readers = [
                ends.enter_context(_reader(options, case, known, variant, (number, index), effort))
                for index in range(number)
            ]
            for reader in readers:
                reader.answer()
            found[variant] = _best(readers, effort)
        report(f"{number} readers, {variant}: {found[variant]}")
    datasets, drains = found["dataset_batch"], found["drain"]
    limits = {"dataset_batch": min(datasets.alone, drains.at_once, datasets.by_cores), "drain": None}
    return [
        {
            "case": case.name,
            "variant": f"{variant}, {number} readers",
            "one_after_the_other_rows_per_s": round(rates.alone),
            "at_once_rows_per_s": round(rates.at_once),
            "cores_limit_rows_per_s": round(rates.by_cores),
            "ratio_to_sum": round(rates.at_once / rates.alone, 3),
            "ratio_to_limit": round(rates.at_once / limit, 3) if (limit := limits[variant]) else None,
        }
        for variant, rates in found.items()
    ]


def _reader(
    options: ConnectOptions,
    case: Case,
    known: dict[int, PartitionStats],
    variant: str,
    place: tuple[int, int],
    effort: Effort,
) -> Variant:
    number, index = place
    part = [partition for partition in sorted(known) if partition % number == index]
    num_rows = sum(known[partition].rows for partition in part)
    task = {**task_of(variant, options, case, effort), "part": part, "num_rows": num_rows}
    return python_variant(f"{variant} {index}", _MODULES[variant], task)


def _best(readers: Sequence[Variant], effort: Effort) -> _Rates:
    """Return the best of some rounds, in each of which readers read one after the other and then at once."""
    alone, at_once, busy_s_per_row = [], [], []
    with ThreadPoolExecutor(len(readers)) as pool:
        for _ in range(effort.rounds):
            began_s = _busy_s()
            measured = [reader.measure(effort.seconds) for reader in readers]
            busy_s_per_row.append((_busy_s() - began_s) / sum(each.rows for each in measured))
            alone.append(sum(each.rows_per_s for each in measured))
            together = pool.map(lambda reader: reader.measure(effort.seconds), readers)
            at_once.append(sum(each.rows_per_s for each in together))
    return _Rates(max(alone), max(at_once), (os.cpu_count() or 1) / min(busy_s_per_row))


def _busy_s() -> float:
    """Return the processor time that all processes of this machine have used."""
    times = psutil.cpu_times()
    return float(
        times.user + times.system + times.nice + getattr(times, "irq", 0) + getattr(times, "softirq", 0)
    )
