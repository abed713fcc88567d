"""The order in which workers read a pass can be recorded, and continued after partitions have moved."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ignite_tf_magic.dataset.deal import GlobalBatchPlan
from ignite_tf_magic.dataset.passes import (
    EpochTracker,
    PassRecord,
    RowShard,
    Stream,
    read_record,
    record_part,
)
from tests.dataset.chunks import in_turn


@dataclass
class Run:
    """A cache and its workers, started twice.

    Attributes:
        rows: The number of rows of each partition.
        workers: For each start, the worker of each partition.
        owners: For each start, the owner of each partition.
        chunk_rows: For each start, the rows in a chunk of each worker.
    """

    rows: list[int]
    workers: tuple[list[int], list[int]]
    owners: tuple[list[int], list[int]]
    chunk_rows: tuple[list[int], list[int]]

    @property
    def num_workers(self) -> int:
        return len(self.chunk_rows[0])

    def share(self, start: int, worker: int) -> RowShard:
        of = [[p for p, w in enumerate(self.workers[start]) if w == each] for each in range(self.num_workers)]
        counts = tuple(sum(self.rows[p] for p in partitions) for partitions in of)
        stream = Stream((tuple(of[worker]),), self.chunk_rows[start][worker])
        measured = {p: (self.rows[p], 10 * self.rows[p]) for p in of[worker]}
        return RowShard(worker, counts, len(self.rows), stream, lambda: measured)

    def stream(self, start: int, worker: int) -> Stream:
        owners = dict(enumerate(self.owners[start]))
        mine = self.share(start, worker).stream.partitions
        return Stream.by_owner(owners, mine, self.chunk_rows[start][worker])


@st.composite
def runs(draw) -> Run:
    num_workers, size = draw(st.integers(1, 4)), draw(st.integers(1, 12))

    def each(values):
        return tuple(draw(st.lists(values, min_size=size, max_size=size)) for _ in range(2))

    chunks = st.lists(st.integers(1, 7), min_size=num_workers, max_size=num_workers)
    return Run(
        draw(st.lists(st.integers(0, 9), min_size=size, max_size=size)),
        each(st.integers(0, num_workers - 1)),
        each(st.integers(0, 3)),
        (draw(chunks), draw(chunks)),
    )


def rows_in_order(run: Run, stream: Stream, seed: int) -> list[tuple[int, int]]:
    """Return the rows that a `ChunkReader` reads, in order, as (partition, row)."""

    def order(partitions):
        return np.random.default_rng(seed).permutation(np.asarray(partitions, int)).tolist()

    groups = [[(p, row) for p in group for row in range(run.rows[p])] for group in stream.ordered(order)]
    return in_turn(groups, stream.chunk_rows)


def record_of_parts(parts: list[np.ndarray], rows_by_worker: tuple[int, ...]) -> PassRecord:
    record = read_record(np.sum(parts, axis=0), rows_by_worker)
    assert record is not None
    return record


@given(runs(), st.integers(0, 5), st.integers(4, 20), st.data())
def test_rows_before_and_after_a_restart_are_all_rows_once(run, seed, batch_rows, data):
    numbers = range(run.num_workers)
    streams = [run.stream(0, worker) for worker in numbers]
    shares = [run.share(0, worker) for worker in numbers]
    deal = GlobalBatchPlan(shares[0].rows_by_worker, batch_rows)
    done = data.draw(st.integers(0, deal.num_steps))
    parts = [record_part(share, stream) for share, stream in zip(shares, streams, strict=True)]
    record = record_of_parts(parts, deal.rows_by_worker)
    seen = []
    for worker in numbers:
        first = int(deal.sizes(worker)[:done].sum())
        seen += rows_in_order(run, streams[worker], seed)[:first]
        share = run.share(1, worker)
        assert record.fits(share)
        passes = EpochTracker(share)
        passes.begin(3, done, record)
        assert passes.start() == done
        stream = passes.stream()
        assert stream == streams[worker]
        assert stream.measured == shares[worker].measure()
        sizes = replace(deal, rows_by_worker=passes.rows_by_worker()).sizes(worker)
        seen += rows_in_order(run, stream, seed)[first : int(sizes.sum())]
    assert sorted(seen) == [(p, row) for p, rows in enumerate(run.rows) for row in range(rows)]


@given(runs())
def test_a_pass_that_is_replayed_is_recorded_as_it_was_and_the_next_one_anew(run):
    numbers = range(run.num_workers)
    shares = [run.share(0, worker) for worker in numbers]
    record = record_of_parts(
        [record_part(share, run.stream(0, share.worker)) for share in shares], shares[0].rows_by_worker
    )
    again = [EpochTracker(run.share(1, worker)) for worker in numbers]
    for passes in again:
        passes.begin(7, 2, record)
        passes.start()
    assert record_of_parts([each.record_part(7) for each in again], again[0].rows_by_worker(7)) == record
    for worker, passes in enumerate(again):
        assert passes.start() == 0
        assert passes.stream() is None
        assert passes.rows_by_worker() == run.share(1, 0).rows_by_worker
        passes.note(run.stream(1, worker))
    later = record_of_parts([each.record_part(8) for each in again], again[0].rows_by_worker(8))
    assert later.streams == tuple(run.stream(1, worker) for worker in numbers)
    assert record_of_parts([each.record_part(7) for each in again], again[0].rows_by_worker(7)) == record


def share_of(num_partitions: int = 4, rows=(5, 6), worker: int = 0) -> RowShard:
    return RowShard(worker, rows, num_partitions, Stream(((worker, worker + 2),), 8))


def test_who_has_read_nothing_yet_may_read_in_any_order():
    passes = EpochTracker(share_of())
    passes.begin(0)
    passes.start()
    other = record_part(share_of(worker=1), Stream(((1,), (3,)), 16))
    record = record_of_parts([passes.record_part(0), other], (5, 6))
    assert record.streams == (Stream(((0, 2),), 8), Stream(((1,), (3,)), 16))


@pytest.mark.parametrize("number", [0, 2])
def test_a_pass_that_is_not_under_way_makes_a_record_void(number):
    passes = EpochTracker(share_of())
    passes.begin(1)
    passes.start()
    total = passes.record_part(number) + record_part(share_of(worker=1), Stream(((1, 3),), 8))
    assert read_record(total, (5, 6)) is None


def test_a_worker_without_a_part_makes_a_record_void():
    assert read_record(record_part(share_of(), Stream(((0,),), 8)), (5, 6)) is None
    assert read_record(np.zeros(7, np.int64), (5, 6)) is None


def test_nothing_is_recorded_of_what_is_not_shared():
    assert EpochTracker().record_part(0) is None
    assert EpochTracker(share_of(num_partitions=0)).record_part(0) is None


@pytest.mark.parametrize(
    ("share", "fits"),
    [
        (share_of(rows=(1, 10)), True),
        (share_of(num_partitions=8), False),
        (share_of(rows=(5, 5)), False),
        (share_of(rows=(5, 5, 1)), False),
    ],
)
def test_a_record_fits_the_same_source_and_as_many_workers(share, fits):
    parts = [record_part(share_of(worker=worker), Stream(((worker,),), 8)) for worker in range(2)]
    assert record_of_parts(parts, (5, 6)).fits(share) is fits


def test_reading_again_in_one_pass_has_the_same_stream_and_another_number():
    passes = EpochTracker(share_of())
    passes.begin(4)
    passes.start()
    passes.note(Stream(((0,), (2,)), 8))
    assert [passes.next_number("partitions") for _ in range(2)] == [(4, 0), (4, 1)]
    assert passes.stream() == Stream(((0,), (2,)), 8)
    passes.start()
    assert passes.next_number("partitions") == (5, 0)
    assert passes.stream() is None
