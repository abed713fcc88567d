"""igfs for Python: an fsspec file system, and the file objects it gives.

fs = fsspec.filesystem("igfs")
with fs.open("/runs/42/notes.txt", "w") as file:
file.write("...")
pandas.read_csv("igfs:///data/train.csv")
"""

from __future__ import annotations

import io
import os
import weakref
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from typing import Any

from fsspec.spec import AbstractFileSystem

from ignite_tf_magic.config import ConnectOptions, Endpoint
from ignite_tf_magic.errors import InvalidPath, PathExists, PathNotFound
from ignite_tf_magic.igfs import paths
from ignite_tf_magic.igfs.addresses import cluster_of, name_of_file_system
from ignite_tf_magic.igfs.layout import BLOCK_BYTES, DirectoryNode, FileNode, Node
from ignite_tf_magic.igfs.reader import FileReader
from ignite_tf_magic.igfs.volume import Volume
from ignite_tf_magic.igfs.writer import FileWriter, WriteMode

_BUFFER_BYTES = 256 * 1024
_PART_BYTES = 8 * 1024 * 1024


class IgfsFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """Files kept in the caches of an Ignite cluster.

    Opened for writing, a file is seen when it is flushed or closed, whole; opened for reading, it keeps its content
    when it is replaced, and grows when it is appended to. `mv` is one step, for whole directories too.

    Args:
        host: A node; default: the configured or the embedded cluster (see `igfs.addresses`).
        port: Its thin client port.
        username: Instead of the configured one.
        password: Instead of the configured one.
        fs_name: Which of the cluster's file systems; "igfs" is created when first written to.
        auto_mkdir: Whether writing a file creates the directories above it.
        block_bytes: Size of the blocks that are written.
    """

    protocol = paths.SCHEME
    root_marker = "/"
    cachable = True

    def __init__(
        self,
        host: str | None = None,
        port: int | None = None,
        username: str | None = None,
        password: str | None = None,
        fs_name: str | None = None,
        auto_mkdir: bool = False,
        block_bytes: int = BLOCK_BYTES,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.auto_mkdir = auto_mkdir
        authority = "" if host is None else str(Endpoint(host, port) if port else Endpoint(host))
        self.volume = Volume(
            _options(authority, username, password), fs_name or name_of_file_system(), block_bytes=block_bytes
        )
        weakref.finalize(self, _close_in, os.getpid(), self.volume)

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(item) for item in path]
        local = paths.split_uri(os.fspath(path))[1]
        return "/" + "/".join(name for name in local.split("/") if name)

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, Any]:
        authority = paths.split_uri(path)[0]
        if not authority:
            return {}
        endpoint = paths.endpoint_of(authority)
        return {"host": endpoint.host, "port": endpoint.port}

    @property
    def fsid(self) -> str:
        """Name the file system."""
        return f"{paths.SCHEME}-{self.volume.store.name}"

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Describe a file or directory, with one request once its directory is known."""
        where = self._parse(path)
        return _entry(paths.render(where), self.volume.stat(where))

    def exists(self, path: str, **_: Any) -> bool:
        """Whether something has that path. A cluster that does not answer is an error, not False."""
        try:
            self.info(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """List a directory, sorted by name; of a file, the file itself."""
        where = self._parse(path)
        node = self.volume.stat(where)
        if isinstance(node, FileNode):
            entries = [_entry(paths.render(where), node)]
        else:
            entries = sorted(
                (entry for page in self.iter_pages(path) for entry in page), key=lambda entry: entry["name"]
            )
        return entries if detail else [entry["name"] for entry in entries]

    def iter_pages(self, path: str) -> Iterator[list[dict[str, Any]]]:
        """List a directory of any size by pages of up to 1,000 entries, in no order."""
        where = self._parse(path)
        for page in self.volume.entries(where):
            yield [_entry(paths.render((*where, name)), node) for name, node in page]

    def mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:
        """Create a directory, by default with those above it."""
        where = self._parse(path)
        if create_parents and len(where) > 1:
            self.volume.make_directory(where[:-1], parents=True, exist_ok=True)
        self.volume.make_directory(where)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Create a directory and those above it."""
        self.volume.make_directory(self._parse(path), parents=True, exist_ok=exist_ok)

    def rmdir(self, path: str) -> None:
        """Remove an empty directory."""
        self.volume.remove_directory(self._parse(path))

    def rm_file(self, path: str) -> None:
        """Remove a file."""
        self.volume.remove_file(self._parse(path))

    _rm = rm_file

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Remove files; with `recursive` directories, each with all its contents as one step."""
        if maxdepth is not None:
            super().rm(path, recursive=recursive, maxdepth=maxdepth)
            return
        for item in [path] if isinstance(path, str | os.PathLike) else list(path):
            for name in self._matches(self._strip_protocol(item)):
                if isinstance(self.volume.stat(self._parse(name)), DirectoryNode):
                    self.volume.remove_directory(self._parse(name), with_contents=recursive)
                else:
                    self.rm_file(name)

    def _matches(self, path: str) -> list[str]:
        """Give the paths that a pattern means; a path that exists as it stands is no pattern."""
        if not any(sign in path for sign in "*?[") or self.exists(path):
            return [path]
        found = sorted(self.glob(path))
        if not found:
            raise PathNotFound("nothing in igfs matches", path)
        return [name for name in found if not any(name.startswith(f"{other}/") for other in found)]

    def mv(
        self, path1: Any, path2: Any, recursive: bool = False, maxdepth: int | None = None, **options: Any
    ) -> None:
        """Move a file, or a directory with all its contents, as one step; into `path2` if that is a directory."""
        if not isinstance(path1, str | os.PathLike) or not isinstance(path2, str | os.PathLike):
            super().mv(path1, path2, recursive=recursive, maxdepth=maxdepth, **options)
            return
        source, target = self._parse(path1), self._parse(path2)
        into = str(path2).endswith("/") or (source != target and self.isdir(path2))
        self.volume.rename(source, (*target, source[-1]) if into and source else target)

    mv_file = mv

    def rename_exactly(self, source: str, target: str) -> None:
        """Give a file or directory the path `target`, as POSIX `rename` does: one step, replacing a file there."""
        self.volume.rename(self._parse(source), self._parse(target))

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        """Copy a file; a directory is created empty."""
        source, target = self._parse(path1), self._parse(path2)
        if isinstance(self.volume.stat(source), DirectoryNode):
            self.volume.make_directory(target, parents=self.auto_mkdir, exist_ok=True)
            return
        self._make_parents(target)
        self.volume.copy(source, target)

    def created(self, path: str) -> datetime:
        """Tell when a file was created or replaced."""
        return _moment(self.info(path)["created_ns"])

    def modified(self, path: str) -> datetime:
        """Tell when a file was last written to."""
        return _moment(self.info(path)["mtime_ns"])

    def touch(self, path: str, truncate: bool = True, **_: Any) -> None:
        """Create an empty file, or empty one that is there; without `truncate` leave it as it is."""
        where = self._parse(path)
        if not truncate and self.exists(path):
            return
        self._make_parents(where)
        self.volume.make_file(where)

    def truncate(self, path: str, size: int) -> None:
        """Cut a file, or fill it up with zeros."""
        self.volume.truncate(self._parse(path), size)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        """Read a file, or a part of it; negative offsets count from its end."""
        with self.volume.open_read(self._parse(path)) as reader:
            first, last, _step = slice(start, end).indices(reader.node.size)
            return _read_between(reader, first, last)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        """Write a whole file; mode "create" wants that there is none."""
        where = self._parse(path)
        self._make_parents(where)
        self.volume.write_file(where, value, WriteMode.CREATE if mode == "create" else WriteMode.REPLACE)

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: Any = None,
        **_: Any,
    ) -> Any:
        del cache_options
        where = self._parse(path)
        if mode == "rb":
            return IgfsInput(self.volume.open_read(where), path, block_size or _BUFFER_BYTES)
        try:
            write_mode = WriteMode(mode)
        except ValueError:
            raise InvalidPath(
                f"igfs files are read (r), replaced (w), created (x) or appended to (a), not opened with {mode!r}",
                path,
            ) from None
        if write_mode is WriteMode.CREATE and self.exists(path):
            raise PathExists("the file exists already", path)
        self._make_parents(where)
        return IgfsOutput(self.volume.open_write(where, write_mode), path, mode, autocommit=autocommit)

    def _make_parents(self, path: paths.Path) -> None:
        if self.auto_mkdir and len(path) > 1:
            self.volume.make_directory(path[:-1], parents=True, exist_ok=True)

    def _parse(self, path: str | os.PathLike[str]) -> paths.Path:
        return paths.parse(os.fspath(path))


def _read_between(reader: FileReader, start: int, stop: int | None) -> bytes:
    """Read to an offset, or to the end as it is when it is reached; the content is copied once."""
    wanted = (reader.node.size if stop is None else stop) - start
    space = memoryview(bytearray(min(max(wanted, 1), _PART_BYTES)))
    data = io.BytesIO()
    while stop is None or start < stop:
        num_bytes = reader.read_into(start, space if stop is None else space[: stop - start])
        if not num_bytes:
            break
        data.write(space[:num_bytes])
        start += num_bytes
    return data.getvalue()


class _RawInput(io.RawIOBase):
    """A position in a file that is read."""

    def __init__(self, reader: FileReader) -> None:
        self._reader = reader
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._reader.node.size}[whence]
        if base + offset < 0:
            raise ValueError(f"cannot seek to {base + offset}")
        self._position = base + offset
        return self._position

    def readinto(self, space: Any) -> int:
        num_bytes = self._reader.read_into(self._position, memoryview(space).cast("B"))
        self._position += num_bytes
        return num_bytes

    def readall(self) -> bytes:
        data = _read_between(self._reader, self._position, None)
        self._position += len(data)
        return data

    def close(self) -> None:
        if not self.closed:
            self._reader.close()
        super().close()


class IgfsInput(io.BufferedReader):
    """A file open for reading, in binary.

    Attributes:
        path: Its path.
        size: Its size when it was opened or last read at its end.
    """

    def __init__(self, reader: FileReader, path: str, buffer_bytes: int) -> None:
        super().__init__(_RawInput(reader), buffer_bytes)
        self._reader = reader
        self.path = path

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self._reader.node.size


class IgfsOutput(io.RawIOBase):
    """A file open for writing, in binary. `flush` publishes what was written so far, `close` the rest.

    Leaving a `with` block by an exception leaves the file as it was after the last flush.
    """

    def __init__(self, writer: FileWriter, path: str, mode: str, *, autocommit: bool = True) -> None:
        self._writer = writer
        self._autocommit = autocommit
        self.path = path
        self.mode = mode

    def writable(self) -> bool:
        """Whether it can be written to."""
        return True

    def write(self, data: Any) -> int:
        """Add bytes; all are taken."""
        return self._writer.write(data)

    def tell(self) -> int:
        """Give the size of the file with all that was written."""
        return self._writer.tell()

    def flush(self) -> None:
        """Publish what was written so far."""
        if not self._writer.closed and self._autocommit:
            self._writer.flush()

    def close(self) -> None:
        """Publish the rest; in an fsspec transaction that is left to `commit`."""
        if self.closed:
            return
        try:
            if self._autocommit:
                self._writer.close()
        finally:
            self._autocommit, autocommit = False, self._autocommit
            super().close()
            self._autocommit = autocommit

    def commit(self) -> None:
        """Publish the file: the end of an fsspec transaction."""
        self._writer.close()

    def discard(self) -> None:
        """Give the file up: an fsspec transaction failed."""
        self._writer.discard()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if error is not None:
            self._writer.discard()
        self.close()


def _options(authority: str, username: str | None, password: str | None) -> Callable[[], ConnectOptions]:
    def options() -> ConnectOptions:
        found = cluster_of(authority, with_credentials=username is None)
        if username is None:
            return found
        return ConnectOptions(found.endpoints, username, password, found.tls, found.timeout_s)

    return options


def _close_in(process: int, volume: Volume) -> None:
    if process == os.getpid():
        volume.close()


def _entry(path: str, node: Node) -> dict[str, Any]:
    is_file = isinstance(node, FileNode)
    return {
        "name": path,
        "size": node.size if isinstance(node, FileNode) else 0,
        "type": "file" if is_file else "directory",
        "created": node.created_ns / 1e9,
        "mtime": node.mtime_ns / 1e9,
        "created_ns": node.created_ns,
        "mtime_ns": node.mtime_ns,
        "ino": node.version if isinstance(node, FileNode) else node.id,
    }


def _moment(time_ns: int) -> datetime:
    return datetime.fromtimestamp(time_ns / 1e9, timezone.utc)
