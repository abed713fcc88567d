"""igfs for Python: an fsspec file system.

    fs = fsspec.filesystem("igfs")
    with fs.open("/runs/42/notes.txt", "w") as file:
        file.write("...")
    pandas.read_csv("igfs:///data/train.csv")

Libraries that use fsspec, such as pandas, find it by the scheme alone.
"""

from __future__ import annotations

import os
import shutil
import socket
import time
import weakref
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from typing import Any, TypeVar

from fsspec.compression import compr
from fsspec.core import get_compression
from fsspec.spec import AbstractFileSystem

from ignite_tf_magic.errors import (
    CorruptRecord,
    IgniteTfError,
    InvalidPath,
    PathExists,
    PathIsDirectory,
    PathNotFound,
)
from ignite_tf_magic.igfs import paths
from ignite_tf_magic.igfs.addresses import cluster_of, name_of_file_system
from ignite_tf_magic.igfs.file_objects import CompressedOutput, IgfsInput, IgfsOutput, IgfsText, read_between
from ignite_tf_magic.igfs.layout import BLOCK_BYTES, DirectoryNode, FileNode, Node
from ignite_tf_magic.igfs.volume import Volume
from ignite_tf_magic.igfs.writer import OpenMode
from ignite_tf_magic.settings.options import ConnectOptions, Endpoint

T = TypeVar("T")
_BUFFER_BYTES = 256 * 1024
_COPY_BYTES = 8 * 1024 * 1024


class IgfsFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """Files kept in the caches of an Ignite cluster.

    A file opened for writing becomes visible as a whole when it is flushed or closed; a `with` block that ends by an
    exception leaves the old file. A file opened for reading keeps its content when it is replaced, and grows when it is
    appended to. `mv` is one step, even for whole directories.

    Args:
        host: A node; default: the configured or the embedded cluster (see `igfs.addresses`).
        port: Its thin client port.
        username: Replaces the configured one.
        password: Replaces the configured one.
        fs_name: Which of the cluster's file systems to use; the first write to "igfs" creates it.
        auto_mkdir: Whether writing a file creates the directories above it, as object stores seem to.
        block_bytes: Size of new blocks.
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
        auto_mkdir: bool = True,
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
        return paths.render(paths.names_of(_split(os.fspath(path))[1]))

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, Any]:
        authority = _split(path)[0]
        if not authority:
            return {}
        endpoint = paths.endpoint_of(authority)
        return {"host": endpoint.host, "port": endpoint.port}

    @property
    def fsid(self) -> str:
        """The name of the file system."""
        return f"{paths.SCHEME}-{self.volume.store.name}"

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Describe a file or directory, by one request once its directory is known."""
        where = self._parse(path)
        return _entry(paths.render(where), self.volume.stat(where))

    def exists(self, path: str, **_: Any) -> bool:
        """Return whether the path exists. A cluster that does not answer is an error, not False."""
        try:
            self.info(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def isdir(self, path: str) -> bool:
        """Return whether the path is a directory. A cluster that does not answer is an error, not False."""
        return self.exists(path) and self.info(path)["type"] == "directory"

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """List a directory, sorted by name; for a file, list the file itself."""
        where = self._parse(path)
        node = self.volume.stat(where)
        if isinstance(node, FileNode):
            entries = [_entry(paths.render(where), node)]
        else:
            entries = sorted(
                (entry for page in self.iter_pages(path) for entry in page), key=lambda entry: entry["name"]
            )
        return entries if detail else [entry["name"] for entry in entries]

    def walk(
        self,
        path: str,
        maxdepth: int | None = None,
        topdown: bool = True,
        on_error: Any = "omit",
        above: frozenset[int] = frozenset(),
        **options: Any,
    ) -> Iterator[Any]:
        """List everything below a path; leave out only what has vanished meanwhile.

        A cluster that does not answer is an error.

        Args:
            path: Where to begin.
            maxdepth: The maximum number of levels.
            topdown: Whether a directory comes before those in it.
            on_error: See fsspec.
            above: Ids of the directories that led here; fsspec's own recursion passes them down.
            options: See fsspec.

        Raises:
            CorruptRecord: A directory leads back to one above it.
        """
        report = _unless_gone if on_error == "omit" else on_error
        options["above"] = above | self._ids_of_directory(self._parse(path), above)
        return super().walk(path, maxdepth=maxdepth, topdown=topdown, on_error=report, **options)  # type: ignore[no-any-return]

    def _ids_of_directory(self, path: paths.Path, above: frozenset[int]) -> set[int]:
        try:
            node = self.volume.stat(path)
        except OSError:
            return set()  # listing it fails, too, and `on_error` decides then
        if isinstance(node, DirectoryNode) and node.id in above:
            raise CorruptRecord(
                f"the entry {path[-1]!r} of this directory leads back to a directory above it; another program has "
                "written it. See ignite-tf fs fsck",
                paths.render(path[:-1]),
            )
        return {node.id} if isinstance(node, DirectoryNode) else set()

    def iter_pages(self, path: str) -> Iterator[list[dict[str, Any]]]:
        """List a directory of any size in lists of up to 1,000 entries, in no order."""
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
        """Remove files; with `recursive` also directories, each with all its contents as one step.

        Raises:
            PathIsDirectory: The path is a directory, empty or not, and `recursive` is False.
        """
        if maxdepth is not None:
            super().rm(path, recursive=recursive, maxdepth=maxdepth)
            return
        for item in [path] if isinstance(path, str | os.PathLike) else list(path):
            names = self.matches(self._strip_protocol(item))
            for name in names:
                if any(name.startswith(f"{other}/") for other in names):
                    continue  # removed together with that directory
                if not isinstance(self.volume.stat(self._parse(name)), DirectoryNode):
                    self.rm_file(name)
                elif recursive:
                    self.volume.remove_directory(self._parse(name), with_contents=True)
                else:
                    raise PathIsDirectory("this is a directory: remove it with recursive=True or rmdir", name)

    def matches(self, path: str) -> list[str]:
        """Return the paths that match a pattern: * and ? and [a-z] in names, ** for directories at any depth.

        A pattern that is itself an existing path means that path. A path without these characters is returned whether
        it exists or not.

        Raises:
            PathNotFound: Nothing matches.
        """
        if not any(sign in path for sign in "*?[") or self.exists(path):
            return [path]
        matching: list[str] = sorted(self.glob(path))
        if not matching:
            raise PathNotFound("nothing in igfs matches", path)
        return matching

    def mv(
        self, path1: Any, path2: Any, recursive: bool = False, maxdepth: int | None = None, **options: Any
    ) -> None:
        """Move a file, or a directory with all its contents, as one step.

        If `path2` is a directory, the move is into it. Unless `auto_mkdir` is False, missing directories above the
        target are created first.
        """
        if not isinstance(path1, str | os.PathLike) or not isinstance(path2, str | os.PathLike):
            super().mv(path1, path2, recursive=recursive, maxdepth=maxdepth, **options)
            return
        source, target = self._parse(path1), self._parse(path2)
        into = str(path2).endswith("/") or (source != target and self.isdir(os.fspath(path2)))
        place = (*target, source[-1]) if into and source else target
        try:
            self.volume.rename(source, place)
        except PathNotFound:
            self.volume.stat(source)  # create no directories for a source that does not exist
            self._with_parents(place, lambda: self.volume.rename(source, place))

    mv_file = mv

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        """Copy a file; a directory is created empty."""
        source, target = self._parse(path1), self._parse(path2)
        if isinstance(self.volume.stat(source), DirectoryNode):
            self.volume.make_directory(target, parents=self.auto_mkdir, exist_ok=True)
        elif self._intrans:
            with self.open(path1) as file, self.open(path2, "wb") as copy:
                shutil.copyfileobj(file, copy, _COPY_BYTES)
        else:
            self._with_parents(target, lambda: self.volume.copy(source, target))

    def created(self, path: str) -> datetime:
        """Return the time at which a file was created or replaced."""
        return _moment(self.info(path)["created_ns"])

    def modified(self, path: str) -> datetime:
        """Return the time at which a file was last written to."""
        return _moment(self.info(path)["mtime_ns"])

    def touch(self, path: str, truncate: bool = True, **_: Any) -> None:
        """Create an empty file, or empty an existing one; without `truncate` only set its modification time."""
        where = self._parse(path)
        if not truncate and self.exists(path):
            self.volume.set_mtime(where, time.time_ns())
        elif self._intrans:
            self.pipe_file(path, b"")
        else:
            self._with_parents(where, lambda: self.volume.make_file(where))

    def truncate(self, path: str, size: int) -> None:
        """Cut a file, or extend it with zeros."""
        self.volume.truncate(self._parse(path), size)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        """Read a file, or a part of it; negative offsets count from its end."""
        with self.volume.open_read(self._parse(path)) as reader:
            first, last, _step = slice(start, end).indices(reader.node.size)
            return read_between(reader, first, last)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        """Write a whole file; mode "create" requires that none exists."""
        where = self._parse(path)
        write_mode = OpenMode.CREATE if mode == "create" else OpenMode.REPLACE
        if self._intrans:
            with self.open(path, write_mode.value) as file:
                file.write(value)
        else:
            self._with_parents(where, lambda: self.volume.write_file(where, value, write_mode))

    def open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        cache_options: Any = None,
        compression: str | None = None,
        **options: Any,
    ) -> Any:
        """Open a file; see fsspec."""
        if "r" in mode or ("b" in mode and compression is None):
            return super().open(path, mode, block_size, cache_options, compression, **options)
        text = {key: options.pop(key) for key in ("encoding", "errors", "newline") if key in options}
        binary = mode.replace("t", "").replace("b", "") + "b"
        file = super().open(path, binary, block_size, cache_options, None, **options)
        if compression is not None:
            chosen = get_compression(self._strip_protocol(path), compression)
            file = CompressedOutput(file, compr[chosen](file, mode=mode[0])) if chosen else file
        return file if "b" in mode else IgfsText(file, path, **text)

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
        mode = mode.replace("b", "") + "b"
        if mode == "rb":
            return IgfsInput(self.volume.open_read(where), path, block_size or _BUFFER_BYTES)
        try:
            write_mode = OpenMode(mode)
        except ValueError:
            raise InvalidPath(
                f"igfs files are read (r), replaced (w), created (x) or appended to (a), not opened with {mode!r}",
                path,
            ) from None
        if write_mode is OpenMode.CREATE and self.exists(path):
            raise PathExists("the file exists already", path)
        writer = self._with_parents(where, lambda: self.volume.open_write(where, write_mode))
        return IgfsOutput(writer, path, mode, autocommit=autocommit)

    def _with_parents(self, path: paths.Path, write: Callable[[], T]) -> T:
        """Run `write`; if a directory is missing, create it and run `write` again.

        Checking first would cost more.
        """
        try:
            return write()
        except PathNotFound:
            if not self.auto_mkdir or len(path) < 2:
                raise
        self.volume.make_directory(path[:-1], parents=True, exist_ok=True)
        return write()

    def _parse(self, path: str | os.PathLike[str]) -> paths.Path:
        return paths.parse(_split(os.fspath(path))[1])


def _split(uri: str) -> tuple[str, str]:
    """Split an address into authority and path.

    pathlib collapses several slashes into one, and `datasets` then reads igfs:///data/x as igfs://data/x. A name
    without a port that is not a machine's but exists in the root directory therefore becomes the first name of the
    path.
    """
    authority, path = paths.split_uri(uri)
    if authority and ":" not in authority and not _is_machine(authority) and _is_at_top(authority):
        return "", f"/{authority}{path}"
    return authority, path


def _is_machine(name: str) -> bool:
    try:
        return bool(socket.getaddrinfo(name, None))
    except (OSError, UnicodeError):
        return False


def _is_at_top(name: str) -> bool:
    try:
        return bool(IgfsFileSystem().exists(f"/{name}"))
    except IgniteTfError:
        return False  # without a configured cluster that answers, the address alone counts


def _unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


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
