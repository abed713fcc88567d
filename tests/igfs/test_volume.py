"""Files and directories on real nodes: random operations compared with a real disk, and edge cases."""

from __future__ import annotations

import errno
import os
import random
import shutil
import sys
import time
from pathlib import Path as DiskPath

import pytest

from ignite_tf_magic.errors import (
    ConnectionFailed,
    DirectoryNotEmpty,
    FileSystemNotFound,
    InvalidPath,
    PathExists,
    PathIsDirectory,
    PathNotDirectory,
    PathNotFound,
    StaleFile,
)
from ignite_tf_magic.igfs import layout, names
from ignite_tf_magic.igfs import lease_manager as keeper
from ignite_tf_magic.igfs.fsck import fsck
from ignite_tf_magic.igfs.layout import DirectoryNode, FileNode
from ignite_tf_magic.igfs.paths import parse
from ignite_tf_magic.igfs.volume import Volume
from ignite_tf_magic.igfs.writer import OpenMode
from ignite_tf_magic.settings.options import ConnectOptions, Endpoint
from tests.igfs.conftest import read_all, sweep_until_clean
from tests.waiting import until

SIZES = [0, 1, 100, 4095, 4096, 4097, 16_384, 16_385, 40_000, 70_000]
SOME_NAMES = ["a", "b", "c d#%20", "é?*", "..x"]


class Disk:
    """A directory of the disk, with the operations of a volume."""

    def __init__(self, root: DiskPath) -> None:
        self.root = root

    def __call__(self, path):
        return self.root.joinpath(*path)

    def write(self, path, pieces):
        with self(path).open("wb") as file:
            file.writelines(pieces)

    def append(self, path, pieces):
        with self(path).open("ab") as file:
            file.writelines(pieces)

    def make(self, path):
        self(path).mkdir()

    def cut(self, path, size):
        os.truncate(self(path), size)

    def rename(self, path, target):
        self(path).rename(self(target))

    def remove(self, path):
        self(path).unlink()

    def remove_empty(self, path):
        self(path).rmdir()

    def remove_tree(self, path):
        shutil.rmtree(self(path))

    def files(self):
        return {
            tuple(found.relative_to(self.root).parts): found.read_bytes() if found.is_file() else None
            for found in self.root.rglob("*")
        }


class Igfs:
    """A directory of a volume, with the same operations."""

    def __init__(self, volume, root) -> None:
        self.volume = volume
        self.root = root

    def _write(self, path, pieces, mode):
        with self.volume.open_write((*self.root, *path), mode) as writer:
            for piece in pieces:
                writer.write(piece)
                if len(pieces) > 1:
                    writer.flush()

    def write(self, path, pieces):
        self._write(path, pieces, OpenMode.REPLACE)

    def append(self, path, pieces):
        self._write(path, pieces, OpenMode.APPEND)

    def make(self, path):
        self.volume.make_directory((*self.root, *path))

    def cut(self, path, size):
        self.volume.truncate((*self.root, *path), size)

    def rename(self, path, target):
        self.volume.rename((*self.root, *path), (*self.root, *target))

    def remove(self, path):
        self.volume.remove_file((*self.root, *path))

    def remove_empty(self, path):
        self.volume.remove_directory((*self.root, *path))

    def remove_tree(self, path):
        self.volume.remove_directory((*self.root, *path), with_contents=True)

    def files(self, below=()):
        found = {}
        for page in self.volume.entries((*self.root, *below)):
            for name, node in page:
                path = (*below, name)
                if isinstance(node, DirectoryNode):
                    found |= {path: None} | self.files(path)
                else:
                    found[path] = read_all(self.volume, (*self.root, *path))
        return found


def outcome(call, *arguments):
    """Return the errno of the call, 0 without an error."""
    try:
        call(*arguments)
    except OSError as error:
        return error.errno
    return 0


