"""Copies files between igfs and local disks: only whole files, with their times."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path as LocalPath
from typing import Any

from ignite_tf_magic.errors import IgniteTfError, TransferError
from ignite_tf_magic.igfs.filesystem import IgfsFileSystem
from ignite_tf_magic.igfs.paths import Path, check, parse, render

_CHUNK_BYTES = 4 * 1024 * 1024
_UNFINISHED = (".igfs-", ".part")


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file or directory below the top of a tree.

    Attributes:
        num_bytes: Size of a file; None for a directory.
        mtime_ns: Modification time, in nanoseconds since 1970.
    """

    num_bytes: int | None
    mtime_ns: int

    @property
    def is_directory(self) -> bool:
        """Whether this is a directory."""
        return self.num_bytes is None


# Keys are the names that lead there from the top, which is the empty tuple; a directory precedes its contents.
Tree = dict[Path, FileEntry]


@dataclass(frozen=True, slots=True)
class IgfsPlace:
    """A file or directory in igfs, the source or target of a copy.

    In its methods, `names` lead from this place to something below it; without names they mean the place itself.

    Attributes:
        authority: HOST:PORT of its addresses; empty for the configured cluster.
    """

    files: IgfsFileSystem
    path: Path
    authority: str = ""

    def is_directory(self) -> bool:
        """Return whether this is an existing directory."""
        return self.files.isdir(render(self.path))

    def check(self) -> None:
        """Raise if this place cannot be read.

        Raises:
            PathNotFound: Nothing is there.
        """
        self.files.info(render(self.path))

    def last_name(self) -> Path:
        """Return the last name as a path; empty for the root."""
        return self.path[-1:]

    def below(self, names: Path) -> IgfsPlace:
        """Return a place below this one."""
        return replace(self, path=(*self.path, *names))

    def tree(self) -> Tree:
        """List everything here, the place itself first; empty if nothing exists."""
        listed = self.files.find(render(self.path), withdirs=True, detail=True)
        return {parse(name)[len(self.path) :]: _entry(info) for name, info in listed.items()}

    def read(self, names: Path = ()) -> Iterator[memoryview]:
        """Yield a file's current content; each chunk is valid until the next one is requested."""
        buffer, offset = memoryview(bytearray(_CHUNK_BYTES)), 0
        with self.files.volume.open_read((*self.path, *names)) as reader:
            while num_bytes := reader.read_into(offset, buffer):
                yield buffer[:num_bytes]
                offset += num_bytes

    def write(self, names: Path, chunks: Iterable[memoryview], mtime_ns: int) -> None:
        """Create or replace a file, once all its content has arrived."""
        path = self._path_to_write(names)
        with self.files.volume.open_write(path) as writer:
            for chunk in chunks:
                writer.write(chunk)
        self.files.volume.set_mtime(path, mtime_ns)

    def make_directory(self, names: Path) -> None:
        """Create a directory unless it exists."""
        self.files.volume.make_directory(self._path_to_write(names), exist_ok=True)

    def remove(self, names: Path) -> None:
        """Remove a file, or a directory with its contents."""
        self.files.rm(render((*self.path, *names)), recursive=True)

    def name(self, names: Path = ()) -> str:
        """Return the address."""
        return f"igfs://{self.authority}{render((*self.path, *names))}"

    def _path_to_write(self, names: Path) -> Path:
        for name in names:
            check(name, self.name(names))  # disks allow names that igfs does not, such as invalid Unicode
        return (*self.path, *names)


