"""TensorFlow's view of a handler that fails in any callback, or returns invalid answers."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from ignite_tf_magic.errors import (
    CacheNotFound,
    ConnectionLost,
    DeadlineExceeded,
    PartitionsLost,
    ServerError,
)
from ignite_tf_magic.tfplugin.codes import Code
from ignite_tf_magic.tfplugin.handler import Stat
from ignite_tf_magic.tfplugin.registration import register_schemes
from tests.tfplugin.memory_tree import MemoryTree, Reading, Writing
from tests.tfplugin.raw_plugin import RawPlugin


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class OwnInterrupt(BaseException):
    pass


ERRORS: list[tuple[BaseException, type[tf.errors.OpError], str]] = [
    (FileNotFoundError(errno.ENOENT, "gone"), tf.errors.NotFoundError, "gone"),
    (FileExistsError("there"), tf.errors.AlreadyExistsError, "there"),
    (IsADirectoryError("a directory"), tf.errors.FailedPreconditionError, "a directory"),
    (NotADirectoryError("a file"), tf.errors.FailedPreconditionError, "a file"),
    (OSError(errno.ENOTEMPTY, "full of files"), tf.errors.FailedPreconditionError, "full of files"),
    (OSError(errno.ESTALE, "replaced"), tf.errors.FailedPreconditionError, "replaced"),
    (PermissionError("not yours"), tf.errors.PermissionDeniedError, "not yours"),
    (OSError(errno.ENOSPC, "no room"), tf.errors.ResourceExhaustedError, "no room"),
    (ConnectionResetError("reset"), tf.errors.UnavailableError, "reset"),
    (ConnectionLost("n:1", "cut"), tf.errors.UnavailableError, "lost the connection to the Ignite node"),
    (TimeoutError("late"), tf.errors.DeadlineExceededError, "late"),
    (DeadlineExceeded("too late"), tf.errors.DeadlineExceededError, "too late"),
    (ValueError("a bad name"), tf.errors.InvalidArgumentError, "a bad name"),
    (NotImplementedError("no such thing"), tf.errors.UnimplementedError, "no such thing"),
    (CacheNotFound("MNIST", (), 0), tf.errors.NotFoundError, "no cache 'MNIST'"),
    (PartitionsLost("MNIST", [3], "dead"), tf.errors.DataLossError, "lost partitions 3"),
    (ServerError(1, "GET", "boom"), tf.errors.InternalError, "ServerError: GET failed on the server"),
    (KeyboardInterrupt(), tf.errors.CancelledError, "KeyboardInterrupt"),
    (SystemExit(3), tf.errors.InternalError, "SystemExit: 3"),
    (OwnInterrupt("own"), tf.errors.InternalError, "OwnInterrupt: own"),
    (OSError(errno.EIO, "disk"), tf.errors.InternalError, "disk"),
    (KeyError("k"), tf.errors.InternalError, "KeyError: 'k'"),
    (MemoryError(), tf.errors.InternalError, "MemoryError"),
    (Unprintable(), tf.errors.InternalError, "interrupted before it answered"),
]


class Faulty(MemoryTree):
    """A tree that raises `error` from its own or its files' method named `fault`."""

    fault = ""
    error: BaseException = RuntimeError()

    def __getattribute__(self, name: str) -> Any:
        if name == object.__getattribute__(self, "fault"):
            raise self.error
        return object.__getattribute__(self, name)

    def open_read(self, uri):
        return FaultyFile(self, super().open_read(uri))

    def open_write(self, uri, *, append):
        return FaultyFile(self, super().open_write(uri, append=append))


class FaultyFile:
    def __init__(self, tree: Faulty, file: Reading | Writing) -> None:
        self.tree, self.file = tree, file

    def __getattr__(self, name: str) -> Any:
        if name == self.tree.fault:
            raise self.tree.error
        return getattr(self.file, name)


def write(uri: str, mode: str = "w") -> None:
    with tf.io.gfile.GFile(uri, mode) as file:
        file.write("x")


def with_writer(use: Callable[[Any], object]) -> Callable[[], None]:
    def act() -> None:
        with tf.io.gfile.GFile("mem:///w", "w") as file:
            file.write("x")
            use(file)

    return act


GFILE = tf.io.gfile
# The failing method, and a TensorFlow call that reaches it.
CALLS: dict[str, tuple[str, Callable[[], object]]] = {
    "open_read": ("open_read", lambda: tf.io.read_file("mem:///f")),
    "open_write": ("open_write", lambda: write("mem:///w")),
    "open_append": ("open_write", lambda: write("mem:///f", "a")),
    "stat": ("stat", lambda: GFILE.stat("mem:///f")),
    "size": ("stat", lambda: GFILE.GFile("mem:///f").size()),
    "list_directory": ("list_directory", lambda: GFILE.listdir("mem:///d")),
    "make_directories": ("make_directories", lambda: GFILE.makedirs("mem:///n/m")),
    "remove_file": ("remove_file", lambda: GFILE.remove("mem:///f")),
    "remove_tree": ("remove_tree", lambda: GFILE.rmtree("mem:///d")),
    "rename": ("rename", lambda: GFILE.rename("mem:///f", "mem:///g")),
    "copy": ("copy", lambda: GFILE.copy("mem:///f", "mem:///g")),
    "read_into": ("read_into", lambda: tf.io.read_file("mem:///f")),
    "append": ("append", lambda: write("mem:///w")),
    "tell": ("tell", with_writer(lambda file: file.tell())),
    "flush": ("flush", with_writer(lambda file: file.flush())),
    "close": ("close", lambda: write("mem:///w")),
}


