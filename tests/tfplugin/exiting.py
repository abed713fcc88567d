"""Exits with an open writer and reading TensorFlow threads, then uses the plugin after its end."""

from __future__ import annotations

import atexit
import os
import time

ending = False


def tell(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def after_the_plugins_end() -> None:
    """Use the plugin after its end. Runs last, because atexit calls handlers in reverse order."""
    global ending
    ending = True
    time.sleep(0.3)  # TensorFlow's threads keep running
    for name, use in {
        "exists": lambda: tf.io.gfile.stat("mem:///f"),
        "open": lambda: tf.io.gfile.GFile("mem:///f", "rb").read(1),
        "write": lambda: writer.write("more"),
        "close": lambda: writer.close(),
    }.items():
        try:
            use()
        except tf.errors.UnavailableError as error:
            tell(f"{name}: {error.message}")


atexit.register(after_the_plugins_end)

import tensorflow as tf  # noqa: E402

from ignite_tf_magic.tfplugin.handler import Stat  # noqa: E402
from ignite_tf_magic.tfplugin.registration import register_schemes  # noqa: E402
from tests.tfplugin.memory_tree import MemoryTree, Reading, Writing  # noqa: E402


class SlowReading(Reading):
    def read_into(self, offset: int, space: memoryview) -> int:
        if ending:
            tell("Python was entered")
        time.sleep(0.002)
        return len(space)

    def close(self) -> None:
        if ending:
            tell("Python was entered")


class ToldWriting(Writing):
    def close(self) -> None:
        tell("a writer was closed")


class Slow(MemoryTree):
    """Endless files, each slow to read."""

    def stat(self, uri: str) -> Stat:
        return Stat(2**40, 0, is_directory=False)

    def open_read(self, uri: str) -> Reading:
        return SlowReading(self, self.file(uri))

    def open_write(self, uri: str, *, append: bool) -> Writing:
        return ToldWriting(self, super().open_write(uri, append=append).file)


tree = Slow()
register_schemes({"mem": tree})
tf.io.write_file("mem:///f", b"x")
writer = tf.io.gfile.GFile("mem:///open", "w")
writer.write("left open")
dataset = tf.data.Dataset.from_tensor_slices(["mem:///f"] * 8).interleave(
    lambda name: tf.data.FixedLengthRecordDataset(name, 1024, buffer_size=4096),
    cycle_length=4,
    num_parallel_calls=4,
)
rows = iter(dataset.prefetch(100_000))
next(rows)
