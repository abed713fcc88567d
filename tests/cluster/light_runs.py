"""Plans of light runs: scripts without TensorFlow, shares of the workers given as values, no Ignite."""

from __future__ import annotations

import sys
from pathlib import Path

from ignite_tf_magic.cluster.runs import Run
from ignite_tf_magic.cluster.spec import RunPlan, WorkerShare
from ignite_tf_magic.config import ConnectOptions, Endpoint
from ignite_tf_magic.launch.local import LOCAL_HOST

# A worker that is up as one with a TensorFlow server is: it listens at its address.
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

# After COME_UP: waits until every worker has come to this line.
MEET = """
here = os.environ["IGNITE_TF_RUN_DIR"]
open(f"{here}/{index}", "w").close()
while len(os.listdir(here)) < len(config["cluster"]["worker"]): time.sleep(0.01)
"""


def make_plan(script: str, num_workers: int = 1, *, cwd: Path, **options) -> RunPlan:
    share = [
        WorkerShare(
            LOCAL_HOST, Endpoint("127.0.0.1", 10800 + i), (i, i + 10), {i: (100 + i, 64), i + 10: (1, 8)}
        )
        for i in range(num_workers)
    ]
    options = {"python": sys.executable, "connect": ConnectOptions(), "cache": "MNIST", **options}
    return RunPlan(script=script, cwd=cwd, shares=tuple(share), **options)


def text_of(run: Run, worker: int | None = None) -> str:
    """All output of a run, when it has ended."""
    return "".join(chunk.text for chunk in run.follow(worker))
