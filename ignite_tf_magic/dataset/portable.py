"""Datasets that another process makes again: a graph of stock operations, whose rows are read where it is made."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ignite_tf_magic.dataset.tf_private import variant_of

# They call Python of the process that made them, or look into its tables.
_BOUND = ("PyFunc", "EagerPyFunc", "PyFuncStateless", "GeneratorDataset", "LookupTable")
_IGNORE_STATE = 1  # of random numbers: each process draws its own


def graph_of(dataset: Any) -> bytes | None:
    """Return a dataset as a graph that another process can make it of; None where it needs this one's Python."""
    graph: bytes = tf.raw_ops.DatasetToGraphV2(
        input_dataset=variant_of(dataset), external_state_policy=_IGNORE_STATE, strip_device_assignment=True
    ).numpy()
    definition = tf.compat.v1.GraphDef.FromString(graph)
    nodes = [*definition.node, *(node for each in definition.library.function for node in each.node_def)]
    return None if any(node.op.startswith(_BOUND) for node in nodes) else graph


def made_of(graph: bytes, element_spec: Any) -> Any:
    """Make a dataset of its graph, on the device that is asked for."""
    variant = tf.raw_ops.DatasetFromGraph(graph_def=tf.constant(graph))
    return tf.data.experimental.from_variant(variant, element_spec)
