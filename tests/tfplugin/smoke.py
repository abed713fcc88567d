"""Runs under each TensorFlow of versions.py; prints one JSON object. Needs TensorFlow, NumPy and this package."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tensorflow as tf

from ignite_tf_magic.dataset import tf_private
from ignite_tf_magic.tfplugin import registration
from ignite_tf_magic.tfplugin.registration import register_schemes
from tests.tfplugin.memory_tree import MemoryTree
from tests.tfplugin.raw_plugin import RawPlugin

gfile = tf.io.gfile


def files() -> None:
    gfile.makedirs("mem://h:1/a b/ü")
    with gfile.GFile("mem://h:1/a b/ü/#%", "w") as file:
        file.write("one\n")
        file.flush()
    with gfile.GFile("mem://h:1/a b/ü/#%", "a") as file:
        file.write("two")
        assert file.tell() == 7
    with gfile.GFile("mem://h:1/a b/ü/#%") as file:
        file.seek(4)
        assert file.read() == "two"
    assert gfile.glob("mem://h:1/a b/*/*") == ["mem://h:1/a b/ü/#%"]
    assert gfile.listdir("mem://h:1/a b") == ["ü"]
    assert gfile.isdir("mem://h:1/a b/ü")
    assert not gfile.isdir("mem://h:1/a b/ü/#%")
    gfile.rename("mem://h:1/a b/ü/#%", "mem://h:1/a b/x")
    gfile.copy("mem://h:1/a b/x", "mem:///x")
    gfile.rmtree("mem://h:1/a b")
    assert not gfile.exists("mem://h:1/a b")
    assert gfile.stat("mem:///x").length == 7


def errors() -> None:
    cases: list[tuple[BaseException, type[Exception]]] = [
        (FileNotFoundError("x"), tf.errors.NotFoundError),
        (OSError(errno.ENOTEMPTY, "x"), tf.errors.FailedPreconditionError),
        (OSError(errno.ENOSPC, "x"), tf.errors.ResourceExhaustedError),
        (ConnectionError("x"), tf.errors.UnavailableError),
        (KeyboardInterrupt("x"), tf.errors.CancelledError),
        (KeyError("x"), tf.errors.InternalError),
    ]
    for error, expected in cases:

        def fail(uri: str, error: BaseException = error) -> None:
            raise error

        broken = MemoryTree()
        broken.stat = fail  # type: ignore[method-assign]
        register_schemes({"mem": broken})
        try:
            gfile.stat("mem:///f")
        except expected as seen:
            assert type(error).__name__ in str(seen)
        else:
            raise AssertionError(f"{error!r} did not raise {expected}")
    register_schemes({"mem": tree})


def readers() -> None:
    rows = [bytes([i % 256]) * i for i in range(1, 400)]
    with tf.io.TFRecordWriter("mem:///rows") as writer:
        for row in rows:
            writer.write(row)
    names = tf.data.Dataset.from_tensor_slices(["mem:///rows"] * 8)
    read = names.interleave(tf.data.TFRecordDataset, cycle_length=4, num_parallel_calls=4)
    assert sorted(read.as_numpy_iterator()) == sorted(rows * 8)
    values = np.arange(100, dtype=np.float32)
    tf.io.write_file("mem:///region", values.tobytes())
    mapped = tf.raw_ops.ImmutableConst(dtype=tf.float32, shape=[100], memory_region_name="mem:///region")
    np.testing.assert_array_equal(mapped.numpy(), values)


def checkpoint() -> None:
    variable = tf.Variable(np.arange(10_000, dtype=np.float32))
    path = tf.train.Checkpoint(v=variable).save("mem:///ckpt/c")
    variable.assign(tf.zeros_like(variable))
    tf.train.Checkpoint(v=variable).restore(path).assert_consumed()
    assert float(variable[9_999]) == 9_999


def saved_model() -> None:
    module = tf.Module()
    module.v = tf.Variable(2.0)
    module.double = tf.function(lambda x: x * module.v, input_signature=[tf.TensorSpec([], tf.float32)])
    tf.saved_model.save(module, "mem:///model")
    loaded = tf.saved_model.load("mem:///model")
    assert float(loaded.double(tf.constant(3.0))) == 6.0


def summaries() -> None:
    with tf.summary.create_file_writer("mem:///events").as_default():
        tf.summary.write("loss", 0.5, step=1)  # scalar() would need TensorBoard
    assert len(gfile.glob("mem:///events/*")) == 1


def nobody_else() -> None:
    try:
        register_schemes({"ram": tree})
    except registration.PluginUnavailable:
        return
    raise AssertionError("ram:// is TensorFlow's own")


def raw() -> None:
    with RawPlugin().reader("mem:///x") as reader:
        assert reader.read(4, 10)[:2] == (b"two", 11)


def private_parts() -> None:
    """Check the private TensorFlow API. Runs last, because it creates graphs and seeds."""
    if found := tf_private.changed():
        raise AssertionError(found)


tree = MemoryTree()
register_schemes({"mem": tree})
register_schemes({"mem": tree, "mem.two": tree})
CHECKS: list[Callable[[], None]] = [
    files,
    errors,
    readers,
    checkpoint,
    saved_model,
    summaries,
    nobody_else,
    raw,
    private_parts,
]
outcome = {}
for check in CHECKS:
    try:
        check()
        outcome[check.__name__] = "passed"
    except Exception as error:  # noqa: BLE001 - the outcome is printed
        outcome[check.__name__] = f"{type(error).__name__}: {error}"
library = Path(registration._library_path())
ctypes.CDLL(str(library))
print(
    json.dumps(
        {
            "tensorflow": tf.__version__,
            "numpy": np.__version__,
            "library": hashlib.sha256(library.read_bytes()).hexdigest()[:16],
            "checks": outcome,
        }
    )
)
