"""Trees of files in igfs and on local disks, copied from one to the other: whole files only, with their times."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path as LocalPath
from typing import Protocol

from ignite_tf_magic.errors import CorruptRecord, IgniteTfError, PathNotFound, TransferError
from ignite_tf_magic.igfs.layout import DirectoryNode, FileNode, Node
from ignite_tf_magic.igfs.paths import Path, check, render
from ignite_tf_magic.igfs.volume import Volume

_CHUNK_BYTES = 4 * 1024 * 1024
_UNFINISHED = (".igfs-", ".part")
_SIGNS = "*?["

Advance = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file or directory below the top of a tree.

    Attributes:
        num_bytes: Size of a file; None for a directory.
        mtime_ns: Since 1970.
    """

    num_bytes: int | None
    mtime_ns: int

    @property
    def is_directory(self) -> bool:
        """Whether it holds others."""
        return self.num_bytes is None


# By the names that lead there from the top, which is the empty tuple; a directory comes before its contents.
Tree = dict[Path, FileEntry]


class CopyLocation(Protocol):
    """A file or directory, in igfs or on a disk, from which or to which files are copied."""

    def tree(self) -> Tree:
        """List what is there, the place itself first; empty when nothing is."""

    def read(self, names: Path) -> Iterator[memoryview]:
        """Return a file's content; a chunk is good until the next one is asked for."""

    def write(self, names: Path, chunks: Iterable[memoryview], mtime_ns: int) -> None:
        """Create or replace a file, when all its content has come."""

    def make_directory(self, names: Path) -> None:
        """Create a directory unless it is there."""

    def remove(self, names: Path) -> None:
        """Remove a file, or a directory with its contents."""

    def name(self, names: Path) -> str:
        """Say where something is."""


class IgfsPlace:
    """A place in igfs."""

    def __init__(self, volume: Volume, top: Path, authority: str = "") -> None:
        self._volume = volume
        self._top = top
        self._authority = authority

    def tree(self) -> Tree:
        """List what is there."""
        try:
            return {names: entry_of(node) for names, node in walk(self._volume, self._top)}
        except PathNotFound:
            return {}

    def read(self, names: Path) -> Iterator[memoryview]:
        """Yield a file's content, as it is now."""
        buffer, offset = memoryview(bytearray(_CHUNK_BYTES)), 0
        with self._volume.open_read((*self._top, *names)) as reader:
            while num_bytes := reader.read_into(offset, buffer):
                yield buffer[:num_bytes]
                offset += num_bytes

    def write(self, names: Path, chunks: Iterable[memoryview], mtime_ns: int) -> None:
        """Create or replace a file."""
        path = self._path_to_write(names)
        with self._volume.open_write(path) as writer:
            for chunk in chunks:
                writer.write(chunk)
        self._volume.set_mtime(path, mtime_ns)

    def make_directory(self, names: Path) -> None:
        """Create a directory unless it is there."""
        self._volume.make_directory(self._path_to_write(names), exist_ok=True)

    def remove(self, names: Path) -> None:
        """Remove a file, or a directory with its contents."""
        path = (*self._top, *names)
        if isinstance(self._volume.stat(path), FileNode):
            self._volume.remove_file(path)
        else:
            self._volume.remove_directory(path, with_contents=True)

    def name(self, names: Path) -> str:
        """Return its address."""
        return f"igfs://{self._authority}{render((*self._top, *names))}"

    def _path_to_write(self, names: Path) -> Path:
        for name in names:
            check(name, self.name(names))  # a disk has names that igfs has not, as those that are no Unicode
        return (*self._top, *names)


class LocalPlace:
    """A place on a disk of this machine.

    Args:
        top: The file or directory.
        leave_out: Told what is neither file nor directory, and links to directories: they are left out.
    """

    def __init__(self, top: LocalPath, leave_out: Callable[[str], None]) -> None:
        self._top = top
        self._leave_out = leave_out

    def tree(self) -> Tree:
        """List what is there; of links to files, the files."""
        found: Tree = {}
        with _local("read", self._top):
            if os.path.lexists(self._top):
                self._add(found, ())
        return found

    def _add(self, found: Tree, names: Path) -> None:
        path = self._top.joinpath(*names)
        if path.is_file():
            status = path.stat()
            found[names] = FileEntry(status.st_size, status.st_mtime_ns)
        elif path.is_dir() and (not names or not path.is_symlink()):
            found[names] = FileEntry(None, path.stat().st_mtime_ns)
            for name in sorted(below.name for below in path.iterdir()):
                if not (name.startswith(_UNFINISHED[0]) and name.endswith(_UNFINISHED[1])):
                    self._add(found, (*names, name))
        else:
            self._leave_out(f"left out: {path} (a link to a directory, or no file)")

    def read(self, names: Path) -> Iterator[memoryview]:
        """Yield a file's content."""
        path, buffer = self._top.joinpath(*names), memoryview(bytearray(_CHUNK_BYTES))
        with _local("read", path), path.open("rb", buffering=0) as file:
            while num_bytes := file.readinto(buffer):
                yield buffer[:num_bytes]

    def write(self, names: Path, chunks: Iterable[memoryview], mtime_ns: int) -> None:
        """Create or replace a file, by writing another and renaming it."""
        path = self._path_to_write(names)
        unfinished = path.with_name(f"{secrets.token_hex(6)}".join(_UNFINISHED))
        with _local("write", path):
            try:
                with unfinished.open("xb") as file:
                    for chunk in chunks:
                        file.write(chunk)
                os.utime(unfinished, ns=(mtime_ns, mtime_ns))
                unfinished.replace(path)
            except BaseException:
                unfinished.unlink(missing_ok=True)
                raise

    def make_directory(self, names: Path) -> None:
        """Create a directory unless it is there."""
        path = self._path_to_write(names)
        with _local("create", path):
            path.mkdir(exist_ok=True)

    def remove(self, names: Path) -> None:
        """Remove a file, or a directory with its contents."""
        path = self._top.joinpath(*names)
        with _local("remove", path):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()

    def name(self, names: Path) -> str:
        """Return its path."""
        return str(self._top.joinpath(*names))

    def _path_to_write(self, names: Path) -> LocalPath:
        """Return where to write what has these names, which others may have chosen.

        Raises:
            TransferError: That is not below the top, or no path of this machine.
        """
        for name in names:  # as ".."; and as "a\\b" or "c:" on Windows, which lead elsewhere
            if name in ("", ".", "..") or "\0" in name or LocalPath(name).name != name:
                raise TransferError(
                    f"this machine cannot have a file named {name!r} ({self.name(names[:-1])}); it was not written"
                )
        path = self._top.joinpath(*names)
        with _local("write", path):
            where, top = path.parent.resolve(), self._top.resolve()
        if names and not where.is_relative_to(top):
            raise TransferError(
                f"{path} was not written: a link leads from {self._top} to {where}, which is not below it"
            )
        return path


