"""TensorFlow's own readers and writers use the plugin from their own threads."""

from __future__ import annotations

import hashlib
import random
import threading

import numpy as np
import tensorflow as tf


def test_many_threads_read_files_at_once(mem):
    random_bytes = random.Random(2)
    content = {f"mem:///{i}": random_bytes.randbytes(200 * 1024) for i in range(12)}
    for uri, data in content.items():
        tf.io.write_file(uri, data)
    records = (
        tf.data.Dataset.from_tensor_slices(sorted(content))
        .interleave(
            lambda uri: (
                tf.data.FixedLengthRecordDataset(uri, 1024, buffer_size=4096)
                .enumerate()
                .map(lambda number, record: (uri, number, record))
            ),
            cycle_length=8,
            num_parallel_calls=8,
            deterministic=False,
        )
        .prefetch(64)
    )
    rows: dict[str, dict[int, bytes]] = {uri: {} for uri in content}
    for uri, number, record in records.as_numpy_iterator():
        rows[uri.decode()][int(number)] = record
    found = {uri: b"".join(parts[i] for i in sorted(parts)) for uri, parts in rows.items()}
    assert {uri: hashlib.sha256(data).hexdigest() for uri, data in found.items()} == {
        uri: hashlib.sha256(data).hexdigest() for uri, data in content.items()
    }


def test_one_file_open_is_read_by_many_threads(mem):
    content = random.Random(3).randbytes(1_000_000)
    tf.io.write_file("mem:///f", content)
    from tests.tfplugin.raw_plugin import RawPlugin

    wrong = []
    with RawPlugin().reader("mem:///f") as reader:

        def read(seed: int) -> None:
            places = random.Random(seed)
            for _ in range(200):
                offset, size = places.randrange(len(content)), places.randrange(1, 5000)
                if reader.read(offset, size)[0] != content[offset : offset + size]:
                    wrong.append((offset, size))

        threads = [threading.Thread(target=read, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_tfrecords(mem):
    rows = [f"row {i}".encode() * (i + 1) for i in range(500)]
    for compression in ("", "GZIP"):
        with tf.io.TFRecordWriter("mem:///rows", options=compression) as writer:
            for row in rows:
                writer.write(row)
        dataset = tf.data.TFRecordDataset("mem:///rows", compression_type=compression)
        assert list(dataset.as_numpy_iterator()) == rows


def test_text_lines(mem):
    tf.io.write_file("mem:///t", "ä\nb\r\n\nlast")
    assert list(tf.data.TextLineDataset("mem:///t").as_numpy_iterator()) == ["ä".encode(), b"b", b"", b"last"]


def test_checkpoint(mem):
    variable = tf.Variable(np.arange(300_000, dtype=np.float32))
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(v=variable), "mem:///ckpt", max_to_keep=2)
    for step in range(4):
        variable.assign_add(tf.ones_like(variable))
        manager.save(step)
    names = {uri.rpartition("/")[2] for uri in mem.files}
    assert {name for name in names if name.endswith(".index")} == {"ckpt-2.index", "ckpt-3.index"}
    variable.assign(tf.zeros_like(variable))
    tf.train.Checkpoint(v=variable).restore(tf.train.latest_checkpoint("mem:///ckpt")).assert_consumed()
    np.testing.assert_array_equal(variable.numpy(), np.arange(300_000, dtype=np.float32) + 4)


def test_summaries(mem):
    with tf.summary.create_file_writer("mem:///events").as_default():
        tf.summary.write("loss", 0.25, step=3)
        tf.summary.flush()
    (name,) = tf.io.gfile.glob("mem:///events/events.out.tfevents.*")
    events = [
        tf.compat.v1.Event.FromString(record) for record in tf.data.TFRecordDataset(name).as_numpy_iterator()
    ]
    assert [(e.step, e.summary.value[0].tag) for e in events if e.summary.value] == [(3, "loss")]
