"""The file objects that `IgfsFileSystem.open` returns."""

from __future__ import annotations

import io
import sys
from types import FrameType
from typing import Any

from ignite_tf_magic.errors import InvalidPath
from ignite_tf_magic.igfs.reader import FileReader
from ignite_tf_magic.igfs.writer import FileWriter

_PART_BYTES = 8 * 1024 * 1024
_CACHED_BYTES = 1024 * 1024


def read_between(reader: FileReader, start: int, stop: int | None) -> bytes:
    """Return the bytes up to an offset, or up to the end of a growing file; copies the content once."""
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
    """A position in a file that is read; the file object around it has its name and mode."""

    mode = "rb"

    def __init__(self, reader: FileReader, path: str) -> None:
        self._reader = reader
        self._position = 0
        self.name = path
        # Set by fsspec's "blockcache::", which keeps parts of files on this machine.
        self.cache: Any = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._reader.node.size}[whence]
        if base + offset < 0:
            raise InvalidPath(f"cannot seek to {base + offset}", self.name)
        self._position = base + offset
        return self._position

    def readinto(self, space: Any) -> int:
        view = memoryview(space).cast("B")
        if self.cache is None:
            num_bytes = self._reader.read_into(self._position, view)
        else:
            end = min(self._position + len(view), self._reader.node.size)
            data = self.cache._fetch(self._position, end) if end > self._position else b""
            num_bytes = len(data)
            view[:num_bytes] = data
        self._position += num_bytes
        return num_bytes

    def readall(self) -> bytes:
        if self.cache is not None:
            data = bytearray(max(self._reader.node.size - self._position, 0))
            return bytes(data[: self.readinto(data)])
        found = read_between(self._reader, self._position, None)
        self._position += len(found)
        return found

    def close(self) -> None:
        if not self.closed:
            self._reader.close()
        super().close()


class IgfsInput(io.BufferedReader):
    """A file open for reading, in binary.

    Attributes:
        path: Its path.
        blocksize: Bytes that fsspec's "blockcache::" fetches at once.
    """

    def __init__(self, reader: FileReader, path: str, buffer_bytes: int) -> None:
        raw = _RawInput(reader, path)
        super().__init__(raw, buffer_bytes)
        self._reader = reader
        self._raw_input = raw
        self.path = path
        self.blocksize = _CACHED_BYTES

    @property
    def size(self) -> int:
        """Bytes of the file when it was opened or last read at its end."""
        return self._reader.node.size

    @property
    def cache(self) -> Any:
        """The cache that fsspec's "blockcache::" has put between this file and the cluster."""
        return self._raw_input.cache

    @cache.setter
    def cache(self, cache: Any) -> None:
        self._raw_input.cache = cache

    @property
    def closed(self) -> bool:
        """Whether the file was closed."""
        return super().closed

    @closed.setter
    def closed(self, _: bool) -> None:
        """Ignore: fsspec's "blockcache::" sets this after it has closed the file."""

    def _fetch_range(self, start: int, end: int) -> bytes:
        return read_between(self._reader, start, end)


