"""A change was carried out, and the connection broke before the answer came: it is done once, and said so."""

from __future__ import annotations

import os

import pytest

from ignite_tf_magic.client.client import Cache
from ignite_tf_magic.client.transaction import Transaction
from ignite_tf_magic.errors import ConnectionLost, PathExists, PathNotFound
from ignite_tf_magic.igfs.fsck import fsck
from ignite_tf_magic.igfs.writer import WriteMode
from tests.igfs.conftest import read_all, sweep_until_clean

BLOCK = 16_384


class Loss:
    """Breaks the connection around the next commit, before or after it is carried out."""

    def __init__(self, monkeypatch, when: str) -> None:
        self.when = when
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
            raise ConnectionLost("here", "for this test")

        return broken

    def __call__(self, call, *arguments, **options):
        before = self.num_lost
        self.is_armed = True
        call(*arguments, **options)
        assert self.num_lost == before + 1, "nothing was committed"


@pytest.fixture(params=["before", "after"])
def losing(monkeypatch, request):
    return Loss(monkeypatch, request.param)


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
@pytest.mark.parametrize("mode", list(WriteMode))
def test_whole_files(own_volume, losing, mode, size):
    new = os.urandom(size)
    losing(own_volume.write_file, ("f",), new, mode)
    assert read_all(own_volume, ("f",)) == new
    if mode is not WriteMode.CREATE:
        losing(own_volume.write_file, ("f",), new, mode)
        assert read_all(own_volume, ("f",)) == (new * 2 if mode is WriteMode.APPEND else new)


@pytest.mark.parametrize("mode", [WriteMode.REPLACE, WriteMode.APPEND])
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
