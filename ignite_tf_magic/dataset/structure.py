"""The structure of elements for tf.data: {"key": ..., "val": {...}}, as rows and as pages."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ignite_tf_magic.protocol.layout import Leaf, RowLayout


def row_spec(layout: RowLayout) -> Any:
    """Return the structure of a row."""
    return layout.arranged(map(_leaf_spec, layout.leaves()))


def _leaf_spec(leaf: Leaf) -> Any:
    dtype = tf.string if leaf.dtype == object else tf.as_dtype(leaf.dtype)
    if leaf.is_ragged:
        levels = leaf.ragged_levels
        return tf.RaggedTensorSpec([*[None] * levels, *leaf.row_shape], dtype, ragged_rank=levels - 1)
    return tf.TensorSpec(leaf.row_shape, dtype)


def page_spec(spec: Any) -> Any:
    """Return the structure of a page whose rows have the given structure.

    A ragged column becomes its values and the lengths of each level.
    """
    return tf.nest.map_structure(_column_spec, spec)


def _column_spec(spec: Any) -> Any:
    if isinstance(spec, tf.RaggedTensorSpec):
        levels = spec.ragged_rank + 1
        values = tf.TensorSpec([None, *spec.shape.as_list()[levels:]], spec.dtype)
        return (values, *[tf.TensorSpec([None], tf.int64)] * levels)
    return tf.TensorSpec([None, *spec.shape.as_list()], spec.dtype)


def with_ragged(pages: Any, spec: Any) -> Any:
    """Turn the (values, lengths) of ragged columns into ragged tensors."""
    if any(isinstance(item, tf.RaggedTensorSpec) for item in tf.nest.flatten(spec)):
        return pages.map(lambda page: _ragged(page, spec))
    return pages


def _ragged(column: Any, spec: Any) -> Any:
    if isinstance(spec, dict):
        return {name: _ragged(column[name], item) for name, item in spec.items()}
    if isinstance(spec, tf.RaggedTensorSpec):
        values, *lengths = column
        return tf.RaggedTensor.from_nested_row_lengths(values, lengths, validate=False)
    return column


def no_pages(spec: Any) -> Any:
    """Return a dataset of pages without elements."""

    def nothing(item: Any) -> Any:
        return tf.zeros([size or 0 for size in item.shape.as_list()], item.dtype)

    return tf.data.Dataset.from_tensors(tf.nest.map_structure(nothing, page_spec(spec))).take(0)
