"""Defines the protocol of a file system for TensorFlow.

Every path is the complete URI that TensorFlow was passed: "igfs:///a/b" or "igfs://host:10800/a". Handlers
and their files are called from many threads at once, including TensorFlow's own, and in forked child
processes. They raise ordinary errors: FileNotFoundError, FileExistsError, IsADirectoryError,
NotADirectoryError, PermissionError, OSError with ENOTEMPTY, ENOSPC or ESTALE, ConnectionError,
TimeoutError, ValueError, NotImplementedError. `codes` maps them to TensorFlow's status codes.

A TensorFlow thread is a new Python thread at each call, so threading.local keeps nothing from one call to
the next. TensorFlow reads through buffers of 256 KiB or more, and passes every small write on unbuffered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Stat:
    """The properties of a path.

    Attributes:
        length: Size in bytes; 0 for a directory.
        mtime_ns: Last change, in nanoseconds since 1970.
        is_directory: Whether it is a directory; a file otherwise.
    """

    length: int
    mtime_ns: int
    is_directory: bool


class ReadFile(Protocol):
    """A file open for reading. Several threads read it at once."""

    def read_into(self, offset: int, space: memoryview) -> int:
        """Read bytes from `offset` on into `space`, which is writable, and valid only during the call.

        Returns:
            The number of bytes read. It is less than the size of `space` only if the file ends there at
            present, and 0 at its end.
        """
        ...

    def close(self) -> None:
        """Release the file. Called once, after the last read in any thread has ended."""
        ...


class WriteFile(Protocol):
    """A file open for writing. Calls do not overlap, and `close` is the last one."""

    def append(self, data: memoryview) -> None:
        """Append all of `data`, which is read-only, and valid only during the call."""
        ...

    def tell(self) -> int:
        """Return the position of the next byte, counted from the beginning of the file."""
        ...

    def flush(self) -> None:
        """Make the appended data visible to readers."""
        ...

    def sync(self) -> None:
        """Block until the appended data would survive a crash."""
        ...

    def close(self) -> None:
        """Complete the file. Called once, but not if the process ends with the file open."""
        ...


class FileSystem(Protocol):
    """A file system with the operations that TensorFlow needs."""

    def open_read(self, uri: str) -> ReadFile:
        """Open an existing file."""
        ...

    def open_write(self, uri: str, *, append: bool) -> WriteFile:
        """Open a file for writing, and create it if missing. Its content is replaced without `append`."""
        ...

    def stat(self, uri: str) -> Stat:
        """Return the properties of a file or directory; raise FileNotFoundError if it does not exist."""
        ...

    def list_directory(self, uri: str) -> list[str]:
        """Return the names, not the paths, in a directory."""
        ...

    def make_directory(self, uri: str) -> None:
        """Create one directory, whose parent must exist."""
        ...

    def make_directories(self, uri: str) -> None:
        """Create a directory and its parents. No error if it exists."""
        ...

    def remove_file(self, uri: str) -> None:
        """Remove a file."""
        ...

    def remove_directory(self, uri: str) -> None:
        """Remove an empty directory."""
        ...

    def remove_tree(self, uri: str) -> None:
        """Remove a directory and all its contents."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Move a file or directory atomically, replacing a file at `target`."""
        ...

    def copy(self, source: str, target: str) -> None:
        """Copy a file, replacing a file at `target`."""
        ...
