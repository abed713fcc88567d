"""Records where a run's code came from: the git commit of its start directory, and versions on this machine."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path
from shutil import which

from ignite_tf_magic.version import __version__

_GIT_S = 2.0
_MARK_CHARS = 12


def made_with(directory: Path) -> dict[str, str]:
    """Return versions, and the git commit of the directory, if any; "(changed)" marks uncommitted changes."""
    found = {"ignite_tf_magic": __version__, "python": platform.python_version()}
    if (commit := _commit(directory)) is not None:
        found["git"] = commit
    return found


def _commit(directory: Path) -> str | None:
    if not any((each / ".git").exists() for each in (directory, *directory.parents)) or which("git") is None:
        return None
    head = _git(directory, "rev-parse", "HEAD")
    if not head:
        return None
    status = _git(directory, "status", "--porcelain", "--untracked-files=no", "--ignore-submodules=all")
    return head[:_MARK_CHARS] + (" (changed)" if status else "")


def _git(directory: Path, *words: str) -> str | None:
    """Run git without hooks and locks. Filters in the repository's settings run, as with any `git status`."""
    argv = [
        "git",
        "--no-optional-locks",
        "-c",
        "core.fsmonitor=false",
        "-c",
        "core.hooksPath=/dev/null",
        "-C",
        str(directory),
        *words,
    ]
    try:
        done = subprocess.run(argv, capture_output=True, timeout=_GIT_S, check=False, text=True)
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
