"""One file system of one cluster: the base of `filesystem` (fsspec) and of TensorFlow's plugin."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace

from ignite_tf_magic.closing import Closing
from ignite_tf_magic.errors import InvalidPath, PathIsDirectory, PathNotDirectory, StaleFile
from ignite_tf_magic.igfs import layout
from ignite_tf_magic.igfs.collector import Collector
from ignite_tf_magic.igfs.found import ROOT
from ignite_tf_magic.igfs.layout import BLOCK_BYTES, FileNode, Node
from ignite_tf_magic.igfs.lease_manager import LeaseManager
from ignite_tf_magic.igfs.paths import Path, check_listed, render
from ignite_tf_magic.igfs.quota import MAX_SHARE, Quota
from ignite_tf_magic.igfs.reader import FileReader
from ignite_tf_magic.igfs.store import DEFAULT_NAME, Store, Swap
from ignite_tf_magic.igfs.tree import Tree
from ignite_tf_magic.igfs.writer import FileWriter, OpenMode
from ignite_tf_magic.settings.options import ConnectOptions

_COPY_BYTES = 8 * 1024 * 1024
_SWEPT_FOR_ROOM = 10_000
# Attempts to cut or rewrite a file that others change meanwhile.
_TRIES = 10


class Volume(Closing):
    """A file system. Thread-safe. The caller closes it.

    It connects at first use, and disconnects after ten idle seconds.

    Args:
        options: Returns how to reach the cluster; called when a connection is opened.
        name: Which of the cluster's file systems to use; the first write to "igfs" creates it.
        create: Whether writing creates file systems of other names, too.
        block_bytes: Size of new blocks.
        max_share: How full writing may make the nodes' memory, from 0 to 1.
    """

    def __init__(
        self,
        options: Callable[[], ConnectOptions],
        name: str = DEFAULT_NAME,
        *,
        create: bool = False,
        block_bytes: int = BLOCK_BYTES,
        max_share: float = MAX_SHARE,
    ) -> None:
        self.store = Store(options, name, create=create or name == DEFAULT_NAME, block_bytes=block_bytes)
        self.tree = Tree(self.store)
        self.collector = Collector(self.store, self.tree)
        self._leases = LeaseManager(self.store, self.collector)
        self.store.on_garbage = self._leases.garbage_was_made
        self._quota = Quota(self.store, self._reclaim, max_share)

    def close(self) -> None:
        """Disconnect, at once or when the last open file is closed."""
        self._leases.close()
        if not self._leases.is_used:
            self.store.close()

    def stat(self, path: Path) -> Node:
        """Describe a file or directory.

        Raises:
            PathNotFound: Nothing is there.
        """
        if not path:
            return ROOT
        with self._leases.use():
            return self.tree.find(path).must()

    def entries(self, path: Path) -> Iterator[list[tuple[str, Node]]]:
        """Yield a directory's entries in lists of up to 1,000, in no order.

        Raises:
            PathNotFound: Nothing is there.
            PathNotDirectory: It is a file.
            CorruptRecord: An entry has a name that no file can have.
        """
        with self._leases.use():
            directory = self.tree.find(path).directory()
            for page in self.tree.entries(directory.id):
                for name, _ in page:
                    check_listed(name, path)
                yield page

    def open_read(self, path: Path) -> FileReader:
        """Open a file for reading; the caller closes it."""
        with self._leases.use():
            return FileReader(self.store, self.tree, self._leases, path)

    def open_write(self, path: Path, mode: OpenMode = OpenMode.REPLACE) -> FileWriter:
        """Open a file for writing; the caller closes it."""
        with self._leases.use():
            return FileWriter(self.store, self.tree, self._leases, self._quota, self.collector, path, mode)

    def make_file(self, path: Path) -> None:
        """Create an empty file, or replace an existing file by an empty one."""
        with self._leases.use():
            self.tree.make_file(path)

    def make_directory(self, path: Path, *, parents: bool = False, exist_ok: bool = False) -> None:
        """Create a directory; with `parents` also those above it."""
        with self._leases.use():
            if parents:
                self.tree.make_directories(path, exist_ok=exist_ok)
            else:
                self.tree.make_directory(path, exist_ok=exist_ok)

    def remove_file(self, path: Path) -> None:
        """Remove a file; its open readers can continue."""
        with self._leases.use():
            if not path:
                raise PathIsDirectory("this is a directory", "/")
            self.tree.remove_file(path)

    def remove_directory(self, path: Path, *, with_contents: bool = False) -> None:
        """Remove a directory. Its contents, if any, vanish with it as one step, and are freed afterwards."""
        with self._leases.use():
            self.tree.remove_directory(path, with_contents=with_contents)

    def rename(self, source: Path, target: Path) -> None:
        """Move a file, or a directory with all its contents, as one step. A file at the target is replaced."""
        with self._leases.use():
            self.tree.rename(source, target)

    def copy(self, source: Path, target: Path, to: Volume | None = None) -> None:
        """Copy a file's content, by default within this volume.

        The target appears, or is replaced, once everything is written.
        """
        if source == target and to in (None, self):
            return
        buffer = memoryview(bytearray(_COPY_BYTES))
        with self._leases.use(), self.open_read(source) as reader, (to or self).open_write(target) as writer:
            offset = 0
            while num_bytes := reader.read_into(offset, buffer):
                writer.write(buffer[:num_bytes])
                offset += num_bytes

    def write_file(self, path: Path, data: bytes | memoryview, mode: OpenMode = OpenMode.REPLACE) -> None:
        """Write a whole file."""
        with self.open_write(path, mode) as writer:
            writer.write(data)

    def truncate(self, path: Path, size: int) -> None:
        """Cut a file, or extend it with zeros. Open readers keep the old content.

        Raises:
            InvalidPath: A negative size.
        """
        if size < 0:
            raise InvalidPath(f"a file cannot have {size} bytes", render(path))
        for _ in range(_TRIES):
            with suppress(StaleFile):  # others are writing to it
                self._truncate(path, size)
                return
        self._truncate(path, size)

    def _truncate(self, path: Path, size: int) -> None:
        node = self.stat(path)
        if not isinstance(node, FileNode):
            raise PathIsDirectory("this is a directory", render(path))
        mode = OpenMode.APPEND if size >= node.size else OpenMode.REPLACE
        with self._leases.use(), self.open_write(path, mode) as writer:
            if mode is OpenMode.REPLACE:
                writer.keep(size)
            missing = max(size - node.size, 0)
            zeros = bytes(min(missing, _COPY_BYTES))
            for start in range(0, missing, _COPY_BYTES):
                writer.write(zeros[: missing - start])

    def rewrite(self, path: Path, data: Sequence[tuple[int, bytes]]) -> None:
        """Overwrite parts of a file, in order, as one step. Open readers keep the old content.

        Raises:
            StaleFile: The file is shorter by now.
        """
        end = max(offset + len(part) for offset, part in data)
        for attempt in range(_TRIES):
            node = self.stat(path)
            if not isinstance(node, FileNode) or node.size < end:
                raise StaleFile(
                    "another process replaced or cut this file while it was written", render(path)
                )
            try:
                with self._leases.use(), self.open_write(path) as writer:
                    writer.keep(node.size, data)
                return
            except (StaleFile, ValueError):  # others are writing to it
                if attempt == _TRIES - 1:
                    raise

    def set_mtime(self, path: Path, mtime_ns: int) -> None:
        """Set when a file was last written to, or a directory changed, in ns since 1970.

        The root keeps no times.
        """
        with self._leases.use():
            while path:
                node = (found := self.tree.find(path)).must()
                if isinstance(node, FileNode):
                    changed = layout.encode(replace(node, mtime_ns=mtime_ns))
                else:
                    changed = layout.encode(replace(node, set_mtime_ns=mtime_ns))
                key = layout.entry_key(found.parent().id, path[-1])
                if self.store.compare_and_set(key, found.record, changed) is Swap.DONE:
                    return

    def sweep(self, max_records: int) -> int:
        """Remove what nobody reads any more; see `Collector.sweep`."""
        with self._leases.use():
            return self.collector.sweep(max_records)

    def in_use(self) -> AbstractContextManager[None]:
        """Stay connected until the end of the `with` block, even while idle."""
        return self._leases.use()

    def directory(self, path: Path) -> layout.DirectoryNode:
        """Return a directory's node.

        Raises:
            PathNotDirectory: A file is there.
        """
        node = self.stat(path)
        if isinstance(node, FileNode):
            raise PathNotDirectory("this is a file", render(path))
        return node

    def _reclaim(self) -> int:
        return self.collector.sweep(_SWEPT_FOR_ROOM)
