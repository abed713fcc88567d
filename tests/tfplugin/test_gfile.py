"""tf.io.gfile and the ops behind it, on an in-memory handler."""

from __future__ import annotations

import ctypes
import os
import random

import numpy as np
import pytest
import tensorflow as tf

from ignite_tf_magic.tfplugin.codes import Code
from ignite_tf_magic.tfplugin.handler import Stat
from ignite_tf_magic.tfplugin.registration import register_schemes
from tests.tfplugin.memory_tree import MemoryTree, Reading, Writing
from tests.tfplugin.raw_plugin import RawPlugin

GIB = 2**30


def test_write_append_read_and_seek(mem):
    with tf.io.gfile.GFile("mem:///f", "w") as file:
        file.write("first line\n")
        file.flush()
        assert file.tell() == 11
        file.write("second")
    assert mem.flushed == 1
    with tf.io.gfile.GFile("mem:///f", "a") as file:
        assert file.tell() == 17
        file.write(" line")
    with tf.io.gfile.GFile("mem:///f") as file:
        assert file.size() == 22
        assert file.readline() == "first line\n"
        assert file.tell() == 11
        file.seek(7)
        assert file.read(4) == "ine\n"
        assert file.read() == "second line"
        assert file.read() == ""
    assert mem.opened == mem.closed == 3


def test_bytes_survive(mem):
    content = random.Random(1).randbytes(3_000_001)
    with tf.io.gfile.GFile("mem:///f", "wb") as file:
        file.write(content)
    assert tf.io.read_file("mem:///f").numpy() == content
    with tf.io.gfile.GFile("mem:///f", "rb") as file:
        file.seek(1_000_003)
        assert file.read(1_000_000) == content[1_000_003:2_000_003]
    tf.io.write_file("mem:///g", b"\0\n\xff")
    assert bytes(mem.files["mem:///g"].data) == b"\0\n\xff"


def test_directories(mem):
    gfile = tf.io.gfile
    gfile.makedirs("mem:///a/b/c")
    gfile.makedirs("mem:///a/b/c")
    gfile.mkdir("mem:///a/d")
    for name in ("1.txt", "2.txt", "3.log"):
        tf.io.write_file(f"mem:///a/b/{name}", name)
    assert gfile.listdir("mem:///a") == ["b", "d"]
    assert gfile.glob("mem:///a/*/*.txt") == ["mem:///a/b/1.txt", "mem:///a/b/2.txt"]
    assert list(tf.io.matching_files("mem:///a/b/[12]*").numpy()) == [
        b"mem:///a/b/1.txt",
        b"mem:///a/b/2.txt",
    ]
    assert list(gfile.walk("mem:///a")) == [
        ("mem:///a", ["b", "d"], []),
        ("mem:///a/b", ["c"], ["1.txt", "2.txt", "3.log"]),
        ("mem:///a/b/c", [], []),
        ("mem:///a/d", [], []),
    ]
    assert gfile.isdir("mem:///a/b")
    assert not gfile.isdir("mem:///a/b/1.txt")
    assert gfile.exists("mem:///a/b/1.txt")
    assert not gfile.exists("mem:///a/b/4.txt")
    gfile.rmtree("mem:///a/b")
    assert gfile.listdir("mem:///a") == ["d"]


def test_rename_copy_remove(mem):
    gfile = tf.io.gfile
    tf.io.write_file("mem:///x", b"x")
    tf.io.write_file("mem:///y", b"y")
    with pytest.raises(tf.errors.AlreadyExistsError):
        gfile.rename("mem:///x", "mem:///y")
    gfile.rename("mem:///x", "mem:///y", overwrite=True)
    gfile.copy("mem:///y", "mem:///z")
    gfile.remove("mem:///y")
    assert {uri: bytes(file.data) for uri, file in mem.files.items()} == {"mem:///z": b"x"}


def test_stat(mem):
    tf.io.write_file("mem:///f", b"12345")
    mem.files["mem:///f"].mtime_ns = 1_700_000_000_123_456_789
    found = tf.io.gfile.stat("mem:///f")
    assert (found.length, found.mtime_nsec, found.is_directory) == (5, 1_700_000_000_123_456_789, False)
    assert tf.io.gfile.stat("mem:///").is_directory


def test_the_authority_reaches_the_handler(mem):
    tf.io.write_file("mem://node-1:10800/f", b"1")
    tf.io.write_file("mem:///f", b"22")
    assert mem.seen == ["mem://node-1:10800/f", "mem:///f"]
    assert tf.io.gfile.glob("mem://node-1:10800/*") == ["mem://node-1:10800/f"]
    assert tf.io.gfile.stat("mem://node-1:10800/f").length == 1


def test_one_plugin_serves_several_schemes(mem):
    other = MemoryTree()
    register_schemes({"mem.other": other})
    tf.io.write_file("mem.other:///f", b"other")
    assert not tf.io.gfile.exists("mem:///f")
    tf.io.gfile.copy("mem.other:///f", "mem:///f")
    assert bytes(mem.files["mem:///f"].data) == b"other"


NAMES = [
    "a b",
    " ",
    "ünï-日本語-🙂",
    "#x",
    "%41%2F",
    "..",
    ".",
    "new\nline",
    "back\\slash",
    "quo'te\"",
    "x" * 1000,
    "q?x=1&y",
]


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_hostile_names(mem, name):
    gfile = tf.io.gfile
    gfile.mkdir("mem:///d")
    uri = f"mem:///d/{name}"
    with gfile.GFile(uri, "w") as file:
        file.write(name)
    assert list(mem.files) == [uri]
    assert gfile.listdir("mem:///d") == [name]
    assert gfile.exists(uri)
    with gfile.GFile(uri) as file:
        assert file.read() == name
    gfile.rename(uri, "mem:///d/plain")
    gfile.rename("mem:///d/plain", uri)
    gfile.remove(uri)
    assert gfile.listdir("mem:///d") == []


