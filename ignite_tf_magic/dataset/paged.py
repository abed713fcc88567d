"""Defines a dataset of rows whose batch, map and shuffle work on whole pages.

A `PagedDataset` is an ordinary tf.data dataset of rows. It holds a dataset of pages (elements with many rows) and
applies the most common transformations to the pages instead of to single rows:

- `batch(n)` re-batches pages; `unbatch().batch(n)` would split each page into rows and join them again.
- `map(f)`, with f written for one row, runs on pages through `tf.vectorized_map` if f converts; a page that fails runs
  again row by row.
- `shuffle(k)` reads the partitions in random order and permutes the rows within blocks of k.

Everything else is tf.data's own, on rows. Both ways produce the same rows; a test compares them.
"""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from ignite_tf_magic.dataset.batches import anew_each_pass, can_be_empty, empty_like, num_rows
from ignite_tf_magic.dataset.counted import CountedBatches
from ignite_tf_magic.dataset.deal import EqualSteps, GlobalBatchPlan, UncountedShare
from ignite_tf_magic.dataset.graph_devices import moves
from ignite_tf_magic.dataset.page_map import map_pages
from ignite_tf_magic.dataset.passes import EpochTracker, PassSeed, RowShard, Stream
from ignite_tf_magic.dataset.permuting import rows_of_block
from ignite_tf_magic.dataset.recipe import Pages, Recipe, Repeat, RowMap, ShuffleOrder, Transform
from ignite_tf_magic.dataset.tf_private import variant_of

_parts = itertools.count()


_hinted: set[str] = set()


