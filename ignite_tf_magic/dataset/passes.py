"""Tracks passes over a dataset: their numbers, and the order in which they read partitions.

Everything random in a pass depends on the pass's number, so an interrupted training resumes in the order in which it
began. The order also depends on who reads which partitions, and in which groups. That may change with a restart, so it
can be recorded, and a pass can be replayed from its record.
"""

from __future__ import annotations

import hashlib
import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from ignite_tf_magic.dataset.deal import GlobalBatchPlan

# In a record, a partition's reader is the number 1 + worker * _GROUPS + group.
_GROUPS = 1 << 20
_NO_MEASURES: Mapping[int, tuple[int, int]] = {}


@dataclass(frozen=True, slots=True)
class Stream:
    """What determines the order of one worker's rows in a pass, apart from random numbers.

    Attributes:
        groups: The worker's partitions. Groups are read in parallel, and chunks of their rows taken in turn.
        chunk_rows: Rows of a chunk.
        measured: Known rows of partitions, and bytes of the largest row of each; only for speed.
    """

    groups: tuple[tuple[int, ...], ...]
    chunk_rows: int
    measured: Mapping[int, tuple[int, int]] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def by_owner(cls, owners: Mapping[int, Any], partitions: Iterable[int], chunk_rows: int) -> Stream:
        """Make one group of the partitions of each owner."""
        groups: dict[Any, list[int]] = {}
        for partition in partitions:
            groups.setdefault(owners[partition], []).append(partition)
        return cls(tuple(tuple(sorted(groups[owner])) for owner in sorted(groups)), chunk_rows)

    @property
    def partitions(self) -> list[int]:
        """All partitions, ascending."""
        return sorted(partition for group in self.groups for partition in group)

    def ordered(self, order: Callable[[Sequence[int]], Iterable[int]]) -> list[list[int]]:
        """Return the groups, each in the order that `order` gives to all partitions."""
        group_of = {partition: number for number, group in enumerate(self.groups) for partition in group}
        found: list[list[int]] = [[] for _ in self.groups]
        for partition in order(self.partitions):
            found[group_of[partition]].append(partition)
        return found


@dataclass(frozen=True, slots=True)
class RowShard:
    """A worker's shard of a source that all workers of a run read together.

    Attributes:
        worker: This worker's number.
        rows_by_worker: Rows of every worker's shard.
        num_partitions: Partitions of the source; 0 if nothing depends on who reads what.
        is_ordered: Whether the order of the rows is independent of the owners.
        stream: The worker's partitions, in the grouping for a first reading.
        measure: Returns what is now known of partitions, as in `Stream.measured`.
    """

    worker: int
    rows_by_worker: tuple[int, ...]
    num_partitions: int
    stream: Stream
    measure: Callable[[], Mapping[int, tuple[int, int]]] = lambda: _NO_MEASURES
    is_ordered: bool = True


@dataclass(frozen=True, slots=True)
class PassRecord:
    """The streams of all workers in one pass.

    Attributes:
        streams: The streams, by worker.
        rows_by_worker: Rows of every worker's shard.
        num_partitions: Partitions of the source.
    """

    streams: tuple[Stream, ...]
    rows_by_worker: tuple[int, ...]
    num_partitions: int

    def fits(self, share: RowShard) -> bool:
        """Return whether the recorded pass can be replayed although the source is now shared differently."""
        return (
            self.num_partitions == share.num_partitions
            and len(self.rows_by_worker) == len(share.rows_by_worker)
            and sum(self.rows_by_worker) == sum(share.rows_by_worker)
        )


def record_part(share: RowShard, stream: Stream | None) -> np.ndarray:
    """Return a worker's part of a record, as int64[n]; the sum of all workers' parts is the record.

    Args:
        share: The worker's shard.
        stream: What it reads; None if that is unknown, which makes the record void.
    """
    size = share.num_partitions
    # For each partition: its reader; its rows plus one, 0 if unknown; bytes of its largest row.
    table = np.zeros((3, size), np.int64)
    chunks = np.zeros(len(share.rows_by_worker), np.int64)
    if stream is not None:
        for number, group in enumerate(stream.groups):
            table[0, list(group)] = 1 + share.worker * _GROUPS + number
        for partition, (rows, largest) in {**stream.measured, **share.measure()}.items():
            if table[0, partition]:
                table[1:, partition] = rows + 1, largest
        chunks[share.worker] = stream.chunk_rows
    return np.concatenate([table.ravel(), chunks, [stream is None]], dtype=np.int64)


def read_record(total: np.ndarray, rows_by_worker: Sequence[int]) -> PassRecord | None:
    """Read the sum of all parts; return None if the record is void."""
    num_workers = len(rows_by_worker)
    size, rest = divmod(len(total) - num_workers - 1, 3)
    if rest or size < 0 or total[-1] or not total[3 * size : -1].all():
        return None
    streams = tuple(_read_stream(total, size, worker) for worker in range(num_workers))
    return PassRecord(streams, tuple(map(int, rows_by_worker)), size)


