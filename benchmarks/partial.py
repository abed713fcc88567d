"""`python -m benchmarks.partial`: nodes are lost with rows or cut off; does a run silently train on a part of them?

Four kinds of rounds. "killed" kills a node of an embedded cluster, which comes back empty, with a cache without
backups. "split" pulls the cables of one or two hosts of the test bed until the nodes have lost each other, and plugs
them in again. Each happens before a start, or between two epochs of a run. A round is `silent` if fewer rows than
loaded were planned or read without a message: that must not happen. Completed rounds count if it is run again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import tables
from benchmarks.fault_stage import Host, Stage
from ignite_tf_magic.client.client import connect
from ignite_tf_magic.embedded import EmbeddedOptions, Lifetime, down, ensure_up
from ignite_tf_magic.errors import IgniteTfError
from ignite_tf_magic.session import RunRequest, Session, TrainingRun, open_session
from ignite_tf_magic.settings.options import ConnectOptions, OnRebalance

NAME = "partial"
KINDS = ("killed_before_start", "killed_between_epochs", "split_before_start", "split_between_epochs")
_NODES = EmbeddedOptions(heap="256m", num_nodes=3)
_PATIENCE_S, _SETTLED_S = 120.0, 4.0

# Reads its assigned rows twice, as IgniteDataset does, without importing TensorFlow.
SCRIPT = """
import pathlib, sys, time
from ignite_tf_magic.dataset.options import read_options
from ignite_tf_magic.dataset.reader import ChunkReader
from ignite_tf_magic.dataset.source import open_source
source = open_source(read_options(sys.argv[1]))
for epoch in range(2):
    with ChunkReader(source) as reader:
        rows = sum(chunk.num_rows for chunk in reader.chunks())
    print(f"epoch {epoch}: {rows} rows", flush=True)
    while not pathlib.Path(sys.argv[2]).exists():
        time.sleep(0.1)
"""

Round = dict[str, Any]


class Ground:
    """The place of the rounds: a cluster, and operations that damage and repair it."""

    def load(self, cache: str, rows: int, backups: int) -> None:
        """Make a cache while the cluster is whole."""

    def harm(self, rng: random.Random) -> str:
        """Lose rows. Returns a description of the damage."""
        raise NotImplementedError

    def mend(self) -> None:
        """Make the cluster whole for the next round."""

    def open(self, rng: random.Random, report: Callable[[str], None]) -> Session:
        """Connect as a user who does not know of the damage."""
        raise NotImplementedError

    def go_file(self, name: str) -> str:
        """Return the path that workers wait for before their second epoch."""
        raise NotImplementedError

    def let_go(self, name: str) -> None:
        """Let workers begin their second epoch."""
        raise NotImplementedError


class Killed(Ground):
    """Embedded nodes, one of which is killed and comes back empty."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._home = folder, folder / "nodes"
        self._home.mkdir(mode=0o700, exist_ok=True)
        self._up()

    def _up(self) -> None:
        self._cluster = ensure_up(_NODES, Lifetime.UNTIL_IDLE, home=self._home).cluster

    def close(self) -> None:
        down(self._home, delete_data=True)

    def load(self, cache: str, rows: int, backups: int) -> None:
        with self.open(random.Random(), lambda _: None) as session:
            session.load(cache, {"x": np.arange(rows)}, backups=backups)

    def harm(self, rng: random.Random) -> str:
        node = rng.choice(self._cluster.nodes)
        os.kill(node.pid or 0, signal.SIGKILL)
        self._up()
        return f"node {node.index} was killed and came back empty"

    def mend(self) -> None:
        with connect(self._cluster.connect_options) as client:
            for name in client.cache_names():
                if name.startswith("PARTIAL"):
                    client.destroy_cache(name)

    def open(self, rng: random.Random, report: Callable[[str], None]) -> Session:
        options = self._cluster.connect_options
        endpoints = rng.sample(options.endpoints, len(options.endpoints))
        return open_session(replace(options, endpoints=tuple(endpoints)), report=report)

    def go_file(self, name: str) -> str:
        return str(self._folder / name)

    def let_go(self, name: str) -> None:
        Path(self.go_file(name)).touch()