class PagedDataset(tf.data.Dataset):  # type: ignore[misc]
    """A dataset of rows that is backed by a dataset of pages."""

    def __init__(
        self, recipe: Recipe, pages: Pages | None = None, passes: EpochTracker | None = None
    ) -> None:
        self._recipe = recipe
        self._pages, self._passes = recipe.pages() if pages is None else (pages, passes)
        self._rows = self._pages.unbatch()
        super().__init__(variant_of(self._rows))

    def _inputs(self) -> list[Any]:
        return [self._rows]

    @property
    def is_shared(self) -> bool:
        """Whether the rows are one worker's shard, of several workers."""
        recipe = self._recipe
        if recipe.uncounted is not None:
            return recipe.uncounted.num_workers > 1
        return recipe.share is not None and len(recipe.share.rows_by_worker) > 1

    @property
    def element_spec(self) -> Any:
        """Structure, shapes and dtypes of one row."""
        return self._rows.element_spec

    def cardinality(self) -> tf.Tensor:
        """Return the number of rows in the cache now; each call asks the cluster.

        The number is unknown in a run, for parts of a cache, with `where`, for SQL statements, if the cluster picks out
        fields, and after `cache`.
        """
        return tf.constant(self._recipe.num_rows(), tf.int64)

    def arrays(self, *, assigned: bool = True) -> Any:
        """Return all rows at once, in the structure of a row; blocks until all are in memory.

        Args:
            assigned: True returns, in a run, this worker's rows; `fit(x, y)` then treats them as its part of all
                workers' rows. False returns the rows of all workers, on each worker; `fit` divides equal arrays among
                the workers.

        Returns:
            NumPy arrays whose first dimension is rows; `tf.RaggedTensor` if rows differ in length.

        Raises:
            ValueError: The dataset has no end.
        """
        recipe = self._recipe
        if not assigned and recipe.whole is not None:
            whole = recipe.whole()
            recipe = replace(recipe, open_pages=whole.open_pages, share=None, whole=None)
        pages = recipe.pages()[0]
        if pages.cardinality() == tf.data.INFINITE_CARDINALITY:
            way_out = "take() some first" if recipe.is_endless else "take repeat() out of it"
            raise ValueError(f"the dataset has no end, so its rows do not fit into arrays: {way_out}")
        parts = [tf.nest.flatten(page) for page in pages]
        columns = [_joined(column) for column in zip(*parts, strict=True)] if parts else _no_rows(pages)
        return tf.nest.pack_sequence_as(pages.element_spec, columns)

    # tf.compat.v1 calls these methods, if a dataset has them, to make its iterators.

    def _make_one_shot_iterator(self) -> Any:
        return tf.compat.v1.data.make_one_shot_iterator(self._rows_here())

    def _make_initializable_iterator(self, shared_name: str | None = None) -> Any:
        return tf.compat.v1.data.make_initializable_iterator(self._rows_here(), shared_name)

    def _rows_here(self) -> Any:
        """Return the rows; make them again if they would be read on another device than requested."""
        return PagedDataset(self._recipe)._rows if moves(self._rows) else self._rows

    def batch(
        self,
        batch_size: Any,
        drop_remainder: bool = False,
        num_parallel_calls: Any = None,
        deterministic: bool | None = None,
        name: str | None = None,
    ) -> tf.data.Dataset:
        """Batch the rows, by re-batching whole pages.

        In a run with several workers, `batch_size` counts the rows of all workers together. Each worker gets its own
        part of every batch, in proportion to its rows, so all make the same number of steps. If the rows are very
        uneven, some of a worker's batches may be empty. See `deal`. With several workers, a batch also ends at the end
        of each pass that `repeat` repeats.
        """
        del num_parallel_calls, deterministic
        share = self._recipe.share
        if self._recipe.uncounted is not None:
            return self._uncounted_batches(self._recipe.uncounted, int(batch_size), drop_remainder, name)
        if share is None:
            batches = self._pages.rebatch(batch_size, drop_remainder=drop_remainder, name=name)
            if self._recipe.count is None:
                return batches
            return CountedBatches(batches, partial(self._num_batches, batch_size, drop_remainder))
        recipe, repeats = self._recipe.of_one_pass()
        if len(share.rows_by_worker) < 2 and (
            recipe.is_kept or repeats or drop_remainder or not can_be_empty(self._pages.element_spec)
        ):
            return self._batches_alone(share, batch_size, drop_remainder, name)
        if repeats and self.is_shared and sum(share.rows_by_worker) % int(batch_size):
            _tell_of_repeated_rows(int(batch_size))
        pages, passes = _numbered(recipe, share)
        policy = EqualSteps.DROP if drop_remainder else recipe.equal_steps
        deal = GlobalBatchPlan(share.rows_by_worker, int(batch_size), policy)
        batches = dealt_batches(pages, deal, share.worker, passes)
        return functools.reduce(lambda found, repeat: repeat(found), repeats, batches)

    def _num_batches(self, batch_size: Any, drop_remainder: bool) -> int:
        rows, size = self._recipe.num_rows(), tf.get_static_value(batch_size)
        if rows < 0 or size is None:
            return rows if rows == tf.data.INFINITE_CARDINALITY else int(tf.data.UNKNOWN_CARDINALITY)
        return rows // int(size) if drop_remainder else -(-rows // int(size))

    def _uncounted_batches(
        self, share: UncountedShare, batch_rows: int, drop_remainder: bool, name: str | None
    ) -> tf.data.Dataset:
        """Batch an unknown number of rows; a worker's part of each batch always has the same size."""
        own = share.batch_rows(batch_rows)
        if self._recipe.share is not None:
            pages, passes = _numbered(self._recipe, self._recipe.share)
            return resumable(pages.rebatch(own, drop_remainder=drop_remainder, name=name), passes)
        batches = self._pages.rebatch(own, drop_remainder=True, name=name)
        batches = batches.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))
        batches.passes = EpochTracker(RowShard(share.worker, (1,) * share.num_workers, 0, Stream((), 1)))
        return batches

    def _batches_alone(
        self, share: RowShard, batch_size: Any, drop_remainder: bool, name: str | None
    ) -> tf.data.Dataset:
        """Batch the rows of a run's only worker as tf.data does, so the number of batches is unknown."""
        pages, passes = _numbered(self._recipe, share)
        if self._recipe.is_kept:
            # Later passes replay the order of the first. Several workers keep nothing: they never reach the end of a
            # pass.
            passes = _unrecorded(share)
        return resumable(pages.rebatch(batch_size, drop_remainder=drop_remainder, name=name), passes)

    def map(
        self,
        map_func: Callable[..., Any],
        num_parallel_calls: Any = None,
        deterministic: bool | None = None,
        synchronous: bool | None = None,
        use_unbounded_threadpool: bool | None = None,
        name: str | None = None,
        vectorize: bool = True,
    ) -> tf.data.Dataset:
        """Apply a function of one row, to whole pages if TensorFlow can vectorize it.

        If the function fails for a row, that row raises its own error, after the rows before it, as in tf.data.

        Args:
            map_func: Takes one row, as in `tf.data.Dataset.map`.
            num_parallel_calls: As there.
            deterministic: As there.
            synchronous: As there; only row by row.
            use_unbounded_threadpool: As there; only row by row.
            name: As there.
            vectorize: False applies the function row by row.
        """
        row_spec = self.element_spec

        def transform(pages: Pages, passes: EpochTracker | None) -> Pages:
            del passes
            return map_pages(pages, map_func, row_spec, num_parallel_calls, deterministic, name)

        if vectorize:
            try:
                recipe = self._recipe.then(RowMap(transform, map_func, row_spec))
                return PagedDataset(recipe, transform(self._pages, self._passes), self._passes)
            except (ValueError, TypeError, NotImplementedError, tf.errors.OpError) as error:
                _hint_row_by_row(map_func, error)
        extra = {"synchronous": synchronous, "use_unbounded_threadpool": use_unbounded_threadpool}
        given = {key: value for key, value in extra.items() if value is not None}

        def one_by_one(pages: Pages, passes: EpochTracker | None) -> Pages:
            del passes
            rows = pages.unbatch().map(map_func, num_parallel_calls, deterministic, name=name, **given)
            return rows.batch(1)  # allows any shape, and isolates a row that fails

        if self._recipe.share is not None or self._recipe.uncounted is not None:
            with suppress(
                ValueError, TypeError, NotImplementedError
            ):  # for example, a page cannot hold datasets
                return self._paged(one_by_one)
        return self._rows.map(map_func, num_parallel_calls, deterministic, name=name, **given)

    def shuffle(
        self,
        buffer_size: Any,
        seed: int | None = None,
        reshuffle_each_iteration: bool | None = None,
        name: str | None = None,
    ) -> tf.data.Dataset:
        """Shuffle partitions, then permute rows within blocks of `buffer_size` rows or slightly more.

        A block at least as large as the dataset gives a uniform permutation. For the same data and partitions, a given
        seed and pass always produce the same order.
        """
        order = ShuffleOrder(seed, reshuffle_each_iteration is not False)
        recipe, rows = self._recipe, tf.cast(buffer_size, tf.int64)
        known = tf.get_static_value(rows)
        if known is not None and known > 0 and recipe.may_permute_first():
            return PagedDataset(replace(recipe, order=replace(order, block_rows=rows_of_block(int(known)))))

        def transform(pages: Pages, passes: EpochTracker | None) -> Pages:
            return permute_blocks(pages, rows, order, passes, name)

        first = recipe.order.block_rows if recipe.order else None  # the reader keeps permuting
        return PagedDataset(replace(recipe.then(transform), order=replace(order, block_rows=first)))

    def repeat(self, count: Any = None, name: str | None = None) -> tf.data.Dataset:
        """Repeat the rows.

        Batches may span the end of a pass, as in tf.data, unless there are several workers.
        """
        return self._paged(Repeat(count, name))

    def prefetch(self, buffer_size: Any, name: str | None = None) -> tf.data.Dataset:
        """Read ahead. `buffer_size` counts pages here, so this reads more rows than tf.data would."""
        return self._paged(lambda pages, _: pages.prefetch(buffer_size, name=name))

    def cache(self, filename: str = "", name: str | None = None) -> tf.data.Dataset:
        """Keep the pages of the first pass in memory or in a file."""
        if self._recipe.is_endless:
            raise ValueError(
                "cache() keeps all rows, but rows of a cache that is followed have no end: leave it out"
            )
        # No count: a caller that takes exactly that many batches never reaches the end, and tf.data keeps nothing
        # before it.
        return self._paged(lambda pages, _: pages.cache(filename, name=name), is_kept=True, count=None)

    def shard(self, num_shards: Any, index: Any, name: str | None = None) -> tf.data.Dataset:
        """Take every n-th row.

        In a run of several workers this takes every n-th row of the worker's shard, and warns once.
        """
        if self.is_shared and "shard" not in _hinted:
            _hinted.add("shard")
            warnings.warn(
                "shard() takes a part of this worker's rows only: the run has already divided the rows of the cache "
                "among its workers, so the other rows are never read. Leave shard() out",
                stacklevel=2,
            )
        return self._rows.shard(num_shards, index, name=name)

    def with_options(self, options: tf.data.Options, name: str | None = None) -> tf.data.Dataset:
        """Set tf.data options."""
        return self._paged(lambda pages, _: pages.with_options(options, name=name))

    def _paged(self, transform: Transform, **changes: Any) -> PagedDataset:
        recipe = replace(self._recipe.then(transform), **changes)
        return PagedDataset(recipe, transform(self._pages, self._passes), self._passes)


