"""Restarts kernels in the middle of a fit at random steps, and continues the runs in the new kernel.

    python -m benchmarks.kernel_restarts [--rounds 30]

Real kernels, real Ignite nodes. A round is lost if the run did not succeed, the model does not have the exact number
of steps, or `describe` did not report what had happened. Every third kernel is killed: its run is resumed from its
checkpoints. The runs of the other kernels stay alive and are taken over, without restarting a worker. Every third
kernel is stuck in a cell that ignores interrupts, so Jupyter kills it.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import tables
from benchmarks.code_hash import hash_of_rooms
from ignite_tf_magic.embedded import EmbeddedOptions, Lifetime, down, ensure_up
from ignite_tf_magic.session import load
from tests.ui.notebook.kernels import Kernel

NAME = "restarts"
ROOMS = ("launch", "runs", "session", "training", "ui")
CACHE, EPOCHS, STEPS_PER_EPOCH, BATCH = "RESTARTED", 6, 12, 32
KILLED, RESTARTED, STUCK = KINDS = "killed", "restarted", "stuck"
NUM_STEPS = EPOCHS * STEPS_PER_EPOCH
SCRIPT = f"""
import keras, time
import tensorflow as tf
import ignite_tf_magic

class Slowly(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        print("step", int(self.model.optimizer.iterations), flush=True)
        time.sleep(0.05)

scaled = lambda row: (tf.cast(row["val"]["pixels"], tf.float32) / 16.0, row["val"]["label"])
rows = ignite_tf_magic.IgniteDataset({CACHE!r}).map(scaled)
model = keras.Sequential([keras.layers.Dense(10, "softmax")])
model.compile("adam", "sparse_categorical_crossentropy")
model.fit(rows.batch({BATCH}), epochs={EPOCHS}, verbose=0, callbacks=[Slowly()])
ignite_tf_magic.result(int(model.optimizer.iterations))
"""
_STUCK = """
import time
while True:
    try:
        print("stuck", flush=True)
        time.sleep(600)
    except KeyboardInterrupt:
        pass
"""
_ASK = """
from ignite_tf_magic.session import get_run
print(get_run({run_id!r}).result, get_run({run_id!r}).record().generation)
"""


@dataclass(frozen=True, slots=True)
class Round:
    """One restart.

    Attributes:
        at_step: The last step before the kernel ended.
        was_told: Whether `describe` reported what had happened and how to continue.
        steps: The steps of the model after the run; None if it left none.
    """

    number: int
    kind: str
    at_step: int
    was_told: bool
    state: str
    steps: int | None
    generations: int
    seconds: float

    @property
    def is_good(self) -> bool:
        """Whether nothing was lost."""
        is_whole = self.was_told and self.state == "succeeded" and self.steps == NUM_STEPS
        return is_whole and self.generations == (2 if self.kind == KILLED else 1)


def play(number: int, env: dict[str, str], place: Path, draw: random.Random, kind: str) -> Round:
    """Restart a kernel at some step, and continue in the new one."""
    began, until = time.monotonic(), draw.randint(1, NUM_STEPS - 2)
    kernel = Kernel(env, place)
    try:
        kernel.run("%load_ext ignite_tf_magic")
        run_id, at_step = _run_until(kernel, until)
        if kind == STUCK:
            _get_stuck(kernel)
        kernel.manager.shutdown_kernel(now=kind == KILLED)
    finally:
        kernel.close()
    kernel = Kernel(env, place)
    try:
        kernel.run("%load_ext ignite_tf_magic")
        told = _described(kernel, run_id)
        command = "resume" if kind == KILLED else "attach"
        shown = kernel.run(f"%ignite_tf {command} {run_id}", timeout_s=300)
        found = re.search(rf"run {run_id}: (\w+)", shown.text)
        answer = kernel.run(_ASK.format(run_id=run_id))
        steps, generations = map(int, answer.stdout.split()) if answer.error is None else (None, 0)
    finally:
        kernel.close()
    was_told = "has ended" in told and f"{command} {run_id}" in told and "it was asked to stop" not in told
    state = found[1] if found else "unknown"
    return Round(number, kind, at_step, was_told, state, steps, generations, time.monotonic() - began)


def _run_until(kernel: Kernel, until: int) -> tuple[str, int]:
    """Start the training. Returns its run and the step at which the cell was left."""
    cell = f"%%ignite_tf start {CACHE} --no-chart{SCRIPT}"
    message = kernel.client.execute(
        cell, stop_on_error=False
    )  # the next cell must run even if this one fails
    seen = ""
    while True:
        reply = kernel.client.get_iopub_msg(timeout=300)
        if reply["parent_header"].get("msg_id") != message:
            continue
        if reply["msg_type"] == "stream":
            seen += reply["content"]["text"]
        if reply["msg_type"] == "error":
            raise RuntimeError(f"the cell failed: {reply['content']}")
        # A line that replaces a longer one is padded with spaces.
        steps = [int(step) for step in re.findall(r"step (\d+) *\r?\n", seen)]
        if steps and steps[-1] >= until:
            return re.search(r"run (\S+): ", seen)[1], steps[-1]  # type: ignore[index]


def _get_stuck(kernel: Kernel) -> None:
    """Stop watching the run, and start a cell that only a signal can end."""
    kernel.manager.interrupt_kernel()
    kernel.client.execute(_STUCK)
    while kernel.client.get_iopub_msg(timeout=300)["content"].get("text") != "stuck\n":
        pass


def _described(kernel: Kernel, run_id: str) -> str:
    """Return the description of the run once its owner is known to have ended."""
    deadline = time.monotonic() + 60
    while True:
        told = kernel.run(f"%ignite_tf describe {run_id}").text
        if "has ended" in told or time.monotonic() > deadline:
            return told


def summary(rounds: Sequence[Round]) -> list[dict[str, Any]]:
    """Count the outcomes of the restarts by kind."""
    return [
        {
            "case": kind,
            "rounds": len(played),
            "exact_steps": sum(each.steps == NUM_STEPS for each in played),
            "good": sum(each.is_good for each in played),
            "at_steps": [each.at_step for each in played],
            "code": hash_of_rooms(rooms=ROOMS),
        }
        for kind in KINDS
        if (played := [each for each in rounds if each.kind == kind])
    ]


def main() -> int:
    """Play the rounds. Returns the exit code, 0 if all were good."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=tables.RESULTS, metavar="DIR")
    options = parser.parse_args()
    draw, rounds = random.Random(options.seed), []
    with ExitStack() as ends:
        place = Path(
            ends.enter_context(
                tempfile.TemporaryDirectory(prefix="ignite-tf-restarts-", ignore_cleanup_errors=True)
            )
        )
        place.chmod(0o700)
        ends.callback(down, place / "nodes", delete_data=True)
        (place / "nodes").mkdir(mode=0o700)
        cluster = ensure_up(EmbeddedOptions(heap="256m"), Lifetime.UNTIL_IDLE, home=place / "nodes").cluster
        load(CACHE, "digits", split="test", options=cluster.connect_options, report=_unsaid)
        endpoints = ",".join(map(str, cluster.connect_options.endpoints))
        env = {**os.environ, "IGNITE_TF_HOME": str(place / "home"), "IGNITE_TF_CLUSTER": endpoints}
        for number in range(options.rounds):
            rounds.append(play(number, env, place, draw, KINDS[number % len(KINDS)]))
            print(rounds[-1], "good" if rounds[-1].is_good else "BAD", flush=True)
            tables.write(options.results, NAME, summary(rounds))
    num_good = sum(each.is_good for each in rounds)
    print(f"{num_good} of {len(rounds)} runs went on to exactly {NUM_STEPS} steps")
    return 0 if num_good == len(rounds) else 1


def _unsaid(line: str) -> None:
    del line


if __name__ == "__main__":
    sys.exit(main())
