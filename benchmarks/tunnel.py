"""The cost of --tunnel: all-reduce of two workers on two hosts, alternately through SSH and directly.

    python -m benchmarks.tunnel [--rounds 3]

Hosts of the test bed, with separate networks, on this machine. Both hosts, the network and the owner share its cores,
so the ratios are worse than those of real hosts, and the network without a tunnel is as fast as memory. Writes
`results/tunnel.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import tables
from benchmarks.runs import check_succeeded
from ignite_tf_magic.session import RunRequest, Session, open_session
from tests.bed.bed import Bed
from tests.ssh.ssh_user import CACHE, load_numbers, settings

NAME = "tunnel"
_SCRIPT = Path(__file__).parent / "scripts" / "all_reduce.py"
_STEPS = ((1 << 10, 200), (1 << 20, 60), (16 << 20, 6))  # bytes of the vector, number of steps
_TIMEOUT_S = 600.0


def main() -> int:
    """Play the rounds, print the rows and write them."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tunnel", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="of each kind (3)")
    parser.add_argument("--results", type=Path, default=tables.RESULTS, metavar="DIR")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ignite-tf-tunnel-", ignore_cleanup_errors=True) as folder:
        os.environ["IGNITE_TF_HOME"] = f"{folder}/home"
        config = Path(folder) / "ignite-tf.toml"
        with Bed.up() as bed:
            load_numbers(bed)
            config.write_text(settings(bed))
            hosts = tuple(host.name for host in bed.hosts[:2])
            with open_session(report=print, config=config) as session:
                pairs = [
                    (_play(session, hosts, tunnel=False), _play(session, hosts, tunnel=True))
                    for _ in range(given.rounds)
                ]
    rows = _rows(pairs)
    tables.write(given.results, NAME, rows)
    for row in rows:
        print(json.dumps(row))
    return 0


def _play(session: Session, hosts: tuple[str, ...], *, tunnel: bool) -> dict[str, float]:
    request = RunRequest(
        CACHE,
        _SCRIPT.read_text(encoding="utf-8"),
        2,
        script_name=_SCRIPT.stem,
        args=(json.dumps(_STEPS),),
        hosts=hosts,
        tunnel=tunnel,
        communication="ring",
    )
    run = session.start_run(request)
    run.wait(_TIMEOUT_S)
    check_succeeded(run)
    found: dict[str, float] = run.result
    return found


def _rows(pairs: list[tuple[dict[str, float], dict[str, float]]]) -> list[dict[str, Any]]:
    """Return rows with the median of the ratios of adjacent runs."""
    return [
        {
            "case": f"{int(size) >> 10} KiB",
            "open_steps_per_s": round(statistics.median(plain[size] for plain, _ in pairs), 1),
            "tunnel_steps_per_s": round(statistics.median(tunnelled[size] for _, tunnelled in pairs), 1),
            "ratio": round(statistics.median(tunnelled[size] / plain[size] for plain, tunnelled in pairs), 3),
            "rounds": len(pairs),
        }
        for size in pairs[0][0]
    ]


if __name__ == "__main__":
    sys.exit(main())
