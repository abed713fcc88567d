"""`python -m benchmarks.node_epochs`: reads epochs while a node is killed or joins again; each row once.

Three nodes, and a cache with one backup. At a random moment, an epoch loses a node by SIGKILL, and the next epoch gets
it back. Epochs alternate between ordered and shuffled, and between whole rows and SQL. Backups are complete before each
epoch. A row that is missing, comes twice, or has another value fails the benchmark.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import tempfile
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import tables
from ignite_tf_magic import IgniteDataset
from ignite_tf_magic.client.client import Cache, connect
from ignite_tf_magic.embedded import EmbeddedCluster, EmbeddedOptions, Lifetime, down, ensure_up
from ignite_tf_magic.protocol import messages
from ignite_tf_magic.protocol.ops import PeekMode
from ignite_tf_magic.session import open_session
from tests.waiting import until

NAME = "node_epochs"
_HEAP, _CACHE, _ROWS = "256m", "EPOCHS", 300_000
_NODES = EmbeddedOptions(heap=_HEAP, num_nodes=3)


def dataset_of(cluster: EmbeddedCluster, alive: int, number: int) -> Any:
    """Open the cache in one of four ways, through a live node."""
    ways = {"fields": ["x"], "where": "X >= ?", "where_args": [0]} if number // 2 % 2 else {}
    rows = IgniteDataset(_CACHE, port=cluster.nodes[alive].port, **ways)
    return rows.shuffle(10_000, seed=number) if number // 4 % 2 else rows


def await_copies(cluster: EmbeddedCluster) -> None:
    """Wait until every row has its backup again."""

    def num_copies(cache: Cache, mode: PeekMode) -> int:
        return cache.client.router.call(messages.size(cache.cache_id, (mode,)), messages.parse_int64)

    def is_whole() -> bool:
        with connect(cluster.connect_options) as client:
            cache = client.cache(_CACHE)
            return num_copies(cache, PeekMode.PRIMARY) == num_copies(cache, PeekMode.BACKUP) == _ROWS

    until(is_whole, what=f"{_ROWS:,} rows with a backup each")


def kill(cluster: EmbeddedCluster, victim: int) -> EmbeddedCluster:
    """Kill a node."""
    os.kill(cluster.nodes[victim].pid, signal.SIGKILL)
    return cluster


def start_again(cluster: EmbeddedCluster, victim: int) -> EmbeddedCluster:
    """Start the killed node again."""
    del victim
    return ensure_up(_NODES, Lifetime.UNTIL_DOWN, home=cluster.home).cluster


def play(cluster: EmbeddedCluster, number: int, victim: int) -> tuple[dict[str, Any], EmbeddedCluster]:
    """Read an epoch while a node leaves or joins. Returns the round's figures and the changed cluster."""
    change = kill if number % 2 == 0 else start_again
    batches = dataset_of(cluster, (victim + 1) % 3, number).batch(1024)
    at_rows, num_rows = random.randint(1, _ROWS * 9 // 10), 0
    seen, wrong, began = np.zeros(_ROWS, np.int64), 0, time.monotonic()
    changed: Future[EmbeddedCluster] | None = None
    with ThreadPoolExecutor(1) as pool:
        for batch in batches.as_numpy_iterator():
            np.add.at(seen, batch["key"], 1)
            wrong += int((batch["val"]["x"] != 2 * batch["key"]).sum())
            num_rows += len(batch["key"])
            if num_rows >= at_rows and changed is None:
                changed = pool.submit(change, cluster, victim)
            if changed and change is start_again and not changed.done():
                time.sleep(0.1)  # a node takes seconds to join, and the epoch must last until then
        cluster = changed.result() if changed else cluster
    told = {
        "number": number,
        "change": "killed" if change is kill else "joined",
        "way": ("picked" if number // 2 % 2 else "rows") + (", shuffled" if number // 4 % 2 else ""),
        "at_rows": at_rows,
        "rows": _ROWS,
        "missing": int((seen == 0).sum()),
        "twice": int((seen > 1).sum()),
        "wrong": wrong,
        "seconds": round(time.monotonic() - began, 1),
    }
    return told, cluster


def main(argv: list[str] | None = None) -> None:
    """Play the rounds and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--results", type=Path, default=tables.RESULTS)
    options = parser.parse_args(argv)
    home, rounds, victim = Path(tempfile.mkdtemp(prefix="epochs-")), [], 0
    os.environ["IGNITE_TF_HOME"] = str(home / "state")
    try:
        cluster = ensure_up(_NODES, Lifetime.UNTIL_DOWN, home=home / "nodes").cluster
        with open_session(cluster.connect_options, report=print) as session:
            session.load(_CACHE, {"x": 2 * np.arange(_ROWS)}, backups=1)
        for number in range(options.rounds):
            victim = random.randrange(3) if number % 2 == 0 else victim
            await_copies(cluster)
            told, cluster = play(cluster, number, victim)
            rounds.append(told)
            tables.write(options.results, NAME, rounds)
    finally:
        down(home / "nodes", delete_data=True)
    tables.show(tables.console(), options.results, (NAME,))
    if any(each["missing"] or each["twice"] or each["wrong"] for each in rounds):
        raise SystemExit("an epoch had not each row once")


if __name__ == "__main__":
    main()