def step(rng, known):
    """Return a random operation and its arguments, mostly for existing paths."""

    def path():
        if known and rng.random() < 0.7:
            return rng.choice(sorted(known))
        above = rng.choice([(), *sorted(known)])
        return (*above, rng.choice(SOME_NAMES))

    name = rng.choices(
        ["write", "append", "make", "cut", "rename", "remove", "remove_empty", "remove_tree"],
        [5, 8, 4, 3, 6, 2, 1, 0.5],
    )[0]
    if name in ("write", "append"):
        return name, path(), [rng.randbytes(rng.choice(SIZES)) for _ in range(rng.choice([1, 1, 2, 4]))]
    if name == "cut":
        return name, path(), rng.choice(SIZES)
    return (name, path(), path()) if name == "rename" else (name, path())


@pytest.mark.parametrize("seed", [1, 2])
def test_a_random_walk_goes_as_on_a_disk(new_volume, own_name, quick_leases, tmp_path, seed):
    rng = random.Random(seed)
    volume = new_volume(own_name, block_bytes=16 * 1024)
    volume.make_directory(("root",), parents=True)
    disk, igfs = Disk(tmp_path / "disk"), Igfs(volume, ("root",))
    disk.root.mkdir()
    known, errors = set(), set()
    for number in range(180):
        name, *arguments = step(rng, known)
        expected, found = (outcome(getattr(fs, name), *arguments) for fs in (disk, igfs))
        shown = [a if isinstance(a, tuple | int) else [len(x) for x in a] for a in arguments]
        if name == "rename" and expected:
            assert found, (number, name, shown, errno.errorcode[expected])
        else:
            assert found == expected, (number, name, shown)
        errors.add(expected)
        files = disk.files()
        known = set(files)
        if number % 20 == 19:
            assert igfs.files() == files
    assert igfs.files() == files
    assert len(errors) > 4, "a walk without errors shows little"
    volume.remove_directory(("root",), with_contents=True)
    sweep_until_clean(volume)
    assert volume.store.blocks.size() == 0
    report = fsck(volume)
    assert (report.is_clean, report.num_files, report.num_waiting) == (True, 0, 0), report


def test_a_walk_of_appends_merges_pieces_and_keeps_every_byte(volume, here):
    rng = random.Random(3)
    path, content = (*here, "log"), b""
    for _ in range(12):
        with volume.open_write(path, OpenMode.APPEND) as writer:
            for _ in range(12):
                data = rng.randbytes(rng.choice([10, 1000, 4096, 5000, 9000, 30_000]))
                writer.write(data)
                writer.flush()
                content += data
                assert writer.tell() == len(content)
    assert read_all(volume, path) == content
    node = volume.stat(path)
    assert node.size == len(content)
    assert len(node.extents) < 60, "pieces are not merged"


def test_a_hundred_bytes_rewrite_no_block(volume, here):
    path = (*here, "log")
    volume.write_file(path, bytes(300_000))
    keys = set(block_keys(volume.stat(path)))
    with volume.open_write(path, OpenMode.APPEND) as writer:
        for _ in range(30):
            writer.write(bytes(100))
            writer.flush()
            assert set(block_keys(volume.stat(path))) == keys


def block_keys(node):
    return [key for extent in node.extents for key in extent.block_keys()]


def test_ranges(volume, here):
    rng = random.Random(4)
    content = rng.randbytes(1_000_003)
    path = (*here, "f")
    volume.write_file(path, content)
    with volume.open_read(path) as reader:
        for _ in range(150):
            start = rng.randrange(len(content) + 10)
            space = bytearray(b"?" * rng.choice([0, 1, 100, 65_536, 65_537, 400_000]))
            num_bytes = reader.read_into(start, memoryview(space))
            expected = content[start : start + len(space)]
            assert num_bytes == len(expected)
            assert space[:num_bytes] == expected
            assert set(space[num_bytes:]) <= {ord("?")}