class Split(Ground):
    """Hosts with a node each; one or two lose their cable for a while."""

    def __init__(self, folder: Path) -> None:
        self.stage = Stage(folder, print)
        self._cut: tuple[Host, ...] = ()

    def close(self) -> None:
        self.stage.close()

    def load(self, cache: str, rows: int, backups: int) -> None:
        with open_session(report=lambda _: None, config=self._config()) as session:
            session.load(cache, {"x": np.arange(rows)}, backups=backups)

    def _config(self) -> Path:
        self.stage.bed  # noqa: B018 - the property makes the bed and its configuration
        return self.stage.config

    def harm(self, rng: random.Random) -> str:
        hosts = self.stage.hosts
        self._cut = tuple(rng.sample(hosts, rng.choice((1, 1, 2))))
        for host in self._cut:
            host.cable_out()
        rest = [host for host in hosts if host not in self._cut]
        _wait("the nodes to give each other up", lambda: _nodes_seen(rest[0]) == len(rest))
        time.sleep(_SETTLED_S)  # the other sides lose each other too
        for host in self._cut:
            host.cable_in()
        sides = _wait("the sides to be settled", lambda: self._sides(hosts))
        return f"cut off {', '.join(host.name for host in self._cut)}; nodes seen afterwards: {sides}"

    @staticmethod
    def _sides(hosts: tuple[Host, ...]) -> dict[str, int]:
        first = {host.name: _nodes_seen(host) for host in hosts}
        time.sleep(1.0)
        return first if first == {host.name: _nodes_seen(host) for host in hosts} else {}

    def mend(self) -> None:
        self.stage.mend()

        def forget(client: Any) -> None:
            for name in client.cache_names():
                if name.startswith("PARTIAL"):
                    client.destroy_cache(name)

        self.stage.on_cluster(forget)

    def open(self, rng: random.Random, report: Callable[[str], None]) -> Session:
        """Connect to all nodes in any order, or only to the one that was cut off."""
        options = self.stage.bed.connect_options
        endpoints = rng.sample(options.endpoints, len(options.endpoints))
        if self._cut and rng.random() < 0.5 and _nodes_seen(self._cut[0]):
            endpoints = [self._cut[0].endpoint]
        return open_session(ConnectOptions(endpoints=tuple(endpoints)), report=report, config=self._config())

    def go_file(self, name: str) -> str:
        return f"{self.stage.hosts[0].home}/{name}"

    def let_go(self, name: str) -> None:
        for host in self.stage.hosts:
            (host.disk / name).touch()


def _nodes_seen(host: Host) -> int:
    """Return how many nodes a host's node sees; 0 if it does not answer."""
    try:
        with connect(ConnectOptions((host.endpoint,), timeout_s=2.0)) as client:
            return len(client.nodes())
    except IgniteTfError:
        return 0


