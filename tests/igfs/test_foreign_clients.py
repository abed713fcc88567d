"""Programs that use igfs only through fsspec: the files they leave when they fail, and their assumptions."""

from __future__ import annotations

import contextlib
import gzip
import io
import uuid

import fsspec
import pandas as pd
import pytest

from ignite_tf_magic.errors import ConnectionFailed, IgniteTfError, PathNotFound
from ignite_tf_magic.igfs.filesystem import IgfsFileSystem


class Failure(Exception):
    pass


@pytest.fixture
def fs(ignite, monkeypatch, tmp_path):
    monkeypatch.setenv("IGNITE_TF_CLUSTER", ",".join(map(str, ignite.connect_options.endpoints)))
    monkeypatch.setenv("IGNITE_TF_HOME", str(tmp_path / "home"))
    IgfsFileSystem.clear_instance_cache()
    with contextlib.closing(fsspec.filesystem("igfs").volume):
        yield fsspec.filesystem("igfs")
    IgfsFileSystem.clear_instance_cache()


@pytest.fixture
def old(fs):
    """The path of a file with old content."""
    path = f"/foreign-{uuid.uuid4().hex[:8]}/file"
    fs.pipe(path, b"old")
    yield path
    fs.rm(path.rpartition("/")[0], recursive=True)


def fail_in_fs_open(fs, path, **options):
    with fs.open(path, **options) as file:
        file.write("new" if "b" not in options["mode"] else b"new")
        raise Failure


def fail_in_fsspec_open(fs, path, **options):
    with fsspec.open(f"igfs://{path}", **options) as file:
        file.write("new" if "b" not in options["mode"] else b"new")
        raise Failure


def fail_in_a_manager_of_ones_own(fs, path, **options):
    @contextlib.contextmanager
    def opened():
        file = fs.open(path, **options)
        try:
            yield file
        finally:
            file.close()

    with opened() as file:
        file.write("new" if "b" not in options["mode"] else b"new")
        raise Failure


def fail_in_an_exit_stack(fs, path, **options):
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(fsspec.open(f"igfs://{path}", **options))
        file.write("new" if "b" not in options["mode"] else b"new")
        raise Failure


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "w"},
        {"mode": "wb"},
        {"mode": "wt", "compression": "gzip"},
        {"mode": "wb", "compression": "gzip"},
    ],
)
@pytest.mark.parametrize(
    "fail", [fail_in_fs_open, fail_in_fsspec_open, fail_in_a_manager_of_ones_own, fail_in_an_exit_stack]
)
def test_an_exception_leaves_the_old_file(fs, old, fail, options):
    with pytest.raises(Failure):
        fail(fs, old, **options)
    assert fs.cat(old) == b"old"


def test_an_exception_in_to_csv_leaves_the_old_file(fs, old):
    class Bad:
        def __str__(self):
            raise Failure

    frame = pd.DataFrame({"a": [*range(50_000), Bad()]})
    with pytest.raises(Failure):
        frame.to_csv(f"igfs://{old}")
    assert fs.cat(old) == b"old"


def test_what_was_flushed_before_an_exception_stays(fs, old):
    with pytest.raises(Failure), fs.open(old, "a") as file:
        file.write(",flushed")
        file.flush()
        file.write(",not")
        raise Failure
    assert fs.cat(old) == b"old,flushed"


def test_files_that_are_written_because_of_an_exception_are_whole(fs, old):
    """Reports of a failure are written while it is handled, also by a context manager that receives it."""

    class Reporter:
        def __enter__(self):
            return self

        def __exit__(self, kind, error, trace):
            with fsspec.open(f"igfs://{old}.1", "w") as file:
                file.write("report 1")

    with pytest.raises(Failure), Reporter():
        raise Failure
    file = fs.open(f"{old}.3", "w")
    try:
        raise Failure
    except Failure:
        with fs.open(f"{old}.2", "w") as other:
            other.write("report 2")
        file.write("report 3")
        file.close()
    for number in (1, 2, 3):
        assert fs.cat(f"{old}.{number}") == b"report %d" % number


