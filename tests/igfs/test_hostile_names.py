"""Any client of a cluster can write rows of igfs: names that lead out of the target are refused, and write nothing."""

from __future__ import annotations

import os

import fsspec
import pytest

from ignite_tf_magic.errors import CorruptRecord, InvalidPath, TransferError
from ignite_tf_magic.igfs import layout, names
from ignite_tf_magic.igfs.filesystem import IgfsFileSystem
from ignite_tf_magic.igfs.fsck import fsck
from ignite_tf_magic.igfs.layout import ROOT_ID, DirectoryNode, FileNode
from ignite_tf_magic.igfs.places import IgfsPlace, LocalPlace
from ignite_tf_magic.igfs.volume import Volume
from ignite_tf_magic.session.files import Files
from tests.igfs.conftest import sweep_until_clean

NAMES = ["..", ".", "", "../../.bashrc", "/etc/passwd", "a/b", "x" * 5000, "../"]


@pytest.fixture
def cluster(ignite, monkeypatch, tmp_path):
    monkeypatch.setenv("IGNITE_TF_CLUSTER", ",".join(map(str, ignite.connect_options.endpoints)))
    monkeypatch.setenv("IGNITE_TF_HOME", str(tmp_path / "home"))
    return ignite


@pytest.fixture
def volume(cluster, own_name, monkeypatch):
    monkeypatch.setenv("IGFS_FS_NAME", own_name)
    with Volume(lambda: cluster.connect_options, own_name, create=True) as opened:
        opened.make_directory(("here", "d"), parents=True)
        opened.write_file(("here", "good"), b"good")
        yield opened


def plant(volume, directory, *entries):
    """Write rows of entries with any names, as a foreign client could."""
    rows = {layout.entry_key(directory, name): layout.encode(node) for name, node in entries}
    row = names.row_key(directory, "")
    known = volume.store.meta.get(row)
    there = names.decode(known).names if known else ()
    rows[row] = names.encode(names.NameLeaf((*there, *(name for name, _ in entries))))
    volume.store.meta.put_all(rows)


def evil_file():
    return FileNode(layout.new_id(), 1, 1, (), b"evil")


def everything_below(path):
    return sorted(found for found in path.rglob("*") if found.is_file() and not found.is_symlink())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["file", "directory"])
def test_get_and_sync_write_nothing_outside_their_target(volume, tmp_path, name, kind):
    below = volume.directory(("here", "d")).id
    if kind == "directory":
        other = DirectoryNode(layout.new_id(), 1)
        plant(volume, below, (name, other))
        plant(volume, other.id, (".bashrc", evil_file()))
    else:
        plant(volume, below, (name, evil_file()))
    target = tmp_path / "a" / "b" / "target"
    target.mkdir(parents=True)
    shown = repr(name)[1:100]
    with Files(report=print) as files:
        for call in (
            lambda: files.get(["igfs:///here"], str(target), recursive=True),
            lambda: files.get(["igfs:///here/d/*"], str(target), recursive=True),
            lambda: files.sync("igfs:///here", str(target)),
            lambda: files.copy(["igfs:///here"], "igfs:///copy", recursive=True),
            lambda: files.listing("igfs:///here/d"),
            lambda: fsspec.filesystem("igfs", skip_instance_cache=True).get(
                "/here", str(target), recursive=True
            ),
        ):
            with pytest.raises(CorruptRecord, match="no file can have") as caught:
                call()
            assert shown in str(caught.value)
            assert "'/here/d'" in str(caught.value)
    assert everything_below(tmp_path) == []
    with pytest.raises(CorruptRecord):
        list(volume.entries(("here", "d")))


def test_a_local_path_is_checked_once_more_before_it_is_written(tmp_path):
    top, outside = tmp_path / "top", tmp_path / "outside"
    top.mkdir()
    outside.mkdir()
    (top / "link").symlink_to(outside)
    (top / "inside").mkdir()
    (top / "near").symlink_to("inside")
    place = LocalPlace(top, print)
    for path in [("..", "x"), ("..",), ("",), (".",), ("a\0b",), ("a/b",), ("inside", "..", "..", "x")]:
        with pytest.raises(TransferError, match="cannot have a file named"):
            place.write(path, [memoryview(b"evil")], 0)
        with pytest.raises(TransferError, match="cannot have a file named"):
            place.make_directory(path)
    with pytest.raises(TransferError, match=f"not written: a link leads from .* to {outside}"):
        place.write(("link", "x"), [memoryview(b"evil")], 0)
    with pytest.raises(TransferError, match="a link leads"):
        place.make_directory(("link", "d"))
    place.write(("near", "x"), [memoryview(b"good")], 0)
    assert everything_below(tmp_path) == [top / "inside" / "x"]


def test_names_of_this_machine_that_igfs_cannot_have_are_refused(volume, tmp_path):
    (tmp_path / os.fsdecode(b"caf\xe9")).write_bytes(b"latin-1")
    with Files(report=print) as files, pytest.raises(InvalidPath, match="valid Unicode"):
        files.put([str(tmp_path)], "igfs:///here", recursive=True)
    with pytest.raises(InvalidPath):
        IgfsPlace(IgfsFileSystem(skip_instance_cache=True), ("here",)).write(("..",), [], 0)


def test_fsck_names_such_entries_and_removes_them(volume):
    below = volume.directory(("here", "d")).id
    plant(volume, below, *((name, evil_file()) for name in NAMES))
    found = fsck(volume)
    assert sum("no file can have" in problem for problem in found.problems) == len(NAMES)
    assert fsck(volume, repair=True).is_clean
    assert list(volume.entries(("here", "d"))) == []


def test_a_directory_with_such_entries_can_be_removed(volume, quick_leases):
    plant(volume, volume.directory(("here", "d")).id, ("..", evil_file()), ("", DirectoryNode(ROOT_ID, 1)))
    volume.write_file(("stays",), b"stays")
    volume.remove_directory(("here",), with_contents=True)
    sweep_until_clean(volume)
    assert [name for page in volume.entries(()) for name, _ in page] == ["stays"]
    assert fsck(volume).is_clean


def test_an_entry_that_leads_back_ends_a_walk(volume, tmp_path, quick_leases):
    here = volume.directory(("here",)).id
    plant(volume, volume.directory(("here", "d")).id, ("again", DirectoryNode(here, 1)))
    with pytest.raises(CorruptRecord, match="'again' of this directory leads back"):
        fsspec.filesystem("igfs", skip_instance_cache=True).find("/here")
    with Files(report=print) as files, pytest.raises(CorruptRecord, match="leads back"):
        files.get(["igfs:///here"], str(tmp_path / "target"), recursive=True)
    assert any("second name of a directory" in problem for problem in fsck(volume).problems)
    volume.remove_directory(("here",), with_contents=True)
    sweep_until_clean(volume)
    assert fsck(volume).is_clean


def test_a_directory_of_no_text_is_a_damaged_record(volume):
    volume.store.meta.put(names.row_key(volume.directory(("here", "d")).id, ""), b"L\xff\xfe")
    with pytest.raises(CorruptRecord, match="not text"):
        list(volume.entries(("here", "d")))
