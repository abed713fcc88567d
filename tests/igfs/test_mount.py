"""igfs as a directory, through FUSE; and what is said where that cannot be."""

from __future__ import annotations

import errno
import functools
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid

import pytest

from ignite_tf_magic.config import ConnectOptions
from ignite_tf_magic.errors import InvalidPath, MountError, PathNotDirectory, PathNotFound
from ignite_tf_magic.files import Files, start_mount, unmount
from ignite_tf_magic.igfs import mount as mount_module
from ignite_tf_magic.igfs.mount import is_mounted
from ignite_tf_magic.igfs.volume import Volume

FALLBACK = "ignite-tf fs sync igfs:///PATH"
LOG_SAYS = "is shown in"


@pytest.fixture(scope="module")
def home(tmp_path_factory, ignite):
    """The configured cluster of this process and those it starts is the shared one."""
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
    """Where igfs:///mounted-... is mounted by another process, or why it cannot be; and its path in igfs."""
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
    """What another client of the cluster reads."""
    directory, top = mounted
    with volume.open_read((*top, *path.relative_to(directory).parts)) as reader:
        data = bytearray(reader.node.size)
        reader.read_into(0, memoryview(data))
    return bytes(data)


def on_a_mount(test):
    """Run a test with a mount; where none can be, check instead that this is told."""

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
        "import sys, pathlib; from ignite_tf_magic.igfs import mount; from ignite_tf_magic.cli import main; "
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
        ("igfs:///../x", tmp_path, InvalidPath),
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
    os.pwrite(handle, b" and", 5000)  # appending knows no offset
    os.close(handle)
    assert path.read_bytes() == b"again and"


@on_a_mount
def test_writing_in_the_middle_is_refused(here):
    path = here / "whole"
    path.write_bytes(b"0123456789")
    handle = os.open(path, os.O_RDWR)
    with pytest.raises(OSError) as caught:
        os.pwrite(handle, b"x", 5)
    assert caught.value.errno == errno.EOPNOTSUPP
    os.pwrite(handle, b"end", 12)  # behind the end: a hole
    assert os.pread(handle, 100, 0) == b"0123456789\0\0end"
    os.close(handle)
    assert path.read_bytes() == b"0123456789\0\0end"
    for make in (os.symlink, os.link):
        with pytest.raises(OSError):
            make(path, here / "link")


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
        for _ in range(200):  # another host sees it although nobody asked here
            if content(volume, mounted, path).endswith(b"by itself\n"):
                break
            time.sleep(0.1)
        else:
            raise AssertionError("what was written has not been published")


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
    with pytest.raises(OSError) as caught:
        os.write(writer, b"lost")
    assert caught.value.errno == errno.ESTALE
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


@on_a_mount
def test_killed_leaves_no_dead_mount(here, home, tmp_path):
    command = [sys.executable, "-m", "ignite_tf_magic", "fs", "mount", "igfs:///", str(tmp_path)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while LOG_SAYS not in process.stderr.readline():
        assert process.poll() is None
    process.kill()
    process.wait()
    process.stderr.close()
    for _ in range(100):
        if not is_mounted(tmp_path):
            break
        time.sleep(0.1)
    assert names_in(tmp_path) == []
