"""igfs through fsspec: text, transactions, `with`, patterns, and files after an exception."""

from __future__ import annotations

import configparser
import gzip
import io
import pickle
import zipfile
from importlib.metadata import EntryPoint
from pathlib import Path

import fsspec
import pytest

from ignite_tf_magic.errors import (
    AuthenticationError,
    DirectoryNotEmpty,
    InvalidPath,
    PathExists,
    PathIsDirectory,
    PathNotDirectory,
    PathNotFound,
)
from ignite_tf_magic.igfs.filesystem import IgfsFileSystem
from ignite_tf_magic.igfs.volume import Volume
from ignite_tf_magic.settings.options import ConnectOptions
from tests.igfs.test_igfs_paths import HOSTILE


@pytest.fixture
def fs(ignite, shared_name):
    endpoint = ignite.connect_options.endpoints[0]
    found = IgfsFileSystem(
        endpoint.host, endpoint.port, fs_name=shared_name, block_bytes=16_384, skip_instance_cache=True
    )
    with Volume(lambda: ignite.connect_options, shared_name, create=True) as volume:
        volume.make_directory(("made",), exist_ok=True)
    yield found
    found.volume.close()


@pytest.fixture
def top(fs, request):
    path = f"/{request.node.name}"
    fs.mkdir(path)
    return path


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names(fs, name):
    path = f"/hostile/{name}"
    fs.makedirs("/hostile", exist_ok=True)
    fs.pipe_file(path, b"x" * 20_000)
    assert path in fs.ls("/hostile", detail=False)
    assert fs.cat_file(path) == b"x" * 20_000
    assert fs.info(f"igfs://{path}")["size"] == 20_000
    fs.mv(path, path + "2")
    assert not fs.exists(path)
    fs.rm(path + "2")
    assert not fs.exists(path + "2")


@pytest.mark.parametrize("path", ["/x\0y", "/" + "x" * 5000, "/\udc80"])
def test_impossible_names(fs, path):
    for call in (fs.info, fs.mkdir, fs.rm_file, lambda p: fs.open(p, "wb"), lambda p: fs.pipe_file(p, b"")):
        with pytest.raises(InvalidPath):
            call(path)


def test_by_url_and_by_configuration(fs, top, ignite, shared_name, monkeypatch):
    fsspec.register_implementation("igfs", IgfsFileSystem, clobber=True)
    endpoint = ignite.connect_options.endpoints[1]
    with fsspec.open(f"igfs://{endpoint}{top}/f", "w", fs_name=shared_name) as file:
        file.write("über\nzwei\n")
    monkeypatch.setenv("IGNITE_TF_CLUSTER", str(endpoint))
    monkeypatch.setenv("IGFS_FS_NAME", shared_name)
    with fsspec.open(f"igfs://{top}/f", "rt", encoding="utf-8") as file:
        assert file.readlines() == ["über\n", "zwei\n"]
    fsspec.filesystem("igfs").volume.close()
    fsspec.filesystem("igfs", host=endpoint.host, port=endpoint.port, fs_name=shared_name).volume.close()
    IgfsFileSystem.clear_instance_cache()


def test_the_package_tells_fsspec_of_igfs():
    setup = configparser.ConfigParser()
    setup.read(Path(__file__).parents[2] / "setup.cfg")
    name, _, value = setup["options.entry_points"]["fsspec.specs"].strip().partition(" = ")
    assert name == "igfs"
    assert EntryPoint(name, value, "fsspec.specs").load() is IgfsFileSystem


def test_positions(fs, top):
    content = b"".join(b"line %06d\n" % number for number in range(10_000))
    fs.pipe_file(f"{top}/f", content)
    with fs.open(f"{top}/f") as file:
        assert file.size == len(content)
        assert file.readline() == b"line 000000\n"
        assert file.seek(-12, io.SEEK_END) == len(content) - 12
        assert file.read() == b"line 009999\n"
        assert file.read() == b""
        file.seek(12 * 5000)
        assert next(iter(file)) == b"line 005000\n"
        assert file.tell() == 12 * 5001
        file.seek(12, io.SEEK_CUR)
        assert file.read(12) == b"line 005002\n"
        with pytest.raises(ValueError, match="seek"):
            file.seek(-1)
    with pytest.raises(ValueError, match="closed"):
        file.read()
    assert fs.cat_file(f"{top}/f", -12, None) == b"line 009999\n"
    assert fs.cat_ranges([f"{top}/f"] * 2, [0, 12], [4, 16]) == [b"line"] * 2


