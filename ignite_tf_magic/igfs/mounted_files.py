"""The files of a mount: what libfuse asks for, answered from a volume. Knows nothing of libfuse itself.

Files are written from their beginning to their end or appended to, as everywhere in igfs; writing in the middle of
a file is refused. What was written is published by fsync and close, and by itself within two seconds.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

from ignite_tf_magic.client.regions import region_use
from ignite_tf_magic.closing import Closing
from ignite_tf_magic.errors import IgniteTfError
from ignite_tf_magic.igfs import paths
from ignite_tf_magic.igfs.layout import FileNode, Node
from ignite_tf_magic.igfs.paths import Path, render
from ignite_tf_magic.igfs.quota import MAX_SHARE
from ignite_tf_magic.igfs.reader import FileReader
from ignite_tf_magic.igfs.volume import Volume
from ignite_tf_magic.igfs.writer import FileWriter, WriteMode

# How long Linux, and `getattr` after a listing, rely on what is known of a file: others' changes are seen that late.
TRUST_S = 1.0
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
_ZEROS = bytes(1024 * 1024)
# Linux refuses a whole directory for one longer name.
_MAX_NAME_BYTES = 1024
# What "now" and "leave it" are among a file's times (UTIME_NOW, UTIME_OMIT), in nanoseconds.
_NOW, _OMIT = (1 << 30) - 1, (1 << 30) - 2
_BACKUP_COPIES = 2


class _OpenFile:
    """A file that is open in the mount, for reading, writing or both. Its owner holds `lock` while using it."""

    def __init__(self, volume: Volume, path: Path, flags: int) -> None:
        self._volume = volume
        self.path = path
        self.appends = bool(flags & os.O_APPEND)
        self.lock = threading.Lock()
        self.is_removed = False
        self.has_unpublished = False
        self._writer: FileWriter | None = None
        self._reader: FileReader | None = None
        if flags & os.O_ACCMODE == os.O_RDONLY:
            self._reader = volume.open_read(path)

    def read(self, size: int, offset: int) -> bytes:
        if self._reader is None:
            self._reader = self._volume.open_read(self.path)
        data = bytearray(size)
        num_bytes = self._reader.read_into(offset, memoryview(data))
        return bytes(memoryview(data)[:num_bytes])

    def write(self, data: bytes, offset: int) -> int:
        if self.is_removed:
            raise OSError(errno.ESTALE, "the file was removed while it was open", render(self.path))
        if self._writer is None:
            self._writer = self._volume.open_write(self.path, WriteMode.APPEND)
        size = self._writer.tell()
        if not self.appends and offset < size:
            raise OSError(
                errno.EOPNOTSUPP,
                f"igfs files are written from beginning to end: a write at byte {offset:,} of {size:,} is refused; "
                "write a new file and rename it",
                render(self.path),
            )
        self.has_unpublished = True
        if not self.appends:
            for start in range(size, offset, len(_ZEROS)):  # a hole
                self._writer.write(_ZEROS[: offset - start])
        return self._writer.write(data)

    def publish(self) -> None:
        if self._writer is not None and self.has_unpublished:
            self._writer.flush()
            self.has_unpublished = False

    def forget_content(self) -> None:
        """The file has another content now, or another path: open it anew when it is used again."""
        self.publish()
        self.close()

    def close(self) -> None:
        writer, self._writer = self._writer, None
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()
        if writer is not None and self.is_removed:
            writer.discard()
        elif writer is not None:
            writer.close()


class MountedFiles(Closing):
    """What libfuse asks for, answered from a volume; the methods are those of mfusepy's `Operations`. Thread-safe."""

    def __init__(self, volume: Volume, top: Path) -> None:
        self._volume = volume
        self._top = top
        self._lock = threading.Lock()
        self._open: dict[int, _OpenFile] = {}
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
        """The mount has ended."""
        self._ended.set()

    def getattr(self, path: str, handle: int | None = None) -> dict[str, int]:
        """Describe a file or directory, with all that was written to it here."""
        where = self._path(path) if path else self._open[handle or 0].path
        self._publish(where)
        node = self._recently_listed(where) or self._volume.stat(where)
        size = node.size if isinstance(node, FileNode) else 0
        return {
            "st_mode": _mode(node),
            "st_nlink": 1,
            "st_size": size,
            "st_blocks": -(-size // _STAT_BLOCK_BYTES),
            "st_blksize": self._volume.store.block_bytes,
            "st_uid": os.getuid(),
            "st_gid": os.getgid(),
            "st_mtime": node.mtime_ns,
            "st_ctime": node.mtime_ns,
            "st_atime": node.mtime_ns,
        }

    def readdir(self, path: str, _: int) -> Iterator[tuple[str, int, int]]:
        """List a directory; what it says of the files is good for `getattr`, for a second."""
        where = self._path(path)
        listed: dict[str, Node] = {}
        for name in (".", ".."):
            yield name, stat.S_IFDIR, 0
        for page in self._volume.entries(where):
            for name, node in page:
                if len(name.encode()) <= _MAX_NAME_BYTES:
                    listed[name] = node
                    yield name, _mode(node), 0
        self._listed = time.monotonic(), where, listed

    def mkdir(self, path: str, _: int) -> None:
        """Create a directory."""
        self._volume.make_directory(self._changing(path))

    def rmdir(self, path: str) -> None:
        """Remove an empty directory."""
        self._volume.remove_directory(self._changing(path))

    def unlink(self, path: str) -> None:
        """Remove a file; those who read it can go on, those who write to it cannot."""
        where = self._changing(path)
        for file in self._files_at(where):
            with file.lock:
                file.is_removed = True
        self._volume.remove_file(where)

    def rename(self, old: str, new: str) -> None:
        """Move a file or directory as one step; a file that is replaced stays with its readers."""
        source, target = self._changing(old), self._changing(new)
        moved = self._files_at(source, below=True)
        for file in moved:
            with file.lock:
                file.publish()
        self._volume.rename(source, target)
        for file in self._files_at(target):
            file.is_removed = True
        for file in moved:
            with file.lock:
                file.forget_content()
                file.path = (*target, *file.path[len(source) :])

    def create(self, path: str, _: int, flags: int) -> int:
        """Create a file, or empty one that is there, and open it."""
        where = self._changing(path)
        mode = WriteMode.CREATE if flags & os.O_EXCL else WriteMode.REPLACE
        self._volume.write_file(where, b"", mode)
        return self._add(_OpenFile(self._volume, where, flags))

    def open(self, path: str, flags: int) -> int:
        """Open a file that is there."""
        where = self._path(path)
        self._publish(where)
        if flags & os.O_TRUNC:
            self._volume.write_file(self._changing(path), b"")
        return self._add(_OpenFile(self._volume, where, flags))

    def read(self, _: str, size: int, offset: int, handle: int) -> bytes:
        """Read from the content that the file had when it was opened, and what was appended."""
        file = self._open[handle]
        with file.lock:
            data = file.read(size, offset)
        if len(data) == size or not self._publish(file.path):
            return data
        with file.lock:  # the rest was written here and not published yet
            return file.read(size, offset)

    def write(self, _: str, data: bytes, offset: int, handle: int) -> int:
        """Add to the end of a file."""
        file = self._open[handle]
        with file.lock:
            return file.write(data, offset)

    def truncate(self, path: str, length: int, _: int | None = None) -> None:
        """Cut a file or fill it up with zeros."""
        where = self._changing(path)
        files = self._files_at(where)
        for file in files:
            with file.lock:
                file.publish()
        self._volume.truncate(where, length)
        for file in files:
            with file.lock:
                file.forget_content()

    def flush(self, _: str, handle: int) -> None:
        """Publish what was written: somebody has closed the file."""
        file = self._open[handle]
        with file.lock:
            file.publish()
        self._listed = (0.0, (), {})

    def fsync(self, path: str, _: int, handle: int) -> None:
        """Publish what was written."""
        self.flush(path, handle)

    def release(self, _: str, handle: int) -> None:
        """Nobody has the file open any more."""
        with self._lock:
            file = self._open.pop(handle)
        with file.lock:
            file.close()

    def utimens(self, path: str, times: tuple[int, int] | None) -> None:
        """Set the time of the last change; that of the last access is not kept."""
        where = self._changing(path)
        self._publish(where)
        mtime_ns = times[1] if times else _NOW
        if mtime_ns != _OMIT:
            self._volume.set_mtime(where, time.time_ns() if mtime_ns == _NOW else mtime_ns)

    def chmod(self, path: str, _: int) -> None:
        """Leave it: igfs keeps no permissions. Refusing would break `cp -p` and `tar`."""

    def chown(self, path: str, _: int, __: int) -> None:
        """Leave it: igfs keeps no owners."""

    def statfs(self, _: str) -> dict[str, int]:
        """Tell how much room there is: what can be written until the fullest node is full, on all nodes."""
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
        self._listed = (0.0, (), {})
        return self._path(path)

    def _recently_listed(self, path: Path) -> Node | None:
        listed_at, directory, nodes = self._listed
        if path and path[:-1] == directory and time.monotonic() - listed_at < TRUST_S:
            return nodes.get(path[-1])
        return None

    def _add(self, file: _OpenFile) -> int:
        with self._lock:
            handle, self._next_handle = self._next_handle, self._next_handle + 1
            self._open[handle] = file
        return handle

    def _files_at(self, path: Path, *, below: bool = False) -> list[_OpenFile]:
        with self._lock:
            files = list(self._open.values())
        return [
            file
            for file in files
            if not file.is_removed and (file.path == path or (below and file.path[: len(path)] == path))
        ]

    def _publish(self, path: Path) -> bool:
        """Publish what was written to a file here; gives whether there was anything."""
        unpublished = [file for file in self._files_at(path) if file.has_unpublished]
        for file in unpublished:
            with file.lock:
                file.publish()
            self._listed = (0.0, (), {})
        return bool(unpublished)

    def _publish_often(self) -> None:
        while not self._ended.wait(_PUBLISH_S):
            with self._lock:
                files = [file for file in self._open.values() if file.has_unpublished and not file.is_removed]
            for file in files:
                # whoever writes or closes the file is told the same
                with suppress(IgniteTfError, ValueError), file.lock:
                    file.publish()


def _mode(node: Node) -> int:
    return stat.S_IFREG | 0o644 if isinstance(node, FileNode) else stat.S_IFDIR | 0o755
