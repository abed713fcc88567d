"""Bundles: directory trees that arrive as archives, named by their hash, and are unpacked without trust."""

from __future__ import annotations

import os
import re
import stat
import time

from ignite_tf_magic.launch.agent.disk import (
    Refused,
    find_foreign,
    open_below,
    open_directory,
    remove_tree,
    sync_disk,
    write_all,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_DIGEST = re.compile(r"[0-9a-f]{64}")
MAX_ENTRIES = 100_000
_END_BYTES = 1 << 16  # zeros after the last entry
_MAX_EXTRA_HEADER_BYTES = 1 << 20  # long names and other metadata in a tar
_PIECE_BYTES = 1 << 20
_STALE_PART_S = 86400.0


class Parcels:
    """The bundles of this host, and new ones that arrive through one relay."""

    def __init__(self, root: str) -> None:
        self._directory = f"{root}/parcels"
        self._next_part: dict[str, int] = {}

    def has(self, digests: list[str]) -> list[str]:
        """Return those bundles that are here, and mark them as in use.

        Raises Refused for a bundle that contains a file of another account, because workers import from it.
        """
        found = []
        for each in digests:
            path = f"{self._directory}/{_checked(each)}"
            try:
                os.utime(path)
                foreign = find_foreign(path)
            except FileNotFoundError:
                continue
            if foreign:
                raise Refused(
                    "foreign",
                    f"{foreign!r} belongs to another account, and workers import from there; inspect it, "
                    f"and remove {path!r}, which is sent again",
                )
            found.append(each)
        return found

    def put(self, digest: str, part: int, data: bytes, max_bytes: int) -> None:
        """Store the next part of an archive. Part 0 starts the archive anew."""
        os.makedirs(self._directory, 0o700, exist_ok=True)
        path = self._part_path(digest)
        if part == 0:
            self._remove_stale_parts()
        elif part != self._next_part.get(digest):
            raise Refused("bad_request", f"part {part} of {digest} is not the next one")
        flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if part == 0 else os.O_APPEND)
        descriptor = os.open(path, flags, 0o600)
        try:
            if os.fstat(descriptor).st_size + len(data) > max_bytes:
                raise Refused("too_large", f"the archive has more than {max_bytes} bytes")
            write_all(descriptor, data)
        except BaseException:
            os.unlink(path)
            self._next_part.pop(digest, None)
            raise
        finally:
            os.close(descriptor)
        self._next_part[digest] = part + 1

    def unpack(self, digest: str, max_bytes: int, max_entries: int) -> None:
        """Check the whole archive and unpack it to its final place. Nothing remains of a refused archive."""
        path = self._part_path(digest)
        tree = f"{path}.tree"
        self._next_part.pop(digest, None)
        try:
            _check_hash(path, digest)
            os.mkdir(tree, 0o700)
            unpack_archive(path, tree, max_bytes, max_entries)
            sync_disk(tree)  # a power cut must not leave a tree of that name with empty files
            try:
                os.rename(tree, f"{self._directory}/{digest}")
            except OSError:
                if not os.path.isdir(f"{self._directory}/{digest}"):  # another relay was first
                    raise
        finally:
            remove_tree(tree)
            if os.path.exists(path):
                os.unlink(path)

    def _part_path(self, digest: str) -> str:
        return f"{self._directory}/.{_checked(digest)}.{os.getpid()}"

    def _remove_stale_parts(self) -> None:
        for name in os.listdir(self._directory):
            path = f"{self._directory}/{name}"
            if name.startswith(".") and time.time() - os.lstat(path).st_mtime > _STALE_PART_S:
                if os.path.isdir(path):
                    remove_tree(path)
                else:
                    os.unlink(path)


def _checked(digest: Any) -> str:
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise Refused("bad_request", f"{digest!r} is no SHA-256")
    return digest


def _check_hash(path: str, digest: str) -> None:
    import hashlib

    found = hashlib.sha256()
    with open(path, "rb") as file:
        for piece in iter(lambda: file.read(_PIECE_BYTES), b""):
            found.update(piece)
    if found.hexdigest() != digest:
        raise Refused("bad_archive", f"what arrived has the hash {found.hexdigest()}, not {digest}")


def unpack_archive(path: str, tree: str, max_bytes: int, max_entries: int) -> None:
    """Unpack a tar or tar.gz into an empty directory."""
    import gzip
    import tarfile
    import zlib

    extra = {tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE}
    extra |= {tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK}

    class Member(tarfile.TarInfo):
        """Refuses headers that would fill the memory."""

        @classmethod
        def frombuf(cls, buf: Any, encoding: str, errors: str) -> Any:
            member = super().frombuf(buf, encoding, errors)
            if member.size < 0 or (member.type in extra and member.size > _MAX_EXTRA_HEADER_BYTES):
                raise Refused("bad_archive", f"a header of {member.size} bytes")
            return member

    with open(path, "rb") as raw:
        is_gzip = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        source = _Bounded(
            gzip.GzipFile(fileobj=raw) if is_gzip else raw, max_bytes + max_entries * 1024 + _END_BYTES
        )
        try:
            with tarfile.open(fileobj=source, mode="r|", tarinfo=Member) as archive:  # type: ignore[call-overload]
                _Unpacking(tree, max_bytes, max_entries).take_all(archive)
        except (tarfile.TarError, EOFError, zlib.error, ValueError, gzip.BadGzipFile) as error:
            raise Refused("bad_archive", f"the archive cannot be read: {error}") from error


