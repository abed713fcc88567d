"""A file that is open in a mount: what one handle reads, and what all handles of a path write."""

from __future__ import annotations

import os
import threading
import time

from ignite_tf_magic.errors import StaleFile
from ignite_tf_magic.igfs.block_writer import overlay
from ignite_tf_magic.igfs.paths import Path, render
from ignite_tf_magic.igfs.reader import FileReader
from ignite_tf_magic.igfs.volume import Volume
from ignite_tf_magic.igfs.writer import FileWriter, OpenMode

_ZEROS = bytes(1024 * 1024)
# Limit for bytes written before the end of a file; more is published at once.
_MAX_REWRITTEN_BYTES = 4 * 1024 * 1024


class Written:
    """The unpublished writes to a path in the mount. Callers must hold `lock`.

    Data appended to the end goes to the cluster as it arrives; data written before the end is kept in memory.
    """

    def __init__(self, volume: Volume, path: Path) -> None:
        self._volume = volume
        self.path = path
        self.lock = threading.RLock()
        self.num_handles = 0
        self.is_removed = False
        self.mtime_ns = 0
        self._writer: FileWriter | None = None
        self._has_added = False
        self._rewritten: list[tuple[int, bytes]] = []

    @property
    def has_unpublished(self) -> bool:
        """Whether there is data that others do not see yet."""
        return self._has_added or bool(self._rewritten)

    @property
    def size(self) -> int:
        """Bytes of the file with its unpublished appends; 0 if there are none."""
        writer = self._writer
        return writer.tell() if writer is not None and self._has_added else 0

    def write(self, data: bytes, offset: int | None) -> bool:
        """Write at an offset, or at the end if it is None; a hole is filled with zeros.

        Returns:
            Whether readers must reopen the file, because much data was kept in memory and has been published now.

        Raises:
            StaleFile: The file was removed.
        """
        writer = self._open()
        size = writer.tell()
        start = size if offset is None else offset
        self.mtime_ns = time.time_ns()
        is_published = False
        if start < size:
            self._rewritten.append((start, data[: size - start]))
            if sum(len(part) for _, part in self._rewritten) > _MAX_REWRITTEN_BYTES:
                is_published = self.publish()
                writer = self._open()
            data, start = data[size - start :], size
        if data:
            self._has_added = True
            for begin in range(size, start, len(_ZEROS)):
                writer.write(_ZEROS[: start - begin])
            writer.write(data)
        return is_published

    def overlay(self, data: bytearray, offset: int) -> None:
        """Write the data kept in memory over what was read."""
        overlay(data, offset, self._rewritten)

    def publish_added(self) -> bool:
        """Publish what was appended to the end; return whether there was anything."""
        if self._writer is None or not self._has_added:
            return False
        self._writer.flush()
        self._has_added = False
        return True

    def publish(self) -> bool:
        """Publish everything; return whether readers must reopen the file.

        They must if bytes before the end have changed.
        """
        self.publish_added()
        if not self._rewritten:
            return False
        self._close_writer()
        self._volume.rewrite(self.path, self._rewritten)
        self._rewritten = []
        return True

    def forget(self) -> None:
        """Discard what was not published, because the file was replaced or removed."""
        self._rewritten, self._has_added = [], False
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.discard()

    def _open(self) -> FileWriter:
        if self.is_removed:
            raise StaleFile("the file was removed while it was open", render(self.path))
        if self._writer is None:
            self._writer = self._volume.open_write(self.path, OpenMode.APPEND)
        return self._writer

    def _close_writer(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def close(self) -> None:
        """Publish everything when the last handle is closed."""
        if self.is_removed:
            self.forget()
            return
        try:
            self.publish()
        finally:
            self._close_writer()


class Handle:
    """A handle of a file in the mount. Callers must hold `lock`."""

    def __init__(self, volume: Volume, path: Path, flags: int) -> None:
        self._volume = volume
        self.path = path
        self.writes = flags & os.O_ACCMODE != os.O_RDONLY
        self.appends = bool(flags & os.O_APPEND)
        self.lock = threading.RLock()
        self._reader: FileReader | None = None if self.writes else volume.open_read(path)

    def read(self, size: int, offset: int) -> bytearray:
        """Read the content that the file had when it was opened, and what was appended and published since."""
        if self._reader is None:
            self._reader = self._volume.open_read(self.path)
        data = bytearray(size)
        num_bytes = self._reader.read_into(offset, memoryview(data))
        del data[num_bytes:]
        return data

    def forget_content(self) -> None:
        """Reopen the file at the next read, because its content or path has changed."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()
