"""`results/scan.json`: the speed of reading a cache by each variant, compared with the drain."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any

from benchmarks.cases import Case, fill
from benchmarks.java_client import java_command
from benchmarks.plan import Effort, Report
from benchmarks.process import Measurement, Variant, python_variant
from ignite_tf_magic.client.client import Client, connect
from ignite_tf_magic.settings.options import ConnectOptions

VARIANTS = (
    "drain",
    "pyignite",
    "java_1",
    "java_3",
    "dataset_batch",
    "dataset_first_batch",
    "dataset_map_batch",
    "dataset_shuffle_batch",
)
BARE_VARIANTS = VARIANTS[:5]
# Variants that the size may affect, and the fastest of the others.
SIZED_VARIANTS = ("drain", "java_3", "dataset_batch", "dataset_first_batch", "dataset_shuffle_batch")


def variants_of(case: Case) -> tuple[str, ...]:
    """Return the variants for a case. A byte[] of 1 MiB is not scaled, and shuffling 10,000 of them is unrealistic."""
    return BARE_VARIANTS if case.is_bare else VARIANTS


def run(
    options: ConnectOptions, case: Case, effort: Effort, report: Report, variants: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """Load the rows of a case, measure its variants, and remove the rows."""
    report(f"{case.name}: loading {case.num_rows:,} rows")
    with connect(options) as client:
        fill(client, case)
        try:
            return _measure(client, options, case, effort, report, variants or variants_of(case))
        finally:
            client.destroy_cache(case.cache)


def _measure(
    client: Client,
    options: ConnectOptions,
    case: Case,
    effort: Effort,
    report: Report,
    variants: Sequence[str],
) -> list[dict[str, Any]]:
    with ExitStack() as ends:
        running, chosen = [], {}
        for name in variants:
            report(f"{case.name}: preparing {name}")
            variant = ends.enter_context(_start(name, client, options, case, effort, report))
            chosen[name] = variant.answer()
            running.append(variant)
        best = measure_rounds(running, effort, lambda line: report(f"{case.name}: {line}"))
    drain = best["drain"].rows_per_s if "drain" in best else float("nan")
    return [
        {
            **row_of(case, name, measured),
            "ratio_to_drain": round(measured.rows_per_s / drain, 4),
            **chosen[name],
        }
        for name, measured in best.items()
    ]


def measure_rounds(
    variants: Iterable[Variant], effort: Effort, report: Report = lambda _: None
) -> dict[str, Measurement]:
    """Run the variants one after the other for several rounds. Returns the best round of each."""
    best: dict[str, Measurement] = {}
    running = list(variants)
    for number in range(effort.rounds):
        for variant in running:
            measured = variant.measure(effort.seconds)
            report(f"round {number + 1}, {variant.name}: {measured.rows_per_s:,.0f} rows/s")
            if variant.name not in best or measured.rows_per_s > best[variant.name].rows_per_s:
                best[variant.name] = measured
    return best


def row_of(case: Case, variant: str, measured: Measurement) -> dict[str, Any]:
    """Return a row of the results."""
    return {
        "case": case.name,
        "variant": variant,
        "rows_per_s": round(measured.rows_per_s, 1),
        "mb_per_s": round(measured.rows_per_s * case.row_bytes / 1e6, 2),
        "peak_rss_mb": round(measured.peak_rss_mb, 1),
        "cpu_s_per_million_rows": round(measured.cpu_s / measured.rows * 1e6, 3),
    }


def _start(
    name: str, client: Client, options: ConnectOptions, case: Case, effort: Effort, report: Report
) -> Variant:
    if name.startswith("java"):
        return Variant(name, _java_argv(name, client, case, effort, report))
    return python_variant(name, f"read_{name.partition('_')[0]}", task_of(name, options, case, effort))


def task_of(name: str, options: ConnectOptions, case: Case, effort: Effort) -> dict[str, Any]:
    """Return the task of a Python variant's process."""
    endpoint = options.endpoints[0]
    return {
        "variant": name,
        "cache": case.cache,
        "host": endpoint.host,
        "port": endpoint.port,
        "num_rows": case.num_rows,
        "sampled_rows": case.sampled_rows,
        "batch_rows": case.batch_rows,
        "page_rows": case.page_rows,
        "trial_s": effort.trial_s,
    }


def _java_argv(
    name: str, client: Client, case: Case, effort: Effort, report: Callable[[str], None]
) -> list[str]:
    cache = client.cache(case.cache)
    endpoints = {node.node_id: node.endpoints[0] for node in client.nodes()}
    connections = [
        f"{endpoints[owner]}={','.join(map(str, partitions))}"
        for owner, partitions in cache.partition_map().owners.items()
    ]
    return [
        *java_command(report),
        case.cache,
        str(case.num_rows),
        ",".join(case.fields) or "-",
        ",".join(map(str, case.page_rows)),
        str(effort.trial_s),
        *(connections[:1] if name == "java_1" else connections),
    ]
