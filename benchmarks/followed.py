"""`python -m benchmarks.followed`: follows a cache while a process puts 100,000 rows and a node is killed.

At a random moment it kills alternately the node that reports changes and another one. In two of four rounds an
`IgniteDataset(..., follow=True)` reads the rows, and any node may be killed. Every row must arrive. A missing row or
a wrong value fails the benchmark; rows that arrive twice are counted.
"""

from __future__ import annotations

import argparse
import queue
import random
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks import tables
from benchmarks.process import peak_rss_mb
from ignite_tf_magic import IgniteDataset
from ignite_tf_magic.client.client import Client, connect
from ignite_tf_magic.client.follow import Follow, follow
from ignite_tf_magic.embedded import EmbeddedOptions, Lifetime, down, ensure_up
from ignite_tf_magic.protocol.messages import CacheConfig
from tests.client.test_follow import kill, rows_of, start_writer

NAME = "followed"
_NODES = EmbeddedOptions(heap="256m", num_nodes=3)
_CACHE = "FOLLOWED"
_PATIENCE = 120  # pauses of one second after the last row was put


class _DatasetRows:
    """Reads a dataset that follows the cache in a thread, because TensorFlow waits for rows forever."""

    def __init__(self, cluster: Any) -> None:
        endpoint = cluster.connect_options.endpoints[0]
        self._dataset = IgniteDataset(_CACHE, host=endpoint.host, port=endpoint.port, follow=True)
        self._rows: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
        threading.Thread(target=self._take, daemon=True).start()

    def _take(self) -> None:
        for row in self._dataset.prefetch(1):
            self._rows.put((int(row["key"]), row["val"].numpy().decode()))

    def pages(self) -> Iterator[list[tuple[int, str]]]:
        """Yield lists of rows; an empty list after a second without rows."""
        while True:
            found = []
            with suppress(queue.Empty):
                found.append(self._rows.get(timeout=1.0))
                while True:
                    found.append(self._rows.get_nowait())
            yield found


def _taken(
    cluster: Any, cache: Any, following: Follow, *, is_dataset: bool
) -> Iterator[list[tuple[int, str]]]:
    if not is_dataset:
        return map(rows_of, following.pages())
    while not cache.size():  # the dataset needs a row to know its fields
        time.sleep(0.01)
    return _DatasetRows(cluster).pages()


def play(cluster: Any, client: Client, number: int, count: int) -> dict[str, Any]:
    """Follow until every row has arrived. Returns the round's figures."""
    cache = client.create_cache(CacheConfig(_CACHE, backups=1))
    is_teller, is_dataset = number % 2 == 0, number // 2 % 2 == 1
    at_rows = random.randint(1, count * 9 // 10)
    found: dict[int, str] = {}
    num_came, pauses, is_killed, began = 0, 0, False, time.monotonic()
    with follow(cache, pause_s=1.0) as following, start_writer(cluster, count) as writer:
        for rows in _taken(cluster, cache, following, is_dataset=is_dataset):
            found.update(rows)
            num_came += len(rows)
            teller = client.nodes()[0].node_id if is_dataset else following.node_id
            if num_came >= at_rows and not is_killed and teller:
                kill(cluster, client, teller, is_it=is_teller)
                is_killed = True
            pauses = 0 if rows or writer.poll() is None else pauses + 1
            if len(found) == count or pauses > _PATIENCE:
                break
        seconds, num_streams = time.monotonic() - began, following.num_streams
    return {
        "number": number,
        "by": "dataset" if is_dataset else "client",
        "killed": "one of three" if is_dataset else "the node that tells" if is_teller else "another",
        "at_rows": at_rows,
        "rows": count,
        "missing": count - len(found),
        "wrong": sum(value != f"value {key}" for key, value in found.items()),
        "twice": num_came - len(found),
        "streams": None if is_dataset else num_streams,
        "seconds": round(seconds, 1),
        "peak_rss_mb": round(peak_rss_mb()),
    }


def main(argv: list[str] | None = None) -> None:
    """Play each round on new nodes, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--results", type=Path, default=tables.RESULTS)
    options = parser.parse_args(argv)
    rounds = []
    for number in range(options.rounds):
        home = Path(tempfile.mkdtemp(prefix="followed-"))
        try:
            cluster = ensure_up(_NODES, Lifetime.UNTIL_IDLE, home=home).cluster
            with connect(cluster.connect_options) as client:
                rounds.append(play(cluster, client, number, options.rows))
        finally:
            down(home, delete_data=True)
        tables.write(options.results, NAME, rounds)
    tables.show(tables.console(), options.results, (NAME,))
    if any(each["missing"] or each["wrong"] for each in rounds):
        raise SystemExit("rows that were put did not come")


if __name__ == "__main__":
    main()
