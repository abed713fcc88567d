"""The protocol of a file system that is offered to TensorFlow.

Every path is the whole URI as TensorFlow got it: "igfs:///a/b" or "igfs://host:10800/a". Handlers and
their files are called from many threads at once, TensorFlow's own among them, and in forked children.
They raise ordinary errors: FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError,
PermissionError, OSError with ENOTEMPTY, ENOSPC or ESTALE, ConnectionError, TimeoutError, ValueError,
NotImplementedError. `codes` says what each of them means to TensorFlow.

A thread of TensorFlow is a new Python thread at each call: threading.local keeps nothing from one call to
the next. TensorFlow reads through buffers of 256 KiB and more, and passes every small write on as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Stat:
    """What is known of a path.

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
        """Put bytes from `offset` on into `space`, which is writable and valid during the call only.

        Returns:
            How many bytes; fewer than asked only at the end of the file as it is now, 0 at its end.
        """
        ...

    def close(self) -> None:
        """Release it; called once, when no thread reads any more."""
        ...


class WriteFile(Protocol):
    """A file open for writing. Calls follow each other; `close` is the last one."""

    def append(self, data: memoryview) -> None:
        """Take all of `data`, which is read-only and valid during the call only."""
        ...

    def tell(self) -> int:
        """Return the position of the next byte, counted from the beginning of the file."""
        ...

    def flush(self) -> None:
        """Let readers see what was appended."""
        ...

    def sync(self) -> None:
        """Return when what was appended survives a crash."""
        ...

    def close(self) -> None:
        """Make the file whole; called once. Not called when the process ends with the file open."""
        ...


class FileSystem(Protocol):
    """A file system as TensorFlow needs it."""

    def open_read(self, uri: str) -> ReadFile:
        """Open an existing file."""
        ...

    def open_write(self, uri: str, *, append: bool) -> WriteFile:
        """Open a file to be replaced, or continued with `append`; created when missing."""
        ...

    def stat(self, uri: str) -> Stat:
        """Describe a file or directory; FileNotFoundError when there is none."""
        ...

    def list_directory(self, uri: str) -> list[str]:
        """Return the names, not the paths, in a directory."""
        ...

    def make_directory(self, uri: str) -> None:
        """Create one directory; its parent exists."""
        ...

    def make_directories(self, uri: str) -> None:
        """Create a directory and its parents; no error when it exists."""
        ...

    def remove_file(self, uri: str) -> None:
        """Remove a file."""
        ...

    def remove_directory(self, uri: str) -> None:
        """Remove an empty directory."""
        ...

    def remove_tree(self, uri: str) -> None:
        """Remove a directory and all that is in it."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Move a file or directory in one atomic step; a file at `target` is replaced."""
        ...

    def copy(self, source: str, target: str) -> None:
        """Copy a file; a file at `target` is replaced."""
        ...