class _Bounded:
    """A stream that refuses to return more than a number of bytes: gzip can expand a megabyte to a gigabyte."""

    def __init__(self, source: Any, max_bytes: int) -> None:
        self._source = source
        self._left = max_bytes

    def read(self, num_bytes: int) -> Any:
        data = self._source.read(num_bytes)
        self._left -= len(data)
        if self._left < 0:
            raise Refused("too_large", "the archive unpacks to more than is allowed")
        return data


class _Unpacking:
    def __init__(self, tree: str, max_bytes: int, max_entries: int) -> None:
        self._tree = tree
        self._max_entries = max_entries
        self._left = max_bytes
        self._num_entries = 0
        self._links: list[str] = []

    def take_all(self, archive: Any) -> None:
        for member in archive:
            self._num_entries += 1
            if self._num_entries > self._max_entries:
                raise Refused("too_large", f"the archive has more than {self._max_entries} entries")
            try:
                self._take(archive, member)
            except (FileExistsError, NotADirectoryError) as error:
                raise Refused(
                    "bad_archive", f"{member.name!r} is there twice, or below no directory"
                ) from error
            except OSError as error:
                if error.errno is None or isinstance(error, FileNotFoundError) or _is_loop(error):
                    raise Refused("bad_archive", f"{member.name!r} cannot be unpacked: {error}") from error
                raise
        self._check_links()

    def _take(self, archive: Any, member: Any) -> None:
        parts = [part for part in member.name.split("/") if part not in ("", ".")]
        if member.name.startswith("/") or ".." in parts or "\0" in member.name:
            raise Refused("bad_archive", f"{member.name!r} points out of the archive")
        if member.isdir():
            os.close(open_directory(self._tree, parts, make=True))
        elif not parts:
            raise Refused("bad_archive", f"{member.name!r} is no name")
        elif member.issym():
            self._link(parts, member.linkname)
        elif member.islnk():
            self._copy_of_link(parts, member)
        elif member.isreg() and not member.issparse():
            self._file(parts, member.size, member.mode, archive.extractfile(member))
        else:
            raise Refused("bad_archive", f"{member.name!r} is neither file, directory nor link")

    def _file(self, parts: list[str], size: int, mode: int, source: Any) -> None:
        self._left -= size
        if self._left < 0:
            raise Refused("too_large", "the archive unpacks to more than is allowed")
        mode = 0o700 if mode & stat.S_IXUSR else 0o600
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        descriptor = open_below(self._tree, parts, flags, mode, make=True)
        try:
            for piece in iter(lambda: source.read(_PIECE_BYTES), b""):
                write_all(descriptor, piece)
            if os.fstat(descriptor).st_size != size:
                raise Refused("bad_archive", f"{'/'.join(parts)!r} is cut off")
        finally:
            os.close(descriptor)

    def _link(self, parts: list[str], target: str) -> None:
        if target.startswith("/"):
            raise Refused("bad_archive", f"{'/'.join(parts)!r} links out of the archive")
        parent = open_directory(self._tree, parts[:-1], make=True)
        try:
            os.symlink(target, parts[-1], dir_fd=parent)
        finally:
            os.close(parent)
        self._links.append("/".join(parts))

    def _copy_of_link(self, parts: list[str], member: Any) -> None:
        """Unpack a hard link as a copy of the earlier file that it names."""
        named = [part for part in member.linkname.split("/") if part not in ("", ".")]
        if member.linkname.startswith("/") or ".." in named or not named:
            raise Refused("bad_archive", f"{member.name!r} links out of the archive")
        with open(open_below(self._tree, named, os.O_RDONLY), "rb") as source:
            found = os.fstat(source.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise Refused("bad_archive", f"{member.name!r} links to no file")
            self._file(parts, found.st_size, found.st_mode, source)

    def _check_links(self) -> None:
        """Check the symbolic links once all exist, because only then is it known where each leads."""
        root = os.path.realpath(self._tree)
        for link in self._links:
            target = os.path.realpath(f"{root}/{link}")
            if os.path.commonpath([root, target]) != root:
                raise Refused("bad_archive", f"{link!r} links out of the archive")


def _is_loop(error: OSError) -> bool:
    import errno

    return error.errno in (errno.ELOOP, errno.ENAMETOOLONG, errno.EISDIR, errno.EINVAL)
