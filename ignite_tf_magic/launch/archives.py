"""Reads archives from untrusted sources.

File contents are written to disk under numbers, never under names from the archive. `entries` decides which names and
links a host may unpack. No header, size or count in the archive is trusted.
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
    """Add the contents of a zip, tar, tar.gz, tar.bz2 or tar.xz to `entries`.

    The files that the entries refer to exist until the `with` block ends.

    Raises:
        ParcelError: The file is not such an archive, is broken, unpacks to too much, or has an unsafe entry.
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
    """Stores the files of an archive under numbers instead of their names, within the size limit."""

    def __init__(self, folder: Path, entries: Entries) -> None:
        self._folder = folder
        self._num_bytes = 0
        self._num_files = 0
        self._at = ""
        self.entries = entries

    @property
    def where(self) -> str:
        """The end of an error message, which names the current entry if there is one."""
        return f" (at its entry {self._at!r})" if self._at else ""

    def name(self, raw: str) -> str:
        """Start a new entry and return its safe name."""
        self._at = raw
        self._num_files += 1
        if self._num_files > MAX_ENTRIES:  # also counts entries that replace each other
            raise ParcelError(f"{self.entries.what} has more than {MAX_ENTRIES:,} entries; leave some out")
        return self.entries.safe_name(raw)

    def refuse(self, reason: str) -> ParcelError:
        return ParcelError(f"{self.entries.what}: {self._at!r} is {reason}")

    def allow(self, num_bytes: int) -> None:
        """Raise ParcelError if this many more bytes exceed the size limit."""
        if self._num_bytes + num_bytes > self.entries.max_bytes:
            raise ParcelError(
                f"{self.entries.what} unpacks to more than {mib(self.entries.max_bytes)}, the most that is shipped "
                f"(seen at its entry {self._at!r}). Leave large files out, or read them from Ignite or igfs://"
            )

    def add_directory(self, name: str) -> None:
        """Add a directory, unless it is the archive's root."""
        if name:
            self.entries.add(name, ArchiveEntry())

    def add_file(self, name: str, content: IO[bytes], *, is_executable: bool) -> None:
        path = self._folder / str(self._num_files)
        size = 0
        with path.open("xb") as file:  # each number is used once
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
    """A file for tarfile with limits: tarfile itself reads a header of any stated size into memory."""

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
        # tarfile treats a damaged header as the end of the archive, so look for the real end marker. Then read the
        # rest, because a compressed file ends with its checksum.
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
