"""Builds a virtual environment on a host. Standard library only, for Python 3.8 and later: it is sent there alone.

Run by the interpreter on which the environment is to stand, in a directory with ORDER:

    target         where the environment is to be
    requirements   a file
    wheels         a directory to be used instead of a package index, or null
    uv             programs to try; without one that works pip does it
    extras         [requirement, module] pairs: what is added when the module is missing
    needs_extras   whether the environment is of no use without them

Exit codes: 0, it is there; NO_INDEX, no package index could be reached, and HOST_FILE tells for what kind of host
wheels would have to be brought. After anything else the last lines of the output say why.
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
# What uv and pip say when nothing answers; an index that answers "there is no such package" is another matter.
_SILENCE = re.compile(
    r"error sending request|dns error|tcp connect error|client error \(Connect\)|Connection refused|"
    r"Network is unreachable|Temporary failure in name resolution|Name or service not known|No route to host|"
    r"NewConnectionError|ConnectTimeoutError|operation timed out|Network connectivity is disabled"
)
# Where no index answers, the wheels come another way: it need not be asked for long.
_TEMPERATE = {"UV_HTTP_RETRIES": "1"}
_STALE_S = 86400.0
_MAX_SCRIPT_BYTES = 1 << 20


class Failed(Exception):
    """A step ended with another exit code than 0."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(words)
        self.code = code
        self.is_silence = _SILENCE.search(words) is not None


def main() -> int:
    """Build what the order says, unless it is there."""
    import fcntl

    with open(ORDER, encoding="utf-8") as file:
        order = json.load(file)
    folder, name = os.path.split(order["target"])
    os.makedirs(folder, 0o700, exist_ok=True)
    with open(f"{folder}/.{name}.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            _say("another run is building the same environment; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        if is_there(order["target"]):
            _say("the environment has just been built by another run")
            return 0
        try:
            build(order, f"{folder}/.{name}.part")
        except Failed as failed:
            if failed.is_silence and not order["wheels"]:
                _describe_host()
                return NO_INDEX
            return int(failed.code)
    _remove_stale(os.path.dirname(os.getcwd()))
    return 0


def is_there(target: str) -> bool:
    """Tell whether an environment is complete, and its interpreter still starts."""
    python = f"{target}/bin/python"
    try:
        return (
            subprocess.run([python, "-I", "-c", ""], check=False, stderr=subprocess.DEVNULL).returncode == 0
        )
    except OSError:
        return False


def build(order: dict[str, Any], part: str) -> None:
    """Build an environment beside its place, then move it there in one step."""
    began = time.monotonic()
    _remove(part)
    uv = next((each for each in order["uv"] if _works(each)), None)
    _say(f"building the environment with {'uv' if uv else 'pip'}")
    if uv:
        _run([uv, "venv", "--quiet", "--python", sys.executable, part])
    else:
        _run([sys.executable, "-m", "venv", part])
    _install(uv, part, ["-r", order["requirements"]], order["wheels"])
    for requirement, module in order["extras"]:
        if not _has(part, module):
            _add(uv, part, requirement, order)
    _rename_inside(part, order["target"])
    _remove(order["target"])
    os.rename(part, order["target"])
    _say(f"the environment is ready after {time.monotonic() - began:.1f} s")


def _install(uv: str | None, part: str, what: list[str], wheels: str | None, *, tells: bool = True) -> None:
    offline = ["--no-index", "--find-links", wheels] if wheels else []
    python = f"{part}/bin/python"
    if uv:
        _run([uv, "pip", "install", "--python", python, *offline, *what], tells=tells)
    else:
        options = ["--disable-pip-version-check", "--no-input", "--retries", "1", "--quiet"]
        _run([python, "-m", "pip", "install", *options, *offline, *what], tells=tells)


def _add(uv: str | None, part: str, requirement: str, order: dict[str, Any]) -> None:
    try:
        _install(uv, part, [requirement], order["wheels"], tells=order["needs_extras"])
    except Failed:
        if order["needs_extras"]:
            _say(f"{requirement} is needed beside what was asked for, and cannot be had")
            raise
        _say(f"note: there is no {requirement}, without which workers cannot read caches")


def _has(part: str, module: str) -> bool:
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return subprocess.run([f"{part}/bin/python", "-I", "-c", code], check=False).returncode == 0


def _works(uv: str) -> bool:
    try:
        return subprocess.run([uv, "--version"], check=False, capture_output=True).returncode == 0
    except OSError:
        return False


def _run(command: list[str], *, tells: bool = True) -> None:
    """Run a program, and pass its words on, line by line, when it is to tell.

    Raises:
        Failed: It ended with another code than 0.
    """
    env = {**_TEMPERATE, **os.environ, "UV_PYTHON_DOWNLOADS": "never", "UV_NO_PROGRESS": "1", "NO_COLOR": "1"}
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env
    )
    words = b""
    for line in child.stdout or ():
        words += line
        if tells and not line.startswith(b"Using Python"):
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
    if child.wait():
        raise Failed(child.returncode if child.returncode > 0 else 1, words.decode(errors="replace"))


def _rename_inside(part: str, target: str) -> None:
    """Let scripts and settings that name the place of the building name the place where it will be."""
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
    """Write down for what host wheels would have to be chosen."""
    libc = os.confstr("CS_GNU_LIBC_VERSION") if "CS_GNU_LIBC_VERSION" in os.confstr_names else None
    facts = {"platform": sysconfig.get_platform(), "version": list(sys.version_info[:2]), "libc": libc}
    with open(HOST_FILE, "w", encoding="utf-8") as file:
        json.dump(facts, file)


def _remove_stale(runs: str) -> None:
    """Remove what is left of builds whose callers were lost."""
    for name in os.listdir(runs):
        path = f"{runs}/{name}"
        if name.startswith("env-") and time.time() - os.lstat(path).st_mtime > _STALE_S:
            _remove(path)


def _remove(path: str) -> None:
    if os.path.lexists(path):
        shutil.rmtree(path, ignore_errors=True)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