def _read_stream(total: np.ndarray, size: int, worker: int) -> Stream:
    places, rows, largest = total[: 3 * size].reshape(3, size)
    mine = np.flatnonzero((places > 0) & ((places - 1) // _GROUPS == worker)).tolist()
    numbers = {partition: int(places[partition] - 1) % _GROUPS for partition in mine}
    measured = {p: (int(rows[p]) - 1, int(largest[p])) for p in mine if rows[p]}
    stream = Stream.by_owner(numbers, mine, int(total[3 * size + worker]))
    return Stream(stream.groups, stream.chunk_rows, measured)


class EpochTracker:
    """Numbers the passes over one source of rows, and tracks who reads what in them. Thread-safe.

    Each part of a pipeline that depends on the number asks for it when it starts to read. If there is a leading part
    (the last one of the pipeline), it starts each pass with `start`; otherwise all parts start passes in step.

    Args:
        share: The worker's shard, if the workers of a run share the source.

    Attributes:
        plan: The global batches of a pass, if there are any.
    """

    def __init__(self, share: RowShard | None = None) -> None:
        self.share = share
        self.plan: GlobalBatchPlan | None = None
        self._first = self._skipped = self._started = 0
        self._replayed: PassRecord | None = None
        self._begun: Counter[str] = Counter()
        self._streams: dict[int, Stream] = {}
        self._lock = threading.Lock()

    def begin(self, first: int, skipped_batches: int = 0, replayed: PassRecord | None = None) -> None:
        """Set the number of the next pass, how many of its batches to skip, and how to read it.

        Args:
            first: The number of the next pass.
            skipped_batches: The number of batches to skip, from the beginning.
            replayed: A record that fits; the next pass replays it, later passes follow the shard.
        """
        with self._lock:
            self._first, self._skipped, self._started = first, skipped_batches, 0
            self._replayed = replayed
            self._begun.clear()
            self._streams.clear()
            if replayed and self.share:
                self._streams[first] = replayed.streams[self.share.worker]

    def start(self) -> int:
        """Start the next pass and return how many of its batches to skip. Only the leading part calls this."""
        with self._lock:
            self._started += 1
            self._begun.clear()
            return self._skipped if self._started == 1 else 0

    def next_number(self, part: str) -> tuple[int, int]:
        """Return the number of the pass that a part starts to read, and how often it has read that pass before."""
        with self._lock:
            self._begun[part] += 1
            if self._started:
                return self._number(), self._begun[part] - 1
            return self._first + self._begun[part] - 1, 0

    def stream(self) -> Stream | None:
        """Return the stream of the current pass; None if nothing was read in it yet."""
        with self._lock:
            return self._streams.get(self._number()) if self._started else None

    def note(self, stream: Stream) -> None:
        """Note the stream of the current pass, before its first row is yielded."""
        with self._lock:
            if not self._started:
                return
            number = self._number()
            # A reader that reads ahead may start a pass before the current one ends.
            self._streams = {at: each for at, each in self._streams.items() if at == number - 1}
            self._streams[number] = stream

    def rows_by_worker(self, number: int | None = None) -> tuple[int, ...]:
        """Return each worker's number of rows in a pass of a shared source; by default the current pass."""
        with self._lock:
            number = self._number() if number is None else number
            if self._replayed and number == self._first:
                return self._replayed.rows_by_worker
        return self.share.rows_by_worker if self.share else ()

    def record_part(self, number: int) -> np.ndarray | None:
        """Return this worker's part of the record of a started pass; None if there is nothing to record."""
        share = self.share
        if share is None or not share.num_partitions:
            return None
        with self._lock:
            is_under_way = self._started and number == self._number()
            stream = self._streams.get(number, share.stream if is_under_way else None)
        return record_part(share, stream if share.is_ordered else None)

    def _number(self) -> int:
        return self._first + self._started - 1


class PassSeed:
    """Draws a seed for each pass, determined by a base seed and the number of the pass.

    Args:
        seed: The base seed; None draws a new one, but in a run derives it from the run's id, so restarts keep it.
        reshuffle: Whether passes differ.
        passes: Numbers the passes.
        part: The part of the pipeline that draws.
    """

    def __init__(self, seed: int | None, passes: EpochTracker, part: str, *, reshuffle: bool = True) -> None:
        self._seed = _base_seed(os.environ) if seed is None else seed
        self._passes = passes
        self._part = part
        self._reshuffle = reshuffle

    def __call__(self) -> Any:
        """Return the seed of the pass that now starts, an int64 from 0 up."""
        numbers = self._passes.next_number(self._part) if self._reshuffle else (0, 0)
        state = np.random.SeedSequence([self._seed & 0xFFFFFFFF, *numbers]).generate_state(1, np.uint64)
        return np.int64(int(state[0]) >> 1)  # NumPy 1 turns uint64 and int into a float


def _base_seed(environment: Mapping[str, str]) -> int:
    run = environment.get("IGNITE_TF_RUN_ID")
    if run is None:
        return random.SystemRandom().getrandbits(32)
    return int.from_bytes(hashlib.sha256(run.encode()).digest()[:4], "big")
