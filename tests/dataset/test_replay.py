"""A pass begun with one assignment of partitions continues with another one, on real nodes."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

from ignite_tf_magic import IgniteDataset
from ignite_tf_magic.client.client import connect
from ignite_tf_magic.client.page_sizes import PageSizes
from ignite_tf_magic.dataset.deal import EqualSteps, GlobalBatchPlan
from ignite_tf_magic.dataset.lineage import passes_of
from ignite_tf_magic.dataset.passes import PassRecord, Stream, read_record, record_part
from ignite_tf_magic.protocol.buffer import Reader
from ignite_tf_magic.protocol.read_values import read_value
from tests.dataset.chunks import in_turn
from tests.waiting import until

HALVES = [range(512), range(512, 1024)]
MOVED = [range(1, 1024, 3), [p for p in range(1024) if p % 3 != 1]]
SWAPPED = HALVES[::-1]
NOTHING_LEFT = [[], range(1024)]


@pytest.fixture(autouse=True)
def in_a_run(monkeypatch):
    monkeypatch.setenv("IGNITE_TF_RUN_ID", "mnist-1122-0900-abc")


def keys_of(name: str, shuffle: bool = True, batch: int = 256, **options):
    rows = IgniteDataset(name, **options).map(lambda row: row["key"])
    return (rows.shuffle(700) if shuffle else rows).batch(batch).map(lambda keys: keys).prefetch(1)


def read(dataset) -> list[list[int]]:
    return [batch.tolist() for batch in dataset.as_numpy_iterator()]


class Workers:
    """The workers of a run, one after the other in this process."""

    def __init__(self, become, name: str, shares, **options) -> None:
        self.datasets, self.passes = [], []
        for worker in range(len(shares)):
            become(worker, shares)
            self.datasets.append(keys_of(name, **options))
            self.passes += passes_of(self.datasets[-1])

    def begin(self, number: int, skipped: int = 0, record: PassRecord | None = None) -> None:
        for passes in self.passes:
            assert record is None or record.fits(passes.share)
            passes.begin(number, skipped, record)

    def read(self) -> list[list[list[int]]]:
        return [read(dataset) for dataset in self.datasets]

    def record(self, number: int) -> PassRecord:
        total = np.sum([passes.record_part(number) for passes in self.passes], axis=0)
        record = read_record(total, self.passes[0].rows_by_worker(number))
        assert record is not None
        return record


def flat(found) -> list[int]:
    return sorted(key for batches in found for batch in batches for key in batch)


@pytest.mark.parametrize("shuffle", [True, pytest.param(False, marks=pytest.mark.nightly)])
@pytest.mark.parametrize(
    "others",
    [
        pytest.param(SWAPPED, marks=pytest.mark.nightly),
        MOVED,
        pytest.param(NOTHING_LEFT, marks=pytest.mark.nightly),
    ],
)
def test_each_worker_reads_on_what_it_would_have_read(as_worker, digits, shuffle, others):
    before = Workers(as_worker, digits.name, HALVES, shuffle=shuffle)
    before.begin(2)
    undisturbed = before.read()
    after = Workers(as_worker, digits.name, others, shuffle=shuffle)
    after.begin(2, 7, before.record(2))
    assert after.read() == [[[]] * 7 + batches[7:] for batches in undisturbed]
    assert after.record(2) == before.record(2)
    assert flat(after.read()) == digits.keys.tolist()
    own = Workers(as_worker, digits.name, others, shuffle=shuffle)
    own.begin(3)
    own.read()
    assert after.record(3) == own.record(3) != before.record(2)


@pytest.mark.parametrize("shuffle", [True, False])
def test_rows_of_a_condition_are_read_on_too(as_worker, digits, shuffle):
    condition = {"where": "label < ?", "where_args": [3], "batch": 64, "shuffle": shuffle}
    before = Workers(as_worker, digits.name, HALVES, **condition)
    before.begin(2)
    undisturbed = before.read()
    assert flat(undisturbed) == [key for key in digits.keys.tolist() if key % 10 < 3]
    after = Workers(as_worker, digits.name, MOVED, **condition)
    after.begin(2, 7, before.record(2))
    assert after.read() == [[[]] * 7 + batches[7:] for batches in undisturbed]
    assert flat(after.read()) == flat(undisturbed)


def test_nothing_is_recorded_of_rows_without_an_order(as_worker, digits):
    """A SELECT may use any index, so a worker with other partitions cannot continue where this one stopped."""
    parts = []
    for worker in (0, 1):
        as_worker(worker, HALVES)
        batches = IgniteDataset.from_sql(f"SELECT _KEY AS k FROM {digits.name}").batch(64)
        (passes,) = passes_of(batches)
        passes.begin(0, 3)
        found = [batch["K"].numpy().tolist() for batch in batches]
        assert found[:3] == [[]] * 3 and len(found) > 3
        parts.append(passes.record_part(0))
    assert read_record(parts[0] + parts[1], passes.rows_by_worker(0)) is None


def keys_by_partition(cluster, name: str) -> dict[int, list[int]]:
    found = {partition: [] for partition in range(1024)}
    with connect(cluster.connect_options) as client:
        cache = client.cache(name)
        for scanned in cache.scan(range(1024), PageSizes(), cache.baseline()).pages():
            starts = scanned.row_starts()[:-1].tolist()
            found[scanned.partition] += [read_value(Reader(scanned.page.rows, start)) for start in starts]
    return found


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.nightly
def test_one_worker_alone_and_groups_whose_partitions_have_several_owners(as_worker, ignite, digits, shuffle):
    """The recorded groups and chunk size are those of a cluster with five other nodes and larger rows.

    Nightly. Shorter: test_each_worker_reads_on_what_it_would_have_read
    """
    before = Workers(as_worker, digits.name, [range(1024)], shuffle=shuffle)
    (passes,) = before.passes
    groups = tuple(tuple(range(number, 1024, 5)) for number in range(5))
    total = record_part(passes.share, Stream(groups, 64))
    before.begin(1, 0, read_record(total, passes.rows_by_worker()))
    ((*whole,),) = before.read()
    keys = [key for batch in whole for key in batch]
    assert sorted(keys) == digits.keys.tolist()
    if not shuffle:
        of = keys_by_partition(ignite, digits.name)
        assert keys == in_turn([[key for p in group for key in of[p]] for group in groups], 64)
    after = Workers(as_worker, digits.name, [range(1024)], shuffle=shuffle)
    after.begin(1, 3, before.record(1))
    assert after.read() == [[[]] * 3 + whole[3:]]
    assert before.record(1).streams[0] == Stream(groups, 64)


@pytest.mark.parametrize("policy", ["repeat", "drop"])
@pytest.mark.nightly
def test_other_ways_to_end_an_epoch(as_worker, digits, policy):
    """Nightly. Shorter: test_each_worker_reads_on_what_it_would_have_read"""
    before = Workers(as_worker, digits.name, HALVES, batch=300, equal_steps=policy)
    before.begin(1)
    undisturbed = before.read()
    after = Workers(as_worker, digits.name, MOVED, batch=300, equal_steps=policy)
    after.begin(1, 4, before.record(1))
    assert after.read() == [[[]] * 4 + batches[4:] for batches in undisturbed]
    seen = flat(undisturbed)
    assert len(set(seen)) == len(seen) - (100 if policy == "repeat" else 0)
    assert after.read() == read_anew(as_worker, digits.name, MOVED, 2, batch=300, equal_steps=policy)


def read_anew(become, name, shares, number, **options):
    workers = Workers(become, name, shares, **options)
    workers.begin(number)
    return workers.read()


@pytest.mark.parametrize("share", [range(512), range(1020, 1024)])
@pytest.mark.parametrize("policy", list(EqualSteps))
def test_batches_are_the_rows_cut_as_the_deal_says(as_worker, digits, share, policy):
    """The expected batches are cut from single rows in Python."""
    rest = [p for p in range(1024) if p not in share]
    rows = as_worker(0, [share, rest])
    dataset = IgniteDataset(digits.name, equal_steps=policy.value).map(lambda row: row["key"])
    one_by_one = [int(key) for key in dataset.as_numpy_iterator()]
    sizes = GlobalBatchPlan(tuple(rows), 64, policy).sizes(0)
    ends = np.cumsum(sizes)
    expected = [(one_by_one * 2)[end - size : end] for end, size in zip(ends, sizes, strict=True)]
    assert read(dataset.batch(64)) == expected


@pytest.mark.faults
@pytest.mark.parametrize("num_workers", [pytest.param(2, marks=pytest.mark.nightly), 1])
def test_a_node_is_lost_and_its_backups_give_the_same_rows_in_the_same_order(
    own_nodes, fill_cache, as_worker, num_workers
):
    """Some keys share a hash. On every node, such rows are ordered by key."""
    high = np.arange(1, 41) << 32
    keys = np.concatenate([np.arange(4000), *[high | (high >> 32) ^ low for low in range(1000, 1050)]])
    keys = np.random.default_rng(1).permutation(keys)
    fill_cache(own_nodes, "REPLAY_LOST", {"x": np.zeros(len(keys), np.int32)}, keys)
    owners, first = owners_now(own_nodes)
    shares = [range(1024)] if num_workers == 1 else [[p for p in owners if owners[p] == first], []]
    if num_workers == 2:
        shares[1] = [p for p in owners if owners[p] != first]

    def become(worker, shares):
        as_worker(worker, shares, "REPLAY_LOST", cluster=own_nodes)

    before = Workers(become, "REPLAY_LOST", shares)
    before.begin(5)
    undisturbed = before.read()
    assert flat(undisturbed) == sorted(keys.tolist())
    record = before.record(5)
    lose_a_node(own_nodes, first)
    others = [range(1024)] if num_workers == 1 else MOVED
    after = Workers(become, "REPLAY_LOST", others)
    after.begin(5, 9, record)
    assert after.read() == [[[]] * 9 + batches[9:] for batches in undisturbed]
    assert flat(after.read()) == sorted(keys.tolist())


def owners_now(cluster):
    with connect(cluster.connect_options) as client:
        return client.cache("REPLAY_LOST").partition_map().primary_of(), client.router.control_node_id()


def lose_a_node(cluster, kept):
    """Kill a node other than `kept`, and wait until its partitions have other owners."""
    with connect(cluster.connect_options) as client:
        lost = next(node for node in client.nodes() if node.node_id != kept)
        port = lost.endpoints[0].port
        os.kill(next(node.pid for node in cluster.nodes if node.port == port), signal.SIGKILL)
        cache = client.cache("REPLAY_LOST")
        until(lambda: lost.node_id not in cache.partition_map().owners, what="other owners")
