"""Checks that other users of the machine can neither read nor write a user's private files."""

from __future__ import annotations

import os
from pathlib import Path

from ignite_tf_magic.errors import ConfigError


def check_private(path: Path) -> None:
    """Raise ConfigError if a file with a password is accessible to others than its owner."""
    if os.name == "posix" and path.stat().st_mode & 0o077:
        raise ConfigError(f"{path} holds a password and others may read it; run: chmod 600 {path}")


def check_own(path: Path) -> None:
    """Reject a configuration file that another user may have written, because it decides what runs.

    This is for a file that was found, not for one that the user named.

    Raises:
        ConfigError: The file belongs to another user, or others can write to it.
    """
    if os.name != "posix":
        return
    status, place = path.stat(), path.parent.stat()
    if status.st_mode & 0o002:
        raise ConfigError(
            f"others may write {path}, which decides what runs on which hosts; run: chmod go-w {path}"
        )
    # root may use files in other users' directories, but not in a directory where anybody can create a file.
    is_at_home = os.getuid() == 0 and not place.st_mode & 0o002
    if status.st_uid not in (0, os.getuid()) and not is_at_home:
        raise ConfigError(
            f"{path} is another user's, and decides what runs on which hosts; to use it nevertheless: -c {path}"
        )
