"""Workers with unequal shares: equal numbers of full batches, and no row lost to sharding."""

from __future__ import annotations

import json
import socket
import subprocess
import sys

import numpy as np
import pytest

from ignite_tf_magic import IgniteDataset
from ignite_tf_magic.client.client import connect
from ignite_tf_magic.dataset.options import Assignment, EqualSteps


@pytest.fixture
def as_worker(digits, ignite, tmp_path, monkeypatch):
    """Become a worker with some partitions of the digits."""
    with connect(ignite.connect_options) as client:
        stats = client.cache(digits.name).partition_stats()

    def become(worker: int, shares: list[range]) -> list[int]:
        rows = [sum(stats[p].rows for p in share) for share in shares]
        record = {
            "cache": digits.name,
            "worker": worker,
            "rows_by_worker": rows,
            "partitions": {str(p): [stats[p].rows, stats[p].max_row_bytes] for p in shares[worker]},
        }
        path = tmp_path / f"assignment-{worker}.json"
        path.write_text(json.dumps(record))
        share = shares[worker]
        for name, value in {
            "HOST": digits.endpoint.host,
            "PORT": str(digits.endpoint.port),
            "PART": f"{share.start}-{share.stop - 1}" if share else "none",
            "ASSIGNED_CACHE": digits.name,
            "ASSIGNMENT_FILE": str(path),
        }.items():
            monkeypatch.setenv(f"IGNITE_DATASET_{name}", value)
        return rows

    return become


TEN_TO_ONE = [range(930), range(930, 1024)]


@pytest.mark.parametrize("policy", ["repeat", "drop", "pad"])
def test_ten_to_one_gives_equal_full_batches(as_worker, digits, policy):
    batches = {}
    for worker in (0, 1):
        rows = as_worker(worker, TEN_TO_ONE)
        dataset = IgniteDataset(digits.name, equal_steps=policy).batch(64)
        batches[worker] = list(dataset.as_numpy_iterator())
        assert {len(batch["key"]) for batch in batches[worker]} == {64}
        assert int(dataset.cardinality()) == len(batches[worker])
    assert len(batches[0]) == len(batches[1])
    expected = min(rows) // 64 if policy == "drop" else -(-max(rows) // 64)
    assert len(batches[0]) == expected
    if policy != "drop":
        seen = np.concatenate([batch["key"] for worker in (0, 1) for batch in batches[worker]])
        if policy == "pad":
            weights = np.concatenate([batch["weight"] for worker in (0, 1) for batch in batches[worker]])
            assert sorted(seen[weights > 0].tolist()) == digits.keys.tolist()
        else:
            assert set(seen.tolist()) == set(digits.keys.tolist())


def test_padding_gives_pairs_a_weight(as_worker, digits):
    as_worker(1, TEN_TO_ONE)
    dataset = IgniteDataset(digits.name, equal_steps="pad")
    pairs = dataset.map(lambda row: (row["val"]["pixels"], row["val"]["label"])).batch(64)
    x, y, weight = next(iter(pairs))
    assert (x.shape, y.shape, weight.shape) == ((64, 64), (64,), (64,))


def test_shuffled_shares_keep_equal_steps(as_worker, digits):
    rows = as_worker(1, TEN_TO_ONE)
    dataset = IgniteDataset(digits.name).shuffle(100, seed=1).batch(64)
    assert len(list(dataset)) == -(-max(rows) // 64)


def test_another_cache_is_read_whole(as_worker, digits, make_cache):
    as_worker(0, TEN_TO_ONE)
    other = make_cache({"x": np.arange(100, dtype=np.int32)})
    assert sum(len(b["key"]) for b in IgniteDataset(other.name).batch(7)) == 100
    whole = IgniteDataset(digits.name, assigned=False)
    assert sum(len(b["key"]) for b in whole.batch(1000)) == len(digits.keys)


def test_a_worker_without_rows_is_told_what_to_do(as_worker, digits):
    as_worker(1, [range(1024), range(0)])
    with pytest.raises(ValueError, match="worker 1 holds no rows.*equal_steps='pad'"):
        IgniteDataset(digits.name).batch(64)


@pytest.mark.parametrize(
    ("rows", "policy", "steps"),
    [
        ((100, 99), EqualSteps.REPEAT, 10),
        ((101, 99), EqualSteps.PAD, 11),
        ((101, 99), EqualSteps.DROP, 9),
        ((0, 30), EqualSteps.DROP, 0),
    ],
)
def test_steps(rows, policy, steps):
    assert Assignment(0, rows, {}).steps(10, policy) == steps


WORKER = """
import json, os, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf
from ignite_tf_magic import IgniteDataset
strategy = tf.distribute.MultiWorkerMirroredStrategy()
dataset = IgniteDataset(sys.argv[1]).map(lambda row: row["key"]).batch(64)
keys = []
for step, global_batch in enumerate(strategy.experimental_distribute_dataset(dataset)):
    for local in strategy.experimental_local_results(global_batch):
        keys += local.numpy().tolist()
print(json.dumps({"keys": keys}))
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.timeout(300)
def test_two_workers_count_every_row_exactly_once(as_worker, digits, monkeypatch):
    """Under MultiWorkerMirroredStrategy with AUTO sharding each worker would see half of its own rows."""
    shares = [range(512), range(512, 1024)]
    ports = [free_port(), free_port()]
    workers = []
    for index in (0, 1):
        rows = as_worker(index, shares)
        spec = {"worker": [f"127.0.0.1:{port}" for port in ports]}
        monkeypatch.setenv(
            "TF_CONFIG", json.dumps({"cluster": spec, "task": {"type": "worker", "index": index}})
        )
        workers.append(
            subprocess.Popen(
                [sys.executable, "-c", WORKER, digits.name],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    try:
        outputs = [worker.communicate(timeout=240) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    found = []
    for worker, (out, err) in zip(workers, outputs, strict=True):
        assert worker.returncode == 0, err[-2000:]
        found.append(json.loads(out.strip().splitlines()[-1])["keys"])
    seen = [key for keys in found for key in keys]
    assert set(seen) == set(digits.keys.tolist())
    # Each worker also repeats rows to fill its last batch; without those, every row came once.
    steps = -(-max(rows) // 64)
    assert len(seen) == 2 * steps * 64
    for share, keys in zip(rows, found, strict=True):
        assert len(set(keys)) == share
        assert sorted(keys[:share]) == sorted(set(keys))