def test_a_million_names(mem):
    mem.list_directory = lambda uri: [f"f{i}" for i in range(1_000_000)]
    names = tf.io.gfile.listdir("mem:///")
    assert (len(names), names[0], names[-1]) == (1_000_000, "f0", "f999999")


class Sparse(MemoryTree):
    """Files of 5 GiB whose bytes encode their offsets."""

    class File(Reading):
        def read_into(self, offset, space):
            n = max(0, min(len(space), 5 * GIB - offset))
            for i in range(min(n, 16)):
                space[i] = (offset + i) % 251
            return n

    class Tail(Writing):
        def tell(self):
            return 5 * GIB + len(self.file.data)

    def open_read(self, uri):
        return self.File(self, self.files[uri])

    def open_write(self, uri, *, append):
        return self.Tail(self, super().open_write(uri, append=append).file)

    def stat(self, uri):
        return Stat(5 * GIB, 0, is_directory=False)


@pytest.fixture
def sparse() -> Sparse:
    tree = Sparse()
    register_schemes({"mem": tree})
    tf.io.write_file("mem:///big", b"")
    return tree


def test_offsets_over_4_gib(sparse):
    assert tf.io.gfile.stat("mem:///big").length == 5 * GIB
    start = 5 * GIB - 4
    with tf.io.gfile.GFile("mem:///big", "rb") as file:
        file.seek(start)
        assert file.read(100) == bytes((start + i) % 251 for i in range(4))
    with tf.io.gfile.GFile("mem:///big", "ab") as file:
        file.write(b"12")
        assert file.tell() == 5 * GIB + 2


def test_memory_region(mem):
    values = np.arange(1000, dtype=np.float32)
    tf.io.write_file("mem:///region", values.tobytes())
    tensor = tf.raw_ops.ImmutableConst(dtype=tf.float32, shape=[1000], memory_region_name="mem:///region")
    np.testing.assert_array_equal(tensor.numpy(), values)
    assert mem.opened == mem.closed  # the region is memory, so the file is closed
    plugin = RawPlugin()
    assert plugin.region("mem:///region") == (values.tobytes(), Code.OK, "")
    tf.io.write_file("mem:///empty", b"")
    assert plugin.region("mem:///empty")[1] == Code.INVALID_ARGUMENT
    assert plugin.region("mem:///")[1] == Code.FAILED_PRECONDITION
    assert plugin.region("mem:///missing")[1] == Code.NOT_FOUND


def test_a_writer_that_nobody_closes_is_closed_when_tensorflow_drops_it(mem):
    file = tf.io.gfile.GFile("mem:///f", "w")
    file.write("x")
    del file
    assert mem.opened == mem.closed == 1


def test_what_gfile_does_not_reach(mem):
    """Sync, removing one directory, and empty reads are tested through the plugin's own functions."""
    plugin = RawPlugin()
    assert plugin.path_op("create_dir", "mem:///d") == (0, "")
    assert plugin.path_op("delete_dir", "mem:///d") == (0, "")
    with plugin.writer("mem:///f") as writer:
        assert writer.append(b"123") == (0, "")
        assert writer.call("sync") == (0, "")
        assert writer.tell() == (3, 0, "")
        assert writer.call("close") == (0, "")
        assert writer.append(b"4")[0] == 9
    assert mem.synced == 1
    with plugin.reader("mem:///f") as reader:
        assert reader.read(0, 3) == (b"123", 0, "")
        assert reader.read(3, 0) == (b"", 0, "")
        assert reader.read(1, 3)[:2] == (b"23", 11)
        assert reader.read(2**63 + 5, 3)[:2] == (b"", 11)


@pytest.mark.nightly
def test_memory_stays_flat(mem):
    """Replies, names, messages, files and regions are freed exactly once: a double free aborts.

    Nightly. No shorter one: a leak shows only after many calls.
    """
    tf.io.write_file("mem:///f", os.urandom(200_000))
    for i in range(50):
        tf.io.write_file(f"mem:///name-{i}", b"")

    plugin = RawPlugin()

    def use(times: int) -> None:
        for _ in range(times):
            tf.io.gfile.listdir("mem:///")
            tf.io.read_file("mem:///f")
            tf.io.gfile.exists("mem:///" + "missing" * 100)
            plugin.region("mem:///f")
            with tf.io.gfile.GFile("mem:///g", "w") as file:
                file.write("x" * 10_000)

    def resident() -> int:
        import psutil

        return psutil.Process().memory_info().rss

    use(300)
    before = resident()
    use(1000)
    assert resident() - before < 8 * 2**20  # 1000 leaked regions alone would be 200 MB
    assert mem.opened == mem.closed


def test_reply_layout():
    """The Reply of table.py is the reply_t of C: sizes match in C and ctypes."""
    from ignite_tf_magic.tfplugin.table import Control, HandlerTable, Reply

    pointer = ctypes.sizeof(ctypes.c_void_p)
    assert ctypes.sizeof(Reply) == 40
    assert ctypes.sizeof(HandlerTable) == 8 * pointer
    assert ctypes.sizeof(Control) == 8 + 5 * pointer
