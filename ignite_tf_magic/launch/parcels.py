"""Packs directories into bundles for hosts: one archive for each content, named by its hash.

The same content always gives the same archive: entries are sorted and have no times or owners. Archives lie in the
user's cache directory. Those unused for a week are removed.
"""

from __future__ import annotations

import contextlib
import difflib
import fnmatch
import gzip
import hashlib
import io
import json
import os
import re
import stat
import tarfile
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from ignite_tf_magic.errors import ParcelError
from ignite_tf_magic.launch.archives import read_archive
from ignite_tf_magic.launch.entries import SECRET_NAME, ArchiveEntry, Entries, leads_out
from ignite_tf_magic.settings.options import cache_dir

MAX_BYTES = 256 << 20
# Parts of a job's directory that no worker needs. Virtual environments are recognized by their contents.
DEFAULT_EXCLUDES = (
    *(".git", ".hg", ".svn", "__pycache__", "*.pyc", ".ipynb_checkpoints", ".venv"),
    *(".mypy_cache", ".pytest_cache", ".ruff_cache", ".tox", ".nox"),
)
_MARKS_OF_ENVIRONMENTS = ("pyvenv.cfg", "conda-meta")
_KEPT_S = 7 * 24 * 3600
# At a higher level, zlib takes longer than the transfer over any network that is fit for workers.
_COMPRESS_LEVEL = 1
_PACKAGE = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Parcel:
    """A bundle: a packed directory.

    Attributes:
        digest: SHA-256 of the archive's bytes, in hexadecimal.
        path: The archive, a compressed tar. It is removed automatically, a week after its last use.
        num_bytes: Size of the archive.
        num_files: Number of files in it; only `pack_job` counts them.
        left_out: Entries of a job's directory that are not in it: secrets, and links that lead out ("NAME -> TARGET").
    """

    digest: str
    path: Path
    num_bytes: int
    num_files: int = field(default=0, compare=False)
    left_out: tuple[str, ...] = field(default=(), compare=False)


def pack_tree(
    root: Path,
    *,
    exclude: Collection[str] = DEFAULT_EXCLUDES,
    max_bytes: int = MAX_BYTES,
    inside: str = "",
) -> Parcel:
    """Pack a directory.

    Symbolic links are kept if they are relative and stay inside. Of the permissions, only "executable" is kept.
    Secrets are packed, too; `pack_job` leaves them out.

    Args:
        root: The directory.
        exclude: Patterns of names, or of paths relative to `root`, that are left out with everything below them.
        max_bytes: Limit for all files together, before compression.
        inside: Directory in the archive for all entries; its root by default.

    Raises:
        ParcelError: The tree is too large, a link leads out, or a file is not a regular file or cannot be read. The
            message names the largest files, the link or the file.
    """
    entries = Entries(f"the directory {root}", max_bytes)
    _scan(entries, root, exclude, inside, None)
    return _pack(entries)


def pack_job(
    path: Path, command: Sequence[str] = (), *, include: Collection[str] = (), max_bytes: int = MAX_BYTES
) -> Parcel:
    """Pack a job's directory, or an archive: zip, tar, tar.gz, tar.bz2 or tar.xz.

    The content, not the name, decides the kind of an archive. Secrets are left out (`Entries.leave_out_secrets`), and
    so are links in a directory that lead out of it. A single top-level directory of an archive is stripped if the
    command's file is in it. CRLF line ends of scripts become LF.

    Args:
        path: The directory or the archive.
        command: The command to run in the directory. The file that it runs is packed even if it is a link that leads
            out.
        include: Patterns of links that lead out. Their targets are packed in their place.
        max_bytes: Limit for all files together, before compression.

    Raises:
        ParcelError: The path does not exist, is broken or too large, or lacks the file that the command runs; or an
            entry is unsafe to unpack (an absolute path, "..", a link in an archive that leads out, a device). The
            message names the entry.
    """
    wanted = _file_of(command)
    if path.is_dir():
        entries = Entries(f"the directory {path}", max_bytes)
        followed = _matcher([*include, *([wanted] if wanted else [])])
        _scan(entries, path, DEFAULT_EXCLUDES, "", followed)
        return _pack_job(entries, wanted)
    entries = Entries(f"the archive {path}", max_bytes)
    with read_archive(path, entries):
        entries.without_top(wanted)
        return _pack_job(entries, wanted)


