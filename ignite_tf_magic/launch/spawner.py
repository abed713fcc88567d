"""Starts processes on this machine that outlive their parent. Standard library only."""

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
    """Return the command that runs one of our modules under this interpreter, like `python -m`.

    The module search path is that of this process without the working directory, where a stray `json.py` could
    shadow the standard library. The command may still run in a user's directory, against which relative paths in
    `words` and in files resolve.
    """
    here = os.path.realpath(os.curdir)
    path = [each for each in sys.path if each and os.path.realpath(each) != here]
    if _PACKAGE_PARENT not in path:
        path.append(_PACKAGE_PARENT)
    return [sys.executable, "-I", "-c", _RUN_MODULE, json.dumps(path), module, *words]


def spawn(argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], output: Path) -> subprocess.Popen[bytes]:
    """Start a process in its own group, out of reach of our Ctrl-C, and return without waiting for it.

    Args:
        argv: Program and arguments, without a shell. Must not hold a secret: any user can list it.
        cwd: Its working directory.
        env: Its whole environment.
        output: File to which its standard output and error are appended. Created readable by its owner only.

    Raises:
        OSError: The process cannot be started, or `output` cannot be opened.
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