class IgfsOutput(io.RawIOBase):
    """A file open for writing, in binary. `flush` publishes what was written so far, `close` the rest.

    Leaving a `with` block by an exception keeps the file as it was after the last flush. This also holds for the `with`
    block of a wrapper, such as those of `fsspec.open` and pandas, which then flushes and closes this object.
    """

    def __init__(self, writer: FileWriter, path: str, mode: str, *, autocommit: bool = True) -> None:
        self._writer = writer
        self._autocommit = autocommit
        self._is_given_up = False
        self._raised_before = sys.exc_info()[1]
        self.path = self.name = path
        self.mode = mode

    def writable(self) -> bool:
        """Return True: the file can be written to."""
        return True

    def readinto(self, _: Any) -> int:
        """Raise UnsupportedOperation.

        Raises:
            UnsupportedOperation: Always, as for local files open for writing.
        """
        raise io.UnsupportedOperation("read")

    def write(self, data: Any) -> int:
        """Add all of the bytes; return their number."""
        if self._is_given_up:  # bytes that a wrapper had buffered
            return memoryview(data).nbytes
        return self._writer.write(data)

    def seekable(self) -> bool:
        """Return True.

        Text wrappers ask for the position, to write a byte order mark at the file's beginning.
        """
        return True

    def tell(self) -> int:
        """Return the size of the file with everything written."""
        return self._writer.tell()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Seek to the end, which is the current position; return it.

        Raises:
            InvalidPath: Any other position. Libraries that try, such as zipfile, then write without going back.
        """
        if (offset, whence) == (0, io.SEEK_END):
            return self.tell()
        raise _not_there(offset, self.path)

    def truncate(self, size: int | None = None) -> int:
        """Accept only the current size, and return it.

        Raises:
            InvalidPath: Any other size; `IgfsFileSystem.truncate` cuts files that are closed.
        """
        if size not in (None, self.tell()):
            raise _not_there(size or 0, self.path)
        return self.tell()

    def flush(self) -> None:
        """Publish what was written so far."""
        if self._is_failing():
            self.discard()
        if not self._writer.closed and self._autocommit:
            self._writer.flush()

    def close(self) -> None:
        """Publish the rest; in an fsspec transaction, `commit` does that."""
        if self.closed:
            return
        if self._is_failing():
            self.discard()
        try:
            if self._autocommit:
                self._writer.close()
        finally:
            self._autocommit, autocommit = False, self._autocommit
            super().close()
            self._autocommit = autocommit

    def commit(self) -> None:
        """Publish the file, at the end of an fsspec transaction."""
        self._writer.close()

    def discard(self) -> None:
        """Abandon the file, because its writer failed."""
        self._is_given_up = True
        self._writer.discard()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if error is not None:
            self.discard()
        self.close()

    def _is_failing(self) -> bool:
        """Return whether an exception is ending a `with` block in which the file was opened.

        Wrappers only close this file at their end, whatever the reason. The exception is visible only as an argument of
        their `__exit__`, so this looks for it in the frames of callers.
        """
        error = sys.exc_info()[1]
        if error is None or error is self._raised_before:
            return False
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame.f_code.co_name == "__exit__" and _is_given(error, frame):
                return True
            frame = frame.f_back
        return False


def _not_there(offset: int, path: str) -> InvalidPath:
    return InvalidPath(
        f"files in igfs are written from beginning to end, and cannot go to byte {offset}; write to an io.BytesIO or a "
        "local file, and copy it",
        path,
    )


def _is_given(error: BaseException, frame: FrameType) -> bool:
    given = frame.f_locals.values()
    return any(
        value is error or (isinstance(value, tuple) and any(v is error for v in value)) for value in given
    )


class IgfsText(io.TextIOWrapper):
    """A file open for writing text. Leaving a `with` block by an exception abandons it."""

    def __init__(self, output: Any, path: str, **options: Any) -> None:
        super().__init__(output, **options)
        self._output = output
        self.path = path

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Seek to the end, which is the current position; return it.

        Raises:
            InvalidPath: Any other position.
        """
        end = self.tell()
        if (offset, whence) not in ((end, io.SEEK_SET), (0, io.SEEK_CUR), (0, io.SEEK_END)):
            raise _not_there(offset, self.path)
        return end

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if error is not None:
            self._output.discard()
        self.close()


class CompressedOutput(io.BufferedIOBase):
    """A file open for writing through one of fsspec's compressors, which leave the underlying file open."""

    def __init__(self, output: IgfsOutput, compressor: Any) -> None:
        self._output = output
        self._compressor = compressor

    def writable(self) -> bool:
        """Return True: the file can be written to."""
        return True

    def seekable(self) -> bool:
        """Return whether the compressor knows its position."""
        return bool(self._compressor.seekable())

    def tell(self) -> int:
        """Return the number of bytes written, before compression."""
        return int(self._compressor.tell())

    def write(self, data: Any) -> int:
        """Add all of the bytes; return their number."""
        self._compressor.write(data)
        return memoryview(data).nbytes

    def close(self) -> None:
        """Publish the file."""
        if not self.closed:
            try:
                self._compressor.close()
            finally:
                super().close()
                self._output.close()

    def discard(self) -> None:
        """Abandon the file."""
        self._output.discard()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if error is not None:
            self.discard()
        self.close()
