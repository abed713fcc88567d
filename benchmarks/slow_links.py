"""Runs over links of 150 ms that lose 3 % of their packets: no line is lost or doubled, no worker restarts.

    python -m benchmarks.slow_links [--rounds 10]

Three hosts of the test bed, each with an Ignite node. This machine reaches each sshd through a forwarder that delays
and loses packets (`tests/launch/slow_link.py`). Every other run is detached. Its workers print numbered lines, which
a reader on this machine follows from beginning to end.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import tables
from benchmarks.code_hash import hash_of_rooms
from ignite_tf_magic.session import RunRequest, open_session
from tests.bed.bed import Bed
from tests.launch.slow_link import SlowLink
from tests.ssh.ssh_user import CACHE, load_numbers, settings

NAME = "links"
ROUND_TRIP_S, LOSS = 0.15, 0.03
NUM_WORKERS, NUM_LINES = 3, 4000
COUNTING = """
import sys, time
for number in range(int(sys.argv[1])):
    print(f"line {number}", flush=True)
    time.sleep(0.01)
"""


@contextlib.contextmanager
def slow_links(bed: Bed, folder: Path, seed: int) -> Iterator[list[SlowLink]]:
    """Write an ignite-tf.toml that reaches each host of a bed through its own slow link. Yields the links."""
    config, known = bed.ssh_config.read_text(), bed.known_hosts.read_text()
    with contextlib.ExitStack() as opened:
        links = []
        for number, host in enumerate(bed.hosts):
            link = SlowLink(
                (host.address, host.ssh_port), round_trip_s=ROUND_TRIP_S, loss=LOSS, seed=seed * 10 + number
            )
            links.append(opened.enter_context(link))
            place = host.address if host.ssh_port == 22 else f"[{host.address}]:{host.ssh_port}"
            key = next(line.split(" ", 1)[1] for line in known.splitlines() if line.startswith(f"{place} "))
            config = _led_through(config, host.ssh_name, link.port)
            known += f"[127.0.0.1]:{link.port} {key}\n"
        (folder / "known_hosts").write_text(known)
        (folder / "ssh_config").write_text(config.replace(str(bed.known_hosts), str(folder / "known_hosts")))
        (folder / "ignite-tf.toml").write_text(settings(bed, ssh={"config": str(folder / "ssh_config")}))
        yield links


def _led_through(config: str, name: str, port: int) -> str:
    """Redirect one host's SSH entry to a local port; ssh uses the first of repeated settings."""
    return f"Host {name}\n  HostName 127.0.0.1\n  Port {port}\n" + config


def play(bed: Bed, folder: Path, seed: int, *, detach: bool, num_lines: int = NUM_LINES) -> dict[str, Any]:
    """Follow a run over such links. Returns its figures."""
    began = time.monotonic()
    expected = Counter(f"line {number}" for number in range(num_lines))
    with (
        slow_links(bed, folder, seed) as links,
        open_session(report=_unsaid, config=folder / "ignite-tf.toml") as session,
    ):
        asked = RunRequest(
            CACHE, COUNTING, NUM_WORKERS, args=(str(num_lines),), start_timeout_s=None, detach=detach
        )
        run = session.start_run(asked)
        texts = dict.fromkeys(range(NUM_WORKERS), "")
        for chunk in run.follow():
            texts[chunk.worker] += chunk.text
        info = run.info()
        seen = {worker: Counter(text.splitlines()) for worker, text in texts.items()}
    return {
        "case": "detached" if detach else "attached",
        "seed": seed,
        "state": info.state.value,
        "restarts": info.restarts,
        "lines": sum(each.total() for each in seen.values()),
        "lost_lines": sum((expected - each).total() for each in seen.values()),
        "doubled_lines": sum((each - expected).total() for each in seen.values()),
        "unordered_workers": sum(text.splitlines() != list(expected) for text in texts.values()),
        "packets": sum(link.counts.packets for link in links),
        "lost_packets": sum(link.counts.lost for link in links),
        "seconds": round(time.monotonic() - began, 1),
        "code": hash_of_rooms(),
    }


def is_good(row: dict[str, Any]) -> bool:
    """Return whether a run ended as over any other link."""
    wrong = ("restarts", "lost_lines", "doubled_lines", "unordered_workers")
    return row["state"] == "succeeded" and row["lost_packets"] > 0 and not any(row[name] for name in wrong)


def main() -> int:
    """Play the rounds and write the results. Returns the exit code, 0 if all were good."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.slow_links", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--rounds", type=int, default=10, metavar="N", help="of each kind (10)")
    parser.add_argument("--lines", type=int, default=NUM_LINES, metavar="N", help="of each worker")
    parser.add_argument("--results", type=Path, default=tables.RESULTS, metavar="DIR")
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="ignite-tf-links-", ignore_cleanup_errors=True) as folder:
        os.environ["IGNITE_TF_HOME"] = f"{folder}/home"
        with Bed.up() as bed:
            load_numbers(bed)
            for number in range(2 * given.rounds):
                rows.append(play(bed, Path(folder), number, detach=number % 2 == 1, num_lines=given.lines))
                print(json.dumps(rows[-1]), "good" if is_good(rows[-1]) else "BAD", flush=True)
                tables.write(given.results, NAME, rows)
    num_good = sum(map(is_good, rows))
    print(f"{num_good} of {len(rows)} runs came to their ends, without a restart, and with each line once")
    return 0 if num_good == len(rows) else 1


def _unsaid(line: str) -> None:
    del line


if __name__ == "__main__":
    sys.exit(main())
