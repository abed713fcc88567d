"""`python -m benchmarks.followed`: a cache is followed while another process puts 100,000 rows, and a node is killed.

By turns it is the node that tells of changes and another one, at an instant that nobody chose. Every row is to come. A
round in which one is missing, or comes with another value, makes it fail; rows that come twice are counted.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import tables
from benchmarks.process import peak_rss_mb
from ignite_tf_magic.client.client import Client, connect
from ignite_tf_magic.client.follow import follow
from ignite_tf_magic.embedded import EmbeddedOptions, Lifetime, down, ensure_up
from ignite_tf_magic.protocol.messages import CacheConfig
from tests.client.test_follow import kill, rows_of, start_writer

NAME = "followed"
_NODES = EmbeddedOptions(heap="256m", num_nodes=3)
_CACHE = "FOLLOWED"
_PATIENCE = 120  # pauses of a second after the last row was put


def play(cluster: Any, client: Client, number: int, count: int) -> dict[str, Any]:
    """Follow until every row has come; tells what came."""
    cache = client.create_cache(CacheConfig(_CACHE, backups=1))
    is_teller, at_rows = number % 2 == 0, random.randint(1, count * 9 // 10)
    found: dict[int, str] = {}
    num_came, pauses, is_killed, began = 0, 0, False, time.monotonic()
    with follow(cache, pause_s=1.0) as following, start_writer(cluster, count) as writer:
        for followed in following.pages():
            rows = rows_of(followed)
            found.update(rows)
            num_came += len(rows)
            if num_came >= at_rows and not is_killed and (teller := following.node_id):
                kill(cluster, client, teller, is_it=is_teller)
                is_killed = True
            pauses = 0 if rows or writer.poll() is None else pauses + 1
            if len(found) == count or pauses > _PATIENCE:
                break
        seconds, num_streams = time.monotonic() - began, following.num_streams
    return {
        "number": number,
        "killed": "the node that tells" if is_teller else "another",
        "at_rows": at_rows,
        "rows": count,
        "missing": count - len(found),
        "wrong": sum(value != f"value {key}" for key, value in found.items()),
        "twice": num_came - len(found),
        "streams": num_streams,
        "seconds": round(seconds, 1),
        "peak_rss_mb": round(peak_rss_mb()),
    }


def main(argv: list[str] | None = None) -> None:
    """Play the rounds, each on nodes of its own, and write what they came to."""
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