@pytest.mark.nightly
def test_offsets_beyond_4_gib(volume, here):
    """A file of 5 GiB that repeats the same blocks: only its record is crafted.

    Nightly. Shorter: tests/igfs/test_igfs_layout.py::test_files_of_many_gigabytes
    """
    path = (*here, "big")
    volume.write_file(path, b"x" * 65_536 * 2)
    node = volume.stat(path)
    (extent,) = node.extents
    first = extent._replace(num_blocks=1)
    volume.write_file((*here, "end"), b"the end".ljust(65_536, b"."))
    (end,) = volume.stat((*here, "end")).extents
    crafted = FileNode(node.version, 0, 0, (*[first, extent] * 30_000, end), b"tail")
    assert crafted.size > 5 << 30
    directory = volume.stat(here)
    key = layout.entry_key(directory.id, "big")
    volume.store.transact(lambda changes: changes.write({key: layout.encode(crafted)}))
    assert volume.stat(path).size == crafted.size
    start = crafted.size - 4 - 65_536 - 3
    with volume.open_read(path) as reader:
        space = bytearray(20)
        assert reader.read_into(start, memoryview(space)) == 20
        assert space == b"xxxthe end.........."
        assert reader.read_into(crafted.size - 4, memoryview(space)) == 4
        assert space[:4] == b"tail"
    with volume.open_write(path, OpenMode.APPEND) as writer:
        writer.write(b"more")
    assert volume.stat(path).size == crafted.size + 4
    volume.store.transact(lambda changes: changes.write({key: layout.encode(node)}))


@pytest.mark.parametrize(
    "size", [0, 1, 4096, 65_535, 65_536, 65_537, 100_000, 199_999, 200_000, 200_001, 400_000]
)
def test_cutting_and_filling(volume, here, size):
    content = random.Random(5).randbytes(200_000)
    path = (*here, "f")
    volume.write_file(path, content)
    before = set(block_keys(volume.stat(path)))
    volume.truncate(path, size)
    assert read_all(volume, path) == content[:size].ljust(size, b"\0")
    assert len(before & set(block_keys(volume.stat(path)))) >= min(size, 200_000) // 65_536, (
        "blocks were copied"
    )


def test_a_file_that_grew_while_it_was_cut_is_cut_whole(volume, here, monkeypatch):
    """Otherwise the cut file would name pieces that an append has merged."""
    path = (*here, "f")
    content = b""
    with volume.open_write(path) as writer:
        for number in range(8):
            content += bytes([number]) * 5000
            writer.write(bytes([number]) * 5000)
            writer.flush()
    with volume.open_write(path, OpenMode.REPLACE) as cutting:
        cutting.keep(30_000)
        with volume.open_write(path, OpenMode.APPEND) as writer:
            for _ in range(20):
                writer.write(bytes(5000))
                writer.flush()
        with pytest.raises(StaleFile, match="cut"):
            cutting.flush()
        cutting.discard()
    volume.truncate(path, 30_000)
    assert read_all(volume, path) == content[:30_000]