def _joined(parts: Sequence[Any]) -> Any:
    if isinstance(parts[0], tf.RaggedTensor):
        return tf.concat(parts, 0)
    return np.concatenate([part.numpy() for part in parts])


def _no_rows(pages: Pages) -> list[Any]:
    empty = tf.nest.flatten(empty_like(pages.element_spec))
    return [each if isinstance(each, tf.RaggedTensor) else each.numpy() for each in empty]


def _numbered(recipe: Recipe, share: RowShard) -> tuple[Pages, EpochTracker]:
    """Build pages over a new source, and return them with their epoch tracker.

    A training may resume in the middle of a source, so it cannot be shared.
    """
    pages, passes = recipe.pages()
    return pages, passes or _unrecorded(share)


def _unrecorded(share: RowShard) -> EpochTracker:
    """Return an epoch tracker that does not record who has read what."""
    return EpochTracker(replace(share, num_partitions=0))


def _tell_of_repeated_rows(batch_rows: int) -> None:
    warnings.warn(
        f"batch({batch_rows}) after repeat(): one process fills the last batch of an epoch with rows of the next one, "
        "but several workers end it with the epoch, so later batches have other rows. With `repeat` after `batch` "
        "both do the same",
        stacklevel=3,
    )


def _hint_row_by_row(function: Callable[..., Any], error: Exception) -> None:
    name = getattr(function, "__qualname__", repr(function))
    if name not in _hinted:
        _hinted.add(name)
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        warnings.warn(
            f"map({name}) runs row by row, about 20 times slower than on whole pages, because TensorFlow cannot "
            f"vectorise it ({reason}). Map it after batch(), written for batches; vectorize=False silences this",
            stacklevel=3,
        )


