"""Pages from record files, by stock operations of TensorFlow.

Any process that runs the graph can read them without this package's Python code in the graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from ignite_tf_magic.dataset.graph_devices import mark
from ignite_tf_magic.dataset.reading_process import is_graph_mode
from ignite_tf_magic.dataset.recipe import Pages, ShuffleOrder
from ignite_tf_magic.dataset.tfrecord_encoding import num_header_items
from ignite_tf_magic.protocol.layout import Leaf, RowLayout

# TensorFlow asks for each record in one piece, which goes to its destination without a buffer in between.
_UNBUFFERED = 0


def tfrecord_pages(uri: str, layout: RowLayout, order: ShuffleOrder | None) -> Pages:
    """Return the pages of a record file.

    Args:
        uri: Its name, with options.
        layout: The layout of its rows.
        order: Draws the order of partitions; None reads them in ascending order.
    """
    names: Any = uri
    if order:
        names = order.seed_of_pass().map(
            lambda seed: tf.strings.join([uri, "&order=", tf.strings.as_string(seed)])
        )
    records = tf.data.TFRecordDataset(names, buffer_size=_UNBUFFERED)
    records.reads_ignite = True
    if is_graph_mode():
        mark(records)
    return records.map(lambda record: decode(record, layout))


def decode(record: Any, layout: RowLayout) -> Any:
    """Decode a record's payload into columns that share its memory; see `tfrecord_encoding`.

    It uses few operations, because each costs some microseconds per record.
    """
    leaves = layout.leaves()
    payload = tf.io.decode_raw(record, tf.uint8)
    num_items = num_header_items(leaves)
    numbers = tf.bitcast(tf.reshape(tf.slice(payload, [0], [8 * num_items]), [num_items, 8]), tf.int64)
    num_rows, *spans = tf.split(numbers, num_items)
    supply = iter([_Buffer(record, payload, *span) for span in zip(spans[::2], spans[1::2], strict=True)])
    return layout.arranged([_column(leaf, num_rows, supply) for leaf in leaves])


@dataclass(frozen=True, slots=True)
class _Buffer:
    """A piece of a record. `start` and `size` are tensors of one item."""

    record: Any
    payload: Any
    start: Any
    size: Any

    def text(self) -> Any:
        """Return it as a string."""
        return tf.strings.substr(self.record, self.start[0], self.size[0])

    def array(self, dtype: Any, row_shape: tuple[int, ...] = ()) -> Any:
        """Return it as an array of rows."""
        data = tf.slice(self.payload, self.start, self.size)
        if dtype == tf.bool:
            data = tf.cast(data, tf.bool)
        elif dtype.size > 1:
            data = tf.bitcast(tf.reshape(data, [-1, dtype.size]), dtype)
        elif dtype != tf.uint8:
            data = tf.bitcast(data, dtype)
        return tf.reshape(data, [-1, *row_shape]) if row_shape else data


def _column(leaf: Leaf, num_rows: Any, buffers: Iterator[_Buffer]) -> Any:
    buffer = next(buffers)
    if leaf.dtype == object:
        texts = tf.ensure_shape(tf.io.parse_tensor(buffer.text(), tf.string), [None])
        return (texts, *_lengths(leaf, buffers)) if leaf.is_ragged else texts
    dtype = tf.as_dtype(leaf.dtype)
    if leaf.is_ragged:
        return buffer.array(dtype, leaf.row_shape), *_lengths(leaf, buffers)
    if 0 in leaf.row_shape:  # an empty buffer does not show the number of rows
        return tf.zeros([num_rows[0], *leaf.row_shape], dtype)
    return buffer.array(dtype, leaf.row_shape)


def _lengths(leaf: Leaf, buffers: Iterator[_Buffer]) -> list[Any]:
    return [next(buffers).array(tf.int64) for _ in range(leaf.ragged_levels)]