def test_errors_are_those_of_a_disk(volume, here):
    file, directory, missing = (*here, "file"), (*here, "dir"), (*here, "missing")
    volume.write_file(file, b"x")
    volume.make_directory(directory)
    volume.write_file((*directory, "inner"), b"y")
    for error, call in [
        (PathNotFound, lambda: volume.stat(missing)),
        (PathNotFound, lambda: volume.open_read(missing)),
        (PathNotFound, lambda: volume.open_write((*missing, "f"))),
        (PathNotFound, lambda: volume.make_directory((*missing, "d"))),
        (PathNotFound, lambda: volume.remove_file(missing)),
        (PathNotFound, lambda: volume.remove_directory(missing)),
        (PathNotFound, lambda: volume.rename(missing, file)),
        (PathNotFound, lambda: volume.rename(file, (*missing, "f"))),
        (PathNotFound, lambda: list(volume.entries(missing))),
        (PathNotFound, lambda: volume.truncate(missing, 1)),
        (PathIsDirectory, lambda: volume.open_read(directory)),
        (PathIsDirectory, lambda: volume.open_write(directory)),
        (PathIsDirectory, lambda: volume.open_write(directory, OpenMode.APPEND)),
        (PathIsDirectory, lambda: volume.open_write(())),
        (PathIsDirectory, lambda: volume.open_read(())),
        (PathIsDirectory, lambda: volume.remove_file(directory)),
        (PathIsDirectory, lambda: volume.remove_file(())),
        (PathIsDirectory, lambda: volume.rename(file, directory)),
        (PathIsDirectory, lambda: volume.truncate(directory, 1)),
        (PathNotDirectory, lambda: volume.stat((*file, "x"))),
        (PathNotDirectory, lambda: volume.open_write((*file, "x"))),
        (PathNotDirectory, lambda: volume.make_directory((*file, "x"))),
        (PathNotDirectory, lambda: volume.make_directory((*file, "x"), parents=True)),
        (PathNotDirectory, lambda: volume.make_directory(file, parents=True, exist_ok=True)),
        (PathNotDirectory, lambda: volume.remove_directory(file)),
        (PathNotDirectory, lambda: volume.rename(directory, file)),
        (PathNotDirectory, lambda: list(volume.entries(file))),
        (PathExists, lambda: volume.make_directory(directory)),
        (PathExists, lambda: volume.make_directory(file)),
        (PathExists, lambda: volume.open_write(file, OpenMode.CREATE)),
        (PathExists, lambda: volume.make_directory(())),
        (DirectoryNotEmpty, lambda: volume.remove_directory(directory)),
        (InvalidPath, lambda: volume.remove_directory((), with_contents=True)),
        (InvalidPath, lambda: volume.rename((), directory)),
        (InvalidPath, lambda: volume.rename(directory, (*directory, "below"))),
        (InvalidPath, lambda: volume.truncate(file, -1)),
    ]:
        with pytest.raises(error) as caught:
            call()
        assert caught.value.errno == error.CODE
        assert len(str(caught.value)) > 15, "a message says what is wrong, and with what"
    assert read_all(volume, file) == b"x"
    assert read_all(volume, (*directory, "inner")) == b"y"


def test_a_directory_with_contents_is_not_replaced(volume, here):
    for name in "ab":
        volume.make_directory((*here, name))
        volume.write_file((*here, name, "f"), name.encode())
    with pytest.raises(DirectoryNotEmpty):
        volume.rename((*here, "a"), (*here, "b"))
    volume.remove_file((*here, "b", "f"))
    volume.rename((*here, "a"), (*here, "b"))
    assert read_all(volume, (*here, "b", "f")) == b"a"
    with pytest.raises(PathNotFound):
        volume.stat((*here, "a"))


def test_a_directory_is_renamed_with_all_below_it_and_found_by_others(new_volume, volume, here):
    other = new_volume()
    volume.make_directory((*here, "x", "y", "z"), parents=True)
    volume.write_file((*here, "x", "y", "z", "f"), b"1")
    assert read_all(other, (*here, "x", "y", "z", "f")) == b"1"
    volume.rename((*here, "x", "y"), (*here, "q"))
    for client in (volume, other):
        assert read_all(client, (*here, "q", "z", "f")) == b"1"
        with pytest.raises(PathNotFound):
            client.stat((*here, "x", "y", "z", "f"))
    volume.make_directory((*here, "x", "y", "z"), parents=True)
    with pytest.raises(PathNotFound):
        other.stat((*here, "x", "y", "z", "f"))


