"""Processes of this machine that outlive the one that starts them. Standard library only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_PACKAGE_PARENT = str(Path(__file__).resolve().parents[2])
_RUN_MODULE = (
    "import json, runpy, sys; path, module = sys.argv[1:3]; sys.path[:] = json.loads(path); del sys.argv[1:3]; "
    "runpy.run_module(module, run_name='__main__', alter_sys=True)"
)


def own_python(module: str, *words: str) -> list[str]:
    """Return the command that runs a module under this interpreter, as `python -m` does, for purposes of ours.

    It finds what this process finds, but for the working directory, where anybody may have left a `json.py`. The
    directory itself may be the user's: paths that are given in words and files stay relative to it.
    """
    here = os.path.realpath(os.curdir)
    path = [each for each in sys.path if each and os.path.realpath(each) != here]
    if _PACKAGE_PARENT not in path:
        path.append(_PACKAGE_PARENT)
    return [sys.executable, "-I", "-c", _RUN_MODULE, json.dumps(path), module, *words]


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
