"""A training continues in the middle of an epoch with other partitions; each epoch has every row once."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest

from ignite_tf_magic.client.client import connect
from ignite_tf_magic.client.load import put_rows, table_config
from ignite_tf_magic.protocol.encode import RowEncoder
from tests.training.assignments import assign
from tests.training.processes import Workers

SCRIPT = Path(__file__).with_name("moving_on.py")
NUM_ROWS, EPOCHS, STEPS = 3000, 3, 30
HALVES = [range(600), range(600, 1024)]
MOVED = [range(0, 1024, 3), [p for p in range(1024) if p % 3]]


@pytest.fixture(scope="module")
def cache(ignite):
    """The row statistics of each partition of the cache "MOVING"."""
    columns = {"label": (np.arange(NUM_ROWS) % 10).astype(np.int32)}
    encoder = RowEncoder("MOVING", columns, np.arange(1, NUM_ROWS + 1))
    with connect(ignite.connect_options) as client:
        cache = client.create_cache(table_config("MOVING", encoder, 1))
        put_rows(cache, encoder)
        yield cache.partition_stats()
        client.destroy_cache("MOVING")


def rows_by_epoch(folder: Path) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in range(EPOCHS)]
    for path in folder.glob("rows-*"):
        for line in path.read_text().splitlines():
            epoch, *keys = map(int, line.split())
            found[epoch] += keys
    return [sorted(keys) for keys in found]


@pytest.mark.parametrize(
    ("way", "interruptions"),
    # Two interruptions in one epoch: the second training continues with the first workers' assignment.
    [
        ("fit", [(HALVES, STEPS + 11), (MOVED, STEPS + 18)]),
        pytest.param("loop", [(MOVED, STEPS + 11)], marks=pytest.mark.nightly),
    ],
)
@pytest.mark.nightly
def test_every_row_once_in_each_epoch(ignite, cache, tmp_path, way, interruptions):
    """Nightly. Shorter: tests/dataset/test_replay.py::test_each_worker_reads_on_what_it_would_have_read"""
    workers = Workers(tmp_path, 2, SCRIPT, arguments=[way])
    for shares, asked_at in interruptions:
        assign(tmp_path, ignite.connect_options.endpoints[0], "MOVING", cache, shares)
        processes = workers.start(ASKED_AT=str(asked_at))
        assert [process.wait(300) for process in processes] == [-signal.SIGTERM] * 2, workers.words()
    assign(tmp_path, ignite.connect_options.endpoints[0], "MOVING", cache, HALVES[::-1])
    workers.run()
    assert rows_by_epoch(tmp_path) == [list(range(1, NUM_ROWS + 1))] * EPOCHS
    for worker in range(2):
        assert int(np.load(tmp_path / f"result-{worker}.npz")["steps"]) == EPOCHS * STEPS
    assert "trained twice" not in workers.words()
