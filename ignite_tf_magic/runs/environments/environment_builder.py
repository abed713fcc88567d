"""Builds a virtual environment on a host. Standard library only, for Python 3.8 and later: only this file is sent.

The interpreter that the environment is based on runs it, in a separate directory that contains ORDER:

    target         path of the environment
    requirements   a file
    added          names of packages to install in addition, in any version
    wheels         a directory to use instead of a package index, or null
    uv             path of the program, or null; if it is missing or does not work, pip is used

Everything is built in that directory and moved to its place in one step, so removing the directory removes all
incomplete parts. Exit codes: 0 if the environment is ready; NO_INDEX if no package index could be reached. HOST_FILE
then describes the host for choosing wheels. After any other code, the last lines of the output say what failed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ORDER, HOST_FILE = "order.json", "host.json"
NO_INDEX = 69  # EX_UNAVAILABLE
# Build directories have names of this prefix and some random bytes in hex.
RUN_PREFIX, NUM_RUN_BYTES = "env-", 4
# Messages of uv and pip if no index answers. An index that answers "there is no such package" is a different error.
_SILENCE = re.compile(
    r"error sending request|dns error|tcp connect error|client error \(Connect\)|Connection refused|"
    r"Network is unreachable|Temporary failure in name resolution|Name or service not known|No route to host|"
    r"NewConnectionError|ConnectTimeoutError|operation timed out|network was disabled"
)
# Few retries: if no index answers, the wheels are sent to the host instead.
_TEMPERATE = {"UV_HTTP_RETRIES": "1", "PIP_RETRIES": "1"}
_STALE_S = 86400.0
_MAX_SCRIPT_BYTES = 1 << 20


class Failed(Exception):
    """A step ended with a nonzero exit code."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(words)
        self.code = code
        self.is_silence = _SILENCE.search(words) is not None


def main() -> int:
    """Build the environment of the order, unless it exists."""
    import fcntl

    with open(ORDER, encoding="utf-8") as file:
        order = json.load(file)
    folder = os.path.dirname(order["target"])
    os.makedirs(folder, 0o700, exist_ok=True)
    with open(f"{folder}/.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("another environment is being built there; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        if is_there(order["target"]):
            return 0  # another run has just built it
        try:
            build(order)
        except Failed as failed:
            if failed.is_silence and not order["wheels"]:
                _describe_host()
                return NO_INDEX
            return int(failed.code)
        finally:
            _remove_stale(os.path.dirname(os.getcwd()))
    return 0


def is_there(target: str) -> bool:
    """Return whether an environment exists, belongs to this user or root, and its interpreter still starts."""
    return _is_ours(target) and _works([f"{target}/bin/python", "-I", "-c", ""])


def _is_ours(target: str) -> bool:
    """Return whether all its files belong to this user or root, so that no other account has planted anything."""
    trusted = (0, os.getuid())
    paths = [target]
    for folder, folders, files in os.walk(target):
        paths += [f"{folder}/{name}" for name in folders + files]
    return os.path.isdir(target) and all(os.lstat(path).st_uid in trusted for path in paths)


def build(order: dict[str, Any]) -> None:
    """Build an environment here, then move it to its place in one step."""
    began = time.monotonic()
    part = f"{os.getcwd()}/venv"
    uv = order["uv"] if order["uv"] and _works([order["uv"], "--version"]) else None
    _say(f"building the environment with {'uv' if uv else 'pip'}")
    if uv:
        _run([uv, "venv", "--quiet", "--python", sys.executable, part])
        install = [uv, "pip", "install", "--python", f"{part}/bin/python"]
    else:
        _run([sys.executable, "-I", "-m", "venv", part])
        install = [f"{part}/bin/python", "-I", "-m", "pip", "install", "--quiet"]
        install += ["--disable-pip-version-check", "--no-input"]
    if order["wheels"]:
        install += ["--no-index", "--find-links", order["wheels"]]
    _run([*install, "-r", order["requirements"]])
    _run([*install, *order["added"]])  # does nothing for packages that are already installed
    _rename_inside(part, order["target"])
    shutil.rmtree(order["target"], ignore_errors=True)  # an environment that no longer works
    _sync(part)  # after a power cut, the environment must not exist with empty files
    os.rename(part, order["target"])
    _say(f"the environment is ready after {time.monotonic() - began:.1f} s")


def _sync(path: str) -> None:
    """Flush the file system of a directory to disk. An agent's `sync_disk` is not available here."""
    import ctypes

    descriptor = os.open(path, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
    except AttributeError:  # not on macOS
        os.sync()
    finally:
        os.close(descriptor)


def _works(command: list[str]) -> bool:
    try:
        return subprocess.run(command, check=False, capture_output=True).returncode == 0
    except OSError:
        return False


def _run(command: list[str]) -> None:
    """Run a program and print its output line by line.

    Raises:
        Failed: It ended with a nonzero exit code.
    """
    env = {**_TEMPERATE, **os.environ, "UV_PYTHON_DOWNLOADS": "never", "UV_NO_PROGRESS": "1", "NO_COLOR": "1"}
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env
    )
    words = b""
    for line in child.stdout or ():
        words += line
        if not line.startswith((b"Using Python", b"Audited")):
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
    if child.wait():
        raise Failed(child.returncode if child.returncode > 0 else 1, words.decode(errors="replace"))


def _rename_inside(part: str, target: str) -> None:
    """Replace the path of the build directory by the final path in scripts and settings."""
    folder = f"{part}/bin"
    for path in [f"{part}/pyvenv.cfg", *(f"{folder}/{name}" for name in os.listdir(folder))]:
        if os.path.islink(path) or not os.path.isfile(path) or os.path.getsize(path) > _MAX_SCRIPT_BYTES:
            continue
        with open(path, "rb") as file:
            content = file.read()
        if part.encode() in content:
            with open(path, "wb") as file:
                file.write(content.replace(part.encode(), target.encode()))


def _describe_host() -> None:
    """Write the facts about this host that are needed to choose wheels for it."""
    libc = os.confstr("CS_GNU_LIBC_VERSION") if "CS_GNU_LIBC_VERSION" in os.confstr_names else None
    facts = {"platform": sysconfig.get_platform(), "version": list(sys.version_info[:2]), "libc": libc}
    with open(HOST_FILE, "w", encoding="utf-8") as file:
        json.dump(facts, file)


def _remove_stale(runs: str) -> None:
    """Remove the directories of old builds whose callers were lost."""
    name_of_build = re.compile(f"{RUN_PREFIX}[0-9a-f]{{{2 * NUM_RUN_BYTES}}}")
    for entry in os.scandir(runs):
        if not name_of_build.fullmatch(entry.name):
            continue
        try:
            is_stale = time.time() - entry.stat(follow_symlinks=False).st_mtime > _STALE_S
        except FileNotFoundError:  # its caller has just removed it
            continue
        if is_stale:
            shutil.rmtree(entry.path, ignore_errors=True)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