@dataclass(frozen=True, slots=True)
class LocalPlace:
    """A file or directory on a disk of this machine, the counterpart of `IgfsPlace`.

    Attributes:
        leave_out: Called with a message for each link to a directory, and for all that is neither file nor directory;
            these are left out.
    """

    path: LocalPath
    leave_out: Callable[[str], None]

    def is_directory(self) -> bool:
        """Return whether this is an existing directory."""
        return self.path.is_dir()

    def check(self) -> None:
        """Raise if this place cannot be read.

        Raises:
            TransferError: Nothing is there, or nothing that can be copied.
        """
        if not self.path.is_file() and not self.path.is_dir():
            raise TransferError(f"there is no file {self.path} on this machine")

    def last_name(self) -> Path:
        """Return the last name as a path."""
        name = self.path.name
        return parse(self.path.resolve().name if name in ("", "..") else name)

    def below(self, names: Path) -> LocalPlace:
        """Return a place below this one."""
        return replace(self, path=self.path.joinpath(*names))

    def tree(self) -> Tree:
        """List everything here; links to files appear as files."""
        tree: Tree = {}
        with _local("read", self.path):
            if os.path.lexists(self.path):
                self._add(tree, ())
        return tree

    def _add(self, tree: Tree, names: Path) -> None:
        path = self.path.joinpath(*names)
        if path.is_file():
            status = path.stat()
            tree[names] = FileEntry(status.st_size, status.st_mtime_ns)
        elif path.is_dir() and (not names or not path.is_symlink()):
            tree[names] = FileEntry(None, path.stat().st_mtime_ns)
            for name in sorted(below.name for below in path.iterdir()):
                if not (name.startswith(_UNFINISHED[0]) and name.endswith(_UNFINISHED[1])):
                    self._add(tree, (*names, name))
        else:
            self.leave_out(f"left out: {path} (a link to a directory, or not a file)")

    def read(self, names: Path = ()) -> Iterator[memoryview]:
        """Yield a file's content."""
        path, buffer = self.path.joinpath(*names), memoryview(bytearray(_CHUNK_BYTES))
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
        """Create a directory unless it exists."""
        path = self._path_to_write(names)
        with _local("create", path):
            path.mkdir(exist_ok=True)

    def remove(self, names: Path) -> None:
        """Remove a file, or a directory with its contents."""
        path = self.path.joinpath(*names)
        with _local("remove", path):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()

    def name(self, names: Path = ()) -> str:
        """Return the path as text."""
        return str(self.path.joinpath(*names))

    def _path_to_write(self, names: Path) -> LocalPath:
        """Return where to write something with these names, which other people may have chosen.

        Raises:
            TransferError: The result is not below this place, or is not a valid path on this machine.
        """
        for name in names:  # such as ".."; on Windows also "a\\b" or "c:", which lead elsewhere
            if name in ("", ".", "..") or "\0" in name or LocalPath(name).name != name:
                raise TransferError(
                    f"this machine cannot have a file named {name!r} ({self.name(names[:-1])}); it was not written"
                )
        path = self.path.joinpath(*names)
        with _local("write", path):
            where, top = path.parent.resolve(), self.path.resolve()
        if names and not where.is_relative_to(top):
            raise TransferError(
                f"{path} was not written: a link leads from {self.path} to {where}, which is not below it"
            )
        return path


CopyLocation = IgfsPlace | LocalPlace


@dataclass(frozen=True, slots=True)
class Transfer:
    """Files and directories to copy from a source to a target."""

    source: CopyLocation
    target: CopyLocation
    tree: Tree

    @property
    def num_bytes(self) -> int:
        """The number of bytes to copy."""
        return sum(entry.num_bytes or 0 for entry in self.tree.values())

    @property
    def num_files(self) -> int:
        """The number of files to copy."""
        return sum(not entry.is_directory for entry in self.tree.values())

    def carry_out(self, advance: Callable[[int], None]) -> None:
        """Copy; `advance` receives the number of bytes as they are copied."""
        for names, entry in self.tree.items():
            if entry.is_directory:
                self.target.make_directory(names)
            else:
                self.target.write(names, _counted(self.source.read(names), advance), entry.mtime_ns)


def _counted(chunks: Iterator[memoryview], advance: Callable[[int], None]) -> Iterator[memoryview]:
    for chunk in chunks:
        yield chunk
        advance(len(chunk))


def newer(source: Tree, target: Mapping[Path, FileEntry]) -> Tree:
    """Return what the target lacks, or has with another size or time unless the target's file is newer.

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
    """Return what only the target has; for a directory that only it has, just the directory."""
    return [names for names in target if names not in source and (not names or names[:-1] in source)]


def _entry(info: Mapping[str, Any]) -> FileEntry:
    return FileEntry(info["size"] if info["type"] == "file" else None, info["mtime_ns"])


@contextmanager
def _local(verb: str, path: LocalPath) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if isinstance(error, IgniteTfError):
            raise
        raise TransferError(f"cannot {verb} {path}: {error.strerror or error}") from error