@pytest.fixture
def faulty() -> Faulty:
    tree = Faulty()
    register_schemes({"mem": tree})
    return tree


@pytest.mark.parametrize("call", CALLS)
def test_every_callback_reports_every_error(faulty, call):
    fault, act = CALLS[call]
    for error, expected, words in ERRORS:
        faulty.fault = ""
        GFILE.makedirs("mem:///d")
        tf.io.write_file("mem:///f", b"x")
        faulty.fault, faulty.error = fault, error
        with pytest.raises(expected) as raised:
            act()
        assert words in raised.value.message
        if not isinstance(error, Unprintable):
            assert type(error).__name__ in raised.value.message
            assert "mem:///" in raised.value.message
        faulty.fault = ""


@pytest.mark.parametrize(("error", "expected", "words"), ERRORS, ids=lambda value: type(value).__name__)
def test_the_callbacks_that_gfile_does_not_reach(faulty, error, expected, words):
    plugin = RawPlugin()
    GFILE.makedirs("mem:///d")
    tf.io.write_file("mem:///f", b"x")
    code_of_class = {getattr(tf.errors, name): code for name, code in error_codes().items()}
    with plugin.writer("mem:///w") as writer:
        faulty.error = error
        for fault, act in (
            ("make_directory", lambda: plugin.path_op("create_dir", "mem:///n")),
            ("remove_directory", lambda: plugin.path_op("delete_dir", "mem:///d")),
            ("read_into", lambda: plugin.region("mem:///f")[1:]),
            ("sync", lambda: writer.call("sync")),
        ):
            faulty.fault = fault
            code, message = act()
            assert code == code_of_class[expected]
            assert words in message
        faulty.fault = ""


def error_codes() -> dict[str, int]:
    """Return codes by class name (NotFoundError: 5, ...) from our list; test_abi compares it with TensorFlow's."""
    return {"".join(part.title() for part in code.name.split("_")) + "Error": code for code in Code if code}


def test_the_message_carries_the_cause(faulty):
    def stat(uri):
        try:
            raise ConnectionResetError("reset by peer")
        except ConnectionResetError as error:
            raise FileNotFoundError("no metadata") from error

    faulty.stat = stat
    with pytest.raises(tf.errors.NotFoundError) as raised:
        GFILE.stat("mem:///a b")
    assert raised.value.message == (
        "stat mem:///a b: FileNotFoundError: no metadata; caused by ConnectionResetError: reset by peer"
    )


def test_both_paths_are_named(faulty):
    with pytest.raises(tf.errors.NotFoundError, match="rename mem:///nope to mem:///x: FileNotFoundError"):
        GFILE.rename("mem:///nope", "mem:///x")


@pytest.mark.parametrize("answer", [-1, 2, 2**40, -(2**63), None, "1", 1.5])
def test_an_impossible_number_of_bytes_read(faulty, answer, monkeypatch):
    tf.io.write_file("mem:///f", b"x")
    monkeypatch.setattr(Reading, "read_into", lambda self, offset, space: answer)
    with RawPlugin().reader("mem:///f") as reader:
        data, code, message = reader.read(0, 1)
    assert (data, code) == (None, Code.INTERNAL)
    assert "impossible number of bytes" in message or "TypeError" in message


@pytest.mark.parametrize("answer", [-1, -(2**63), None])
def test_an_impossible_position(faulty, answer, monkeypatch):
    monkeypatch.setattr(Writing, "tell", lambda self: answer)
    with pytest.raises(tf.errors.InternalError, match="negative position|TypeError"):
        CALLS["tell"][1]()


def test_an_impossible_length(faulty):
    faulty.stat = lambda uri: Stat(-1, 0, is_directory=False)
    with pytest.raises(tf.errors.InternalError, match="negative file length"):
        GFILE.stat("mem:///f")
    assert RawPlugin().region("mem:///f")[1] == Code.INTERNAL


@pytest.mark.parametrize("names", [["a\0b"], None, [b"bytes"], ["\udc80"]])
def test_impossible_names(faulty, names):
    faulty.list_directory = lambda uri: names
    with pytest.raises((tf.errors.InternalError, tf.errors.InvalidArgumentError)):
        tf.io.gfile.listdir("mem:///")


def test_a_region_of_a_file_that_shrank(faulty):
    faulty.stat = lambda uri: Stat(100, 0, is_directory=False)
    tf.io.write_file("mem:///f", b"x")
    assert RawPlugin().region("mem:///f") == (b"x", Code.OK, "")


def test_a_close_that_fails_is_not_tried_again(faulty, monkeypatch):
    tries = []

    def close(self):
        tries.append(1)
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(Writing, "close", close)
    with pytest.raises(tf.errors.ResourceExhaustedError):
        write("mem:///f")
    assert len(tries) == 1


def test_a_close_that_nobody_asked_for_is_logged(faulty, caplog):
    file = tf.io.gfile.GFile("mem:///f", "w")
    file.write("x")
    faulty.fault, faulty.error = "close", OSError(errno.ENOSPC, "no room")
    del file
    assert "close mem:///f: OSError: [Errno 28] no room" in caplog.text


def test_a_uri_that_is_no_utf8(faulty):
    with pytest.raises(tf.errors.InvalidArgumentError, match="UnicodeDecodeError"):
        tf.io.read_file(b"mem:///\xff")
