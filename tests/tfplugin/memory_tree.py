"""A file system in a dictionary, which the plugin's tests register with TensorFlow. It contains no tests."""

from __future__ import annotations

import errno
import threading
import time

from ignite_tf_magic.tfplugin.handler import Stat


def parent(uri: str) -> str:
    return uri.rstrip("/").rpartition("/")[0]


class MemoryFile:
    def __init__(self) -> None:
        self.data = bytearray()
        self.mtime_ns = time.time_ns()


class Reading:
    def __init__(self, tree: MemoryTree, file: MemoryFile) -> None:
        self.tree = tree
        self.file = file

    def read_into(self, offset: int, space: memoryview) -> int:
        got = self.file.data[offset : offset + len(space)]
        space[: len(got)] = got
        return len(got)

    def close(self) -> None:
        self.tree.closed += 1


class Writing:
    def __init__(self, tree: MemoryTree, file: MemoryFile) -> None:
        self.tree = tree
        self.file = file

    def append(self, data: memoryview) -> None:
        self.file.data += data

    def tell(self) -> int:
        return len(self.file.data)

    def flush(self) -> None:
        self.tree.flushed += 1

    def sync(self) -> None:
        self.tree.synced += 1

    def close(self) -> None:
        self.tree.closed += 1


class MemoryTree:
    """A tree of files in memory. URIs without a further "/" are roots: "mem://" and "mem://host:1"."""

    def __init__(self) -> None:
        self.files: dict[str, MemoryFile] = {}
        self.directories: set[str] = set()
        self.lock = threading.Lock()
        self.opened = self.closed = self.flushed = self.synced = 0
        self.seen: list[str] = []

    def is_directory(self, uri: str) -> bool:
        path = uri.partition("://")[2].strip("/")
        is_root = "/" not in path and (not path or ":" in path)
        return is_root or uri.rstrip("/") in self.directories

    def file(self, uri: str) -> MemoryFile:
        if self.is_directory(uri):
            raise IsADirectoryError(errno.EISDIR, "is a directory", uri)
        if uri not in self.files:
            raise FileNotFoundError(errno.ENOENT, "no such file", uri)
        return self.files[uri]

    def need_parent(self, uri: str) -> None:
        if parent(uri) in self.files:
            raise NotADirectoryError(errno.ENOTDIR, "the parent is a file", uri)
        if not self.is_directory(parent(uri)):
            raise FileNotFoundError(errno.ENOENT, "no such directory", parent(uri))

    def open_read(self, uri: str) -> Reading:
        self.seen.append(uri)
        file = self.file(uri)
        self.opened += 1
        return Reading(self, file)

    def open_write(self, uri: str, *, append: bool) -> Writing:
        self.seen.append(uri)
        if self.is_directory(uri):
            raise IsADirectoryError(errno.EISDIR, "is a directory", uri)
        self.need_parent(uri)
        if not append or uri not in self.files:
            self.files[uri] = MemoryFile()
        self.opened += 1
        return Writing(self, self.files[uri])

    def stat(self, uri: str) -> Stat:
        if self.is_directory(uri):
            return Stat(0, 0, is_directory=True)
        file = self.file(uri)
        return Stat(len(file.data), file.mtime_ns, is_directory=False)

    def list_directory(self, uri: str) -> list[str]:
        if uri in self.files:
            raise NotADirectoryError(errno.ENOTDIR, "is a file", uri)
        if not self.is_directory(uri):
            raise FileNotFoundError(errno.ENOENT, "no such directory", uri)
        root = uri.rstrip("/") + "/" if not uri.endswith("://") else uri + "/"
        inside = [path for path in [*self.files, *self.directories] if path.startswith(root)]
        return sorted({path[len(root) :].partition("/")[0] for path in inside})

    def make_directory(self, uri: str) -> None:
        self.need_parent(uri)
        if uri in self.files or self.is_directory(uri):
            raise FileExistsError(errno.EEXIST, "exists", uri)
        self.directories.add(uri.rstrip("/"))

    def make_directories(self, uri: str) -> None:
        path = uri.rstrip("/")
        while not self.is_directory(path):
            self.directories.add(path)
            path = parent(path)

    def remove_file(self, uri: str) -> None:
        self.file(uri)
        del self.files[uri]

    def remove_directory(self, uri: str) -> None:
        if self.list_directory(uri):
            raise OSError(errno.ENOTEMPTY, "directory is not empty", uri)
        self.directories.remove(uri.rstrip("/"))

    def remove_tree(self, uri: str) -> None:
        self.list_directory(uri)
        root = uri.rstrip("/")
        self.files = {path: file for path, file in self.files.items() if not path.startswith(root + "/")}
        self.directories = {path for path in self.directories if not (path + "/").startswith(root + "/")}

    def rename(self, source: str, target: str) -> None:
        if source in self.files:
            self.files[target] = self.files.pop(source)
            return
        if source not in self.directories:
            raise FileNotFoundError(errno.ENOENT, "no such path", source)
        for path in [path for path in self.files if path.startswith(source + "/")]:
            self.files[target + path[len(source) :]] = self.files.pop(path)
        self.directories = {
            target + path[len(source) :] if (path + "/").startswith(source + "/") else path
            for path in self.directories
        }

    def copy(self, source: str, target: str) -> None:
        copied = MemoryFile()
        copied.data += self.file(source).data
        self.files[target] = copied
