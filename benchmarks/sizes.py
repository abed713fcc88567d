"""`python -m benchmarks.sizes [--rounds N]`: how start times grow with the cache, into `results/sizes.json`.

10 MB, 1 GB and 4 GB of equal rows, in separate caches: the time to plan a run and the bytes that this process receives
for it, the time from `IgniteDataset(...)` to its first batch, and the time from a cell to the first step of two workers
(including the import of TensorFlow). The caches take turns; the median of each counts.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import first_step, tables
from benchmarks.cases import Case, fill, mnist
from ignite_tf_magic.client.client import connect
from ignite_tf_magic.client.transport import SocketTransport
from ignite_tf_magic.embedded import EmbeddedOptions, Lifetime, down, ensure_up
from ignite_tf_magic.runs.supervision.warm_hosts import WARM_HOSTS
from ignite_tf_magic.session import RunRequest, open_session
from ignite_tf_magic.settings.options import ConnectOptions

NAME = "sizes"
SIZES_MB = (10, 1000, 4000)
_NODES = EmbeddedOptions(heap="1g", region="4g")


def cases(sizes_mb: tuple[int, ...]) -> list[Case]:
    """Describe caches of about these sizes, without backups."""
    rows = mnist(1)
    return [
        replace(rows, name=f"mnist_{size}", num_rows=size * 1_000_000 // rows.row_bytes, backups=0)
        for size in sizes_mb
    ]


def measure(options: ConnectOptions, case: Case) -> dict[str, float]:
    """Plan a run on a cache, open it and read a batch, start a run and wait for its first step."""
    with open_session(options, report=lambda _: None) as session, _received() as received:
        began = time.perf_counter()
        session.plan_run(RunRequest(case.cache, "pass", 2))
        plan_s = time.perf_counter() - began
    return {
        "plan_s": plan_s,
        "plan_kb": sum(received) / 1000,
        "first_batch_s": _first_batch_s(options, case),
        "first_step_s": _first_step_s(options, case),
    }


@contextmanager
def _received() -> Iterator[list[int]]:
    sizes: list[int] = []
    receive = SocketTransport.receive_into

    def counted(self: SocketTransport, space: memoryview) -> int:
        sizes.append(receive(self, space))
        return sizes[-1]

    SocketTransport.receive_into = counted  # type: ignore[method-assign]
    try:
        yield sizes
    finally:
        SocketTransport.receive_into = receive  # type: ignore[method-assign]


def _first_batch_s(options: ConnectOptions, case: Case) -> float:
    from ignite_tf_magic import IgniteDataset

    endpoint = options.endpoints[0]
    began = time.perf_counter()
    next(iter(IgniteDataset(case.cache, endpoint.host, endpoint.port).batch(case.batch_rows)))
    return time.perf_counter() - began


def _first_step_s(options: ConnectOptions, case: Case) -> float:
    found = first_step.one_run(options, case.cache, case.name, lambda _: None)
    WARM_HOSTS.close()
    return float(found["first_step_s"])


def main(argv: list[str] | None = None) -> None:
    """Fill the caches, measure them in turns, and write the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes-mb", type=int, nargs="+", default=SIZES_MB)
    parser.add_argument("--results", type=Path, default=tables.RESULTS)
    arguments = parser.parse_args(argv)
    home = Path(tempfile.mkdtemp(prefix="sizes-"))
    chosen = cases(tuple(arguments.sizes_mb))
    try:
        options = ensure_up(_NODES, Lifetime.UNTIL_IDLE, home=home).cluster.connect_options
        with connect(options) as client:
            for case in chosen:
                fill(client, case)
        measure(options, chosen[0])  # warms up imports and nodes
        rounds = [{case.name: measure(options, case) for case in chosen} for _ in range(arguments.rounds)]
    finally:
        down(home, delete_data=True)
    tables.write(
        arguments.results, NAME, [_median(case, [each[case.name] for each in rounds]) for case in chosen]
    )
    tables.show(tables.console(), arguments.results, (NAME,))


def _median(case: Case, measured: list[dict[str, float]]) -> dict[str, Any]:
    medians = {name: round(statistics.median(each[name] for each in measured), 3) for name in measured[0]}
    return {"case": case.name, "rows": case.num_rows, **medians}


if __name__ == "__main__":
    main()
