from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import socket
import stat
import struct
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ignite_tf_magic.errors import ParcelError
from ignite_tf_magic.launch import entries, parcels
from ignite_tf_magic.launch.parcels import pack_job, pack_package, pack_tree

posix = pytest.mark.skipif(os.name != "posix", reason="links, pipes and modes of POSIX")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """The user's cache directory, replaced for this test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "ignite_tf_magic" / "parcels"


@pytest.fixture
def job(tmp_path):
    root = tmp_path / "job"
    (root / "lib" / "deep").mkdir(parents=True)
    (root / "empty").mkdir()
    (root / "train.py").write_text("print('hi')\n")
    (root / "lib" / "deep" / "data.bin").write_bytes(bytes(range(256)) * 50)
    (root / "ünï code").write_text("x")
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o700)
    return root


def contents(parcel) -> dict[str, object]:
    """Return the files that a host finds after unpacking, by name."""
    found: dict[str, object] = {}
    with tarfile.open(parcel.path) as archive:
        for member in archive:
            assert (member.mtime, member.uid, member.gid, member.uname) == (0, 0, 0, "")
            content = archive.extractfile(member) if member.isreg() else None
            found[member.name] = content.read() if content else member.linkname or None
        assert archive.getnames() == list(dict.fromkeys(archive.getnames()))
    return found


def modes(parcel) -> dict[str, int]:
    with tarfile.open(parcel.path) as archive:
        return {member.name: member.mode for member in archive if not member.issym()}


# Directories.


def test_a_directory_arrives_whole(job):
    parcel = pack_tree(job)
    assert contents(parcel) == {
        "empty": None,
        "lib": None,
        "lib/deep": None,
        "lib/deep/data.bin": bytes(range(256)) * 50,
        "run.sh": b"#!/bin/sh\n",
        "train.py": b"print('hi')\n",
        "ünï code": b"x",
    }
    assert parcel.num_bytes == parcel.path.stat().st_size
    digest = subprocess.run(["sha256sum", parcel.path], capture_output=True, text=True, check=True).stdout
    assert digest.split()[0] == parcel.digest
    assert parcel.path.parent.stat().st_mode & 0o777 == 0o700
    assert parcel.path.stat().st_mode & 0o777 == 0o600


@posix
def test_only_whether_a_file_may_be_run_is_kept_of_its_mode(job):
    (job / "train.py").chmod(0o600)
    found = modes(pack_tree(job))
    assert (found["run.sh"], found["train.py"], found["lib"]) == (0o755, 0o644, 0o755)


def test_the_same_content_is_the_same_archive_wherever_and_whenever(job, tmp_path):
    first = pack_tree(job)
    other = tmp_path / "elsewhere"
    for name in ("ünï code", "train.py", "run.sh", "lib/deep/data.bin"):
        (other / name).parent.mkdir(parents=True, exist_ok=True)
        (other / name).write_bytes((job / name).read_bytes())
    (other / "empty").mkdir()
    (other / "run.sh").chmod(0o755)
    os.utime(other / "train.py", (1, 1))
    assert pack_tree(other) == first
    (other / "train.py").write_text("print('ho')\n")
    assert pack_tree(other).digest != first.digest


def test_what_no_worker_needs_stays_here(job):
    for name in (".git/HEAD", "lib/__pycache__/a.pyc", ".ipynb_checkpoints/n.ipynb", "lib/old.pyc"):
        (job / name).parent.mkdir(exist_ok=True)
        (job / name).write_text("x")
    for name in ("env/pyvenv.cfg", "lib/my-conda/conda-meta/history"):
        (job / name).parent.mkdir(parents=True)
        (job / name).write_text("x")
    found = contents(pack_tree(job))
    assert sorted(found) == [
        "empty",
        "lib",
        "lib/deep",
        "lib/deep/data.bin",
        "run.sh",
        "train.py",
        "ünï code",
    ]


def test_patterns_are_of_names_or_of_paths(job):
    (job / "deep").mkdir()
    (job / "deep" / "data.txt").write_text("x")
    found = contents(pack_tree(job, exclude=["lib/deep", "*.sh", "empty/"]))
    assert sorted(found) == ["deep", "deep/data.txt", "lib", "train.py", "ünï code"]
    assert "run.sh" in contents(pack_tree(job, exclude=()))


@posix
def test_links_that_stay_inside_are_kept(job):
    (job / "lib" / "deep" / "up").symlink_to("../../train.py")
    (job / "loop").symlink_to("loop")
    (job / "dangling").symlink_to("lib/none")
    (job / "lib2").symlink_to("lib", target_is_directory=True)
    found = contents(pack_tree(job))
    assert (found["lib/deep/up"], found["loop"], found["dangling"]) == ("../../train.py", "loop", "lib/none")
    assert found["lib2"] == "lib"
    assert "lib2/deep" not in found


@posix
@pytest.mark.parametrize("target", ["/etc/passwd", "../outside", "lib/../../x", "lib/../train.py", ".."])
def test_other_links_are_refused(job, target):
    (job / "leak").symlink_to(target)
    with pytest.raises(ParcelError, match="symbolic link 'leak' leads to .* replace it"):
        pack_tree(job)
    assert "leak" not in contents(pack_tree(job, exclude=["leak"]))


@posix
def test_links_of_a_job_that_lead_out_are_left_out_and_named(job, tmp_path):
    (tmp_path / "outside" / "sub").mkdir(parents=True)
    (tmp_path / "outside" / "sub" / "rows.csv").write_text("1,2")
    (tmp_path / "helpers.py").write_text("x = 1")
    (tmp_path / "main.py").write_text("print(1)")
    (job / "data").symlink_to(tmp_path / "outside")
    (job / "lib" / "helpers.py").symlink_to("../../helpers.py")
    (job / "main.py").symlink_to("../main.py")
    links = [f"data -> {tmp_path}/outside", "lib/helpers.py -> ../../helpers.py", "main.py -> ../main.py"]
    parcel = pack_job(job)
    assert list(parcel.left_out) == links
    assert not {"data", "lib/helpers.py", "main.py"} & {*contents(parcel)}
    parcel = pack_job(
        job, ["python", "main.py"], include=["lib/*"]
    )  # the file that the command runs is always sent
    assert list(parcel.left_out) == links[:1]
    found = contents(pack_job(job, ["python", "main.py"], include=["*"]))
    assert (found["main.py"], found["lib/helpers.py"], found["data/sub/rows.csv"]) == (
        b"print(1)",
        b"x = 1",
        b"1,2",
    )


@posix
def test_a_link_that_leads_out_to_nothing_or_to_a_pipe_cannot_be_included(job, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for target, words in (
        ("nowhere", "cannot read 'leak': No such file"),
        ("pipe", "'leak' is a socket, a pipe"),
    ):
        (job / "leak").unlink(missing_ok=True)
        (job / "leak").symlink_to(tmp_path / target)
        with pytest.raises(ParcelError, match=words):
            pack_job(job, include=["leak"])


SECRETS = {
    "ignite-tf.toml": "[cluster]",
    "sub/ignite-tf.toml": "[cluster]",
    ".env": "PASSWORD=x",
    "sub/.env.local": "PASSWORD=x",
    ".git/config": "url = https://user:token@example.org",
    ".netrc": "password x",
    "sub/.ssh/config": "Host x",
    "key": "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA",
    "sub/server.pem": "\n-----BEGIN PRIVATE KEY-----\nAAAA",
    "putty.ppk": "PuTTY-User-Key-File-3: ssh-ed25519",
}


@pytest.mark.parametrize("kind", ["directory", "zip"])
def test_secrets_are_not_shipped(job, tmp_path, kind):
    before = contents(pack_job(job))
    for name, text in SECRETS.items():
        (job / name).parent.mkdir(exist_ok=True)
        (job / name).write_text(text)
    (job / "sub" / "cert.pem").write_text("-----BEGIN CERTIFICATE-----")
    (job / "sub" / "environment").write_text("")
    parcel = pack_job(job if kind == "directory" else zip_of(tmp_path, job), include=["*"])
    assert contents(parcel).keys() - before.keys() == {"sub", "sub/cert.pem", "sub/environment"}
    named = {name.replace(".git/config", ".git").replace(".ssh/config", ".ssh") for name in SECRETS}
    assert set(parcel.left_out) == named


def zip_of(tmp_path: Path, root: Path, top: str = "") -> Path:
    path = tmp_path / "packed.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for each in sorted(root.rglob("*")):
            archive.write(each, f"{top}{each.relative_to(root)}")
    return path


def test_a_single_top_folder_is_left_out_where_the_script_is_in_it(job, tmp_path):
    archive = zip_of(tmp_path, job, "repository-main/")
    assert pack_job(archive, ["python", "train.py"]) == pack_job(job)
    assert "repository-main/train.py" in contents(pack_job(archive, ["python", "repository-main/train.py"]))
    assert "repository-main/train.py" in contents(pack_job(archive, ["python", "-m", "package"]))


@pytest.mark.parametrize("command", [["python", "trian.py"], ["bash", "train.sh"], ["./trian.py", "x"]])
def test_the_name_of_a_script_that_is_not_there(job, command):
    with pytest.raises(ParcelError, match="has no file '.*'; did you mean '(train.py|run.sh)'"):
        pack_job(job, command)


def test_shell_scripts_get_the_line_ends_of_hosts(job):
    (job / "run.sh").write_bytes(b"#!/bin/sh\r\necho hi\r\n")
    (job / "setup.sh").write_bytes(b"echo hi\r\n")
    (job / "tool").write_bytes(b"#!/usr/bin/env python3\r\nprint()\r\n")
    (job / "data.csv").write_bytes(b"a\r\nb\r\n")
    found = contents(pack_job(job))
    assert found["run.sh"] == b"#!/bin/sh\necho hi\n"
    assert found["setup.sh"] == b"echo hi\n"
    assert found["tool"] == b"#!/usr/bin/env python3\nprint()\n"
    assert found["data.csv"] == b"a\r\nb\r\n"


@posix
def test_pipes_and_sockets_are_refused(job):
    os.mkfifo(job / "pipe")
    with pytest.raises(ParcelError, match="'pipe' is a socket, a pipe or a device"):
        pack_tree(job)
    (job / "pipe").unlink()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(job / "lib" / "s"))
        with pytest.raises(ParcelError, match="'lib/s' is a socket"):
            pack_tree(job)


def test_a_directory_that_is_too_large_names_its_largest_files(job):
    (job / "lib" / "big.npz").write_bytes(bytes(3 << 20))
    (job / "huge.npz").write_bytes(bytes(5 << 20))
    with pytest.raises(
        ParcelError, match=r"8.0 MiB .* at most 4.0 MiB .*: huge.npz \(5.0 MiB\), lib/big.npz \(3"
    ):
        pack_tree(job, max_bytes=4 << 20)
    assert pack_tree(job, max_bytes=4 << 20, exclude=["*.npz"])


def test_too_many_entries(job, monkeypatch):
    monkeypatch.setattr(entries, "MAX_ENTRIES", 3)
    with pytest.raises(ParcelError, match="more than 3 entries"):
        pack_tree(job)


@posix
def test_names_that_are_not_unicode_and_names_that_are_no_paths(job):
    (job / os.fsdecode(b"caf\xe9")).write_text("x")
    assert contents(pack_tree(job))[os.fsdecode(b"caf\xe9")] == b"x"
    (job / "a\\b").write_text("x")
    with pytest.raises(ParcelError, match="b' has a character"):
        pack_tree(job)


def test_nothing_of_that_name(tmp_path, job):
    with pytest.raises(ParcelError, match=r"cannot list .*none.*No such file"):
        pack_tree(tmp_path / "none")
    with pytest.raises(ParcelError, match=r"the archive .*none cannot be read: .*No such file"):
        pack_job(tmp_path / "none")
    assert pack_job(job) == pack_tree(job)


def test_long_names_and_deep_directories(tmp_path):
    root = tmp_path / "deep"
    folder = root.joinpath(*["d" * 60] * 6)
    folder.mkdir(parents=True)
    (folder / ("n" * 120)).write_text("x")
    (only,) = [name for name, content in contents(pack_tree(root)).items() if content]
    assert only == "/".join([*["d" * 60] * 6, "n" * 120])


def test_what_is_unused_for_a_week_is_removed(job, cache):
    old = pack_tree(job)
    os.utime(old.path, (time.time() - 8 * 24 * 3600,) * 2)
    (job / "train.py").write_text("new")
    new = pack_tree(job)
    assert [path.name for path in cache.iterdir()] == [new.path.name]
    assert pack_tree(job).path == new.path


# This package.


def test_this_package_goes_along_and_works_there(tmp_path, cache):
    parcel = pack_package()
    names = contents(parcel)
    assert "ignite_tf_magic/runs/bootstrap.py" in names
    own = Path(parcels.__file__).parent.parent
    assert {f"ignite_tf_magic/{p.relative_to(own)}" for p in own.rglob("*.so")} <= set(names)
    assert not [name for name in names if "__pycache__" in name]
    with tarfile.open(parcel.path) as archive:
        archive.extractall(tmp_path / "there", filter="data")
    done = subprocess.run(
        [sys.executable, "-c", "import ignite_tf_magic.runs.bootstrap as b; print(b.__file__)"],
        env={"PYTHONPATH": str(tmp_path / "there")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert done.stdout.startswith(str(tmp_path / "there"))


def test_this_package_is_read_again_only_when_it_has_changed(tmp_path, cache, monkeypatch):
    package = tmp_path / "src" / "pkg"
    package.mkdir(parents=True)
    (package / "a.py").write_text("a = 1\n")
    monkeypatch.setattr(parcels, "_PACKAGE", package)
    first = pack_package()
    times = (package / "a.py").stat()
    (package / "a.py").write_text("a = 2\n")
    os.utime(package / "a.py", ns=(times.st_atime_ns, times.st_mtime_ns))
    assert pack_package() == first
    os.utime(package / "a.py", ns=(times.st_atime_ns, times.st_mtime_ns + 1))
    second = pack_package()
    assert contents(second)["pkg/a.py"] == b"a = 2\n"
    second.path.unlink()
    assert pack_package() == second
    second.path.write_bytes(b"cut off")
    found = contents(pack_package())
    assert {name: found[name] for name in found if name.startswith("pkg")} == {
        "pkg": None,
        "pkg/a.py": b"a = 2\n",
    }
    assert "cloudpickle/cloudpickle.py" in found
    for note in cache.glob("package-*"):
        note.write_text("{")
    assert pack_package() == second


# Archives.


def tar_bytes(add, compress=lambda data: data) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        add(archive)
    return compress(buffer.getvalue())


def of_tree(root):
    return lambda archive: archive.add(root, ".")


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", data: bytes = b""):
    def add(archive):
        info = tarfile.TarInfo(name)
        info.type, info.linkname, info.size = kind, link, len(data)
        archive.addfile(info, io.BytesIO(data))

    return add


def file_of(tmp_path, data: bytes) -> Path:
    path = tmp_path / "given"
    path.write_bytes(data)
    return path


@posix
@pytest.mark.parametrize("compress", [lambda data: data, gzip.compress, bz2.compress, lzma.compress])
def test_an_archive_is_the_same_as_its_directory(job, tmp_path, compress):
    (job / "link").symlink_to("lib/deep/data.bin")
    assert pack_job(file_of(tmp_path, tar_bytes(of_tree(job), compress))) == pack_tree(job)


def test_a_zip_is_the_same_as_its_directory(job, tmp_path):
    path = tmp_path / "given"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for each in sorted(job.rglob("*")):
            archive.write(each, each.relative_to(job))
    assert pack_job(path) == pack_tree(job)


@posix
def test_a_zip_with_a_link(tmp_path):
    def path_with(target: str) -> Path:
        path = tmp_path / "given"
        with zipfile.ZipFile(path, "w") as archive:
            info = zipfile.ZipInfo("a/link")
            info.external_attr = (stat.S_IFLNK | 0o777) << 16
            archive.writestr(info, target)
        return path

    assert contents(pack_job(path_with("../b"))) == {"a": None, "a/link": "../b"}
    with pytest.raises(ParcelError, match="symbolic link 'a/link' leads to '../../b'"):
        pack_job(path_with("../../b"))


def test_hard_links_inside_become_files(tmp_path):
    def add(archive):
        entry("a/one", data=b"content")(archive)
        entry("./b", tarfile.LNKTYPE, "./a/one")(archive)

    assert contents(pack_job(file_of(tmp_path, tar_bytes(add)))) == {
        "a": None,
        "a/one": b"content",
        "b": b"content",
    }


def test_of_entries_with_one_name_the_last_counts(tmp_path):
    def add(archive):
        entry("a", data=b"old")(archive)
        entry("./a", data=b"new")(archive)

    assert contents(pack_job(file_of(tmp_path, tar_bytes(add)))) == {"a": b"new"}


@pytest.mark.parametrize(
    ("adds", "message"),
    [
        ([entry("../evil")], r"'\.\./evil' leads out"),
        ([entry("a/../../evil")], "leads out"),
        ([entry("/etc/evil")], "'/etc/evil' is an absolute path"),
        ([entry("C:evil")], "'C:evil' is an absolute path"),
        ([entry("..\\evil")], "has a character"),
        ([entry("a", tarfile.SYMTYPE, "/etc")], "link 'a' leads to '/etc'"),
        ([entry("a", tarfile.SYMTYPE, "../x")], r"link 'a' leads to '\.\./x'"),
        ([entry("d/a", tarfile.SYMTYPE, "../../x")], "link 'd/a' leads to"),
        ([entry("a", tarfile.SYMTYPE, "b/../../x")], "link 'a' leads to"),
        ([entry("b", tarfile.SYMTYPE, "."), entry("a", tarfile.SYMTYPE, "b/../x")], "link 'a' leads to"),
        ([entry("a", tarfile.SYMTYPE, "b"), entry("a/x", data=b"1")], "'a/x' lies below 'a', which is not a"),
        ([entry("a", data=b"1"), entry("a/x", data=b"1")], "'a/x' lies below 'a'"),
        ([entry("a/x", data=b"1"), entry("a", tarfile.SYMTYPE, "b")], "'a/x' lies below 'a'"),
        ([entry("a", tarfile.LNKTYPE, "/etc/passwd")], "'/etc/passwd' is an absolute path"),
        ([entry("a", tarfile.LNKTYPE, "../x")], "leads out"),
        ([entry("a", tarfile.LNKTYPE, "b")], "'a' is a hard link to 'b', which is no file before it"),
        ([entry("s", tarfile.SYMTYPE, "b"), entry("a", tarfile.LNKTYPE, "s")], "hard link to 's'"),
        ([entry("a", tarfile.CHRTYPE)], "'a' is a device"),
        ([entry("a", tarfile.BLKTYPE)], "'a' is a device"),
        ([entry("a", tarfile.FIFOTYPE)], "'a' is a device"),
        ([entry(".", data=b"1")], "directory itself"),
    ],
)
def test_hostile_entries_are_named(tmp_path, cache, adds, message):
    data = tar_bytes(lambda archive: [add(archive) for add in adds])
    with pytest.raises(ParcelError, match=message):
        pack_job(file_of(tmp_path, data))
    assert not list(cache.glob("*"))


@pytest.mark.parametrize(
    ("name", "message"),
    [("../evil", "leads out"), ("/evil", "absolute"), ("a\\..\\evil", "character"), ("C:/evil", "absolute")],
)
def test_hostile_names_in_a_zip(tmp_path, name, message):
    path = tmp_path / "given"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, "x")
    with pytest.raises(ParcelError, match=message):
        pack_job(path)


def test_an_encrypted_zip(tmp_path):
    path = tmp_path / "given"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("secret", "x")
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(data)
    with pytest.raises(ParcelError, match="'secret' is encrypted; pack it without"):
        pack_job(path)


def zip_bomb(size: int) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb", bytes(size))
    return buffer.getvalue()


def lying_zip(size: int) -> bytes:
    """Return a zip file whose directory falsely claims that the entry has ten bytes."""
    data = bytearray(zip_bomb(size))
    struct.pack_into("<I", data, data.index(b"PK\x01\x02") + 24, 10)
    return bytes(data)


def linked_bomb(size: int) -> bytes:
    links = [entry(f"l{i}", tarfile.LNKTYPE, "a") for i in range(9)]
    return tar_bytes(lambda archive: [add(archive) for add in (entry("a", data=bytes(size // 8)), *links)])


@pytest.mark.parametrize(
    "make",
    [
        zip_bomb,
        linked_bomb,
        lambda size: tar_bytes(entry("bomb", data=bytes(size)), gzip.compress),
        lambda size: tar_bytes(entry("bomb", data=bytes(size)), lzma.compress),
    ],
)
def test_bombs_by_size(tmp_path, make):
    path = file_of(tmp_path, make((4 << 20) + 1))
    with pytest.raises(ParcelError, match=r"unpacks to more than 4.0 MiB.*at its entry"):
        pack_job(path, max_bytes=4 << 20)


def test_a_zip_that_lies_about_a_size(tmp_path):
    with pytest.raises(ParcelError, match="given cannot be read.*'bomb'"):
        pack_job(file_of(tmp_path, lying_zip(1 << 20)))


def test_a_header_that_would_fill_the_memory(tmp_path):
    data = bytearray(tar_bytes(entry("x" * 90, tarfile.XHDTYPE, data=bytes(2 << 20))))
    with pytest.raises(ParcelError, match="headers are too large"):
        pack_job(file_of(tmp_path, gzip.compress(bytes(data))))


@pytest.mark.parametrize("make", [lambda data: data, gzip.compress])
def test_bombs_by_count(tmp_path, monkeypatch, make):
    monkeypatch.setattr("ignite_tf_magic.launch.archives.MAX_ENTRIES", 50)
    data = tar_bytes(lambda archive: [entry("same")(archive) for _ in range(51)], make)
    with pytest.raises(ParcelError, match="more than 50 entries"):
        pack_job(file_of(tmp_path, data))


@pytest.mark.parametrize(
    "data", [b"", b"no archive at all" * 100, b"PK\x03\x04", gzip.compress(b"text", mtime=0)]
)
def test_what_is_no_archive(tmp_path, data):
    with pytest.raises(ParcelError, match="cannot be read|nor a zip, tar"):
        pack_job(file_of(tmp_path, data))


def small(compress=lambda data: data) -> bytes:
    def add(archive):
        for number in range(3):
            entry(f"dir/file{number}", data=b"%d" % number * 700)(archive)

    return tar_bytes(add, compress)


@pytest.mark.parametrize("compress", [lambda data: data, gzip.compress, bz2.compress, lzma.compress])
def test_an_archive_that_is_cut_off_is_never_taken_for_a_smaller_one(tmp_path, compress):
    data = small(compress)
    end = len(data) if compress(b"") else 3 * 1536 + 512  # a plain tar ends with zeros that carry no data
    for length in range(0, end, max(1, len(data) // 60)):
        with pytest.raises(ParcelError):
            pack_job(file_of(tmp_path, data[:length]))


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(["tar", "gz", "zip"]), st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)))
)
def test_damaged_archives_are_refused_or_safe(tmp_path, kind, changes):
    data = bytearray({"tar": small(), "gz": small(gzip.compress), "zip": zip_bomb(900)}[kind])
    for place, value in changes:
        data[place % len(data)] = value
    try:
        found = pack_job(file_of(tmp_path, bytes(data)))
    except ParcelError:
        return
    with tarfile.open(found.path) as archive:
        for member in archive:
            assert not member.name.startswith("/") and ".." not in member.name.split("/")
            assert member.isreg() or member.isdir() or not member.linkname.startswith(("/", ".."))


MEASURED = """
import os, resource, sys
from pathlib import Path
from ignite_tf_magic.launch.parcels import pack_job, pack_tree
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
parcel = pack_tree(Path(sys.argv[1]))
assert pack_job(parcel.path) == parcel
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="units of ru_maxrss")
def test_packing_needs_no_memory_for_what_it_packs(tmp_path):
    root = tmp_path / "large"
    root.mkdir()
    (root / "a").write_bytes(os.urandom(1 << 20) * 24)
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, root],
        env={**os.environ, "PYTHONPATH": str(Path(parcels.__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert int(done.stdout) < 12
