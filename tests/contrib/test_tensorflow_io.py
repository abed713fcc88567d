"""tensorflow-io's signature, and the dataset methods of TensorFlow 1."""

from __future__ import annotations

import inspect
import json
import pickle
import subprocess
import sys

import numpy as np
import pytest

from ignite_tf_magic import contrib
from ignite_tf_magic.contrib import tensorflow_io
from ignite_tf_magic.errors import ConnectionFailed
from ignite_tf_magic.session import load

# The parameters of tensorflow.contrib.ignite and of tensorflow_io.ignite.
OF_CONTRIB = [
    *("cache_name", "host", "port", "local", "part", "page_size"),
    *("username", "password", "certfile", "keyfile", "cert_password"),
]
OF_TENSORFLOW_IO = [*OF_CONTRIB[:3], "schema_host", "schema_port", *OF_CONTRIB[3:]]
NOWHERE = ("127.0.0.1", 1)

GRAPH = """
import json, sys
import tensorflow.compat.v1 as tf
from ignite_tf_magic.contrib.tensorflow_io import IgniteDataset

tf.disable_v2_behavior()
host, port, cache = sys.argv[1], int(sys.argv[2]), sys.argv[3]
rows = IgniteDataset(cache, host, port, None, None, False, -1, 100)
found = {"types": str(rows.output_types), "shapes": str(rows.output_shapes), "classes": str(rows.output_classes)}
keys = rows.map_with_legacy_function(lambda row: row["key"]).filter_with_legacy_function(lambda key: key > 0)
iterators = [keys.shuffle(9).batch(9).make_one_shot_iterator(), keys.batch(9).make_initializable_iterator()]
with tf.Session() as session:
    session.run(iterators[1].initializer)
    found["keys"] = [sorted(session.run(iterator.get_next()).tolist()) for iterator in iterators]
print("FOUND" + json.dumps(found))
"""


@pytest.fixture
def cache(session):
    load("OF_TENSORFLOW_IO", {"id": np.arange(5), "x": np.arange(5.0)}, key="id", replace=True, report=str)
    return "OF_TENSORFLOW_IO"


@pytest.fixture
def node(ignite):
    endpoint = ignite.connect_options.endpoints[0]
    return endpoint.host, endpoint.port


def keys_of(rows):
    return sorted(row["key"].numpy() for row in rows)


@pytest.mark.parametrize(
    ("kind", "names"),
    [(contrib.IgniteDataset, OF_CONTRIB), (tensorflow_io.IgniteDataset, OF_TENSORFLOW_IO)],
)
def test_the_order_of_arguments(kind, names):
    parameters = inspect.signature(kind).parameters.values()
    assert [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD] == names


def test_arguments_by_position_and_by_name(cache, node):
    positions = tensorflow_io.IgniteDataset(
        cache, *node, None, None, False, "0-1023", 100, "", "", "", "", ""
    )
    names = tensorflow_io.IgniteDataset(
        cache_name=cache, host=node[0], port=node[1], schema_host=node[0], schema_port=node[1], part=-1
    )
    assert keys_of(positions) == keys_of(names) == [0, 1, 2, 3, 4]
    assert keys_of(tensorflow_io.IgniteDataset(cache, *node, where="X > 2")) == [3, 4]
    copy = pickle.loads(pickle.dumps(names))
    assert type(copy) is tensorflow_io.IgniteDataset
    assert keys_of(copy) == [0, 1, 2, 3, 4]


def test_the_schema_comes_from_another_node_where_operations_read_the_rows(cache, node):
    schema = {"schema_host": node[0], "schema_port": node[1]}
    for kind in (contrib.IgniteDataset, tensorflow_io.IgniteDataset):
        rows = kind(cache, *NOWHERE, **schema, read_by="worker")
        assert list(rows.element_spec["val"]) == ["x"]
        with pytest.raises(ConnectionFailed):
            kind(cache, *node, schema_host=NOWHERE[0], schema_port=NOWHERE[1], read_by="worker")


def test_methods_of_version_1(cache, node):
    command = [sys.executable, "-c", GRAPH, node[0], str(node[1]), cache]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "FOUND" in done.stdout, done.stderr
    found = json.loads(done.stdout.partition("FOUND")[2])
    assert found["types"] == "{'key': tf.int64, 'val': {'x': tf.float64}}"
    assert found["shapes"] == "{'key': TensorShape([]), 'val': {'x': TensorShape([])}}"
    assert "Tensor" in found["classes"]
    assert found["keys"] == [[1, 2, 3, 4]] * 2