def _pack_job(entries: Entries, wanted: str | None) -> Parcel:
    entries.leave_out_secrets()
    files = [name for name, entry in entries.named.items() if not entry.is_directory]
    if wanted and wanted not in files:
        near = difflib.get_close_matches(wanted, files, 1, 0.5)
        asked = (
            f"; did you mean {near[0]!r}?"
            if near
            else f"; it has {', '.join(sorted(files)[:5]) or 'no file'}"
        )
        raise ParcelError(f"{entries.what} has no file {wanted!r}{asked}")
    return replace(_pack(entries), num_files=len(files), left_out=tuple(sorted(entries.left_out)))


def _file_of(command: Sequence[str]) -> str | None:
    """Return the file in a job's directory that a command runs: `python train.py`, `bash run.sh`, `./run.sh`."""
    program, *rest = [*command, ""]
    word = rest[0] if program in ("python", "python3", "bash", "sh") else program if "/" in program else ""
    word = word.removeprefix("./")
    return None if not word or word.startswith(("-", "/", "~", "..")) else word


def pack_package() -> Parcel:
    """Pack this package as installed, under its name, so that the unpacked directory can go on sys.path.

    The bundle includes cloudpickle, which sends functions. So hosts need no copy, and read what this version writes.
    Compiled parts are included as they are; a host that they do not fit works without them. Files are read again
    only if the size or time of one has changed.
    """
    import cloudpickle  # here, because a reconciler imports this module in an interpreter without it

    entries = Entries("this package", MAX_BYTES)
    for package in (_PACKAGE, Path(cloudpickle.__file__).resolve().parent):
        _scan(entries, package, DEFAULT_EXCLUDES, package.name, None)
    note = _folder() / f"package-{entries.stamp()}.json"
    try:
        packed = json.loads(note.read_text(encoding="utf-8"))
        parcel = Parcel(packed["digest"], _archive_of(packed["digest"]), packed["num_bytes"])
        if _is_whole(parcel):
            _touch(parcel.path, note)
            return parcel
    except (OSError, ValueError, KeyError, TypeError):
        pass  # not packed yet, or removed since
    parcel = _pack(entries)
    with contextlib.suppress(OSError):
        note.write_text(
            json.dumps({"digest": parcel.digest, "num_bytes": parcel.num_bytes}), encoding="utf-8"
        )
    return parcel


def _scan(
    entries: Entries, root: Path, exclude: Collection[str], inside: str, followed: re.Pattern[str] | None
) -> None:
    """Add the contents of a directory, except what matches `exclude`.

    `followed` is None for a directory of our own. From a job's directory, secrets are left out as well, and so are
    links that lead out. If `followed` matches the name of such a link, its target is added instead.
    """
    excluded = _matcher(exclude)
    folders = [(root, inside)]
    while folders:
        folder, prefix = folders.pop()
        for each in _children(entries, folder):
            name = entries.safe_name(f"{prefix}/{each.name}" if prefix else each.name)
            relative = name.removeprefix(f"{inside}/") if inside else name
            if followed is not None and SECRET_NAME.fullmatch(each.name):
                entries.left_out.append(name)
                continue
            if excluded.match(each.name) or excluded.match(relative):
                continue
            if each.is_dir(follow_symlinks=False):
                if not any(os.path.lexists(Path(each.path, mark)) for mark in _MARKS_OF_ENVIRONMENTS):
                    entries.add(name, ArchiveEntry())
                    folders.append((Path(each.path), name))
            else:
                entry = _file_entry(entries, each, name)
                if entry.target is None or followed is None or not leads_out(name, entry.target):
                    entries.add(name, entry)
                elif not followed.match(name):
                    entries.left_out.append(f"{name} -> {entry.target}")
                elif Path(each.path).is_dir():
                    entries.add(name, ArchiveEntry())
                    folders.append((Path(each.path).resolve(), name))
                else:
                    entries.add(name, _file_entry(entries, each, name, follow=True))
    entries.check_size()


def _matcher(patterns: Collection[str]) -> re.Pattern[str]:
    return re.compile("|".join(fnmatch.translate(each.rstrip("/")) for each in patterns) or r"(?!)")


