"""Writes files that a reader sees either whole or not at all. Standard library only."""

from __future__ import annotations

import ctypes
import os
import secrets
from pathlib import Path


def write_private(path: Path, text: str) -> None:
    """Replace a file with one that only its owner can read. A reader sees the whole old or new content."""
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def sync_disk(path: Path) -> None:
    """Flush all writes to the file system of a directory.

    Call it before renaming a new tree to its final name. The agent has its own version in `launch.agent.disk`.
    """
    try:
        call = ctypes.CDLL(None, use_errno=True).syncfs
    except (OSError, AttributeError, TypeError):  # not Linux
        if hasattr(os, "sync"):
            os.sync()
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if call(descriptor) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
    finally:
        os.close(descriptor)


def stamp_of(path: Path) -> tuple[int, ...]:
    """Return a stamp that differs if the file has changed or another file has replaced it.

    Raises:
        FileNotFoundError: The file does not exist.
    """
    status = path.stat()
    return status.st_ino, status.st_mtime_ns, status.st_size
