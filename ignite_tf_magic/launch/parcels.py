"""Directories packed for hosts: one archive for each content, named by its hash.

The same content gives the same archive, wherever it lay and whenever it was written: entries are sorted,
without times and owners. Archives lie in the user's cache directory; those unused for a week are removed.
"""

from __future__ import annotations

import contextlib
import fnmatch
import gzip
import hashlib
import json
import os
import re
import stat
import tarfile
import tempfile
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import cloudpickle

from ignite_tf_magic.errors import ParcelError
from ignite_tf_magic.launch.archives import read_archive
from ignite_tf_magic.launch.entries import ArchiveEntry, Entries
from ignite_tf_magic.settings.options import cache_dir

MAX_BYTES = 256 << 20
# What a job's directory has and no worker needs. Virtual environments are known by what they contain.
DEFAULT_EXCLUDES = (
    *(".git", ".hg", ".svn", "__pycache__", "*.pyc", ".ipynb_checkpoints", ".venv"),
    *(".mypy_cache", ".pytest_cache", ".ruff_cache", ".tox", ".nox"),
)
_MARKS_OF_ENVIRONMENTS = ("pyvenv.cfg", "conda-meta")
_KEPT_S = 7 * 24 * 3600
# Above this, zlib takes longer than a network that is worth running workers over.
_COMPRESS_LEVEL = 1
_PACKAGE = Path(__file__).resolve().parent.parent
_CLOUDPICKLE = Path(cloudpickle.__file__).resolve().parent


@dataclass(frozen=True, slots=True)
class Parcel:
    """A packed directory.

    Attributes:
        digest: SHA-256 of the archive's bytes, in hexadecimal.
        path: The archive, a compressed tar. It stays for a week after its last use; nobody needs to remove it.
        num_bytes: Of the archive.
    """

    digest: str
    path: Path
    num_bytes: int


def pack_tree(
    root: Path,
    *,
    exclude: Collection[str] = DEFAULT_EXCLUDES,
    max_bytes: int = MAX_BYTES,
    inside: str = "",
) -> Parcel:
    """Pack a directory.

    Symbolic links are kept when they are relative and stay inside. Of permissions only "executable" is kept.

    Args:
        root: The directory.
        exclude: Patterns of names, or of paths relative to `root`, that are left out with all below them.
        max_bytes: Limit for all files together, before compression.
        inside: Directory of the archive in which everything lies; its top by default.

    Raises:
        ParcelError: Too large (the message names the largest files), a link that leads out, a file that is
            none or cannot be read; the message names it.
    """
    entries = Entries(f"the directory {root}", max_bytes)
    _scan(entries, root, exclude, inside)
    return _pack(entries)


def pack_archive(path: Path, *, max_bytes: int = MAX_BYTES) -> Parcel:
    """Pack what is in a zip, tar, tar.gz, tar.bz2 or tar.xz; its content tells which, not its name.

    Raises:
        ParcelError: Not such a file, broken, too large when unpacked, or with an entry that is unsafe to
            unpack (an absolute path, "..", a link that leads out, a device); the message names the entry.
    """
    entries = Entries(f"the archive {path}", max_bytes)
    with read_archive(path, entries):
        return _pack(entries)


def pack_job(
    path: Path, *, exclude: Collection[str] = DEFAULT_EXCLUDES, max_bytes: int = MAX_BYTES
) -> Parcel:
    """Pack what a person names as the directory of a job: a directory or an archive.

    Raises:
        ParcelError: As `pack_tree` and `pack_archive`, or there is nothing of that name.
    """
    if path.is_dir():
        return pack_tree(path, exclude=exclude, max_bytes=max_bytes)
    return pack_archive(path, max_bytes=max_bytes)


def pack_package() -> Parcel:
    """Pack this package as it is installed, under its name, so that the unpacked directory goes on sys.path.

    With it goes cloudpickle, by which functions are sent: hosts need not have it, and read what this version writes.
    Compiled parts go along as they are; where they do not fit the host, it does without them. Files are read
    again only when one of them has another size or time than when they were packed.
    """
    entries = Entries("this package", MAX_BYTES)
    for package in (_PACKAGE, _CLOUDPICKLE):
        _scan(entries, package, DEFAULT_EXCLUDES, package.name)
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


def _scan(entries: Entries, root: Path, exclude: Collection[str], inside: str) -> None:
    excluded = _matcher(exclude)
    folders = [(root, inside)]
    while folders:
        folder, prefix = folders.pop()
        for each in _children(entries, folder):
            name = entries.safe_name(f"{prefix}/{each.name}" if prefix else each.name)
            relative = name.removeprefix(f"{inside}/") if inside else name
            if excluded.match(each.name) or excluded.match(relative):
                continue
            if each.is_dir(follow_symlinks=False):
                if not any(os.path.lexists(Path(each.path, mark)) for mark in _MARKS_OF_ENVIRONMENTS):
                    entries.add(name, ArchiveEntry())
                    folders.append((Path(each.path), name))
            else:
                entries.add(name, _file_entry(entries, each, name))
    entries.check_size()


def _matcher(patterns: Collection[str]) -> re.Pattern[str]:
    return re.compile("|".join(fnmatch.translate(each.rstrip("/")) for each in patterns) or r"(?!)")


def _children(entries: Entries, folder: Path) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            yield from found
    except OSError as error:
        raise ParcelError(f"{entries.what}: cannot list {str(folder)!r}: {error.strerror}") from error


def _file_entry(entries: Entries, each: os.DirEntry[str], name: str) -> ArchiveEntry:
    try:
        status = each.stat(follow_symlinks=False)
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
    """Hashes what passes on its way into a file."""

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
        with entry.source.open("rb") as file:
            info.size = os.fstat(file.fileno()).st_size
            if info.size > entries.max_bytes:
                raise ParcelError(f"{entries.what}: {name!r} has grown too large while it was packed")
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