def _children(entries: Entries, folder: Path) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            yield from found
    except OSError as error:
        raise ParcelError(f"{entries.what}: cannot list {str(folder)!r}: {error.strerror}") from error


def _file_entry(entries: Entries, each: os.DirEntry[str], name: str, *, follow: bool = False) -> ArchiveEntry:
    """Return the entry of a file or link. With `follow`, it is that of the link's target."""
    try:
        status = each.stat(follow_symlinks=follow)
        if stat.S_ISLNK(status.st_mode):
            return ArchiveEntry(target=os.readlink(each.path).replace(os.sep, "/"))  # noqa: PTH115 a text, not a path
    except OSError as error:
        raise ParcelError(f"{entries.what}: cannot read {name!r}: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode):
        raise ParcelError(
            f"{entries.what}: {name!r} is a socket, a pipe or a device, and only files can be shipped"
        )
    is_executable = bool(status.st_mode & 0o111)
    return ArchiveEntry(Path(each.path), None, is_executable, status.st_size, status.st_mtime_ns)


class _Hashing:
    """A file that hashes and counts the bytes written to it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self.num_bytes = 0

    def write(self, data: bytes) -> int:
        self._hash.update(data)
        self.num_bytes += len(data)
        try:
            return self._file.write(data)
        except OSError as error:
            raise ParcelError(f"cannot write an archive in {_folder()}: {error.strerror}") from error

    def flush(self) -> None:
        self._file.flush()

    def digest(self) -> str:
        return self._hash.hexdigest()


def _pack(entries: Entries) -> Parcel:
    ordered = entries.finished()
    folder = _folder()
    descriptor, part = tempfile.mkstemp(suffix=".part", dir=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            hashing: Any = _Hashing(file)
            with (
                gzip.GzipFile("", "wb", _COMPRESS_LEVEL, hashing, mtime=0) as packed,
                tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
            ):
                for name, entry in ordered:
                    _write(archive, entries, name, entry)
        parcel = Parcel(hashing.digest(), _archive_of(hashing.digest()), hashing.num_bytes)
        if not _is_whole(parcel):
            Path(part).replace(parcel.path)
        _touch(parcel.path)
    except OSError as error:
        raise ParcelError(f"{entries.what} cannot be packed in {folder}: {error}") from error
    finally:
        Path(part).unlink(missing_ok=True)
    _remove_old(folder)
    return parcel


def _write(archive: tarfile.TarFile, entries: Entries, name: str, entry: ArchiveEntry) -> None:
    info = tarfile.TarInfo(name)
    info.mode = 0o755 if entry.is_directory or entry.is_executable else 0o644
    if entry.is_directory:
        info.type = tarfile.DIRTYPE
    elif entry.target is not None:
        info.type, info.linkname, info.mode = tarfile.SYMTYPE, entry.target, 0o777
    if entry.source is None:
        archive.addfile(info)
        return
    try:
        with entry.source.open("rb") as opened:
            file: IO[bytes] = opened
            info.size = os.fstat(opened.fileno()).st_size
            if info.size > entries.max_bytes:
                raise ParcelError(f"{entries.what}: {name!r} has grown too large while it was packed")
            start = opened.read(256)
            opened.seek(0)
            if b"\r\n" in start and (start.startswith(b"#!") or name.endswith(".sh")):
                text = opened.read().replace(b"\r\n", b"\n")  # shells on hosts do not understand CRLF
                info.size, file = len(text), io.BytesIO(text)
            archive.addfile(info, file)
    except OSError as error:
        raise ParcelError(f"{entries.what}: cannot read {name!r} to its end: {error}") from error


def _folder() -> Path:
    folder = cache_dir() / "parcels"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _archive_of(digest: str) -> Path:
    return _folder() / f"{digest}.tar.gz"


def _is_whole(parcel: Parcel) -> bool:
    return parcel.path.exists() and parcel.path.stat().st_size == parcel.num_bytes


def _touch(*paths: Path) -> None:
    with contextlib.suppress(OSError):
        for path in paths:
            os.utime(path)


def _remove_old(folder: Path) -> None:
    oldest = time.time() - _KEPT_S
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < oldest:
                path.unlink()
