"""Plans of light runs: scripts without TensorFlow, worker shards passed as values, no Ignite."""

from __future__ import annotations

import random
import socket
import sys
from contextlib import ExitStack
from pathlib import Path

from ignite_tf_magic.runs.handles.run import Run
from ignite_tf_magic.runs.orders import TaskSlot
from ignite_tf_magic.runs.reach import Reach
from ignite_tf_magic.runs.record import HostRecord, RunRecord, RunSpec, this_process
from ignite_tf_magic.runs.states import RunState
from ignite_tf_magic.runs.supervision.manager import RunPlan
from ignite_tf_magic.runs.supervision.planning import Plan
from ignite_tf_magic.runs.timeouts import Timeouts
from ignite_tf_magic.settings.options import ConnectOptions

TIMEOUTS = Timeouts(first_backoff_s=0.2)

# A worker that counts as up, because it listens at its address like a TensorFlow server.
COME_UP = """
import json, os, socket, time
config = json.loads(os.environ["TF_CONFIG"])
index = config["task"]["index"]
host, port = config["cluster"]["worker"][index].split(":")
server = socket.socket()
if hasattr(socket, "SO_REUSEPORT"):
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
server.bind((host, int(port)))
server.listen()
"""

# To run after COME_UP: waits until every worker has reached this line.
MEET = """
here = os.environ["IGNITE_TF_RUN_DIR"]
open(f"{here}/{index}", "w").close()
while len(os.listdir(here)) < len(config["cluster"]["worker"]): time.sleep(0.01)
"""


def make_plan(script: str, num_workers: int = 1, *, cwd: Path, **options) -> RunPlan:
    """Return a plan with workers on this machine; `options` go to the plan or to the spec."""
    seats = tuple(
        TaskSlot(
            i,
            "localhost",
            f"127.0.0.1:{10800 + i}",
            (i, i + 10),
            101 + i,
        )
        for i in range(num_workers)
    )
    of_plan = {name: options.pop(name) for name in ("connect", "name", "timeouts") if name in options}
    options = {"cache": "MNIST", "max_restarts": 0, "python": sys.executable, **options}
    spec = RunSpec(num_workers=num_workers, cwd=str(cwd), **options)
    plan = Plan(seats, (HostRecord("localhost", python=sys.executable),))
    return RunPlan(spec, plan, script, **{"connect": ConnectOptions(), "timeouts": TIMEOUTS, **of_plan})


def running_record(*hosts: str, **changes) -> RunRecord:
    """Return the record of run "r", which this process owns and which runs on these hosts."""
    given = {"spec": RunSpec("MNIST"), "state": RunState.RUNNING, "started_at": 0.0, **this_process()}
    return RunRecord("r", hosts=tuple(map(HostRecord, hosts)), **{**given, **changes})


def reach_of(runs_dir: Path) -> Reach:
    return Reach(runs_dir.parent)


def text_of(run: Run, worker: int | None = None) -> str:
    """Return all output of a run. Blocks until the run has ended."""
    return "".join(chunk.text for chunk in run.follow(worker))


def await_text(run: Run, text: str, worker: int = 0) -> str:
    """Follow a worker until its output contains a text; return the output so far."""
    seen = ""
    for chunk in run.follow(worker):
        seen += chunk.text
        if text in seen:
            return seen
    raise AssertionError(f"no {text!r} in {seen!r}")


def free_range(size: int) -> tuple[int, int]:
    """Return the bounds of a range of free ports, below the ports that Linux assigns automatically."""
    for _ in range(1000):
        first = random.randrange(20_000, 32_000)
        with ExitStack() as closing:
            sockets = [closing.enter_context(socket.socket()) for _ in range(size)]
            try:
                for offset, each in enumerate(sockets):
                    each.bind(("", first + offset))
            except OSError:
                continue
            return first, first + size - 1
    raise AssertionError("no ports are free")