def test_three_thousand_files_in_a_directory(new_volume, own_name, quick_leases):
    volume = new_volume(own_name)
    volume.make_directory(("d",))
    directory = volume.stat(("d",))
    many = [f"events.{number:05d}" for number in range(3000)]
    node = layout.encode(FileNode(5, 1, 2, (), b"abc"))
    rows, tree = {}, {}
    for name in many:
        rows[layout.entry_key(directory.id, name)] = node
        tree |= names.add(tree, name)
    rows |= {names.row_key(directory.id, place): names.encode(found) for place, found in tree.items()}
    volume.store.transact(lambda changes: changes.write(rows))
    pages = list(volume.entries(("d",)))
    assert sorted(name for page in pages for name, _ in page) == many
    assert max(map(len, pages)) <= 1000
    assert volume.stat(("d", "events.02999")).size == 3
    with pytest.raises(DirectoryNotEmpty):
        volume.remove_directory(("d",))
    volume.rename(("d", "events.00000"), ("d", "zero"))
    volume.remove_file(("d", "events.00001"))
    assert {name for page in volume.entries(("d",)) for name, _ in page} == {"zero", *many[2:]}
    for number in range(20):
        volume.write_file(("d", f"new{number}"), b"")
    assert sum(map(len, volume.entries(("d",)))) == 3019
    volume.remove_directory(("d",), with_contents=True)
    sweep_until_clean(volume)
    assert volume.store.meta.size() == 0


