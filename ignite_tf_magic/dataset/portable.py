"""Copies datasets to another process, as graphs of stock operations.

The process that rebuilds a dataset also reads its rows.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ignite_tf_magic.dataset.tf_private import variant_of

# These call Python of the process that made them, or use its tables.
_BOUND = ("PyFunc", "EagerPyFunc", "PyFuncStateless", "GeneratorDataset", "LookupTable")
_IGNORE_STATE = 1  # of random numbers: each process draws its own


def graph_of(dataset: Any) -> bytes | None:
    """Return a dataset as a graph for another process; None if it needs this process's Python."""
    graph: bytes = tf.raw_ops.DatasetToGraphV2(
        input_dataset=variant_of(dataset), external_state_policy=_IGNORE_STATE, strip_device_assignment=True
    ).numpy()
    definition = tf.compat.v1.GraphDef.FromString(graph)
    nodes = [*definition.node, *(node for each in definition.library.function for node in each.node_def)]
    return None if any(node.op.startswith(_BOUND) for node in nodes) else graph


def made_of(graph: bytes, element_spec: Any) -> Any:
    """Rebuild a dataset from its graph, on the requested device."""
    variant = tf.raw_ops.DatasetFromGraph(graph_def=tf.constant(graph))
    return tf.data.experimental.from_variant(variant, element_spec)
