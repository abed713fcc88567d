"""Files that only their user may read, or write: what keeps a neighbour on the machine out."""

from __future__ import annotations

import os
from pathlib import Path

from ignite_tf_magic.errors import ConfigError


def check_private(path: Path) -> None:
    """Raise ConfigError when others than its owner may read a file with a password."""
    if os.name == "posix" and path.stat().st_mode & 0o077:
        raise ConfigError(f"{path} holds a password and others may read it; run: chmod 600 {path}")


def check_own(path: Path) -> None:
    """Refuse a file that was found, not named, and that another user may have put there: it says what is run.

    Raises:
        ConfigError: It is another user's, or others may write it.
    """
    if os.name != "posix":
        return
    status, place = path.stat(), path.parent.stat()
    if status.st_mode & 0o002:
        raise ConfigError(
            f"others may write {path}, which decides what runs on which hosts; run: chmod go-w {path}"
        )
    # The owner of everything works in directories of others; but not where anybody may leave a file.
    is_at_home = os.getuid() == 0 and not place.st_mode & 0o002
    if status.st_uid not in (0, os.getuid()) and not is_at_home:
        raise ConfigError(
            f"{path} is another user's, and decides what runs on which hosts; to use it nevertheless: -c {path}"
        )
