"""Private files that a reader sees whole or not at all. Standard library only."""

from __future__ import annotations

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


def stamp_of(path: Path) -> tuple[int, ...]:
    """Tell a file from one that has replaced it, or from itself when it has changed.

    Raises:
        FileNotFoundError: There is none.
    """
    status = path.stat()
    return status.st_ino, status.st_mtime_ns, status.st_size
