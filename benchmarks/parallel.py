"""`results/parallel.json`: readers side by side, each of partitions of its own, as the workers of a run are."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

from benchmarks.cases import Case, fill
from benchmarks.plan import Effort, Report
from benchmarks.process import Variant, python_variant
from benchmarks.scan import task_of
from ignite_tf_magic.client.client import connect
from ignite_tf_magic.client.page_sizes import PartitionStats
from ignite_tf_magic.config.options import ConnectOptions

READERS = (1, 2, 4)
_MODULES = {"dataset_batch": "read_dataset", "drain": "read_drain"}


def run(
    options: ConnectOptions, case: Case, effort: Effort, report: Report, numbers: Sequence[int] = READERS
) -> list[dict[str, Any]]:
    """Measure so many readers one after the other, and all of them at once."""
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
    """Measure datasets, and drains: what the nodes can give to so many readers on this machine."""
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
    limit = min(found["dataset_batch"][0], found["drain"][1])
    return [
        {
            "case": case.name,
            "variant": f"{variant}, {number} readers",
            "one_after_the_other_rows_per_s": round(alone),
            "at_once_rows_per_s": round(at_once),
            "ratio_to_sum": round(at_once / alone, 3),
            "ratio_to_limit": round(at_once / limit, 3) if variant == "dataset_batch" else None,
        }
        for variant, (alone, at_once) in found.items()
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


def _best(readers: Sequence[Variant], effort: Effort) -> tuple[float, float]:
    """Return the best sums of rows per second: of readers alone, and at once."""
    alone, at_once = [], []
    with ThreadPoolExecutor(len(readers)) as pool:
        for _ in range(effort.rounds):
            alone.append(sum(reader.measure(effort.seconds).rows_per_s for reader in readers))
            measured = pool.map(lambda reader: reader.measure(effort.seconds), readers)
            at_once.append(sum(each.rows_per_s for each in measured))
    return max(alone), max(at_once)
