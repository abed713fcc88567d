"""Assigns partitions to workers without a launcher, through the variables and files that one would write."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from ignite_tf_magic.client.page_sizes import PartitionStats
from ignite_tf_magic.settings.options import Endpoint


def rows_of_shares(
    stats: Mapping[int, PartitionStats], shares: Sequence[Sequence[int]], more_rows: int = 0
) -> list[int]:
    """Count the rows of each share, with `more_rows` added to each partition."""
    return [sum(stats[p].rows + more_rows for p in share if p in stats) for share in shares]


def assignment(
    folder: Path,
    endpoint: Endpoint,
    cache: str,
    stats: Mapping[int, PartitionStats],
    shares: Sequence[Sequence[int]],
    worker: int,
    more_rows: int = 0,
) -> dict[str, str]:
    """Write a worker's assignment into a folder, and return the variables that name it."""
    rows = rows_of_shares(stats, shares, more_rows)
    record = {"cache": cache, "worker": worker, "rows_by_worker": rows}
    path = folder / f"assignment-{worker}.json"
    path.write_text(json.dumps(record))
    found = {
        "HOST": endpoint.host,
        "PORT": str(endpoint.port),
        "PART": ",".join(map(str, shares[worker])) or "none",
        "ASSIGNED_CACHE": cache,
        "ASSIGNMENT_FILE": str(path),
    }
    return {f"IGNITE_DATASET_{name}": value for name, value in found.items()}


def assign(
    folder: Path,
    endpoint: Endpoint,
    cache: str,
    stats: Mapping[int, PartitionStats],
    shares: Sequence[Sequence[int]],
) -> None:
    """Assign partitions to each worker, and write its variables to FOLDER/worker-N.json."""
    for worker in range(len(shares)):
        variables = assignment(folder, endpoint, cache, stats, shares, worker)
        (folder / f"worker-{worker}.json").write_text(json.dumps(variables))
