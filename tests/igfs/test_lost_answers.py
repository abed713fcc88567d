"""If the connection breaks before the answer to a change arrives, the change is made exactly once and reported."""

from __future__ import annotations

import os
from itertools import permutations

import pytest

from ignite_tf_magic.client.client import Cache
from ignite_tf_magic.client.transaction import Transaction
from ignite_tf_magic.errors import (
    ConnectionFailed,
    ConnectionLost,
    DeadlineExceeded,
    OutcomeUnknown,
    PathExists,
    PathNotFound,
    ServerError,
)
from ignite_tf_magic.igfs.appends import MAX_MARKS
from ignite_tf_magic.igfs.fsck import fsck
from ignite_tf_magic.igfs.writer import OpenMode
from tests.igfs.conftest import read_all, sweep_until_clean

BLOCK = 16_384


class Loss:
    """Fails the next commit by a broken connection or an error, before or after it is carried out."""

    def __init__(self, monkeypatch, when: str, kind: str = "lost") -> None:
        self.when = when
        self.kind = kind
        # Runs between the change and the error, as another client.
        self.meanwhile = lambda: None
        self.is_armed = False
        self.num_lost = 0
        for owner, name in ((Transaction, "commit"), (Cache, "replace_if_equals")):
            monkeypatch.setattr(owner, name, self._breaking(getattr(owner, name)))

    def _breaking(self, call):
        def broken(owner, *arguments):
            if not self.is_armed:
                return call(owner, *arguments)
            self.is_armed = False
            self.num_lost += 1
            if self.when == "after":
                call(owner, *arguments)
            elif isinstance(owner, Transaction):
                owner.roll_back()
            self.meanwhile()
            if self.kind == "error":
                raise ServerError(1, "for this test", "Failed to update keys (retry update if possible)")
            raise ConnectionLost("here", "for this test")

        return broken

    def __call__(self, call, *arguments, **options):
        before = self.num_lost
        self.is_armed = True
        call(*arguments, **options)
        assert self.num_lost == before + 1, "nothing was committed"


@pytest.fixture(params=["before-lost", "after-lost", "after-error"])
def losing(monkeypatch, request):
    return Loss(monkeypatch, *request.param.split("-"))


@pytest.fixture
def own_volume(new_volume, own_name, quick_leases):
    volume = new_volume(own_name, block_bytes=BLOCK)
    yield volume
    sweep_until_clean(volume)
    report = fsck(volume)
    assert report.problems == ()
    assert report.num_waiting == 0
    assert volume.store.blocks.size() == report.num_blocks


def test_directories_and_names(own_volume, losing):
    losing(own_volume.make_directory, ("a",))
    losing(own_volume.make_directory, ("b",))
    own_volume.write_file(("b", "f"), b"1")
    losing(own_volume.rename, ("b", "f"), ("a", "g"))
    assert read_all(own_volume, ("a", "g")) == b"1"
    losing(own_volume.rename, ("a", "g"), ("a", "h"))
    losing(own_volume.remove_directory, ("b",))
    with pytest.raises(PathExists):
        own_volume.make_directory(("a",))
    losing(own_volume.rename, ("a",), ("c",))
    losing(own_volume.remove_file, ("c", "h"))
    with pytest.raises(PathNotFound):
        own_volume.remove_file(("c", "h"))
    losing(own_volume.remove_directory, ("c",), with_contents=True)
    assert list(own_volume.entries(())) == []


@pytest.mark.parametrize("size", [10, 100_000])
@pytest.mark.parametrize("mode", list(OpenMode))
def test_whole_files(own_volume, losing, mode, size):
    new = os.urandom(size)
    losing(own_volume.write_file, ("f",), new, mode)
    assert read_all(own_volume, ("f",)) == new
    if mode is not OpenMode.CREATE:
        losing(own_volume.write_file, ("f",), new, mode)
        assert read_all(own_volume, ("f",)) == (new * 2 if mode is OpenMode.APPEND else new)


@pytest.mark.parametrize("mode", [OpenMode.REPLACE, OpenMode.APPEND])
def test_flushes(own_volume, losing, mode):
    content = b""
    with own_volume.open_write(("f",), mode) as writer:
        for size in (10, 5000, 100, 40_000, 100, 5000, 5000, 5000, 70_000, 1):
            data = os.urandom(size)
            content += data
            writer.write(data)
            losing(writer.flush)
            assert read_all(own_volume, ("f",)) == content
        data = os.urandom(6000)
        writer.write(data)
        losing(writer.close)
    assert read_all(own_volume, ("f",)) == content + data