@pytest.fixture
def few_frames():
    """Limit the recursion depth below the depth of the test's tree."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(250)
    yield 250
    sys.setrecursionlimit(before)


def test_a_very_deep_tree_is_removed_whole(new_volume, own_name, few_frames):
    volume = new_volume(own_name)
    volume.make_directory(("d",))
    above = volume.stat(("d",))
    rows = {}
    for number in range(few_frames):
        made = DirectoryNode(layout.new_id(), number)
        rows[layout.entry_key(above.id, "d")] = layout.encode(made)
        rows[names.row_key(above.id, "")] = names.encode(names.NameLeaf(("d",)))
        above = made
    volume.store.transact(lambda changes: changes.write(rows))
    volume.remove_directory(("d",), with_contents=True)
    sweep_until_clean(volume)
    assert volume.store.meta.size() == 0


def test_a_tree_is_removed_with_its_blocks(new_volume, own_name, quick_leases):
    volume = new_volume(own_name, block_bytes=16_384)
    for path in ("a/b/c", "a/d"):
        volume.make_directory(parse(path), parents=True)
        for number in range(5):
            volume.write_file(parse(f"{path}/{number}"), bytes(100_000))
    assert volume.store.blocks.size() == 10 * 6
    volume.remove_directory(("a",), with_contents=True)
    with pytest.raises(PathNotFound):
        volume.stat(parse("a/b"))
    sweep_until_clean(volume)
    assert (volume.store.blocks.size(), volume.store.meta.size()) == (0, 0)


def test_a_writer_that_gives_up_leaves_nothing(new_volume, own_name, quick_leases):
    volume = new_volume(own_name, block_bytes=16_384)
    volume.write_file(("f",), b"old")
    with pytest.raises(RuntimeError), volume.open_write(("f",)) as writer:
        writer.write(bytes(100_000))
        raise RuntimeError
    assert read_all(volume, ("f",)) == b"old"
    sweep_until_clean(volume)
    assert volume.store.blocks.size() == 0
    report = fsck(volume)
    assert report.is_clean
    assert report.num_waiting == 0


def test_a_small_write_needs_few_requests(volume, here, wire):
    """The client knows all directories of the path, as when it works in one directory."""
    volume.write_file((*here, "warm"), b"x")
    volume.make_directory((*here, "deep", "er"), parents=True)
    file = (*here, "deep", "er", "f")
    assert len(wire(lambda: volume.stat((*here, "deep", "er")))) == 1
    volume.write_file((*here, "deep", "er", "warm"), b"")
    assert len(wire(lambda: volume.make_directory((*here, "deep", "er", "d")))) <= 4
    assert len(wire(lambda: volume.make_file((*here, "deep", "er", "new")))) == 4
    assert len(wire(lambda: volume.write_file(file, b"x"))) <= 5, "one to look, four to write"
    assert len(wire(lambda: volume.stat(file))) == 1
    assert len(wire(lambda: volume.write_file(file, b"y"))) == 2
    assert len(wire(lambda: read_all(volume, file))) == 1
    assert len(wire(lambda: volume.rename(file, (*here, "deep", "er", "g")))) <= 6
    assert len(wire(lambda: volume.rename((*here, "deep", "er"), (*here, "moved")))) <= 6
    volume.stat((*here, "moved", "g"))
    assert len(wire(lambda: volume.remove_file((*here, "moved", "g")))) <= 6


def test_a_cold_client_asks_once_for_each_directory(new_volume, volume, here, wire):
    volume.make_directory((*here, "a", "b"), parents=True)
    volume.write_file((*here, "a", "b", "f"), b"x")
    cold = new_volume()
    cold.stat(())
    cold.store.exists()
    path = (*here, "a", "b", "f")
    assert len(wire(lambda: cold.stat(path))) == len(path)
    assert len(wire(lambda: cold.stat(path))) == 1


@pytest.fixture
def wire(monkeypatch):
    """Return a function that returns the requests a call sends over any channel."""
    from ignite_tf_magic.client.channel import Channel

    sent = []
    submit = Channel.submit

    def counted(channel, request):
        sent.append(request.operation.name)
        return submit(channel, request)

    monkeypatch.setattr(Channel, "submit", counted)

    def count(call):
        sent.clear()
        call()
        return list(sent)

    return count


def test_an_idle_client_hangs_up_and_comes_back(new_volume, own_name, quick_leases, monkeypatch):
    monkeypatch.setattr(keeper, "IDLE_S", 0.5)
    volume = new_volume(own_name, block_bytes=16_384)
    volume.write_file(("f",), bytes(100_000))
    with volume.open_read(("f",)):
        until(lambda: leases(volume) == 1)
        time.sleep(1.0)  # twice the idle time
        assert volume.store.is_connected, "a file is open"
    until(lambda: not volume.store.is_connected)
    assert leases(volume) == 0
    assert read_all(volume, ("f",)) == bytes(100_000)


def leases(volume):
    return sum(key.startswith("c/") for key in volume.collector.records())


def test_files_stay_open_when_the_volume_is_closed(new_volume, own_name, quick_leases):
    volume = new_volume(own_name, block_bytes=16_384)
    other = new_volume(own_name)
    writer = volume.open_write(("f",))
    writer.write(bytes(50_000))
    volume.close()
    before = next(r.counter for k, r in other.collector.records().items() if k.startswith("c/"))
    until(
        lambda: any(
            r.counter > before + 3 for k, r in other.collector.records().items() if k.startswith("c/")
        )
    )
    writer.write(bytes(50_000))
    writer.close()
    assert read_all(other, ("f",)) == bytes(100_000)
    until(lambda: not volume.store.is_connected)


def test_no_file_system_of_that_name(ignite):
    with Volume(lambda: ignite.connect_options, "nobody-made-it") as volume:
        for call in (
            lambda: volume.stat(("f",)),
            lambda: volume.write_file(("f",), b""),
            lambda: volume.make_directory(("d",)),
            lambda: volume.open_read(("f",)),
            lambda: list(volume.entries(())),
        ):
            with pytest.raises(FileSystemNotFound, match="'nobody-made-it'.*mkfs"):
                call()
        assert not [name for name in volume.store.client().cache_names() if name.startswith("nobody")]


def test_reading_creates_no_file_system(ignite):
    with Volume(lambda: ignite.connect_options, "unborn", create=True) as volume:
        with pytest.raises(PathNotFound):
            volume.stat(("f",))
        assert list(volume.entries(())) == []
        assert "unborn-blocks" not in volume.store.client().cache_names()


def test_no_node_answers():
    with Volume(lambda: ConnectOptions((Endpoint("127.0.0.1", 1),)), "x", create=True) as volume:
        with pytest.raises(ConnectionFailed, match="127.0.0.1:1"):
            volume.stat(("f",))