@pytest.mark.smoke
def test_text_is_written_and_appended(fs, top):
    with fs.open(f"{top}/f", "w", newline="") as file:
        file.write("a\r\n")
    with fs.open(f"{top}/f", "a", encoding="utf-8") as file:
        file.write("é\n")
    assert fs.cat_file(f"{top}/f") == b"a\r\n\xc3\xa9\n"


ENCODINGS = ["utf-8", "utf-8-sig", "utf-16", "utf-32"]


def write_as_pandas_does(opened, encoding):
    with opened as file, io.TextIOWrapper(file, encoding=encoding, newline="") as text:
        text.write("ä\n")
        text.flush()
        return text.tell()


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_byte_order_mark_is_written_once(fs, top, tmp_path, encoding):
    """The text files of igfs and those that libraries wrap around a binary file write it once."""
    ours, theirs, local = f"{top}/ours", f"{top}/theirs", tmp_path / "local"
    for mode in "wa":
        told = write_as_pandas_does(fs.open(theirs, f"{mode}b"), encoding)
        assert write_as_pandas_does(local.open(f"{mode}b"), encoding) == told
        with fs.open(ours, mode, encoding=encoding, newline="") as text:
            text.write("ä\n")
            assert text.tell() == text.seek(0, io.SEEK_END) == text.seek(told) == told
            with pytest.raises(InvalidPath, match="go to byte 0"):
                text.seek(0)
    assert fs.cat_file(ours) == fs.cat_file(theirs) == local.read_bytes()
    with fs.open(ours, "r", encoding=encoding, newline="") as text:
        assert text.readline() == "ä\n"
        place = text.tell()
        assert text.read() == "ä\n"
        text.seek(place)
        assert text.read() == "ä\n"


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_byte_order_mark_is_compressed_as_by_gzip(fs, top, tmp_path, encoding):
    with gzip.open(tmp_path / "f.gz", "wt", encoding=encoding) as file:
        file.write("ä")
    with fs.open(f"{top}/f.gz", "wt", encoding=encoding, compression="gzip") as file:
        file.write("ä")
    assert gzip.decompress(fs.cat_file(f"{top}/f.gz")) == gzip.decompress((tmp_path / "f.gz").read_bytes())


def test_files_tell_their_name_and_refuse_as_local_ones_do(fs, top):
    path = f"{top}/f.csv"
    with fs.open(path, "wb") as file:
        assert (file.name, file.mode) == (path, "wb")
        with pytest.raises(io.UnsupportedOperation):
            file.read()
        file.write(b"x")
        assert file.truncate() == file.truncate(1) == file.seek(0, io.SEEK_END) == 1
        for go in (file.truncate, file.seek):
            with pytest.raises(InvalidPath, match="go to byte 0"):
                go(0)
    with fs.open(path) as file:
        assert (file.name, file.mode) == (path, "rb")
        for call in (lambda: file.seek(-1), lambda: file.seek(-2, io.SEEK_END)):
            with pytest.raises(OSError, match="cannot seek to -1"):
                call()
        assert not zipfile.is_zipfile(file)
    with pytest.raises(ValueError, match="closed file"):
        file.tell()
    assert fs.open(path, "br").read() == b"x"
    with fs.open(path, "wb") as file, gzip.open(file, "wb") as compressed:
        compressed.write(b"x")
    assert b"f.csv" in fs.cat_file(path)


