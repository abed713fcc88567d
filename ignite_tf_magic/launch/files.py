"""Files that a reader sees whole or not at all. Standard library only."""

from __future__ import annotations

import ctypes
import os
import secrets
from pathlib import Path


def write_private(path: Path, text: str) -> None:
    """Replace a file by one that only its owner can read; a reader sees the old or the new one whole."""
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
    """Have all that was written to the disk of a directory reach it, before a tree there gets its name.

    Agents have their own (`launch.agent.disk`).
    """
    try:
        call = ctypes.CDLL(None, use_errno=True).syncfs
    except (OSError, AttributeError, TypeError):  # no Linux
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
    """Tell a file from one that has replaced it, or from itself when it has changed.

    Raises:
        FileNotFoundError: There is none.
    """
    status = path.stat()
    return status.st_ino, status.st_mtime_ns, status.st_size
