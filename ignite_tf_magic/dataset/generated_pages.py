"""Makes tf.data pages of rows that this process's Python reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from ignite_tf_magic.dataset.generator import ArrayDataset
from ignite_tf_magic.dataset.passes import EpochTracker, PassSeed
from ignite_tf_magic.dataset.permuting import permuted
from ignite_tf_magic.dataset.pool import SHARED
from ignite_tf_magic.dataset.reader import ChunkReader, random_order
from ignite_tf_magic.dataset.reading_process import warn_if_connected
from ignite_tf_magic.dataset.recipe import Pages, ShuffleOrder
from ignite_tf_magic.dataset.source import Source
from ignite_tf_magic.dataset.structure import no_pages, page_spec, with_ragged
from ignite_tf_magic.protocol.columns import Column, RaggedColumn
from ignite_tf_magic.protocol.layout import RowLayout

_OF_ROWS = 1  # separates the seeds for permuting rows from those for ordering partitions


def generated(
    source: Source, spec: Any, order: ShuffleOrder | None, passes: EpochTracker | None, *, is_meant: bool
) -> Pages:
    """Return pages that a generator of this process reads.

    It warns if this process reads for other servers, unless `is_meant`: the user requested it explicitly.
    """
    passes = passes or EpochTracker()
    seed = PassSeed(order.seed, passes, "partitions", reshuffle=order.reshuffle) if order else None
    layout = source.layout
    if layout is None:
        return no_pages(spec)

    def read() -> Iterator[Any]:
        if not is_meant:
            warn_if_connected()
        drawn = int(seed()) if seed else None
        partition_order = None if drawn is None else random_order(drawn)
        with ChunkReader(source, partition_order, passes.stream()) as reader:
            passes.note(reader.stream)
            if order is None or order.block_rows is None:
                for chunk in reader.chunks():
                    yield arranged(chunk.columns(), layout)
                return
            random = np.random.default_rng([drawn or 0, _OF_ROWS])
            for columns in permuted(reader.chunks(), order.block_rows, random, SHARED):
                yield arranged(columns, layout)

    return ArrayDataset(read, page_spec(spec))


def finished(pages: Pages, spec: Any, *, is_share: bool) -> Pages:
    """Return pages in a dataset's final form: with ragged tensors and tf.data options."""
    return with_ragged(pages, spec).with_options(_options(is_share=is_share))


def _options(*, is_share: bool) -> tf.data.Options:
    options = tf.data.Options()
    # The end of an iterator waits for TensorFlow's autotuner: measured, 15 times of 16, for up to the time the pass
    # took. Without it AUTOTUNE still means parallel. `with_options` can turn it on again.
    options.autotune.enabled = False
    if is_share:
        # Sharding a shard again would lose rows: measured, half of them with two workers.
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return options


def arranged(columns: Iterable[Column], layout: RowLayout) -> Any:
    """Return the arrays of columns, in the order of their page."""
    return tf.nest.flatten(layout.arranged(map(_arrays, columns)))


def _arrays(column: Column) -> Any:
    return column.arrays if isinstance(column, RaggedColumn) else column
