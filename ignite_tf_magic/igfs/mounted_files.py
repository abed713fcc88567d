"""The files of a mount: answers libfuse's requests from a volume, without importing libfuse.

fsync and close publish what was written, and it is also published automatically within two seconds.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress

from ignite_tf_magic.client.regions import region_use
from ignite_tf_magic.closing import Closing
from ignite_tf_magic.errors import DirectoryNotEmpty, IgniteTfError, StaleFile
from ignite_tf_magic.igfs import paths
from ignite_tf_magic.igfs.layout import FileNode, Node
from ignite_tf_magic.igfs.mounted_file import Handle, Written
from ignite_tf_magic.igfs.paths import Path
from ignite_tf_magic.igfs.quota import MAX_SHARE
from ignite_tf_magic.igfs.volume import Volume
from ignite_tf_magic.igfs.writer import OpenMode

# Seconds for which Linux, and `getattr` after a listing, may use cached information: others' changes show that late.
TRUST_S = 1.0
# A file last written to longer ago than this is not being written, as far as hosts' clocks agree.
_SETTLED_NS = 10 * 10**9
# Prefix of libfuse's names for files that were removed while open.
_REMOVED = ".fuse_hidden"
OPERATIONS = (
    *(
        "getattr",
        "readdir",
        "mkdir",
        "rmdir",
        "unlink",
        "rename",
        "create",
        "open",
        "read",
        "write",
        "truncate",
    ),
    *("flush", "fsync", "release", "utimens", "chmod", "chown", "statfs", "destroy"),
)
_PUBLISH_S = 1.0
_STAT_BLOCK_BYTES = 512
_SPACE_BLOCK_BYTES = 4096
# One longer name makes Linux reject the whole directory.
_MAX_NAME_BYTES = 1024
# UTIME_NOW ("now") and UTIME_OMIT ("leave it") as nanoseconds among a file's times.
_NOW, _OMIT = (1 << 30) - 1, (1 << 30) - 2
_BACKUP_COPIES = 2


class MountedFiles(Closing):
    """Answers libfuse's requests from a volume. Thread-safe.

    The methods are those of mfusepy's `Operations`. Locks are taken in this order: of a written file, of its handles,
    of this object.
    """

    def __init__(self, volume: Volume, top: Path) -> None:
        self._volume = volume
        self._top = top
        self._lock = threading.Lock()
        self._open: dict[int, Handle] = {}
        self._written: dict[Path, Written] = {}
        self._next_handle = 1
        self._listed: tuple[float, Path, dict[str, Node]] = (0.0, (), {})
        self._ended = threading.Event()
        self._publisher = threading.Thread(target=self._publish_often, name="igfs-mount", daemon=True)
        self._publisher.start()

    def close(self) -> None:
        """Close all files."""
        self._ended.set()
        self._publisher.join()
        for handle in list(self._open):
            self.release("", handle)

    def destroy(self, _: str) -> None:
        """Stop publishing: the mount has ended."""
        self._ended.set()

    def getattr(self, path: str, handle: int | None = None) -> dict[str, int]:
        """Describe a file or directory, including everything written to it here."""
        where = self._path(path) if path else self._open[handle or 0].path
        # Read before asking the cluster, so that data published in between is counted once.
        written = self._written_at(where)
        size, mtime_ns = (written.size, written.mtime_ns) if written else (0, 0)
        node = self._recently_listed(where) or self._volume.stat(where)
        if isinstance(node, FileNode):
            size = max(node.size, size)
        if not (written and written.has_unpublished):
            mtime_ns = node.mtime_ns
        return {
            "st_mode": _mode(node),
            "st_nlink": 1,
            "st_size": size,
            "st_blocks": -(-size // _STAT_BLOCK_BYTES),
            "st_blksize": self._volume.store.block_bytes,
            "st_uid": os.getuid(),
            "st_gid": os.getgid(),
            "st_mtime": mtime_ns,
            "st_ctime": mtime_ns,
            "st_atime": mtime_ns,
        }

    def readdir(self, path: str, _: int) -> Iterator[tuple[str, int, int]]:
        """List a directory; `getattr` can use what it shows of the files, for a second."""
        where = self._path(path)
        listed: dict[str, Node] = {}
        for name in (".", ".."):
            yield name, stat.S_IFDIR, 0
        for page in self._volume.entries(where):
            for name, node in page:
                if len(name.encode()) <= _MAX_NAME_BYTES and not name.startswith(_REMOVED):
                    listed[name] = node
                    yield name, _mode(node), 0
        self._listed = time.monotonic(), where, listed

    def mkdir(self, path: str, _: int) -> None:
        """Create a directory."""
        self._volume.make_directory(self._changing(path))

    def rmdir(self, path: str) -> None:
        """Remove an empty directory; files that were removed but are still open do not count."""
        where = self._changing(path)
        try:
            self._volume.remove_directory(where)
        except DirectoryNotEmpty:
            names = [name for page in self._volume.entries(where) for name, _ in page]
            if not names or not all(name.startswith(_REMOVED) for name in names):
                raise
            self._volume.remove_directory(where, with_contents=True)

    def unlink(self, path: str) -> None:
        """Remove a file. libfuse renames an open file first, and removes it when it is closed."""
        where = self._changing(path)
        if written := self._written_at(where):
            with written.lock:
                written.is_removed = True
        self._volume.remove_file(where)

    def rename(self, old: str, new: str) -> None:
        """Move a file or directory as one step; readers of a replaced file keep it."""
        source, target = self._changing(old), self._changing(new)
        for written in self._written_below(source):
            self._publish(written)
        self._volume.rename(source, target)
        with self._lock:
            replaced = self._written.pop(target, None)
            moved = [written for path, written in self._written.items() if path[: len(source)] == source]
            for written in moved:
                del self._written[written.path]
                path = (*target, *written.path[len(source) :])
                self._written[path] = written
            handles = [handle for handle in self._open.values() if handle.path[: len(source)] == source]
        if replaced is not None:
            with replaced.lock:
                replaced.is_removed = True
        for written in moved:
            with written.lock:
                written.forget()
                written.path = (*target, *written.path[len(source) :])
        for handle in handles:
            with handle.lock:
                handle.forget_content()
                handle.path = (*target, *handle.path[len(source) :])

    def create(self, path: str, _: int, flags: int) -> int:
        """Create a file, or empty an existing one, and open it."""
        where = self._changing(path)
        mode = OpenMode.CREATE if flags & os.O_EXCL else OpenMode.REPLACE
        self._replace_content(where, lambda: self._volume.write_file(where, b"", mode))
        return self._add(where, flags)

    def open(self, path: str, flags: int) -> int:
        """Open an existing file."""
        where = self._path(path)
        if flags & os.O_TRUNC:
            self._changing(path)
            self._replace_content(where, lambda: self._volume.write_file(where, b""))
        return self._add(where, flags)

    def read(self, _: str, size: int, offset: int, handle: int) -> bytes:
        """Read the content that the file had when it was opened, and what was written here since."""
        file = self._open[handle]
        written = self._written_at(file.path)
        with written.lock if written else nullcontext(), file.lock:
            data = file.read(size, offset)
            if written:
                if len(data) < size and written.publish_added():
                    data = file.read(size, offset)
                written.overlay(data, offset)
        return bytes(data)

    def write(self, _: str, data: bytes, offset: int, handle: int) -> int:
        """Write at an offset; a handle opened for appending writes at the end."""
        file = self._open[handle]
        written = self._written_at(file.path)
        if written is None:
            raise StaleFile("the file was removed while it was open", paths.render(file.path))
        with written.lock:
            if written.write(data, None if file.appends else offset):
                self._read_anew(file.path)
        return len(data)

    def truncate(self, path: str, length: int, _: int | None = None) -> None:
        """Cut a file or extend it with zeros."""
        where = self._changing(path)
        if written := self._written_at(where):
            self._publish(written)
        self._replace_content(where, lambda: self._volume.truncate(where, length))

    def flush(self, _: str, handle: int) -> None:
        """Publish what was written, because a program has closed the file."""
        if written := self._written_at(self._open[handle].path):
            self._publish(written)
        self._forget_listing()

    def fsync(self, path: str, _: int, handle: int) -> None:
        """Publish what was written."""
        self.flush(path, handle)

    def release(self, _: str, handle: int) -> None:
        """Release a handle; the last one of a written file publishes it."""
        with self._lock:
            file = self._open.pop(handle)
            written = self._written.get(file.path) if file.writes else None
            if written is not None:
                written.num_handles -= 1
                if not written.num_handles:
                    del self._written[file.path]
                else:
                    written = None
        with file.lock:
            file.forget_content()
        if written is not None:
            with written.lock:
                written.close()

    def utimens(self, path: str, times: tuple[int, int] | None) -> None:
        """Set the modification time; access times are not kept."""
        where = self._changing(path)
        if written := self._written_at(where):
            self._publish(written)
        mtime_ns = times[1] if times else _NOW
        if mtime_ns != _OMIT:
            self._volume.set_mtime(where, time.time_ns() if mtime_ns == _NOW else mtime_ns)

    def chmod(self, path: str, _: int) -> None:
        """Do nothing: igfs keeps no permissions. Refusing would break `cp -p` and `tar`."""

    def chown(self, path: str, _: int, __: int) -> None:
        """Do nothing: igfs keeps no owners."""

    def statfs(self, _: str) -> dict[str, int]:
        """Return the free space: what can be written on all nodes until the fullest node is full."""
        uses = region_use(self._volume.store.client())
        copies = min(len(uses), _BACKUP_COPIES) or 1
        least = min((use.max_bytes * MAX_SHARE - use.used_bytes for use in uses), default=0.0)
        total = sum(use.max_bytes for use in uses) * MAX_SHARE / copies
        free = round(max(least, 0) * len(uses) / copies) // _SPACE_BLOCK_BYTES
        blocks = {"f_blocks": round(total) // _SPACE_BLOCK_BYTES, "f_bfree": free, "f_bavail": free}
        sizes = dict.fromkeys(("f_bsize", "f_frsize"), _SPACE_BLOCK_BYTES)
        return {**sizes, **blocks, "f_namemax": _MAX_NAME_BYTES}

    def _path(self, path: str) -> Path:
        return (*self._top, *paths.parse(path))

    def _changing(self, path: str) -> Path:
        self._forget_listing()
        return self._path(path)

    def _forget_listing(self) -> None:
        self._listed = (0.0, (), {})

    def _recently_listed(self, path: Path) -> Node | None:
        """Return the result of a recent listing, unless the file may be in the middle of being written.

        A program that got an outdated size would read only that much, and take it for the whole file.
        """
        listed_at, directory, nodes = self._listed
        if not path or path[:-1] != directory or time.monotonic() - listed_at > TRUST_S:
            return None
        node = nodes.get(path[-1])
        if isinstance(node, FileNode) and time.time_ns() - node.mtime_ns < _SETTLED_NS:
            return None
        with self._lock:
            is_open = any(handle.path == path for handle in self._open.values())
        return None if is_open else node

    def _add(self, path: Path, flags: int) -> int:
        file = Handle(self._volume, path, flags)
        with self._lock:
            handle, self._next_handle = self._next_handle, self._next_handle + 1
            self._open[handle] = file
            if file.writes:
                written = self._written.setdefault(path, Written(self._volume, path))
                written.num_handles += 1
        return handle

    def _written_at(self, path: Path) -> Written | None:
        with self._lock:
            return self._written.get(path)

    def _written_below(self, path: Path) -> list[Written]:
        with self._lock:
            return [written for at, written in self._written.items() if at[: len(path)] == path]

    def _publish(self, written: Written) -> None:
        with written.lock:
            if not written.is_removed and written.publish():
                self._read_anew(written.path)

    def _replace_content(self, path: Path, replace: Callable[[], None]) -> None:
        """Replace a file's content; all its handles here see the new content."""
        written = self._written_at(path)
        with written.lock if written else nullcontext():
            replace()
            if written:
                written.forget()
        self._read_anew(path)

    def _read_anew(self, path: Path) -> None:
        with self._lock:
            handles = [handle for handle in self._open.values() if handle.path == path]
        for handle in handles:
            with handle.lock:
                handle.forget_content()

    def _publish_often(self) -> None:
        while not self._ended.wait(_PUBLISH_S):
            for written in self._written_below(()):
                # the program that writes or closes the file gets the same error
                if written.has_unpublished:
                    with suppress(IgniteTfError, ValueError):
                        self._publish(written)


def _mode(node: Node) -> int:
    return stat.S_IFREG | 0o644 if isinstance(node, FileNode) else stat.S_IFDIR | 0o755