def copy(source: CopyLocation, target: CopyLocation, tree: Tree, advance: Advance) -> None:
    """Copy files and directories of a tree; `advance` is told of bytes as they are copied."""
    for names, entry in tree.items():
        if entry.is_directory:
            target.make_directory(names)
        else:
            target.write(names, _counted(source.read(names), advance), entry.mtime_ns)


def _counted(chunks: Iterator[memoryview], advance: Advance) -> Iterator[memoryview]:
    for chunk in chunks:
        yield chunk
        advance(len(chunk))


def newer(source: Tree, target: Mapping[Path, FileEntry]) -> Tree:
    """Choose what the target lacks, or has in an older form: of another size or time, and not itself newer.

    Raises:
        TransferError: A file on one side is a directory on the other.
    """
    chosen: Tree = {}
    for names, entry in source.items():
        there = target.get(names)
        if there and there.is_directory != entry.is_directory:
            raise TransferError(
                f"{'/'.join(names) or 'the top'!r} is a directory on one side and a file on the other; remove one"
            )
        if there is None or (there != entry and not entry.is_directory and there.mtime_ns <= entry.mtime_ns):
            chosen[names] = entry
    return chosen


def surplus(source: Mapping[Path, FileEntry], target: Tree) -> list[Path]:
    """Choose what only the target has; of a directory that only it has, the directory alone."""
    return [names for names in target if names not in source and (not names or names[:-1] in source)]


def walk(volume: Volume, top: Path) -> Iterator[tuple[Path, Node]]:
    """Yield what is at a path, and all that is below it; the names begin below the path.

    Raises:
        PathNotFound: Nothing is there.
        CorruptRecord: A name is none that a file can have, or leads back.
    """
    node = volume.stat(top)
    yield (), node
    waiting: list[tuple[Path, frozenset[int]]] = []
    if isinstance(node, DirectoryNode):
        waiting.append(((), frozenset([node.id])))
    while waiting:
        here, above = waiting.pop()
        for page in volume.entries((*top, *here)):
            for name, node in sorted(page, key=lambda entry: entry[0]):
                if isinstance(node, DirectoryNode):
                    if node.id in above:
                        raise CorruptRecord(
                            f"the entry {name!r} of this directory leads back to a directory above it; another program "
                            "has written it. See ignite-tf fs fsck",
                            render((*top, *here)),
                        )
                    waiting.append(((*here, name), above | {node.id}))
                yield (*here, name), node


def entry_of(node: Node) -> FileEntry:
    """Describe a node."""
    return FileEntry(node.size if isinstance(node, FileNode) else None, node.mtime_ns)


def matches(volume: Volume, pattern: Path) -> list[Path]:
    """Return the paths that a pattern means: * and ? and [a-z] in names, ** for directories at any depth.

    A path that exists as it stands is no pattern, and one without such signs means itself, existing or not.

    Raises:
        PathNotFound: Nothing matches.
    """
    if not any(sign in name for name in pattern for sign in _SIGNS) or _exists(volume, pattern):
        return [pattern]
    found = sorted(set(_match(volume, (), pattern)))
    if not found:
        raise PathNotFound("nothing in igfs matches", render(pattern))
    return found


def _match(volume: Volume, base: Path, patterns: Path) -> Iterator[Path]:
    if not patterns:
        yield base
        return
    first, rest = patterns[0], patterns[1:]
    if not any(sign in first for sign in _SIGNS):
        if _exists(volume, (*base, first)):
            yield from _match(volume, (*base, first), rest)
        return
    if first == "**":
        yield from _match(volume, base, rest)
    try:
        names = [(name, node) for page in volume.entries(base) for name, node in page]
    except NotADirectoryError:
        return
    for name, node in names:
        is_directory = not isinstance(node, FileNode)
        if first == "**" and is_directory:
            yield from _match(volume, (*base, name), patterns)
        elif first != "**" and fnmatchcase(name, first) and (is_directory or not rest):
            yield from _match(volume, (*base, name), rest)


def _exists(volume: Volume, path: Path) -> bool:
    try:
        volume.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


@contextmanager
def _local(verb: str, path: LocalPath) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if isinstance(error, IgniteTfError):
            raise
        raise TransferError(f"cannot {verb} {path}: {error.strerror or error}") from error
