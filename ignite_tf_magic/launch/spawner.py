"""Processes of this machine that outlive the one that starts them. Standard library only."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def spawn(argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], output: Path) -> subprocess.Popen[bytes]:
    """Start a process in a group of its own, which no Ctrl-C of ours reaches; returns without waiting for it.

    Args:
        argv: Program and arguments; no shell reads them. Never holds a secret: any user may list it.
        cwd: Its directory.
        env: Its whole environment.
        output: File to which its standard output and error are appended; made readable by its owner only.

    Raises:
        OSError: It cannot be started, or its output cannot be written.
    """
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        return subprocess.Popen(
            list(argv),
            cwd=cwd,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=subprocess.STDOUT,
            **_own_group(),
        )
    finally:
        os.close(descriptor)


def _own_group() -> dict[str, Any]:
    if sys.platform == "win32":
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
    return {"start_new_session": True}
