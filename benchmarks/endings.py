"""`python -m benchmarks.endings`: training scripts fail while rows are read; do their processes end?

Each kind of failure is played `--rounds` times, beside `--busy` loops that occupy one processor each. A process must
end within 30 s of the failing line, with Python's usual exit code. Otherwise it is killed and counted.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np

from benchmarks import tables
from benchmarks.nodes import node_of_its_own
from ignite_tf_magic.embedded import EmbeddedOptions
from ignite_tf_magic.session import load

NAME = "endings"
_CACHE, _NUM_ROWS = "ENDINGS", 20_000
_END_S = 30.0
_BEGINNING = """
import sys, threading, time
import keras
import tensorflow as tf
from ignite_tf_magic import IgniteDataset

def pair(row):
    return row["val"]["x"], row["val"]["y"]

class Act(keras.callbacks.Callback):
    def __init__(self, act):
        super().__init__()
        self.act = act
    def on_train_batch_end(self, batch, logs=None):
        if batch == 3:
            print("FAILS", flush=True)
            self.act()

class Checked(keras.layers.Layer):
    def call(self, inputs):
        tf.debugging.assert_greater(inputs, 1000.0)
        return inputs

def fitted(data, *callbacks, layers=(), loss="mse"):
    model = keras.Sequential([keras.Input([8]), *layers, keras.layers.Dense(10)])
    model.compile("sgd", loss, jit_compile=False)
    model.fit(data, epochs=1000, verbose=0, callbacks=list(callbacks))

def fail():
    raise ValueError("of the script")

rows, loss = IgniteDataset("ENDINGS"), "sparse_categorical_crossentropy"
batches = rows.map(pair).batch(64)
"""
# The end of each script, and its exit code.
KINDS = {
    "shapes of labels": ('print("FAILS", flush=True)\nfitted(batches)', 1),
    "in map": (
        'print("FAILS", flush=True)\n'
        "def checked(x, y):\n    tf.debugging.assert_less(y, 9)\n    return x, y\n"
        "fitted(batches.map(checked), loss=loss)",
        1,
    ),
    "in a callback": ("fitted(batches, Act(fail), loss=loss)", 1),
    "in a layer": ('print("FAILS", flush=True)\nfitted(batches, layers=[Checked()], loss=loss)', 1),
    "sys.exit": ("fitted(batches, Act(lambda: sys.exit(3)), loss=loss)", 3),
    "in a thread": (
        "thread = threading.Thread(target=fitted, args=(batches, Act(fail)), kwargs={'loss': loss})\n"
        "thread.start()\nthread.join()",
        0,
    ),
    "Ctrl-C": ("fitted(batches, Act(lambda: None), loss=loss)", -signal.SIGINT),
}


def play(kind: str) -> dict[str, Any]:
    """Run a failing script. Returns whether its process ended in time with the right code, and the seconds it took."""
    source, code = KINDS[kind]
    command = [sys.executable, "-c", _BEGINNING + source]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        said = process.stdout.readline() if process.stdout else ""
        began = time.monotonic()
        if kind == "Ctrl-C":
            time.sleep(0.2)
            process.send_signal(signal.SIGINT)
        try:
            found = process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return {"kind": kind, "has_ended": False, "is_right": False, "seconds": _END_S}
    is_right = (said, found) == ("FAILS\n", code)
    return {"kind": kind, "has_ended": True, "is_right": is_right, "seconds": time.monotonic() - began}


@contextmanager
def busy(number: int) -> Iterator[None]:
    """Keep this many processors busy."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def rows_of(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the table's row for each kind."""
    by_kind = {kind: [each for each in found if each["kind"] == kind] for kind in KINDS}
    return [
        {
            "fault": kind,
            "rounds": len(rounds),
            "ended": sum(each["has_ended"] for each in rounds),
            "right_codes": sum(each["is_right"] for each in rounds),
            "slowest_s": round(max(each["seconds"] for each in rounds), 1),
        }
        for kind, rounds in by_kind.items()
        if rounds
    ]


def main(argv: list[str] | None = None) -> None:
    """Play all kinds, write the results, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.endings", description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--busy", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args(argv)
    # Started in the background, this process ignores Ctrl-C, and its scripts would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    random = np.random.default_rng(1)
    columns = {
        "x": random.normal(size=(_NUM_ROWS, 8)).astype(np.float32),
        "y": random.integers(0, 10, _NUM_ROWS).astype(np.int32),
    }
    with node_of_its_own(NAME, EmbeddedOptions(heap="256m", num_nodes=1)) as options:
        os.environ["IGNITE_TF_CLUSTER"] = f"{options.endpoints[0].host}:{options.endpoints[0].port}"
        load(_CACHE, columns, report=str)
        with busy(asked.busy), ThreadPoolExecutor(2) as pool:
            found = list(pool.map(play, [*KINDS] * asked.rounds))
    rows = rows_of(found)
    tables.write(tables.RESULTS, NAME, rows)
    tables.show(tables.console(), tables.RESULTS, (NAME,))
    if any(row["right_codes"] < row["rounds"] for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
