"""Archives that somebody else made, read without trust.

What they hold is written under numbers, never under a name of theirs; `entries` says which names and links
may stand in what a host unpacks. No header, size or count that they state is believed.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import stat
import struct
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedIOBase
from pathlib import Path
from typing import IO, Any

from ignite_tf_magic.errors import ParcelError
from ignite_tf_magic.launch.entries import MAX_ENTRIES, ArchiveEntry, Entries, mib

_CHUNK_BYTES = 256 << 10
_MAX_HEADER_BYTES = 2048
_BROKEN = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error),
    *(EOFError, OSError, ValueError, OverflowError, RuntimeError),
)


@contextmanager
def read_archive(path: Path, entries: Entries) -> Iterator[None]:
    """Add what is in a zip, tar, tar.gz, tar.bz2 or tar.xz; its files are there until the `with` ends.

    Raises:
        ParcelError: Not such a file, broken, too large when unpacked, or with an entry that is unsafe.
    """
    with tempfile.TemporaryDirectory(prefix="parcel-") as folder:
        spool = _Spool(Path(folder), entries)
        try:
            with path.open("rb") as file:
                _read(file, spool)
        except ParcelError:
            raise
        except _BROKEN as error:
            raise ParcelError(f"{entries.what} cannot be read: {error}{spool.where}") from error
        yield


class _Spool:
    """Content of an archive's files, under numbers instead of their names, and no more of it than is allowed."""

    def __init__(self, folder: Path, entries: Entries) -> None:
        self._folder = folder
        self._num_bytes = 0
        self._num_files = 0
        self._at = ""
        self.entries = entries

    @property
    def where(self) -> str:
        """The end of a sentence: at which entry it happened."""
        return f" (at its entry {self._at!r})" if self._at else ""

    def name(self, raw: str) -> str:
        """Begin with an entry."""
        self._at = raw
        self._num_files += 1
        if self._num_files > MAX_ENTRIES:  # also of entries that replace each other
            raise ParcelError(f"{self.entries.what} has more than {MAX_ENTRIES:,} entries; leave some out")
        return self.entries.safe_name(raw)

    def refuse(self, reason: str) -> ParcelError:
        return ParcelError(f"{self.entries.what}: {self._at!r} is {reason}")

    def allow(self, num_bytes: int) -> None:
        """Count bytes, or promised ones, before they are taken."""
        if self._num_bytes + num_bytes > self.entries.max_bytes:
            raise ParcelError(
                f"{self.entries.what} unpacks to more than {mib(self.entries.max_bytes)}, the most that is shipped "
                f"(seen at its entry {self._at!r}). Leave large files out, or read them from Ignite or igfs://"
            )

    def add_directory(self, name: str) -> None:
        """Add a directory, unless it is the top."""
        if name:
            self.entries.add(name, ArchiveEntry())

    def add_file(self, name: str, content: IO[bytes], *, is_executable: bool) -> None:
        path = self._folder / str(self._num_files)
        size = 0
        with path.open("xb") as file:  # numbers do not repeat
            while chunk := content.read(_CHUNK_BYTES):
                self.allow(len(chunk))
                self._num_bytes += len(chunk)
                size += file.write(chunk)
        self.entries.add(name, ArchiveEntry(path, None, is_executable, size))

    def add_copy(self, name: str, original: ArchiveEntry) -> None:
        self.allow(original.num_bytes)
        self._num_bytes += original.num_bytes
        self.entries.add(name, original)


def _read(file: IO[bytes], spool: _Spool) -> None:
    start = file.read(6)
    file.seek(0)
    if start[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
        _read_zip(file, spool)
    elif start[:2] == b"\x1f\x8b":
        with gzip.GzipFile(fileobj=file, mode="rb") as unpacked:
            _read_tar(unpacked, spool)
    elif start[:3] == b"BZh":
        with bz2.BZ2File(file) as unpacked:
            _read_tar(unpacked, spool)
    elif start == b"\xfd7zXZ\x00":
        with lzma.LZMAFile(file) as unpacked:
            _read_tar(unpacked, spool)
    elif tarfile.is_tarfile(file):
        file.seek(0)
        _read_tar(file, spool)
    else:
        raise ParcelError(
            f"{spool.entries.what} is neither a directory nor a zip, tar, tar.gz, tar.bz2 or tar.xz "
            "archive; pass a directory, or pack it with: tar czf JOB.tar.gz -C DIRECTORY ."
        )


class _Guarded:
    """What tarfile reads from. It would hold any header in memory, however large that says it is."""

    def __init__(self, file: IO[bytes] | BufferedIOBase, max_bytes: int) -> None:
        self._file = file
        self._left = max_bytes
        self.seek = file.seek
        self.tell = file.tell

    def read(self, size: int = -1) -> bytes:
        self._left -= size
        if not 0 <= size <= _CHUNK_BYTES or self._left < 0:
            raise tarfile.ReadError("its headers are too large")
        return self._file.read(size)


def _read_tar(file: IO[bytes] | BufferedIOBase, spool: _Spool) -> None:
    guarded: Any = _Guarded(file, spool.entries.max_bytes + MAX_ENTRIES * _MAX_HEADER_BYTES)
    with tarfile.open(fileobj=guarded, mode="r:") as archive:
        while (member := archive.next()) is not None:
            name = spool.name(member.name)
            if member.isdir():
                spool.add_directory(name)
            elif not name:
                raise spool.refuse("the directory itself, and not a directory")
            else:
                _add_member(archive, member, name, spool)
        # tarfile takes a damaged header for the end, and what comes after the end has the checksum.
        guarded.seek(archive.offset)
        if guarded.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
            raise tarfile.ReadError("it is cut off or damaged")
        while guarded.read(_CHUNK_BYTES):
            pass


def _add_member(archive: tarfile.TarFile, member: tarfile.TarInfo, name: str, spool: _Spool) -> None:
    if member.issym():
        spool.entries.add(name, ArchiveEntry(target=member.linkname))
    elif member.islnk():
        original = spool.entries.named.get(spool.entries.safe_name(member.linkname))
        if original is None or original.source is None:
            raise spool.refuse(
                f"a hard link to {member.linkname!r}, which is no file before it in the archive"
            )
        spool.add_copy(name, original)
    elif member.isreg():
        if member.size < 0:
            raise spool.refuse("of a negative size")
        content = archive.extractfile(member)
        if content is not None:
            spool.add_file(name, content, is_executable=bool(member.mode & 0o111))
    else:
        raise spool.refuse("a device, a pipe or of an unknown kind, and only files can be shipped")


def _read_zip(file: IO[bytes], spool: _Spool) -> None:
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            name = spool.name(info.orig_filename)
            mode = info.external_attr >> 16
            kind = stat.S_IFMT(mode)
            if info.is_dir():
                spool.add_directory(name)
            elif info.flag_bits & 1:
                raise spool.refuse("encrypted; pack it without a password")
            elif not name or kind not in (0, stat.S_IFREG, stat.S_IFLNK):
                raise spool.refuse("a device, a pipe or of an unknown kind, and only files can be shipped")
            else:
                _add_zipped(archive, info, name, spool, is_link=kind == stat.S_IFLNK)


def _add_zipped(
    archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str, spool: _Spool, *, is_link: bool
) -> None:
    with archive.open(info) as content:
        if is_link:
            spool.entries.add(name, ArchiveEntry(target=os.fsdecode(content.read(4096))))
        else:
            spool.add_file(name, content, is_executable=bool(info.external_attr >> 16 & 0o111))
