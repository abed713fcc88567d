"""Caches to predict, models with exactly known outputs, and reading a cache of outputs."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ignite_tf_magic.client.page_sizes import PageSizes
from ignite_tf_magic.errors import CacheNotFound, ServerError
from ignite_tf_magic.protocol.buffer import Reader
from ignite_tf_magic.protocol.read_values import read_value
from ignite_tf_magic.session import Session
from tests.waiting import until

WEIGHTS = np.array([[1, 0.5, -2], [0.25, 3, 1], [-1, -1, 0], [2, 0, 4]], np.float32)

# Predicts in its own process, which tests may kill.
PREDICTOR = """
import sys
from ignite_tf_magic.settings.options import ConnectOptions, Endpoint
from ignite_tf_magic.session import open_session
with open_session(ConnectOptions((Endpoint("127.0.0.1", int(sys.argv[1])),)), report=print) as session:
    print("begins", flush=True)
    session.predict(*sys.argv[2:5], workers=2, batch_size=16, fields=["x"], resume=True)
"""


def rows_of(number: int) -> dict[str, np.ndarray]:
    """Return rows of quarters, which are exact in float32."""
    numbers = np.arange(number)
    return {"x": np.stack([numbers % 7, numbers % 5, numbers % 3, numbers % 11], 1).astype(np.float32) / 4}


def expected(rows: dict[str, np.ndarray]) -> np.ndarray:
    """Return the outputs of `linear_model` for these rows. All products and sums are exact."""
    return rows["x"] @ WEIGHTS


def linear_model(path: Path | None = None) -> Any:
    """Make a model, and save it if there is a path."""
    import keras

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, use_bias=False)])
    model.set_weights([WEIGHTS])
    if path is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Keras' warning about NumPy 2
            model.save(path)
    return model


def content(session: Session, name: str) -> dict[Any, tuple[dict[str, Any], int]]:
    """Return the value fields and partition of each row by key. Fails if a key comes twice."""
    cache, found = session.client.cache(name), {}
    baseline = cache.baseline()
    for scanned in cache.scan(sorted(baseline.owners), PageSizes(), baseline).pages():
        reader = Reader(scanned.page.rows)
        for _ in range(scanned.page.num_rows):
            key = read_value(reader, session.client.types.find)
            value = read_value(reader, session.client.types.find)
            key = tuple(key.fields.values()) if hasattr(key, "fields") else key
            assert key not in found, key
            found[key] = (dict(getattr(value, "fields", {"": value})), scanned.partition)
    return found


def num_rows(session: Session, name: str) -> int:
    """Return the number of rows in a cache, 0 if it does not exist yet."""
    try:
        return session.client.cache(name).size()
    except (CacheNotFound, ServerError):
        return 0


def kill_prediction(
    session: Session,
    port: int,
    model: Path,
    source: str,
    target: str,
    condition: Callable[[], bool],
    kill_worker_at: Callable[[], bool] | None = None,
) -> None:
    """Predict in another process. SIGKILL one of its workers, then the process, each when its condition holds."""
    argv = [sys.executable, "-c", PREDICTOR, str(port), str(model), source, target]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as predictor:
        assert predictor.stdout is not None
        assert predictor.stdout.readline() == "begins\n"
        if kill_worker_at is not None:
            until(lambda: kill_worker_at() or predictor.poll() is not None)
            kill_worker(session, source)
        until(lambda: condition() or predictor.poll() is not None)
        predictor.send_signal(signal.SIGKILL)
        assert predictor.wait() == -signal.SIGKILL, "it had ended before"


def kill_worker(session: Session, source: str) -> None:
    """SIGKILL one worker of the run that predicts a cache, and wait until the run has started again."""

    def killed() -> Any:
        infos = [info for info in session.runs() if info.cache == source and info.workers]
        for info in infos:  # runs of killed predictions are listed too, without processes
            if all(worker.pid for worker in info.workers):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(info.workers[0].pid, signal.SIGKILL)
                    return info
        return None

    info = until(killed)
    until(lambda: session.run(info.id).info().restarts > info.restarts)