def test_zip_archives_are_written_without_going_back(fs, top):
    with fs.open(f"{top}/f.zip", "wb") as file, zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a", b"1")
        archive.writestr("b", b"2")
    with fs.open(f"{top}/f.zip") as file, zipfile.ZipFile(file) as archive:
        assert [archive.read(name) for name in archive.namelist()] == [b"1", b"2"]


def test_two_dots_lead_to_the_directory_above(fs, top):
    fs.mkdir(f"{top}/a")
    fs.pipe_file(f"{top}/a/../b", b"x")
    assert fs.cat_file(f"{top}/b") == b"x"
    assert fs.find(f"{top}/a/..") == fs.glob(f"{top}/a/../*b") == [f"{top}/b"]


def test_moving_creates_directories_as_writing_does(fs, top):
    fs.pipe_file(f"{top}/f", b"x")
    fs.mv(f"{top}/f", f"{top}/new/deep/f")
    assert fs.cat_file(f"{top}/new/deep/f") == b"x"
    with pytest.raises(PathNotFound):
        fs.mv(f"{top}/f", f"{top}/other/f")
    fs.auto_mkdir = False
    with pytest.raises(PathNotFound):
        fs.mv(f"{top}/new/deep/f", f"{top}/other/f")
    assert not fs.exists(f"{top}/other")


@pytest.mark.parametrize("mode", ["r+b", "w+b", "q", "rw"])
def test_modes_that_there_are_not(fs, top, mode):
    with pytest.raises((InvalidPath, ValueError)):
        fs.open(f"{top}/f", mode)
    assert fs.ls(top) == []


@pytest.mark.parametrize("mode", ["wb", "w"])
def test_an_exception_leaves_the_old_file(fs, top, mode):
    fs.pipe_file(f"{top}/f", b"old")
    data = b"new" * 20_000 if mode == "wb" else "new" * 20_000
    with pytest.raises(RuntimeError), fs.open(f"{top}/f", mode) as file:
        file.write(data)
        raise RuntimeError
    if mode == "wb":
        assert fs.cat_file(f"{top}/f") == b"old"


def test_a_transaction_publishes_all_or_nothing(fs, top):
    fs.pipe_file(f"{top}/a", b"old")
    with pytest.raises(RuntimeError), fs.transaction:
        fs.pipe_file(f"{top}/x", b"1")
        with fs.open(f"{top}/a", "wb") as file:
            file.write(b"new" * 10_000)
        with fs.open(f"{top}/b", "wb") as file:
            file.write(b"new")
        raise RuntimeError
    assert fs.cat_file(f"{top}/a") == b"old"
    assert not fs.exists(f"{top}/b")
    with fs.transaction:
        for name in "ab":
            with fs.open(f"{top}/{name}", "wb") as file:
                file.write(b"new" * 10_000)
        assert fs.cat_file(f"{top}/a") == b"old"
        assert not fs.exists(f"{top}/b")
    assert fs.cat_file(f"{top}/a") == fs.cat_file(f"{top}/b") == b"new" * 10_000


def test_patterns_and_trees(fs, top):
    for name in ("a1", "a2", "b", "sub/deep/f"):
        fs.makedirs(f"{top}/{name}".rpartition("/")[0], exist_ok=True)
        fs.pipe_file(f"{top}/{name}", b"x")
    assert fs.glob(f"{top}/a*") == [f"{top}/a1", f"{top}/a2"]
    assert fs.find(top) == [f"{top}/{name}" for name in ("a1", "a2", "b", "sub/deep/f")]
    assert fs.du(top) == 4
    fs.rm(f"{top}/a*")
    assert fs.ls(top, detail=False) == [f"{top}/b", f"{top}/sub"]
    with pytest.raises(PathNotFound):
        fs.rm(f"{top}/a*")
    with pytest.raises(DirectoryNotEmpty):
        fs.rmdir(f"{top}/sub")
    fs.mkdir(f"{top}/sub/empty")
    for directory in (f"{top}/sub", f"{top}/sub/empty"):
        with pytest.raises(PathIsDirectory, match="recursive=True"):
            fs.rm(directory)
    fs.mv(f"{top}/b", f"{top}/sub")
    assert fs.cat_file(f"{top}/sub/b") == b"x"
    fs.rm(f"{top}/sub", recursive=True)
    assert fs.ls(top) == []


