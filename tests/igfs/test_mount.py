"""igfs as a directory, through FUSE; and the errors where that is impossible."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import uuid
import zipfile

import psutil
import pytest

from ignite_tf_magic.errors import InvalidPath, MountError, PathNotDirectory, PathNotFound
from ignite_tf_magic.igfs import mount as mount_module
from ignite_tf_magic.igfs.mount import is_mounted
from ignite_tf_magic.igfs.volume import Volume
from ignite_tf_magic.session.files import Files, start_mount, unmount
from ignite_tf_magic.settings.options import ConnectOptions
from tests.waiting import until

FALLBACK = "ignite-tf fs sync igfs:///PATH"
LOG_SAYS = "is shown in"


@pytest.fixture(scope="module")
def home(tmp_path_factory, ignite):
    """A home with the shared cluster configured, for this process and its children."""
    path = tmp_path_factory.mktemp("home")
    path.chmod(0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IGNITE_TF_HOME", str(path))
        patch.setenv("IGNITE_TF_CLUSTER", ",".join(map(str, ignite.connect_options.endpoints)))
        yield path


@pytest.fixture(scope="module")
def volume(ignite):
    with Volume(lambda: ConnectOptions(ignite.connect_options.endpoints)) as opened:
        yield opened


@pytest.fixture(scope="module")
def mounted(home, volume, tmp_path_factory):
    """Yield the directory where another process has mounted igfs:///mounted-..., or the error, and its path in igfs."""
    top = f"mounted-{uuid.uuid4().hex[:8]}"
    volume.make_directory((top,))
    directory = tmp_path_factory.mktemp("mounted")
    try:
        start_mount(f"igfs:///{top}", str(directory), report=print)
    except MountError as error:
        yield error, (top,)
        return
    yield directory, (top,)
    if is_mounted(directory):
        unmount(str(directory))


@pytest.fixture
def here(mounted):
    """A directory of the mount for this test alone."""
    directory, _ = mounted
    if isinstance(directory, MountError):
        return directory
    own = directory / uuid.uuid4().hex[:8]
    own.mkdir()
    return own


def names_in(directory):
    return sorted(path.name for path in directory.iterdir())


def content(volume, mounted, path):
    """Read a file as another client of the cluster."""
    directory, top = mounted
    with volume.open_read((*top, *path.relative_to(directory).parts)) as reader:
        data = bytearray(reader.node.size)
        reader.read_into(0, memoryview(data))
    return bytes(data)


def on_a_mount(test):
    """Run a test on a mount. Without a mount, check that the error names the alternative."""

    @functools.wraps(test)
    def run(**fixtures):
        directory = fixtures["here"]
        if isinstance(directory, MountError):
            assert FALLBACK in str(directory)
        else:
            test(**fixtures)

    return run


@on_a_mount
def test_a_mount(here, mounted):
    directory, _ = mounted
    assert is_mounted(directory)
    assert os.statvfs(directory).f_bavail > 0
    with pytest.raises(MountError, match="mounted in .* already"):
        start_mount("igfs:///", str(directory), report=print)


def test_no_device_is_told(home, tmp_path, monkeypatch):
    monkeypatch.setattr(mount_module, "_DEVICE", tmp_path / "fuse")
    monkeypatch.setattr(sys, "platform", "linux")
    with Files(report=print) as files, pytest.raises(MountError, match="has no .*fuse.*modprobe") as caught:
        files.mount("igfs:///", str(tmp_path))
    assert FALLBACK in str(caught.value)


def test_no_library_for_python_is_told(home, tmp_path, monkeypatch):
    monkeypatch.setattr(mount_module, "_DEVICE", tmp_path)
    monkeypatch.setitem(sys.modules, "mfusepy", None)
    with Files(report=print) as files, pytest.raises(MountError, match="pip install") as caught:
        files.mount("igfs:///", str(tmp_path))
    assert FALLBACK in str(caught.value)


