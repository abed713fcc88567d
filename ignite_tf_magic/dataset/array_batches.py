"""Yields batches of NumPy arrays, for JAX, PyTorch and any other loop, without TensorFlow.

They correspond to `IgniteDataset(...).shuffle(k).batch(n)` for tf.data: the workers of a run have the same partitions
and equally many steps, each row occurs once in an epoch, and a restart does not change the order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ignite_tf_magic.dataset.deal import EqualSteps, GlobalBatchPlan
from ignite_tf_magic.dataset.options import ReadOptions, read_options
from ignite_tf_magic.dataset.passes import EpochTracker, PassRecord, PassSeed, RowShard, read_record
from ignite_tf_magic.dataset.reader import ChunkReader, PartitionOrder, random_order
from ignite_tf_magic.dataset.source import open_source
from ignite_tf_magic.errors import ConfigError, EmptyCache
from ignite_tf_magic.protocol.columns import Column, RaggedColumn
from ignite_tf_magic.protocol.layout import Leaf

Columns = list[NDArray[Any]]


class Batches:
    """The rows of a cache in batches. Each `for` over it is one epoch; only one may run at a time.

    A batch is {"key": array, "val": {field: array}}; the first dimension of each array is rows. Types are those of
    `IgniteDataset`, but strings are `bytes` and arrays of varying length are arrays, both held in object arrays.
    `torch.from_dlpack` and `jax.dlpack.from_dlpack` take numeric arrays without a copy. The caller owns every batch it
    gets.

    In a run each worker gets its own part of every batch, in proportion to its rows, and all make the same number of
    steps. The mean over all workers' rows is therefore the sum of all workers' sums, divided by the sum of their
    numbers of rows. A worker may have no rows in a step.

    Attributes:
        num_steps: Batches of an epoch; None outside of runs, where the rows are not counted.
    """

    def __init__(
        self, options: ReadOptions, batch_size: int, shuffle: int, seed: int | None, policy: EqualSteps
    ) -> None:
        if options.where is not None and options.assignment and len(options.assignment.rows_by_worker) > 1:
            raise ConfigError(
                "batches() cannot use where= in a run of several workers: it must make as many steps on all of them, "
                "but the rows of each are not known before. Use IgniteDataset with Keras' fit, which agree before "
                "each step"
            )
        self._source = open_source(options)
        if self._source.layout is None:
            raise EmptyCache(f"cache {options.cache!r} holds no rows, so their types are unknown")
        self._layout = self._source.layout
        self._batch_size, self._shuffle, self._seed = batch_size, shuffle, seed
        self._share = self._source.shard(options.assignment) if options.where is None else None
        share = self._share
        self._plan = GlobalBatchPlan(share.rows_by_worker, batch_size, policy) if share else None
        self._passes = EpochTracker(self._share)
        self._next: tuple[int, int, PassRecord | None] = (0, 0, None)
        self._done = (0, 0)

    @property
    def num_steps(self) -> int | None:
        """Batches of an epoch."""
        return self._plan.num_steps if self._plan else None

    def __len__(self) -> int:
        if self._plan is None:
            raise TypeError(
                "outside of a run the number of batches of a cache is unknown before it has been read"
            )
        return self._plan.num_steps

    def __iter__(self) -> Iterator[dict[str, Any]]:
        epoch, skipped, record = self._next
        self._next, self._done = (epoch + 1, 0, None), (epoch, skipped)
        self._passes.begin(epoch, skipped, record)
        self._passes.start()
        with closing(self._chunks()) as chunks:
            for step, columns in enumerate(
                self._cut(_Rows(chunks, self._layout.leaves()), skipped), skipped + 1
            ):
                self._done = (epoch, step)
                yield self._layout.arranged(columns)
        self._done = (epoch + 1, 0)

    def state(self) -> dict[str, Any]:
        """Return the current position for `restore`, as JSON values.

        It takes some bytes for each partition of the cache. The batch that a loop is working on counts as yielded, so
        save after the step.
        """
        epoch, step = self._done
        part = self._passes.record_part(epoch) if step else None
        rows = self._passes.rows_by_worker(epoch) if step else ()
        return {
            "epoch": epoch,
            "step": step,
            "rows_by_worker": list(rows),
            "record": None if part is None else part.tolist(),
        }

    def restore(self, *states: Mapping[str, Any]) -> None:
        """Make the next `for` resume at a saved state.

        The rest of its epoch has the rows that were not yet yielded.

        Args:
            states: The states of all workers at the same step, in any order. A worker's own state is enough as long as
                each worker keeps its partitions.

        Raises:
            ConfigError: The states are of different steps, or of other data.
        """
        if len({(state["epoch"], state["step"]) for state in states}) != 1:
            raise ConfigError("the states to continue from are of different steps, or there are none")
        epoch, step = states[0]["epoch"], states[0]["step"]
        share = self._share
        record = self._record(states, share) if step and share and share.num_partitions else None
        self._next, self._done = (epoch, step, record), (epoch, step)
        self._passes.begin(epoch, step, record)

    def _record(self, states: Sequence[Mapping[str, Any]], share: RowShard) -> PassRecord:
        parts = [np.asarray(state["record"], np.int64) for state in states]
        rows = states[0]["rows_by_worker"]
        if len(parts) < len(rows):
            parts = [_as_of_all(parts[0], rows, share)]
        record = (
            read_record(sum(parts[1:], start=parts[0]), rows)
            if len({len(part) for part in parts}) == 1
            else None
        )
        if record is None or not record.fits(share):
            raise ConfigError(
                "the states to continue from do not fit the rows: rows were added or removed, or the number of workers "
                "changed. Begin with the next epoch, or from the start"
            )
        return record

    def _chunks(self) -> Generator[Columns, None, None]:
        """Read all rows in the order of this pass, and start over if the plan fills up its last batches."""
        plan = self._plan
        again = plan is not None and (plan.policy is EqualSteps.REPEAT or len(plan.rows_by_worker) == 1)
        while True:
            num_rows = 0
            with ChunkReader(self._source, self._order(), self._passes.stream()) as reader:
                self._passes.note(reader.stream)
                chunks = ([_array(column) for column in chunk.columns()] for chunk in reader.chunks())
                for columns in self._permuted(chunks) if self._shuffle else chunks:
                    num_rows += len(columns[0])
                    yield columns
            if not again or not num_rows:
                return

    def _order(self) -> PartitionOrder | None:
        if not self._shuffle:
            return None
        return random_order(int(PassSeed(self._seed, self._passes, "partitions")()))

    def _permuted(self, chunks: Iterable[Columns]) -> Iterator[Columns]:
        seed = int(PassSeed(self._seed, self._passes, "blocks")())
        rows = _Rows(iter(chunks), self._layout.leaves())
        for number in count():
            block = rows.take(self._shuffle)
            if not len(block[0]):
                return
            order = np.random.default_rng([seed, number]).permutation(len(block[0]))
            yield [column[order] for column in block]

    def _cut(self, rows: _Rows, skipped: int) -> Iterator[Columns]:
        if self._plan is None or self._share is None:
            rows.skip(skipped * self._batch_size)
            while len((batch := rows.take(self._batch_size))[0]):
                yield batch
            return
        plan = replace(self._plan, rows_by_worker=self._passes.rows_by_worker())
        sizes = plan.sizes(self._share.worker)
        rows.skip(int(sizes[:skipped].sum()))
        for size in sizes[skipped:]:
            yield rows.take(int(size))


def _as_of_all(own: NDArray[np.int64], rows_by_worker: Sequence[int], share: RowShard) -> NDArray[np.int64]:
    """Return a worker's own part of a record for the whole.

    That is enough as long as the worker has the same partitions; otherwise this raises.
    """
    alone = np.array(own)
    chunks = alone[-len(rows_by_worker) - 1 : -1]
    is_own = chunks[share.worker] > 0
    chunks[chunks == 0] = 1  # nothing depends on how the others read
    record = read_record(alone, rows_by_worker) if is_own else None
    if record is None or record.streams[share.worker].partitions != share.stream.partitions:
        raise ConfigError(
            "this worker has other partitions than before, so the states of all workers are needed"
        )
    return alone


class _Rows:
    """Takes any number of rows at a time from chunks."""

    def __init__(self, chunks: Iterator[Columns], leaves: Sequence[Leaf]) -> None:
        self._chunks = chunks
        self._waiting: deque[Columns] = deque()
        self._nothing = [_no_rows(leaf) for leaf in leaves]

    def take(self, num_rows: int) -> Columns:
        """Return the next rows, fewer at the end; they are views if they lie in one chunk."""
        parts = list(self._parts(num_rows))
        if len(parts) < 2:
            return parts[0] if parts else list(self._nothing)
        return [np.concatenate(column) for column in zip(*parts, strict=True)]

    def skip(self, num_rows: int) -> None:
        """Skip rows."""
        for _ in self._parts(num_rows):
            pass

    def _parts(self, num_rows: int) -> Iterator[Columns]:
        while num_rows:
            columns = self._waiting.popleft() if self._waiting else next(self._chunks, None)
            if columns is None:
                return
            found = len(columns[0])
            if found > num_rows:
                self._waiting.append([column[num_rows:] for column in columns])
                columns, found = [column[:num_rows] for column in columns], num_rows
            num_rows -= found
            yield columns


def _array(column: Column) -> NDArray[Any]:
    if not isinstance(column, RaggedColumn):
        return column
    found = column.values
    for lengths in reversed(column.lengths):
        found = _cut(found, lengths)
    return found


def _cut(items: NDArray[Any], lengths: NDArray[np.int64]) -> NDArray[Any]:
    rows = np.empty(len(lengths), object)
    for row, (end, length) in enumerate(zip(np.cumsum(lengths), lengths, strict=True)):
        rows[row] = items[end - length : end]
    return rows


def _no_rows(leaf: Leaf) -> NDArray[Any]:
    is_array = not leaf.is_ragged and leaf.dtype != object
    return np.empty((0, *leaf.row_shape), leaf.dtype) if is_array else np.empty(0, object)


def batches(
    cache_name: str,
    batch_size: int,
    *,
    shuffle: int = 0,
    seed: int | None = None,
    fields: Sequence[str] | None = None,
    where: str | None = None,
    where_args: Sequence[Any] = (),
    fill: Mapping[str, Any] | None = None,
    nulls: str | Iterable[str] | None = None,
    as_text: Sequence[str] = (),
    variable: Sequence[str] = (),
    equal_steps: str = "pad",
    assigned: bool = True,
    allow_partial: bool = False,
    part: int | str | Iterable[int] | None = None,
    host: str | None = None,
    port: int | None = None,
    username: str | None = None,
    password: str | None = None,
    certfile: str | None = None,
    keyfile: str | None = None,
    cert_password: str | None = None,
) -> Batches:
    """Return a cache's rows, in a run this worker's, in batches of NumPy arrays; needs no TensorFlow.

    As with `IgniteDataset`, the variable IGNITE_DATASET_ plus an argument's name overrides the arguments from `part`
    on.

    Args:
        cache_name: Name of the cache.
        batch_size: Rows of a batch, in a run of all workers together.
        shuffle: Rows of a block. Partitions are read in random order, then rows permuted within blocks. 0 turns both
            off.
        seed: Seed of the random orders. Without one a run chooses a seed and keeps it through restarts.
        fields: Dotted names of the value's fields to keep; None keeps all.
        where: SQL condition that selects rows, as in `IgniteDataset`; not in a run of several workers.
        where_args: The values of each `?` in it.
        fill: The value that replaces a null, by field name.
        nulls: Which fields get an extra boolean column that marks their nulls, as in `IgniteDataset`.
        as_text: Fields to read as text, as in `IgniteDataset`.
        variable: Fields with arrays of varying length, for which the sampled rows do not show it.
        equal_steps: What happens in a run to the last batch of an epoch: "pad", "drop" or "repeat".
        assigned: False reads the whole cache even inside a run.
        allow_partial: True reads what is left of a cache that has lost rows, or whose load has not ended.
        part: A partition, several, or ranges such as "0-127,200". Default: all.
        host: A node to ask first. Default: the configured cluster, else the embedded one, else localhost.
        port: Its client port, 10800 by default.
        username: For a cluster with authentication.
        password: Its password.
        certfile: PEM file for TLS, as in `IgniteDataset`.
        keyfile: PEM file of the key, if the key is not in `certfile`.
        cert_password: Password of the key.

    Raises:
        EmptyCache: The cache has no rows.
        CacheNotFound, RowsLost, LoadIncomplete, SchemaError, ConnectionFailed, AuthenticationError: As `IgniteDataset`.
        ConfigError: An argument or variable is unusable.
    """
    for name, value, least in (("batch_size", batch_size, 1), ("shuffle", shuffle, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ConfigError(f"{name}={value!r}: a whole number from {least} up is needed")
    options = read_options(
        cache_name,
        host=host,
        port=port,
        part=part,
        username=username,
        password=password,
        certfile=certfile,
        keyfile=keyfile,
        cert_password=cert_password,
        assigned=assigned,
        allow_partial=allow_partial,
        fields=fields,
        fill=fill,
        variable=variable,
        nulls=nulls,
        as_text=as_text,
        where=where,
        where_args=where_args,
    )
    return Batches(options, batch_size, shuffle, seed, EqualSteps.parse(equal_steps))