def test_cutting(own_volume, losing):
    own_volume.write_file(("f",), b"x" * 100_000)
    losing(own_volume.truncate, ("f",), 50_000)
    assert read_all(own_volume, ("f",)) == b"x" * 50_000


# The file's size before, and the bytes appended: a small row, a merged piece, whole blocks.
APPENDED = [(0, 10), (10, 10), (4000, 500), (10, 40_000), (50_000, 10), (50_000, 40_000)]


@pytest.mark.parametrize(("before", "size"), APPENDED)
def test_an_append_is_made_once_though_another_appends_before_the_error(
    own_volume, new_volume, own_name, losing, before, size
):
    other = new_volume(own_name, block_bytes=BLOCK)
    first, mine, others = os.urandom(before), os.urandom(size), os.urandom(700)
    if before:
        own_volume.write_file(("f",), first)
    losing.meanwhile = lambda: other.write_file(("f",), others, OpenMode.APPEND)
    with own_volume.open_write(("f",), OpenMode.APPEND) as writer:
        writer.write(mine)
        losing(writer.flush)
        writer.write(b"end")
    # A large append first records its intent. The error then hits that record, so the other append comes first.
    assert read_all(own_volume, ("f",)) in {first + a + b + b"end" for a, b in permutations((mine, others))}


def test_a_flush_that_failed_is_cleared_up_before_more_is_written(own_volume, losing, monkeypatch):
    """Looking up the entry fails too: the flush raises, and the writer may write again."""

    def fail(*_):
        raise ConnectionFailed("no node answers, for this test")

    own_volume.write_file(("f",), b"first,")
    with own_volume.open_write(("f",), OpenMode.APPEND) as writer:
        writer.write(b"second,")
        with monkeypatch.context() as patched:
            patched.setattr("ignite_tf_magic.igfs.store.RETRY_S", 0.05)
            losing.meanwhile = lambda: patched.setattr(Cache, "get", fail)
            with pytest.raises(DeadlineExceeded, match="it may have succeeded nevertheless"):
                losing(writer.flush)
        writer.write(b"third")
    assert read_all(own_volume, ("f",)) == b"first,second,third"


def test_many_appenders_later_nobody_can_tell_and_it_is_said(own_volume, monkeypatch):
    """Marks of only the last sixteen writers are kept."""
    losing = Loss(monkeypatch, "after")

    def append_often(times):
        for number in range(times):
            own_volume.write_file(("f",), b"%d," % number, OpenMode.APPEND)

    append_often(1)
    for times in (MAX_MARKS - 1, MAX_MARKS):
        losing.meanwhile = lambda times=times: append_often(times)
        writer = own_volume.open_write(("f",), OpenMode.APPEND)
        writer.write(b"mine,")
        if times < MAX_MARKS:
            losing(writer.flush)
        else:
            with pytest.raises(OutcomeUnknown, match="unknown. Check the file"):
                losing(writer.flush)
            with pytest.raises(OutcomeUnknown):
                writer.write(b"more")
        writer.discard()
    assert read_all(own_volume, ("f",)).count(b"mine,") == 2


def test_what_another_client_made_is_left_alone_after_a_lost_answer(own_volume, losing):
    """A repeated change would hit what another client has since made under the same name."""
    losing.when = "after"
    write = own_volume.write_file
    write(("f",), b"old")
    losing.meanwhile = lambda: write(("f",), b"another's")
    losing(own_volume.remove_file, ("f",))
    assert read_all(own_volume, ("f",)) == b"another's"
    losing(own_volume.rename, ("f",), ("g",))
    assert read_all(own_volume, ("g",)) == b"another's"
    losing.meanwhile = lambda: write(("e",), b"appended", OpenMode.APPEND)
    losing(own_volume.make_file, ("e",))
    assert read_all(own_volume, ("e",)) == b"appended"
    losing.meanwhile = lambda: own_volume.rename(("d",), ("moved",))
    losing(own_volume.make_directory, ("d",))
    ids = [node.id for page in own_volume.entries(()) for name, node in page if name in {"d", "moved"}]
    assert len(set(ids)) == 2
    losing.meanwhile = lambda: own_volume.make_directory(("d",))
    losing(own_volume.remove_directory, ("d",))
    assert own_volume.directory(("d",))