def permute_blocks(
    pages: Pages, rows: Any, order: ShuffleOrder, passes: EpochTracker | None, name: str | None
) -> Pages:
    """Re-batch pages to blocks of `rows` rows and permute each block."""
    blocks = pages.rebatch(rows)

    def permute(block: Any, seed: Any) -> Any:
        index = tf.random.experimental.stateless_shuffle(tf.range(num_rows(block)), seed)
        return tf.nest.map_structure(lambda column: tf.gather(column, index), block)

    return tf.data.Dataset.zip(blocks, _seeds(order, passes)).map(permute, name=name)


def _seeds(order: ShuffleOrder, passes: EpochTracker | None) -> Any:
    """Return a seed for each block of a pass."""

    def of_pass(seed: Any) -> Any:
        return tf.data.Dataset.counter().map(lambda block: tf.stack([seed, block]))

    if passes is None:
        return order.seed_of_pass().flat_map(of_pass)
    draw = PassSeed(order.seed, passes, f"blocks {next(_parts)}", reshuffle=order.reshuffle)
    return anew_each_pass(draw, of_pass)


def resumable(batches: Pages, passes: EpochTracker) -> Pages:
    """Let a pass start in the middle: skipped batches still occur, but without rows."""
    if not can_be_empty(batches.element_spec):  # no empty batch can stand for a skipped one
        return batches
    empty = tf.data.Dataset.from_tensors(empty_like(batches.element_spec))

    def draw() -> Any:
        return np.int64(passes.start())

    found = anew_each_pass(draw, lambda skipped: empty.repeat(skipped).concatenate(batches.skip(skipped)))
    return _led_by(passes, found, int(batches.cardinality()), batches.options())


def dealt_batches(pages: Pages, deal: GlobalBatchPlan, worker: int, passes: EpochTracker) -> Pages:
    """Return a worker's part of each global batch, with the sizes of the plan; resumable.

    A part may be empty. The number of steps does not depend on what is read, so no worker waits for one that has ended;
    Keras can read that number. Rows added since the rows were counted are left out. With several workers, rows removed
    since then are missing from the last steps. A single worker takes rows from the beginning in their place, because it
    cannot make a step without rows.
    """
    passes.plan = deal
    empty = tf.data.Dataset.from_tensors(empty_like(pages.element_spec)).repeat()
    is_alone = len(deal.rows_by_worker) < 2
    endless = pages.repeat() if deal.policy is EqualSteps.REPEAT or is_alone else pages
    own, num_steps = deal.sizes(worker), deal.num_steps

    def draw() -> Any:
        skipped, rows = passes.start(), passes.rows_by_worker()
        sizes = own if rows == deal.rows_by_worker else replace(deal, rows_by_worker=rows).sizes(worker)
        return np.concatenate([[skipped], sizes, [1]])  # one unused size more: the array must not be empty

    def of_pass(drawn: Any) -> Pages:
        skipped, sizes = drawn[0], drawn[1:]
        full = endless.rebatch(sizes).skip(skipped)
        return empty.take(skipped).concatenate(full).concatenate(empty).take(num_steps)

    found = anew_each_pass(draw, of_pass, num_drawn=num_steps + 2)
    return _led_by(passes, found, num_steps, pages.options())


def _led_by(passes: EpochTracker, batches: Pages, cardinality: int, options: tf.data.Options) -> Pages:
    """Restore what functions hide: the number of batches, and tf.data's options.

    The options stop tf.data from splitting a shard.
    """
    if cardinality != tf.data.UNKNOWN_CARDINALITY:
        batches = batches.apply(tf.data.experimental.assert_cardinality(cardinality))
    batches = batches.with_options(options)
    batches.passes = passes
    return batches