def test_a_name_with_the_signs_of_a_pattern_is_removed_alone(fs, top):
    for name in ("a*", "ab"):
        fs.pipe_file(f"{top}/{name}", b"")
    fs.rm(f"{top}/a*")
    assert fs.ls(top, detail=False) == [f"{top}/ab"]


def test_errors(fs, top):
    fs.pipe_file(f"{top}/f", b"x")
    for error, call in [
        (PathNotFound, lambda: fs.open(f"{top}/none")),
        (PathNotFound, lambda: fs.ls(f"{top}/none")),
        (PathIsDirectory, lambda: fs.open(top)),
        (PathIsDirectory, lambda: fs.open(top, "wb")),
        (PathIsDirectory, lambda: fs.rm_file(top)),
        (PathNotDirectory, lambda: fs.ls(f"{top}/f/x")),
        (PathExists, lambda: fs.open(f"{top}/f", "xb")),
        (PathExists, lambda: fs.mkdir(top)),
        (PathExists, lambda: fs.pipe_file(f"{top}/f", b"", mode="create")),
        (InvalidPath, lambda: fs.mv(top, f"{top}/f")),
        (InvalidPath, lambda: fs.rmdir("/")),
    ]:
        with pytest.raises(error) as caught:
            call()
        again = pickle.loads(pickle.dumps(caught.value))
        assert (type(again), str(again)) == (type(caught.value), str(caught.value))


def test_times(fs, top):
    fs.pipe_file(f"{top}/f", b"x")
    first = fs.modified(f"{top}/f")
    with fs.open(f"{top}/f", "ab") as file:
        file.write(b"y")
    assert fs.modified(f"{top}/f") > first
    assert fs.created(f"{top}/f") <= first
    second = fs.modified(f"{top}/f")
    fs.touch(f"{top}/f", truncate=False)
    assert fs.modified(f"{top}/f") > second
    assert fs.cat_file(f"{top}/f") == b"xy"
    changed = fs.modified(top)
    fs.touch(top, truncate=False)
    assert fs.modified(top) > changed
    fs.touch(f"{top}/new", truncate=False)
    assert fs.info(f"{top}/new")["size"] == 0
    fs.touch(f"{top}/f")
    assert fs.info(f"{top}/f")["size"] == 0


def test_a_file_outlives_the_file_system_object(ignite, shared_name):
    """Only the file is referenced."""

    def opened(mode):
        endpoint = ignite.connect_options.endpoints[0]
        fs = IgfsFileSystem(
            endpoint.host, endpoint.port, fs_name=shared_name, block_bytes=16_384, skip_instance_cache=True
        )
        return fs.open("/outlives", mode)

    with Volume(lambda: ignite.connect_options, shared_name, create=True) as volume:
        volume.make_directory(("made",), exist_ok=True)
    with opened("wb") as file:
        file.write(b"x" * 100_000)
    with opened("rb") as file:
        assert file.read() == b"x" * 100_000


def test_a_wrong_password_and_none(new_cluster):
    cluster = new_cluster(num_nodes=1, persist=True, authentication=True)
    endpoint = cluster.nodes[0]
    for user, password in (("ignite", "wrong"), (None, None)):
        fs = IgfsFileSystem(endpoint.host, endpoint.port, user, password, skip_instance_cache=True)
        for call in (
            lambda fs=fs: fs.ls("/"),
            lambda fs=fs: fs.exists("/f"),
            lambda fs=fs: fs.open("/f", "wb"),
        ):
            with pytest.raises(AuthenticationError):
                call()
    fs = IgfsFileSystem(endpoint.host, endpoint.port, "ignite", "ignite", skip_instance_cache=True)
    fs.pipe_file("/f", b"x" * 3_000_000)
    assert fs.cat_file("/f") == b"x" * 3_000_000
    fs.volume.close()
    assert isinstance(cluster.connect_options, ConnectOptions)