def test_text_and_compression_still_write(fs, old):
    with fs.open(old, "w", encoding="utf-16", newline="\r\n") as file:
        file.write("ü\n")
    assert fs.cat(old).decode("utf-16") == "ü\r\n"
    with fs.open(f"{old}.gz", "wb", compression="infer") as file:
        file.write(b"content")
    assert gzip.decompress(fs.cat(f"{old}.gz")) == b"content"
    with fs.open(f"{old}.gz", "rt", compression="infer") as file:
        assert file.read() == "content"


def test_an_aborted_transaction_publishes_nothing(fs, old):
    top = old.rpartition("/")[0]
    with pytest.raises(Failure), fs.transaction:
        fs.pipe(f"{top}/piped", b"1")
        fs.pipe(old, b"new")
        fs.touch(f"{top}/touched")
        fs.cp_file(old, f"{top}/copied")
        with fs.open(f"{top}/opened", "w") as file:
            file.write("1")
        raise Failure
    assert fs.ls(top, detail=False) == [old]
    assert fs.cat(old) == b"old"
    with fs.transaction:
        fs.pipe(f"{top}/new/piped", b"1")
        fs.touch(f"{top}/touched")
        assert not fs.exists(f"{top}/touched")
    assert fs.cat(f"{top}/new/piped") == b"1"
    assert fs.info(f"{top}/touched")["size"] == 0


def test_directories_are_made_where_files_are_written(fs, old):
    for number, write in enumerate(
        (
            lambda path: fs.pipe(path, b"1"),
            lambda path: fs.touch(path),
            lambda path: fs.cp_file(old, path),
            lambda path: fs.open(path, "wb").close(),
        )
    ):
        write(f"{old}s/{number}/a/b")
        assert fs.isfile(f"{old}s/{number}/a/b")
    plain = fsspec.filesystem("igfs", auto_mkdir=False)
    with pytest.raises(PathNotFound, match="there is no directory"):
        plain.pipe(f"{old}s/none/a", b"1")


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # fsspec leaves the file of its blockcache open
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("cache", ["blockcache", "filecache", "simplecache"])
def test_fsspec_keeps_parts_of_files_on_this_machine(fs, old, cache, tmp_path, monkeypatch):
    data = bytes(range(256)) * 20_000
    fs.pipe(old, data)
    options = {cache: {"cache_storage": str(tmp_path / cache)}}
    with fsspec.open(f"{cache}::igfs://{old}", **options) as file:
        assert file.read(100) == data[:100]
        file.seek(3_000_000)
        assert file.read() == data[3_000_000:]
    with fsspec.open(f"{cache}::igfs://{old}", **options) as file:
        monkeypatch.setattr("ignite_tf_magic.igfs.reader.FileReader.read_into", None)  # nothing is read again
        assert file.read(100) == data[:100]


def test_an_address_whose_first_slash_was_lost_means_the_directory_at_the_top(fs, old):
    """pathlib turns igfs:/// into igfs:/, which `datasets` turns into igfs://."""
    assert fsspec.open(f"igfs:/{old}").fs is fs
    with fsspec.open(f"igfs:/{old}") as file:
        assert file.read() == b"old"
    assert fs.cat(f"igfs:/{old}") == b"old"
    with pytest.raises(ConnectionFailed, match="no-such-host"):
        fsspec.open("igfs://no-such-host/x").open()


def test_a_cluster_that_does_not_answer_is_no_empty_directory(fs, monkeypatch):
    def fail(*_):
        raise ConnectionFailed("no node answers, for this test")

    monkeypatch.setattr("ignite_tf_magic.igfs.store.Store.read", fail)
    for call in (fs.find, fs.du, lambda path: list(fs.walk(path))):
        with pytest.raises(IgniteTfError):
            call("/some")


def test_a_raw_buffer_can_be_put_around_a_file(fs, old):
    with io.BufferedWriter(fs.open(old, "wb")) as file:
        file.write(b"new")
    assert fs.cat(old) == b"new"
