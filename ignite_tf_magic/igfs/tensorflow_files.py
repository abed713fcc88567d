"""igfs for TensorFlow: the handler of igfs:// in `tf.io.gfile`, checkpoints, summaries and datasets."""

from __future__ import annotations

import threading
from functools import partial

from ignite_tf_magic.errors import PathExists
from ignite_tf_magic.igfs import paths
from ignite_tf_magic.igfs.addresses import cluster_of, name_of_file_system
from ignite_tf_magic.igfs.layout import DirectoryNode, FileNode
from ignite_tf_magic.igfs.reader import FileReader
from ignite_tf_magic.igfs.volume import Volume
from ignite_tf_magic.igfs.writer import FileWriter, OpenMode
from ignite_tf_magic.tfplugin.handler import Stat


class TensorFlowFiles:
    """A `tfplugin.handler.FileSystem` over the volumes that the URIs name. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._volumes: dict[tuple[str, str], Volume] = {}

    def open_read(self, uri: str) -> FileReader:
        """Open an existing file for reading."""
        volume, path = self._resolve(uri)
        return volume.open_read(path)

    def open_write(self, uri: str, *, append: bool) -> _AppendedFile:
        """Open a file to append to it, or to replace it when it is flushed or closed."""
        volume, path = self._resolve(uri)
        return _AppendedFile(volume.open_write(path, OpenMode.APPEND if append else OpenMode.REPLACE))

    def stat(self, uri: str) -> Stat:
        """Describe a file or directory."""
        volume, path = self._resolve(uri)
        node = volume.stat(path)
        size = node.size if isinstance(node, FileNode) else 0
        return Stat(size, node.mtime_ns, isinstance(node, DirectoryNode))

    def list_directory(self, uri: str) -> list[str]:
        """Return the names in a directory, sorted."""
        volume, path = self._resolve(uri)
        return sorted(name for page in volume.entries(path) for name, _ in page)

    def make_directory(self, uri: str) -> None:
        """Create one directory."""
        volume, path = self._resolve(uri)
        volume.make_directory(path)

    def make_directories(self, uri: str) -> None:
        """Create a directory and those above it."""
        volume, path = self._resolve(uri)
        volume.make_directory(path, parents=True, exist_ok=True)

    def remove_file(self, uri: str) -> None:
        """Remove a file."""
        volume, path = self._resolve(uri)
        volume.remove_file(path)

    def remove_directory(self, uri: str) -> None:
        """Remove an empty directory."""
        volume, path = self._resolve(uri)
        volume.remove_directory(path)

    def remove_tree(self, uri: str) -> None:
        """Remove a directory with its contents, as one step, or a file."""
        volume, path = self._resolve(uri)
        if isinstance(volume.stat(path), FileNode):
            volume.remove_file(path)
        else:
            volume.remove_directory(path, with_contents=True)

    def rename(self, source: str, target: str) -> None:
        """Move a file or directory as one step; a file at the target is replaced.

        Raises:
            PathExists: Source and target are in different file systems.
        """
        volume, path = self._resolve(source)
        other, target_path = self._resolve(target)
        if volume is not other:
            raise PathExists("files cannot be moved to another igfs; copy them", target)
        volume.rename(path, target_path)

    def copy(self, source: str, target: str) -> None:
        """Copy a file."""
        volume, path = self._resolve(source)
        other, target_path = self._resolve(target)
        volume.copy(path, target_path, other)

    def _resolve(self, uri: str) -> tuple[Volume, paths.Path]:
        path = paths.parse(uri)
        key = paths.split_uri(uri)[0], name_of_file_system()
        with self._lock:
            if key not in self._volumes:
                self._volumes[key] = Volume(partial(cluster_of, key[0]), key[1])
            return self._volumes[key], path


class _AppendedFile:
    """A writable file, as TensorFlow calls it."""

    def __init__(self, writer: FileWriter) -> None:
        self._writer = writer
        self._lock = threading.Lock()

    def append(self, data: memoryview) -> None:
        with self._lock:
            self._writer.write(data)

    def tell(self) -> int:
        return self._writer.tell()

    def flush(self) -> None:
        with self._lock:
            self._writer.flush()

    def sync(self) -> None:
        self.flush()

    def close(self) -> None:
        with self._lock:
            self._writer.close()