def test_no_libfuse_is_told(home, tmp_path):
    code = (
        "import sys, pathlib; from ignite_tf_magic.igfs import mount; from ignite_tf_magic.ui.shell.cli import main; "
        "mount._DEVICE = pathlib.Path('.'); sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "fs", "mount", "igfs:///", str(tmp_path)],
        env=os.environ | {"FUSE_LIBRARY_NAME": "no-such-library"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: mounting needs libfuse")
    assert FALLBACK in done.stderr


def test_what_cannot_be_mounted(home, volume, tmp_path):
    volume.write_file(("a-file",), b"x")
    for address, directory, error in [
        ("igfs:///none", tmp_path, PathNotFound),
        ("igfs:///a-file", tmp_path, PathNotDirectory),
        ("igfs:///a\0b", tmp_path, InvalidPath),
        ("igfs:///", tmp_path / "none", MountError),
    ]:
        with pytest.raises(error):
            start_mount(address, str(directory), report=print)
    with pytest.raises(MountError, match="not mounted"):
        unmount(str(tmp_path))


@on_a_mount
def test_files_of_all_sizes(here, volume, mounted, tmp_path):
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    for size in (0, 1, 5000, 1 << 20, 3_500_000):
        (source / "sub" / f"ü {size}").write_bytes(os.urandom(size))
    subprocess.run(["cp", "-pr", str(source), str(here / "copy")], check=True)
    subprocess.run(["diff", "-r", str(source), str(here / "copy")], check=True)
    large = source / "sub" / "ü 3500000"
    copied = here / "copy" / "sub" / large.name
    assert content(volume, mounted, copied) == large.read_bytes()
    assert copied.stat().st_mtime_ns == large.stat().st_mtime_ns
    with copied.open("rb") as file:
        file.seek(2_000_000)
        assert file.read(1_000_000) == large.read_bytes()[2_000_000:3_000_000]
    (here / "copy").rename(here / "moved")
    assert sorted(names_in(here / "moved" / "sub")) == sorted(names_in(source / "sub"))
    with pytest.raises(OSError, match="not empty"):
        (here / "moved").rmdir()
    shutil.rmtree(here / "moved")
    assert names_in(here) == []


@on_a_mount
def test_what_others_write_is_seen(here, volume, mounted):
    _, top = mounted
    where = (*top, here.name, "theirs")
    volume.write_file(where, b"first")
    assert (here / "theirs").read_bytes() == b"first"
    reader = (here / "theirs").open("rb", buffering=0)
    volume.write_file(where, b"second")
    assert reader.read() == b"first"
    reader.close()
    assert (here / "theirs").read_bytes() == b"second"


@on_a_mount
def test_append_and_rewrite(here, volume, mounted):
    path = here / "log"
    path.write_text("one\n")
    with path.open("a") as file:
        file.write("two\n")
    assert content(volume, mounted, path) == b"one\ntwo\n"
    path.write_text("new\n")
    assert content(volume, mounted, path) == b"new\n"
    os.truncate(path, 2)
    os.truncate(path, 4)
    assert path.read_bytes() == b"ne\0\0"
    with path.open("r+b") as file:
        file.truncate(0)
        file.write(b"again")
    assert path.read_bytes() == b"again"
    handle = os.open(path, os.O_WRONLY | os.O_APPEND)
    os.pwrite(handle, b" and", 5000)  # append mode ignores the offset
    os.close(handle)
    assert path.read_bytes() == b"again and"


@on_a_mount
def test_writing_in_the_middle(here, volume, mounted):
    """All open files of the mount see buffered data at once; closing publishes it."""
    path = here / "whole"
    block = volume.store.block_bytes
    expected = bytearray(os.urandom(2 * block + 70_000))
    path.write_bytes(expected)
    handle, other = os.open(path, os.O_RDWR), os.open(path, os.O_RDWR)
    reader = path.open("rb", buffering=0)
    for start, size in [
        (5, 10),
        (block - 3, 6),
        (2 * block, 60_000),
        (len(expected) - 2, 10),
        (7, 1),
        (block, 0),
    ]:
        data = os.urandom(size)
        os.pwrite(handle, data, start)
        expected[start : start + size] = data
        assert os.pread(other, len(expected) + 100, 0) == expected
        assert path.stat().st_size == len(expected)
    assert os.pread(reader.fileno(), len(expected) + 100, 0) == expected
    os.fsync(handle)
    assert content(volume, mounted, path) == expected
    os.pwrite(other, b"end", len(expected) + 2)  # beyond the end: leaves a hole
    os.pwrite(handle, b"!", 0)
    os.close(handle)
    os.close(other)
    expected = b"!" + expected[1:] + b"\0\0end"
    assert path.read_bytes() == content(volume, mounted, path) == expected
    reader.close()
    for make in (os.symlink, os.link):
        with pytest.raises(OSError):
            make(path, here / "link")


@on_a_mount
def test_much_in_the_middle_is_published_as_it_comes(here, volume, mounted):
    path = here / "large"
    path.write_bytes(bytes(6 << 20))
    expected = bytearray(6 << 20)
    with path.open("r+b", buffering=0) as file:
        for start in range(100, 5 << 20, 100_000):
            file.seek(start)
            part = os.urandom(100_000)
            file.write(part)
            expected[start : start + len(part)] = part
        assert os.pread(file.fileno(), 1 << 20, 1 << 20) == expected[1 << 20 : 2 << 20]
    assert content(volume, mounted, path) == expected


@on_a_mount
@pytest.mark.parametrize("copy", ["stat", "copy", "tar", "cp"])
def test_a_file_that_is_being_written_is_copied_whole(here, tmp_path, copy):
    """Sizes are current, not those of an earlier listing."""
    path, data = here / "written", os.urandom(300_000)
    with path.open("wb", buffering=0) as file:
        for number in range(3):
            assert "written" in names_in(here)
            assert path.stat().st_size == number * len(data)
            file.write(data)
            now = data * (number + 1)
            if copy == "stat":
                assert path.stat().st_size == len(now)
                continue
            target = tmp_path / "target"
            target.mkdir(exist_ok=True)
            if copy == "copy":
                shutil.copy(path, target / "written")
            elif copy == "cp":
                subprocess.run(["cp", str(path), str(target / "written")], check=True)
            else:
                packed = subprocess.run(
                    ["tar", "-c", "-C", str(here), "written"], capture_output=True, check=True
                )
                subprocess.run(["tar", "-x", "-C", str(target)], input=packed.stdout, check=True)
            assert (target / "written").read_bytes() == now


@on_a_mount
def test_what_others_are_writing_is_copied_as_it_is(here, volume, mounted, tmp_path):
    """Another client extends a file between a listing and a copy."""
    _, top = mounted
    for number in range(3):
        where = (*top, here.name, f"f{number}")
        with volume.open_write(where) as writer:
            writer.flush()
            assert f"f{number}" in names_in(here)
            assert (here / f"f{number}").stat().st_size == 0
            writer.write(b"x" * 100_000)
            writer.flush()
            shutil.copy(here / f"f{number}", tmp_path / "copied")
            assert (tmp_path / "copied").stat().st_size == 100_000


@on_a_mount
def test_removed_while_open(here):
    """As with `tempfile`, a removed file exists until it is closed."""
    with tempfile.TemporaryFile(dir=here) as file:
        assert names_in(here) == []
        file.write(b"0123456789" * 1000)
        file.seek(0)
        assert file.read() == b"0123456789" * 1000
        file.seek(10)
        file.write(b"in the middle")
        file.seek(8)
        assert file.read(15) == b"89in the middle"
        file.truncate(4)
        assert os.fstat(file.fileno()).st_size == 4
    (here / "d").mkdir()
    file = os.open(here / "d" / "f", os.O_WRONLY | os.O_CREAT)
    (here / "d" / "f").unlink()
    (here / "d").rmdir()
    assert names_in(here) == []
    with contextlib.suppress(OSError):  # its directory is gone
        os.write(file, b"lost")
    with contextlib.suppress(OSError):
        os.close(file)


@on_a_mount
def test_times_of_directories(here, tmp_path):
    os.utime(here, ns=(5, 1_500_000_000_123_456_789))
    assert here.stat().st_mtime_ns == 1_500_000_000_123_456_789
    here.rename(here.with_name(f"{here.name}-moved"))
    moved = here.with_name(f"{here.name}-moved")
    assert moved.stat().st_mtime_ns == 1_500_000_000_123_456_789
    source = tmp_path / "source"
    (source / "d").mkdir(parents=True)
    os.utime(source / "d", (1, 1_400_000_000))
    subprocess.run(["cp", "-pr", str(source), str(moved / "copy")], check=True)
    assert (moved / "copy" / "d").stat().st_mtime == 1_400_000_000


@on_a_mount
def test_git(here, tmp_path):
    """Clone, commit and pull: git writes a pack, rewrites its header, and reads parts of it meanwhile."""
    options = ["-c", "user.name=n", "-c", "user.email=e", "-c", "protocol.file.allow=always"]
    options += ["-c", "transfer.unpackLimit=1", "-c", "gc.auto=0"]  # fetched objects stay a pack

    def git(*words, cwd):
        done = subprocess.run(["git", *options, *words], cwd=cwd, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    origin, clone = tmp_path / "origin", here / "clone"
    origin.mkdir()
    git("init", "-q", "-b", "main", cwd=origin)
    for number in range(3):
        (origin / f"file {number}").write_text("".join(f"{number} line {line}\n" for line in range(500)))
        git("add", ".", cwd=origin)
        git("commit", "-qm", f"commit {number}", cwd=origin)
    git("clone", "-q", f"file://{origin}", str(clone), cwd=here)
    for number in range(5):
        (origin / f"new {number}").write_text("".join(f"{number} line {line}\n" for line in range(200)))
    (origin / "file 0").write_text("".join(f"0 line {line}\n" for line in range(700)))
    git("add", ".", cwd=origin)
    git("commit", "-qm", "many", cwd=origin)
    git("pull", "-q", cwd=clone)
    assert (clone / "file 0").read_text() == (origin / "file 0").read_text()
    git("fsck", "--full", cwd=clone)
    (clone / "mine").write_text("mine\n")
    git("add", ".", cwd=clone)
    git("commit", "-qm", "mine", cwd=clone)
    assert git("status", "--short", cwd=clone) == ""


@on_a_mount
def test_databases_and_archives(here):
    with contextlib.closing(sqlite3.connect(here / "db")) as database, database:
        database.execute("create table t (a)")
        database.executemany("insert into t values (?)", [(str(number) * 50,) for number in range(500)])
    with contextlib.closing(sqlite3.connect(here / "db")) as database, database:
        database.execute("update t set a = 'x' where rowid = 250")
        assert database.execute("pragma integrity_check").fetchone() == ("ok",)
        assert database.execute("select count(*) from t where a = 'x'").fetchone() == (1,)
    with zipfile.ZipFile(here / "zip", "w") as archive:
        for number in range(3):
            archive.writestr(f"{number}", os.urandom(100_000))
    with zipfile.ZipFile(here / "zip") as archive:
        assert archive.testzip() is None
    assert names_in(here) == ["db", "zip"]


@on_a_mount
def test_what_is_written_is_read_while_it_goes_on(here, volume, mounted):
    path = here / "live"
    with path.open("w") as writer, path.open() as reader:
        for number in range(3):
            writer.write(f"{number}\n")
            writer.flush()
            assert reader.read() == f"{number}\n"
            assert path.stat().st_size == 2 * number + 2
        writer.write("fsync\n")
        writer.flush()
        os.fsync(writer.fileno())
        assert content(volume, mounted, path) == b"0\n1\n2\nfsync\n"
        writer.write("by itself\n")
        writer.flush()
        # Other hosts see the data without an fsync.
        until(
            lambda: content(volume, mounted, path).endswith(b"by itself\n"),
            what="what was written to be published",
        )


@on_a_mount
def test_renamed_and_removed_while_open(here):
    path = here / "open"
    with path.open("w") as file:
        file.write("before\n")
        file.flush()
        path.rename(here / "elsewhere")
        file.write("after\n")
    assert (here / "elsewhere").read_text() == "before\nafter\n"
    assert not path.exists()
    reader, writer = (here / "elsewhere").open("rb"), os.open(here / "elsewhere", os.O_WRONLY | os.O_APPEND)
    (here / "elsewhere").unlink()
    assert reader.read() == b"before\nafter\n"
    reader.close()
    os.write(writer, b"lost")
    os.close(writer)
    assert names_in(here) == []


@on_a_mount
def test_replaced_under_a_reader(here):
    path = here / "state"
    path.write_bytes(b"old" * 1000)
    with path.open("rb", buffering=0) as reader:
        assert reader.read(3) == b"old"
        (here / "state.new").write_bytes(b"NEW" * 1000)
        (here / "state.new").replace(path)
        assert reader.read(10_000) == b"old" * 999
    assert path.read_bytes() == b"NEW" * 1000


@on_a_mount
def test_several_append_at_once(here):
    def append(writer):
        for line in range(10):
            with (here / "log").open("a") as file:
                file.write(f"{writer} {line}\n")

    threads = [threading.Thread(target=append, args=(writer,)) for writer in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = [f"{writer} {line}" for writer in range(4) for line in range(10)]
    assert sorted((here / "log").read_text().splitlines()) == expected


@on_a_mount
def test_times(here):
    path = here / "timed"
    path.touch()
    os.utime(path, ns=(5, 1_600_000_000_123_456_789))
    assert path.stat().st_mtime_ns == 1_600_000_000_123_456_789
    subprocess.run(["touch", str(path)], check=True)
    assert abs(path.stat().st_mtime - time.time()) < 60


@on_a_mount
def test_in_the_foreground_until_interrupted(here, home, mounted, tmp_path):
    command = [sys.executable, "-m", "ignite_tf_magic", "fs", "mount", "igfs:///", str(tmp_path)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        while LOG_SAYS not in process.stderr.readline():
            assert process.poll() is None
        assert mounted[1][0] in names_in(tmp_path)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=300)
        assert process.returncode == 0, said
        assert "Traceback" not in said
        assert not is_mounted(tmp_path)
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def mount_process(directory):
    """Run a process that mounts igfs in a directory. Nothing stays mounted afterwards."""
    command = [sys.executable, "-m", "ignite_tf_magic", "fs", "mount", "igfs:///", str(directory)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            while LOG_SAYS not in process.stderr.readline():
                assert process.poll() is None
            yield process
        finally:
            process.kill()
            process.wait()
            subprocess.run(["fusermount3", "-uz", directory], check=False, capture_output=True)


@on_a_mount
def test_killed_leaves_no_dead_mount(here, home, tmp_path):
    with mount_process(tmp_path) as process:
        process.kill()
        process.wait()
        until(lambda: not is_mounted(tmp_path), what="the mount to go")
        assert names_in(tmp_path) == []


@on_a_mount
def test_a_dead_mount_is_mounted_over(here, home, tmp_path):
    with dead_mount(tmp_path):
        start_mount("igfs:///", str(tmp_path), report=print)
        names_in(tmp_path)
        unmount(str(tmp_path))
        assert names_in(tmp_path) == []


@on_a_mount
def test_a_dead_mount_is_unmounted(here, home, tmp_path):
    with dead_mount(tmp_path):
        unmount(str(tmp_path))
        assert names_in(tmp_path) == []


@contextlib.contextmanager
def dead_mount(directory):
    """Make the mount that remains if all its processes are killed at once, as systemd does."""
    with mount_process(directory) as process:
        for child in psutil.Process(process.pid).children():
            child.kill()
        process.kill()
        process.wait()
        with pytest.raises(OSError, match="not connected"):
            directory.stat()
        yield