def _wait(what: str, condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + _PATIENCE_S
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {_PATIENCE_S:g} s for {what}")
        time.sleep(0.3)
    return found


# Rounds


def play(ground: Ground, kind: str, number: int) -> Round:
    """Play one round; `outcome` is complete, refused, warned or silent."""
    rng = random.Random(f"{kind} {number}")
    cache, rows, backups = f"PARTIAL{number}", rng.choice((20, 900, 3000)), rng.choice((0, 1))
    backups = 0 if kind.startswith("killed") else backups
    ground.load(cache, rows, backups)
    told: Round = {"kind": kind, "number": number, "rows": rows, "backups": backups}
    between = kind.endswith("epochs")
    found = _between_epochs(ground, cache, rng) if between else _before_start(ground, cache, rng)
    ground.mend()
    seen: list[int] = found.pop("seen")
    said = found["said"]
    if all(count == rows for count in seen):
        outcome = "complete" if seen and found["ended"] else "refused" if said else "silent"
    else:
        outcome = "warned" if any("rows" in line for line in said) else "silent"
    return {**told, **found, "read": seen, "outcome": outcome}


def _before_start(ground: Ground, cache: str, rng: random.Random) -> Round:
    harm, said = ground.harm(rng), []
    try:
        with ground.open(rng, said.append) as session:
            planned = session.plan_run(RunRequest(cache, "pass"))
    except IgniteTfError as error:
        return {"harm": harm, "seen": [], "said": [f"{type(error).__name__}: {error}"], "ended": False}
    return {"harm": harm, "seen": [sum(row.rows for row in planned.rows)], "said": said, "ended": True}


def _between_epochs(ground: Ground, cache: str, rng: random.Random) -> Round:
    """Lose rows between two epochs. Half of the runs restart on a rebalance; the others must notice the loss."""
    said: list[str] = []
    go = f"go-{cache}-{time.time_ns()}"
    policy = rng.choice((OnRebalance.RESTART, OnRebalance.IGNORE))
    with ground.open(rng, said.append) as session:
        request = RunRequest(cache, SCRIPT, args=(cache, ground.go_file(go)), on_rebalance=policy)
        run = session.start_run(request)
    try:
        _wait("the first epoch", lambda: _rows_read(run) or run.info().state.has_ended)
        harm = ground.harm(rng)
        ground.let_go(go)
        words = _wait("the run to end, or to say why not", partial(_end_or_reason, run))
        ended = run.info().exit_code == 0
        seen = _rows_read(run)
        text = _text_of(run)
    finally:
        run.stop()
    last = [line for line in text.splitlines() if "RowsLost" in line or "PartitionsLost" in line]
    return {"harm": harm, "policy": policy.value, "seen": seen, "said": [*said, *last, words], "ended": ended}


def _end_or_reason(run: TrainingRun) -> str:
    info = run.info()
    if info.state.has_ended:
        return f"{info.state.value} {info.reason or ''}"
    waits = info.waiting_for or ""
    return waits if re.search(r"has [\d,]+ rows|are in this cluster|not to be seen|sees most", waits) else ""


def _text_of(run: TrainingRun) -> str:
    with contextlib.suppress(OSError):
        return "".join(path.read_text(errors="replace") for path in run.logs(0))
    return ""


def _rows_read(run: TrainingRun) -> list[int]:
    return [int(count) for count in re.findall(r"epoch \d: (\d+) rows", _text_of(run))]


@contextlib.contextmanager
def ground_for(kind: str, folder: Path) -> Iterator[Ground]:
    """Make the cluster for rounds of a kind."""
    place = folder / kind
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.closing(Killed(place) if kind.startswith("killed") else Split(place)) as ground:
        yield ground


def main() -> None:
    """Play the missing rounds of each kind, and write the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.partial", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, metavar="N", help="of each kind (20)")
    parser.add_argument("--only", choices=KINDS, action="append", metavar="KIND")
    parser.add_argument(
        "--anew", action="store_true", help="forget the rounds of these kinds that were played"
    )
    parser.add_argument("--results", type=Path, default=tables.RESULTS)
    given = parser.parse_args()
    kinds = given.only or list(KINDS)
    rounds = [each for each in tables.read(given.results, NAME) if not (given.anew and each["kind"] in kinds)]
    with tempfile.TemporaryDirectory(prefix="partial-", ignore_cleanup_errors=True) as folder:
        os.environ["IGNITE_TF_HOME"] = f"{folder}/home"
        os.environ.setdefault("IGNITE_TF_TIMINGS_DIVISOR", "4")
        for kind in kinds:
            done = {each["number"] for each in rounds if each["kind"] == kind}
            missing = [number for number in range(given.rounds) if number not in done]
            with contextlib.ExitStack() as opened:
                ground = opened.enter_context(ground_for(kind, Path(folder))) if missing else None
                for number in missing if ground else ():
                    assert ground is not None
                    rounds.append(play(ground, kind, number))
                    print(json.dumps(rounds[-1]), flush=True)
                    tables.write(given.results, NAME, rounds)
    silent = [each for each in rounds if each["outcome"] == "silent"]
    sys.exit(f"{len(silent)} of {len(rounds)} rounds read a part unsaid" if silent else None)


if __name__ == "__main__":
    main()
